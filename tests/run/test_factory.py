"""What a run's components are called, and agents of environments whose observations are dicts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs
from omegaconf import OmegaConf

from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.spq import SPQAgent
from drqv2.config.checks import validate
from drqv2.config.schema import defaults
from drqv2.errors import UserError
from drqv2.run import factory
from drqv2.run.factory import group_of_seeds
from drqv2.snapshot.resume import changed_keys
from tests.config.test_checks import composed


def test_seeds_of_a_setting_share_a_group() -> None:
    config = defaults() | {"task_name": "walker_walk"}
    agent: dict[str, Any] = config["agent"]

    def group(**changes: Any) -> str:
        return group_of_seeds(config | changes)

    assert group().startswith("walker_walk_")
    assert group(seed=2, num_eval_episodes=3, console="plain") == group()
    assert len({group(), group(nstep=5), group(agent=agent | {"hidden_dim": 64}), group(task_name="hopper_hop")}) == 4


DICT = {
    "pixels": specs.BoundedArray((9, 36, 36), np.uint8, 0, 255, "pixels"),
    "state": specs.Array((5,), np.float32, "state"),
}
SHAPES = {"pixels": (9, 36, 36), "state": (5,)}
LISTS = {name: list(shape) for name, shape in SHAPES.items()}
FOREIGN = """
class Takes:
    def __init__(self, obs_shape, x=0, **kwargs):
        self.obs_shape, self.x = obs_shape, x

    def train(self, training=True): ...

    def act(self, obs, step, eval_mode): ...

    def update(self, replay_iter, step): ...
"""


def of_dicts(cfg: Any) -> Any:
    action = specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")
    env: Any = SimpleNamespace(observation_spec=lambda: DICT, action_spec=lambda: action)
    validate(cfg)
    return factory.make_agent(cfg, env, torch.device("cpu"))


@pytest.mark.parametrize(("name", "kind"), [("drqv2", DrQV2Agent), ("spq", SPQAgent)])
def test_the_shapes_of_a_dict_become_part_of_the_configuration(name: str, kind: Any, tmp_path: Path) -> None:
    cfg = composed(f"agent={name}", "agent.hidden_dim=8")
    agent: Any = of_dicts(cfg)
    assert type(agent) is kind
    assert agent.obs_parts == ("pixels", "state")
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    assert plain["agent"]["obs_shape"] == LISTS
    stored: Any = OmegaConf.create(OmegaConf.to_yaml(cfg))  # as a resume finds it
    validate(stored)
    assert changed_keys(plain, plain, tmp_path) == {}
    assert group_of_seeds(plain) == group_of_seeds(plain | {"agent": plain["agent"] | {"obs_shape": None}})
    assert changed_keys(plain, plain | {"agent": plain["agent"] | {"obs_shape": [9, 84, 84]}}, tmp_path) == {}
    assert type(of_dicts(stored)) is kind


@pytest.mark.parametrize(
    ("refers", "found"),
    [
        ("${agent.obs_shape}", LISTS),
        ("${agent.obs_shape.state[0]}", 5),
        ("${agent.obs_shape.pixels}", LISTS["pixels"]),
    ],
)
def test_an_agent_from_elsewhere_gets_the_dict(refers: str, found: Any, tmp_path: Path) -> None:
    (tmp_path / "takes.py").write_text(FOREIGN)
    agent = of_dicts(composed(f"agent_dir={tmp_path}", "agent._target_=takes.Takes", f"+agent.x={refers}"))
    assert agent.obs_shape == SHAPES
    assert agent.x == found


def test_a_reference_to_the_shape_of_one_image_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "takes.py").write_text(FOREIGN)
    with pytest.raises(
        UserError, match=r"^agent\.x: there is no agent\.obs_shape\[0\]: observations are dicts; .*NAME\[0\]\}$"
    ):
        of_dicts(composed(f"agent_dir={tmp_path}", "agent._target_=takes.Takes", "+agent.x=${agent.obs_shape[0]}"))


@pytest.mark.parametrize("shape", [{"pixels": [9, 84, "wide"]}, {}, {"pixels": 3}, {"pixels": [0]}])
def test_shapes_that_are_none(shape: Any) -> None:
    cfg = composed()
    cfg.agent.obs_shape = shape
    with pytest.raises(UserError, match=r"agent\.obs_shape=.* must be unset"):
        validate(cfg)
