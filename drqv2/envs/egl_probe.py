"""A script that exits with 0 where a headless EGL display with desktop OpenGL is available, else with 1.

It runs in a process of its own: a bad driver may crash, and EGL has one display for the whole process, which opening
and closing it here would close for other users. It imports nothing outside the standard library.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint32, c_void_p
from typing import Any

_PLATFORM_DEVICE = 0x313F
_OPENGL_API = 0x30A2
# What mujoco's contexts need and a driver may lack: a pbuffer surface, desktop OpenGL, 24 bits of depth.
_CONFIG = (c_int32 * 7)(0x3033, 0x0001, 0x3040, 0x0008, 0x3025, 24, 0x3038)


def load(*names: str) -> ctypes.CDLL | None:
    """Return the first of these libraries that is installed."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue  # not installed under this name
    return None


def works() -> bool:
    """Return whether the first display that starts has desktop OpenGL: dm_control will take that one.

    Tries every device, or MUJOCO_EGL_DEVICE_ID alone when it is set.
    """
    egl = load("libEGL.so.1", "libEGL.so")
    if egl is None or load("libOpenGL.so.0", "libGL.so.1", "libGL.so") is None:
        return False
    egl.eglGetProcAddress.restype = c_void_p
    egl.eglGetProcAddress.argtypes = [c_char_p]
    egl.eglInitialize.argtypes = [c_void_p, c_void_p, c_void_p]
    egl.eglChooseConfig.argtypes = [c_void_p, c_void_p, c_void_p, c_int32, POINTER(c_int32)]

    def extension(name: str, result: Any, *arguments: Any) -> Any:
        address = egl.eglGetProcAddress(name.encode())
        return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None

    query = extension("eglQueryDevicesEXT", c_uint32, c_int32, c_void_p, POINTER(c_int32))
    get_display = extension("eglGetPlatformDisplayEXT", c_void_p, c_uint32, c_void_p, c_void_p)
    if query is None or get_display is None:
        return False
    devices, found = (c_void_p * 16)(), c_int32()
    if not query(len(devices), devices, byref(found)):
        return False
    candidates = list(devices)[: found.value]
    chosen = os.environ.get("MUJOCO_EGL_DEVICE_ID", "")
    if chosen.isdigit():
        candidates = candidates[int(chosen) : int(chosen) + 1]
    for device in candidates:
        display = get_display(_PLATFORM_DEVICE, device, None)
        if display and egl.eglInitialize(display, None, None):
            config, count = c_void_p(), c_int32()
            fits = egl.eglBindAPI(_OPENGL_API) and egl.eglChooseConfig(display, _CONFIG, byref(config), 1, byref(count))
            return bool(fits) and count.value > 0
    return False


if __name__ == "__main__":
    os._exit(0 if works() else 1)  # skips the driver's own cleanup, which may crash
