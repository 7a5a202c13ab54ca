"""A real dm_control task with real rendering whose episodes are short, so that whole runs fit into a test."""

from __future__ import annotations

import dm_env
from dm_control import suite
from dm_control.suite.wrappers import pixels


def make(image_size: int = 84, frames: int = 60) -> dm_env.Environment:
    """Return cartpole_balance cut at `frames` frames (0.01 s each)."""
    env = suite.load("cartpole", "balance", task_kwargs={"time_limit": frames * 0.01})
    vis = env.physics.model.vis  # shadows, anti-aliasing and unused pixels would be most of a run's time in software
    vis.quality.shadowsize, vis.quality.offsamples = 128, 0
    vis.global_.offwidth = vis.global_.offheight = 96
    kwargs = {"height": image_size, "width": image_size, "camera_id": 0}
    return pixels.Wrapper(env, pixels_only=True, render_kwargs=kwargs)
