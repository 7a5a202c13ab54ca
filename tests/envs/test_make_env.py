"""The 24 tasks: each is made, reset, stepped and rendered; wrong names are reported."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from dm_control import suite

from drqv2.config.cfgs import tasks
from drqv2.envs import dm_control, make
from drqv2.envs.episode import find_seeder
from drqv2.envs.scene import Scene
from drqv2.errors import UserError
from drqv2.utils import TRAIN_ENV, spawn_seed

FAST = {"cartpole_balance_sparse", "cup_catch", "quadruped_walk", "reach_duplo"}
ACTIONS = {
    "acrobot": 1,
    "cartpole": 1,
    "cheetah": 6,
    "cup": 2,
    "finger": 2,
    "hopper": 4,
    "humanoid": 21,
    "pendulum": 1,
    "quadruped": 12,
    "reach": 9,
    "reacher": 2,
    "walker": 6,
}


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in tasks()])
def test_task(name):
    env = make(name, 3, 2, seed=1)
    spec, actions = env.observation_spec(), env.action_spec()
    assert (spec.shape, spec.dtype, spec.name) == ((9, 84, 84), np.uint8, "observation")
    assert (spec.minimum, spec.maximum) == (0, 255)
    assert (actions.shape, actions.dtype, actions.name) == ((ACTIONS[name.split("_")[0]],), np.float32, "action")
    assert (actions.minimum == -1).all()
    assert (actions.maximum == 1).all()
    time_step = env.reset()
    assert time_step.first()
    for t in range(3):
        assert time_step.observation.shape == spec.shape
        assert time_step.observation.dtype == np.uint8
        assert time_step.observation.std() > 1  # there is something to see
        assert time_step.observation.flags.c_contiguous
        assert type(time_step.reward) is type(time_step.discount) is float
        assert 0 <= time_step.reward <= 2
        assert time_step.discount == 1
        assert time_step.action.dtype == np.float32
        if t < 2:
            time_step = env.step(np.full(actions.shape, 0.5))
            assert time_step.mid()
    picture = env.render(84, 84)
    assert np.array_equal(picture.transpose(2, 0, 1), time_step.observation[-3:])  # the same camera
    assert env.render(120, 160).shape == (120, 160, 3)
    assert env.step_seconds is not None
    assert 0.01 <= env.step_seconds <= 0.1
    env.close()
    env.close()


@pytest.mark.parametrize("name", ["cartpole_balance", "cup_catch", "reach_duplo", "humanoid_walk"])
def test_state(name, monkeypatch):
    """It is dm_control's own observation of the same episode, and nothing is rendered for it."""
    with monkeypatch.context() as patch:
        patch.delattr(Scene, "draw")
        env = make(name, 3, 2, seed=1, obs_type="state")
        time_steps = [env.reset(), env.step(np.zeros(env.action_spec().shape))]
        assert (env.restore(env.state()).observation == time_steps[-1].observation).all()
    stock, _ = dm_control.load(name, spawn_seed(1), "state")
    seeder = find_seeder(stock)
    assert seeder is not None
    seeder(spawn_seed(1, TRAIN_ENV, 0, 0))
    rest = (stock.action_spec().minimum + stock.action_spec().maximum) / 2
    expected = [stock.reset(), [stock.step(rest) for _ in range(2)][-1]]
    for ours, theirs in zip(time_steps, expected, strict=True):
        vector = np.concatenate([np.ravel(x) for x in theirs.observation.values()]).astype(np.float32)
        assert np.array_equal(ours.observation, vector)
        assert (ours.observation.dtype, ours.observation.shape) == (np.float32, env.observation_spec().shape)
    assert env.render(48, 64).std() > 1
    env.close()


def test_what_a_user_cannot_change_is_not_warned_of(caplog):
    """MuJoCo deprecates a setting of dm_control's cheetah.xml; other warnings of MuJoCo are still shown."""
    dm_control.load("cheetah_run", 1)
    assert caplog.messages == []
    logging.getLogger("absl").warning("another one")
    assert len(caplog.messages) == 1


def test_names():
    assert len(set(tasks())) == 24
    assert set(tasks()) - {f"{domain}_{task}" for domain, task in suite.ALL_TASKS} == {"cup_catch", "reach_duplo"}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("cheetah_runn", "cheetah_run"), ("ball_in_cup_cach", "ball_in_cup_catch"), ("reach_dupl", "reach_duplo")],
)
def test_unknown_task_names_the_nearest(wrong, right):
    with pytest.raises(UserError, match=f"unknown task '{wrong}'; nearest: .*{right}"):
        make(wrong, 3, 2, 1)
    with pytest.raises(UserError, match="unknown task 'xyzzy'; there are: acrobot_swingup, "):
        make("xyzzy", 3, 2, 1)


def test_other_suite_task_and_size_and_camera():
    env = make("point_mass_easy", 2, 4, 1, image_size=40)
    assert env.reset().observation.shape == (6, 40, 40)
    assert env.step_seconds == pytest.approx(0.08)
    env.close()
    env = make("quadruped_walk", 1, 2, 1, image_size=40)
    seen = env.reset().observation.transpose(1, 2, 0)
    views = {camera: env.render(40, 40, camera) for camera in (None, 0, 2, "x")}
    assert np.array_equal(seen, views[None])
    assert np.array_equal(seen, views[2])
    assert not np.array_equal(seen, views[0])
    env.close()
    env = make("quadruped_walk", 1, 2, 1, image_size=40, camera="x")
    assert np.array_equal(env.reset().observation.transpose(1, 2, 0), views["x"])
    env.close()


def test_an_image_larger_than_the_models_buffer():
    env = make("cartpole_balance", 1, 1, 1, image_size=500)
    assert env.reset().observation.shape == (3, 500, 500)
    env.close()


def test_rewards_are_not_drawn():
    """The reward does not colour the picture: it would tell the agent."""
    env = make("cup_catch", 1, 1, 1, image_size=16)
    assert env.task.visualize_reward is False
    env.close()


@pytest.mark.parametrize(("key", "value"), [("camera", 99), ("camera", "nowhere"), ("obs_type", "sound")])
def test_bad_camera_or_choice(key, value):
    with pytest.raises(UserError, match=f"{key}={value!r}: must be"):
        make("cartpole_balance", 3, 2, 1, **{key: value})
