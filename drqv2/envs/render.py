"""Which OpenGL renders off-screen: to be chosen before mujoco and dm_control are imported, which read it only once.

It is the user's MUJOCO_GL if set; else EGL (a GPU's, or Mesa's software) where it works; else OSMesa where installed.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from drqv2.errors import UserError

_BACKENDS = ("egl", "osmesa") if sys.platform == "linux" else ("glfw",)
_TRIAL = """
import os
from dm_control import _render
from OpenGL import GL
with _render.Renderer(64, 64).make_current() as gl:
    gl.call(GL.glGetString, GL.GL_RENDERER)
os._exit(0)  # skips the driver's own cleanup, which may crash
"""


@functools.cache
def works(backend: str) -> bool:
    """Return whether dm_control can open a back end; a separate process tries, since a bad driver may crash."""
    command, variables = [sys.executable, "-c", _TRIAL], os.environ | {"MUJOCO_GL": backend}
    try:
        return not subprocess.run(command, env=variables, capture_output=True, timeout=120).returncode
    except subprocess.TimeoutExpired:
        return False


def choose_backend() -> str | None:
    """Set MUJOCO_GL where it is not set, and return it; None when nothing can render.

    Call this at the start of a program: it has no effect once dm_control has been imported. Processes that are started
    later inherit the choice; further calls cost nothing.
    """
    if "dm_control._render" in sys.modules:
        chosen: str | None = sys.modules["dm_control._render"].BACKEND
        return chosen
    backend = os.environ.get("MUJOCO_GL") or next(filter(works, _BACKENDS), None)
    if backend is not None:
        os.environ["MUJOCO_GL"] = backend
    return backend


@functools.cache
def gl_renderer() -> str:
    """Return OpenGL's GL_RENDERER, e.g. `llvmpipe (LLVM 15.0.6, 256 bits)`, which is software.

    Makes an OpenGL context once and frees it: when this returns, rendering works.

    Raises:
        UserError: nothing here can render off-screen; says what to install.
    """
    backend = choose_backend()
    packages = "libosmesa6" if backend == "osmesa" else "libegl1 libgl1 libgl1-mesa-dri"
    install = f"{'' if os.geteuid() == 0 else 'sudo '}apt-get install -y {packages}"
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
