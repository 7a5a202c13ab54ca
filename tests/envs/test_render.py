"""Which OpenGL is chosen, and what is said where none works."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from drqv2.envs import render
from drqv2.errors import UserError

VARIABLES = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "MUJOCO_EGL_DEVICE_ID")
PACKAGES = "apt-get install -y libegl1 libgl1 libgl1-mesa-dri"
# The module alone, without its package, which takes a second to import.
DRAW = f"""
import runpy
from drqv2.errors import UserError
try:
    print(runpy.run_path({render.__file__!r})["gl_renderer"]())
except UserError as error:
    print("error:", error)
"""


def run(code: str, **variables: str) -> str:
    ours = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=ours | variables,
        check=True,
        timeout=600,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pretend that nothing has been chosen yet."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is chosen is undone, even where it was not set
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "dm_control._render", raising=False)
    return monkeypatch


def test_importing_chooses_nothing_and_starts_no_process():
    code = """
import os, subprocess, sys
def refuse(*args, **kwargs): raise AssertionError(args)
subprocess.Popen = os.fork = os.posix_spawn = refuse
import drqv2.envs
assert not {"mujoco", "dm_control", "gymnasium", "cv2"} & set(sys.modules)
print(os.environ.get("MUJOCO_GL"))
"""
    assert run(code) == "None"


@pytest.mark.parametrize("backend", ["egl", "glfw", "osmesa"])
def test_the_users_choice_stands(backend, undecided):
    undecided.delattr(render, "works")
    undecided.setenv("MUJOCO_GL", backend)
    assert render.choose_backend() == os.environ["MUJOCO_GL"] == backend


@pytest.mark.parametrize("before", [None, ""])
def test_what_works_is_chosen(before, undecided):
    if before is not None:
        undecided.setenv("MUJOCO_GL", before)
    for working, expected in ((("egl", "osmesa"), "egl"), (("osmesa",), "osmesa"), ((), None)):
        undecided.setattr(render, "works", working.__contains__)
        assert render.choose_backend() == expected
        assert (os.environ.get("MUJOCO_GL") or None) == expected
        undecided.delenv("MUJOCO_GL", raising=False)


def test_only_what_opens_works(undecided):
    works = render.works.__wrapped__
    assert not works("nonsense")
    undecided.setenv("PYOPENGL_PLATFORM", "osmesa")  # a choice of the user's, too
    assert not works("egl")


@pytest.mark.skipif(not render.works("egl"), reason="EGL does not work here")
def test_the_chosen_one_opens():
    name = run(DRAW)
    assert len(name) > 3
    assert "error" not in name


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"MUJOCO_GL": "off"}, "MUJOCO_GL=off does not work here"),
        ({"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}, "PYOPENGL_PLATFORM"),
        ({"MUJOCO_GL": "nonsense"}, "must be one of"),
    ],
)
def test_a_missing_renderer_is_reported(variables, words):
    message = run(DRAW, **variables)
    assert message.startswith("error: ")
    assert words in message
    assert PACKAGES in message
    assert len(message.splitlines()) == 2


def test_nothing_that_draws(undecided):
    undecided.setattr(render, "works", lambda backend: False)
    with pytest.raises(UserError, match=PACKAGES):
        render.gl_renderer.__wrapped__()
