"""Environments. A program that renders calls `choose_backend` before it imports dm_control; `make` does so too.

Files written for the public implementation import this package as `dmc`.
"""

from drqv2.envs.episode import Environment
from drqv2.envs.make_env import make
from drqv2.envs.render import choose_backend, gl_renderer, require_backend
from drqv2.envs.wrappers import (
    ActionDTypeWrapper,
    ActionRepeatWrapper,
    ExtendedTimeStep,
    ExtendedTimeStepWrapper,
    FrameStackWrapper,
)

__all__ = [
    "ActionDTypeWrapper",
    "ActionRepeatWrapper",
    "Environment",
    "ExtendedTimeStep",
    "ExtendedTimeStepWrapper",
    "FrameStackWrapper",
    "choose_backend",
    "gl_renderer",
    "make",
    "require_backend",
]
