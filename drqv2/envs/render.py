"""Which OpenGL renders off-screen: to be chosen before mujoco and dm_control are imported, which read it only once.

It is the user's MUJOCO_GL if set; else EGL (a GPU's, or Mesa's software) where it works; else OSMesa where installed.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from drqv2.envs import egl_probe
from drqv2.errors import UserError

APT_PACKAGES = ("libegl1", "libgl1", "libgl1-mesa-dri")


def egl_works() -> bool:
    """Return whether a headless EGL display with desktop OpenGL is available; a process of its own tries it."""
    command = [sys.executable, "-I", "-S", egl_probe.__file__]
    try:
        probe = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0


def osmesa_works() -> bool:
    """Return whether OSMesa's library can be loaded here."""
    return egl_probe.load("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6") is not None


def choose_backend() -> str | None:
    """Set MUJOCO_GL and PYOPENGL_PLATFORM where they are not set; return MUJOCO_GL, None when nothing can render.

    To be called at a program's start: it has no effect once dm_control has been imported. Processes that are started
    later inherit the choice; further calls cost nothing. What the user has set is never overwritten, and
    PYOPENGL_PLATFORM set to egl or osmesa alone is a choice too.
    """
    if "dm_control._render" in sys.modules:
        backend: str | None = sys.modules["dm_control._render"].BACKEND
        return backend
    platform = os.environ.get("PYOPENGL_PLATFORM")
    backend = os.environ.get("MUJOCO_GL") or (platform if platform in ("egl", "osmesa") else None)
    if not backend:
        backend = "egl" if egl_works() else "osmesa" if osmesa_works() else None
    if backend is not None:
        os.environ["MUJOCO_GL"] = backend
        if not platform and backend in ("egl", "osmesa"):
            os.environ["PYOPENGL_PLATFORM"] = backend
    return backend


@functools.cache
def gl_renderer() -> str:
    """Return OpenGL's GL_RENDERER, e.g. `llvmpipe (LLVM 15.0.6, 256 bits)`, which is software.

    Makes an OpenGL context once and frees it: when this returns, rendering works.

    Raises:
        UserError: nothing here can render off-screen; says what to install.
    """
    backend = choose_backend()
    sudo = "" if os.geteuid() == 0 else "sudo "
    install = f"{sudo}apt-get install -y {' '.join(('libosmesa6',) if backend == 'osmesa' else APT_PACKAGES)}"
    if backend is None:
        device = os.environ.get("MUJOCO_EGL_DEVICE_ID")
        tried = "EGL" + (f" on device MUJOCO_EGL_DEVICE_ID={device}" if device else "") + " and OSMesa"
        raise UserError(
            f"no off-screen OpenGL works here (tried {tried}), and MuJoCo needs it to render images.\n"
            f"Install it: {install}"
        )
    try:
        from dm_control import _render
        from OpenGL import GL

        context = _render.Renderer(max_width=64, max_height=64)
        with context.make_current() as gl:
            name = gl.call(GL.glGetString, GL.GL_RENDERER).decode()
        context.free()
    except ModuleNotFoundError:
        raise  # dm_control itself is missing
    except Exception as error:  # each back end fails in a way of its own
        raise UserError(
            f"MUJOCO_GL={backend} does not work here ({type(error).__name__}: {error}).\n"
            f"Unset MUJOCO_GL and PYOPENGL_PLATFORM to have one chosen for you, or install it: {install}"
        ) from error
    return str(name)


def require_backend() -> str:
    """Return MUJOCO_GL, after checking that it renders.

    Raises:
        UserError: nothing here can render off-screen; says what to install.
    """
    gl_renderer()
    return str(choose_backend())
