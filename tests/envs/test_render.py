"""Which OpenGL is chosen, in processes of their own: it is chosen once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from drqv2.envs import render

REPORT = """
import os, sys
from drqv2 import envs
envs.choose_backend()
assert "mujoco" not in sys.modules
print(os.environ.get("MUJOCO_GL"), os.environ.get("PYOPENGL_PLATFORM"))
"""
DRAW = """
from drqv2.envs import gl_renderer, make
from drqv2.errors import UserError
try:
    print(gl_renderer())
    env = make("cartpole_balance", 1, 1, 1, image_size=16)
    print(env.reset().observation.std() > 0)
except UserError as error:
    print("error:", error)
"""


def run(code: str, **variables: str) -> str:
    ours = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ours | variables,
        check=True,
        timeout=600,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "backend", ["egl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("glfw", "osmesa"))]
)
def test_the_users_choice_stands(backend):
    assert run(REPORT, MUJOCO_GL=backend).split() == [backend, {"glfw": "None"}.get(backend, backend)]


def test_importing_chooses_nothing_and_starts_no_process():
    code = """
import os, subprocess
def refuse(*args, **kwargs): raise AssertionError(args)
subprocess.Popen = os.fork = os.posix_spawn = refuse
import drqv2.envs
print(os.environ.get("MUJOCO_GL"))
"""
    assert run(code) == "None"


def test_what_works_is_chosen():
    expected = "egl" if render.egl_works() else "osmesa" if render.osmesa_works() else "None"
    assert run(REPORT).split() == [expected, expected]
    assert run(REPORT, MUJOCO_GL="").split() == [expected, expected]


@pytest.mark.skipif(not render.egl_works(), reason="EGL does not work here")
def test_chosen_backend_draws():
    name, drawn = run(DRAW).splitlines()
    assert len(name) > 3
    assert drawn == "True"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"MUJOCO_GL": "off"}, "MUJOCO_GL=off does not work here"),
        ({"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}, "PYOPENGL_PLATFORM"),
        pytest.param({"MUJOCO_GL": "nonsense"}, "must be one of", marks=pytest.mark.slow),
    ],
)
def test_what_cannot_draw_is_said(variables, words):
    message = run(DRAW, **variables)
    assert message.startswith("error: ")
    assert words in message
    assert "apt-get install -y libegl1 libgl1 libgl1-mesa-dri" in message
    assert len(message.splitlines()) == 2


def test_nothing_that_draws(monkeypatch):
    monkeypatch.setattr(render, "egl_works", lambda: False)
    monkeypatch.setattr(render, "osmesa_works", lambda: False)
    code = (
        "from drqv2.envs import render; render.choose_backend = lambda: None; from drqv2.envs import make\n"
        "from drqv2.errors import UserError\n"
        "try: make('cheetah_run', 3, 2, 1)\nexcept UserError as error: print(error)"
    )
    assert "apt-get install -y libegl1 libgl1 libgl1-mesa-dri" in run(code)
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.setenv(name, "")  # so that what is chosen below is undone, even where neither was set
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "dm_control._render", raising=False)
    assert render.choose_backend() is None
    assert "MUJOCO_GL" not in os.environ
    monkeypatch.setattr(render, "osmesa_works", lambda: True)
    assert render.choose_backend() == "osmesa"


def test_trying_egl_leaves_nothing_behind():
    """The renderer works before, between and after trials."""
    from drqv2.envs import make

    env = make("cartpole_balance", 1, 1, 1, image_size=16)
    first = env.reset().observation
    render.egl_works()
    assert (env.begin(0, 0).observation == first).all()
    env.close()
