"""Environments. A program that renders calls `choose_backend` before it imports dm_control; `make` does so too."""

from drqv2.envs.dmc import TASKS, check_task, make
from drqv2.envs.episode import Environment
from drqv2.envs.render import choose_backend, gl_renderer, require_backend
from drqv2.envs.wrappers import ExtendedTimeStep

__all__ = [
    "TASKS",
    "Environment",
    "ExtendedTimeStep",
    "check_task",
    "choose_backend",
    "gl_renderer",
    "make",
    "require_backend",
]
