"""Milliseconds of one update of the agent: `python -m benchmarks.learner [--json]`."""

from __future__ import annotations

from itertools import repeat

import torch

from benchmarks.common import Row, main, time_ms
from drqv2 import utils
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.doctor import compose

ABOUT = "one DrQV2Agent.update, the batch's way to the device included"
ACTIONS = 6  # dimensions of an action, as cheetah_run has


def measure(quick: bool = False) -> list[Row]:
    """Return a row for the paper's shapes and one for those of preset=cpu."""
    utils.keep_freed_memory()  # as train.py does
    return [measure_preset(preset, seconds=0.0 if quick else 10.0) for preset in ("paper", "cpu")]


def measure_preset(preset: str, seconds: float) -> Row:
    """Return the time of an update on random pixels, with the preset's shapes."""
    cfg = compose("cartpole_balance_sparse", preset)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, batch, keys = cfg["image_size"], cfg["batch_size"], cfg["agent"]
    shape = (3 * cfg["frame_stack"], size, size)
    own = ("_target_", "obs_shape", "action_shape", "device")
    agent = DrQV2Agent(shape, (ACTIONS,), device, **{k: v for k, v in keys.items() if k not in own})
    obs, next_obs = (torch.randint(0, 256, (batch, *shape), dtype=torch.uint8) for _ in range(2))
    action, reward = torch.rand(batch, ACTIONS) * 2 - 1, torch.rand(batch, 1)
    batches = repeat((obs, action, reward, torch.full((batch, 1), 0.97), next_obs))

    def update() -> None:
        agent.update(batches, 0)
        if device == "cuda":
            torch.cuda.synchronize()

    return {
        "preset": preset,
        "device": device,
        "batch_size": batch,
        "image_size": size,
        "feature_dim": keys["feature_dim"],
        "hidden_dim": keys["hidden_dim"],
        **time_ms(update, seconds),
    }


if __name__ == "__main__":
    main("learner", ABOUT, measure)
