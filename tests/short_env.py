"""A real dm_control task with real rendering whose episodes are short, so that whole runs fit into a test."""

from __future__ import annotations

import dm_env
from dm_control import suite


def make(frames: int = 60) -> dm_env.Environment:
    """Return cartpole_balance cut at `frames` frames (0.01 s each)."""
    env = suite.load("cartpole", "balance", task_kwargs={"time_limit": frames * 0.01})
    vis = env.physics.model.vis  # shadows, anti-aliasing and unused pixels would be most of a run's time in software
    vis.quality.shadowsize, vis.quality.offsamples = 128, 0
    vis.global_.offwidth = vis.global_.offheight = 96
    return env
