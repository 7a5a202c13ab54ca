"""What a run says when it starts."""

from __future__ import annotations

import pytest

from drqv2 import compose
from drqv2.run.start import _smaller, _too_large_for_cpu


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"preset": "spq"}, True),
        ({"preset": "cpu"}, False),
        ({"preset": "debug"}, False),
        ({"obs_type": "state"}, False),
        ({"num_train_frames": 3000}, False),
        ({"regime": "ppo", "env_id": "gymnasium:CartPole-v1"}, False),
    ],
)
def test_sizes_that_take_hours_without_a_gpu(changes: dict[str, object], told: bool) -> None:
    cfg = compose(**{"device": "cpu", "obs_type": "pixels", **changes})
    assert _too_large_for_cpu(cfg) == told
    cfg.device = "cuda"
    assert not _too_large_for_cpu(cfg)


@pytest.mark.parametrize(
    ("changes", "preset"),
    [({}, "cpu"), ({"agent": "spq"}, "spq_cpu"), ({"agent._target_": "own.Own"}, "cpu"), ({"agent": "drq_sac"}, None)],
)
def test_it_names_a_preset_of_the_runs_agent(changes: dict[str, object], preset: str | None) -> None:
    assert _smaller(compose(**changes)) == (f"; preset={preset} has smaller ones" if preset else "")
    if preset and "agent" in changes:
        compose(preset=preset, **changes)
