"""Which OpenGL draws off-screen. Decided before mujoco and dm_control are imported, which read it once and for all.

The user's MUJOCO_GL if set; else EGL (a GPU's, or Mesa's software) where it works; else OSMesa where it is installed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint32, c_void_p
from typing import Any

from drqv2.errors import UserError

APT_PACKAGES = ("libegl1", "libgl1", "libgl1-mesa-dri")
_EGL_PLATFORM_DEVICE_EXT = 0x313F
_EGL_OPENGL_API = 0x30A2
# Pairs that any context of mujoco's asks for: a pbuffer surface, desktop OpenGL, 24 bits of depth.
_CONFIG = (c_int32 * 7)(0x3033, 0x0001, 0x3040, 0x0008, 0x3025, 24, 0x3038)


def _load(*names: str) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue  # not installed under this name
    return None


def _egl_function(egl: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    address = egl.eglGetProcAddress(name.encode())
    return ctypes.CFUNCTYPE(result, *arguments)(address) if address else None


def egl_works() -> bool:
    """Return whether a headless EGL display with desktop OpenGL can be had here.

    Tries the devices that dm_control will try (MUJOCO_EGL_DEVICE_ID alone when it is set), and shuts each display
    down again, so that nothing of the trial is left.
    """
    egl = _load("libEGL.so.1", "libEGL.so")
    if egl is None or _load("libOpenGL.so.0", "libGL.so.1", "libGL.so") is None:
        return False
    egl.eglGetProcAddress.restype = c_void_p
    egl.eglGetProcAddress.argtypes = [c_char_p]
    query = _egl_function(egl, "eglQueryDevicesEXT", c_uint32, c_int32, c_void_p, POINTER(c_int32))
    get_display = _egl_function(egl, "eglGetPlatformDisplayEXT", c_void_p, c_uint32, c_void_p, c_void_p)
    if query is None or get_display is None:
        return False
    egl.eglInitialize.argtypes = [c_void_p, c_void_p, c_void_p]
    egl.eglChooseConfig.argtypes = [c_void_p, c_void_p, c_void_p, c_int32, POINTER(c_int32)]
    egl.eglTerminate.argtypes = [c_void_p]
    devices, found = (c_void_p * 16)(), c_int32()
    if not query(len(devices), devices, byref(found)):
        return False
    candidates = list(devices)[: found.value]
    chosen = os.environ.get("MUJOCO_EGL_DEVICE_ID", "")
    if chosen.isdigit():
        candidates = candidates[int(chosen) : int(chosen) + 1]
    for device in candidates:
        display = get_display(_EGL_PLATFORM_DEVICE_EXT, device, None)
        if not display or not egl.eglInitialize(display, None, None):
            continue
        config, count = c_void_p(), c_int32()
        usable = egl.eglBindAPI(_EGL_OPENGL_API) and egl.eglChooseConfig(
            display, _CONFIG, byref(config), 1, byref(count)
        )
        egl.eglTerminate(display)
        return bool(usable) and count.value > 0  # dm_control takes the first display that initialises
    return False


def osmesa_works() -> bool:
    """Return whether OSMesa's library can be loaded here."""
    return _load("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6") is not None


def choose_backend() -> str | None:
    """Set MUJOCO_GL and PYOPENGL_PLATFORM where they are not set; return MUJOCO_GL, None when nothing can draw.

    Never overwrites what the user has set. With PYOPENGL_PLATFORM alone set, that is the choice. Without effect once
    dm_control has been imported.
    """
    if "dm_control._render" in sys.modules:
        return str(sys.modules["dm_control._render"].BACKEND)
    backend = os.environ.get("MUJOCO_GL") or os.environ.get("PYOPENGL_PLATFORM")
    if not backend:
        backend = "egl" if egl_works() else "osmesa" if osmesa_works() else None
    if backend is None:
        return None
    os.environ["MUJOCO_GL"] = os.environ.get("MUJOCO_GL") or backend
    if backend in ("egl", "osmesa") and not os.environ.get("PYOPENGL_PLATFORM"):
        os.environ["PYOPENGL_PLATFORM"] = backend
    return backend


def require_backend() -> str:
    """Return the back end in use.

    Raises:
        UserError: nothing here can draw off-screen, or MUJOCO_GL and PYOPENGL_PLATFORM contradict each other.
    """
    backend = choose_backend()
    if backend is None:
        raise UserError(
            "no off-screen OpenGL works here (tried EGL and OSMesa), and MuJoCo draws the observations with it.\n"
            f"Install it: {'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {' '.join(APT_PACKAGES)}"
        )
    try:
        import dm_control._render  # noqa: F401
    except (ImportError, RuntimeError, AttributeError) as error:
        raise UserError(
            f"MUJOCO_GL={backend} does not work here: {error}\n"
            f"Unset MUJOCO_GL and PYOPENGL_PLATFORM, or install: apt-get install -y {' '.join(APT_PACKAGES)}"
        ) from error
    return backend


def gl_renderer() -> str:
    """Return OpenGL's GL_RENDERER, e.g. 'llvmpipe (LLVM 15.0.6, 256 bits)', which is software.

    Raises:
        UserError: nothing here can draw off-screen.
    """
    require_backend()
    from dm_control import _render
    from OpenGL import GL

    context = _render.Renderer(max_width=64, max_height=64)
    try:
        with context.make_current() as gl:
            return str(gl.call(GL.glGetString, GL.GL_RENDERER).decode())
    finally:
        context.free()
