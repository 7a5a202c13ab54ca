"""What exported files say of a run's environment rebuilds it; your own code and several tasks are not rebuilt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs
from omegaconf import OmegaConf

from drqv2.config.checks import validate
from drqv2.evaluation.world import world_of
from drqv2.play.world import World
from drqv2.run.environments import make_envs, task_names
from drqv2.run.stats import EpisodeResult
from drqv2.utils import EVAL_ENV
from train import compose

ACTION = specs.BoundedArray((6,), np.float32, -1, 1)


def world(*words: str, **values: Any) -> World:
    cfg = compose(*words, device="cpu", **values)
    results = [EpisodeResult(10.0, 1), EpisodeResult(20.5, 1)]
    actions = {name: specs.BoundedArray((6,), np.float64, -2, 2) for name in task_names(cfg)}
    return world_of(cfg, None, 1000, np.zeros((9, 84, 84), np.uint8), ACTION, actions, results)


def test_a_task_from_pixels() -> None:
    made = world(task="walker_walk", action_repeat=4, render="fast", camera=1, max_episode_steps=50)
    assert made.environment == "drqv2.envs.as_gymnasium:drqv2/walker_walk-v0"
    assert made.arguments == {
        "obs_type": "pixels",
        "action_repeat": 4,
        "frame_stack": 3,
        "image_size": 84,
        "render": "fast",
        "camera": 1,
        "episode_steps": 50,
    }
    assert made.observation["axes"] == ["batch", "channel", "height", "width"]
    own = {"shape": [6], "dtype": "float64", "minimum": -2.0, "maximum": 2.0}
    acted = {"shape": [6], "dtype": "float32", "minimum": -1.0, "maximum": 1.0, "axes": ["batch", "number"]}
    assert made.action == acted | {"own": [own]}
    assert made.versions.keys() == {"drqv2-workspace", "gymnasium", "mujoco", "dm-control"}
    assert made.returns == {"mean": 15.25, "minimum": 10.0, "maximum": 20.5, "episodes": 2}
    assert made.training["task"] == "walker_walk"


def test_a_dict_of_parts() -> None:
    cfg = compose(device="cpu")
    for key, value in {
        "obs_type": "pixels+state",
        "cameras": [0, "side"],
        "observation_parts": ["pixels_0", "z"],
    }.items():
        OmegaConf.update(cfg, key, value, force_add=True)
    seen: dict[str, Any] = {"pixels_0": np.zeros((9, 84, 84), np.uint8), "z": np.zeros(1, np.float32)}
    made = world_of(cfg, None, 0, seen, ACTION, {cfg.task_name: ACTION}, [EpisodeResult(1.0, 1)])
    assert made.arguments == {
        "obs_type": "pixels+state",
        "action_repeat": 2,
        "frame_stack": 3,
        "image_size": 84,
        "render": "exact",
        "cameras": [0, "side"],
        "observation_parts": ["pixels_0", "z"],
    }
    again = World.read(made.metadata())
    assert again == made
    assert {name: part["shape"] for name, part in again.parts.items()} == {"pixels_0": [9, 84, 84], "z": [1]}


def test_options_of_a_task_and_of_another_library() -> None:
    assert world("+env.time_limit=3", obs_type="state").arguments["options"] == {"time_limit": 3}
    ppo = world(regime="ppo", env_id="gymnasium:CartPole-v1", obs_type="state", max_episode_steps=900)
    assert ppo.environment == "drqv2.envs.as_gymnasium:drqv2/env-v0"
    assert ppo.arguments == {
        "task": "gymnasium:CartPole-v1",
        "obs_type": "state",
        "action_repeat": 1,
        "episode_steps": 900,
        "options": {"max_episode_steps": -1},
    }
    assert ppo.versions.keys() == {"drqv2-workspace", "gymnasium"}


def test_what_no_id_rebuilds() -> None:
    own = world("env._target_=tests.envs.toys.Counter", task_name="counter")
    assert (own.environment, own.training["task"]) == ("", "tests.envs.toys.Counter")
    several = world(regime="multitask", tasks=["walker_walk", "cup_catch"], obs_type="state")
    assert (several.environment, several.training["task"]) == ("", "walker_walk, cup_catch")
    assert len(several.action["own"]) == 2


@pytest.mark.parametrize(
    "values",
    [
        {"task": "cup_catch", "image_size": 48, "action_repeat": 4, "frame_stack": 2},
        {"task": "reacher_easy", "obs_type": "state"},
        {"regime": "ppo", "env_id": "gymnasium:Pendulum-v1", "obs_type": "state", "max_episode_steps": 7},
    ],
    ids=lambda values: values.get("task", values.get("env_id")),
)
def test_the_environment_is_rebuilt(values: dict[str, Any]) -> None:
    pytest.importorskip("gymnasium")
    cfg = compose(device="cpu", overlap=False, **values)
    validate(cfg)
    (env,) = make_envs(cfg, EVAL_ENV)
    first, spec = env.call("begin", 0, 0), env.action_spec()
    actions = {"it": env.call("own_action_spec")}
    made = world_of(cfg, None, 0, first.observation, spec, actions, [EpisodeResult(1.0, 1)])
    rebuilt = World.read(made.metadata()).make()
    assert rebuilt.reset(seed=1)[0].shape == first.observation.shape
    for one in (env, rebuilt):
        one.close()
