"""What a run's components are called."""

from __future__ import annotations

from typing import Any

from drqv2.config.schema import defaults
from drqv2.run.factory import group_of_seeds


def test_seeds_of_a_setting_share_a_group() -> None:
    config = defaults() | {"task_name": "walker_walk"}
    agent: dict[str, Any] = config["agent"]

    def group(**changes: Any) -> str:
        return group_of_seeds(config | changes)

    assert group().startswith("walker_walk_")
    assert group(seed=2, num_eval_episodes=3, console="plain") == group()
    assert len({group(), group(nstep=5), group(agent=agent | {"hidden_dim": 64}), group(task_name="hopper_hop")}) == 4
