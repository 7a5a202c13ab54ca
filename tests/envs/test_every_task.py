"""The tasks of dm_control without a file in cfgs/task: names, pictures, states, arguments, cameras."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from dm_control import manipulation, suite

from drqv2.config.cfgs import tasks
from drqv2.config.dm_control import MANIPULATION, SUITE, episode_frames, every_task, other_tasks
from drqv2.envs import make
from drqv2.errors import UserError
from tests import short_env

CAMERAS: dict[str, int | str] = {"quadruped": 2, "dog": "y-axis", "lqr": "cam1"}


def test_names_are_those_of_the_installed_dm_control() -> None:
    assert set(SUITE) == {f"{domain}_{task}" for domain, task in suite.ALL_TASKS}
    variants = {f"{name}_{ending}" for name in MANIPULATION for ending in ("features", "vision")}
    assert variants - set(manipulation.ALL) == {"stack_3_bricks_random_order_vision"}
    assert set(manipulation.ALL) <= variants
    assert set(every_task()) == {*SUITE, *MANIPULATION, "cup_catch"}
    assert {*other_tasks(), *tasks(), "ball_in_cup_catch"} == set(every_task())
    assert not set(other_tasks()) & set(tasks())


@pytest.mark.slow
@pytest.mark.parametrize("name", other_tasks())
def test_task(name: str) -> None:
    """It is drawn exactly as dm_control draws it; its state is finite, its episodes as long as said."""
    camera = "front_close" if name in MANIPULATION else CAMERAS.get(name.partition("_")[0], 0)
    env = make(name, 1, 1, seed=1)
    first = env.reset()
    spec = env.action_spec()
    assert spec.dtype == np.float32
    assert (spec.minimum == -1).all()
    assert (spec.maximum == 1).all()
    time_step = env.step(np.random.default_rng(0).uniform(-1, 1, spec.shape))
    assert first.observation.std() > 10
    assert time_step.observation.shape == (3, 84, 84)
    assert (time_step.observation != first.observation).any(), "the camera sees something that moves"
    assert np.isfinite(time_step.reward)
    base: Any = env._base
    seen = time_step.observation.transpose(1, 2, 0)
    assert np.array_equal(seen, base.physics.render(84, 84, camera_id=camera))
    env.close()
    env = make(name, 1, 1, seed=1, obs_type="state")
    env.reset()
    state = env.step(np.random.default_rng(0).uniform(-1, 1, spec.shape)).observation
    assert state.shape == env.observation_spec().shape
    assert np.isfinite(state).all()
    assert state.std() > 0
    base = env._base
    limit = getattr(base, "_step_limit", None) or base._time_limit / base.control_timestep()
    assert round(limit) == episode_frames(name)
    env.close()


def steps(name: str, **options: Any) -> int:
    """Return the steps of an episode."""
    env = make(name, 1, 1, seed=1, obs_type="state", options=options)
    time_step, count = env.reset(), 0
    while not time_step.last():
        time_step, count = env.step(np.full(env.action_spec().shape, 0.1)), count + 1
        assert np.isfinite(time_step.observation).all()
    assert time_step.discount == 1, "a time-out is bootstrapped"
    env.close()
    return count


def test_arguments_reach_the_task() -> None:
    assert steps("fish_swim", time_limit=0.4) == 10
    assert steps("lqr_lqr_2_1", time_limit=0.3) == 10
    assert steps("lqr_lqr_2_1") == 1000, "dm_control's own has no end"
    sizes = [
        make("manipulator_bring_ball", 1, 1, 1, obs_type="state", options=options).observation_spec().shape[0]
        for options in ({}, {"fully_observable": False})
    ]
    assert sizes[0] > sizes[1]
    env = make("acrobot_swingup", 1, 1, 1, obs_type="state", options={"environment_kwargs": {"n_sub_steps": 3}})
    assert env.step_seconds == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fish_swim", {"random": 1}, "env.random: is set by seed"),
        ("fish_swim", {"lenght": 1}, "env.lenght: fish_swim takes no such argument; allowed: time_limit, environment_"),
        ("cup_catch", {"fully_observable": True}, "env.fully_observable: cup_catch takes no such argument"),
        ("fish_swim", {"time_limit": -1}, "env.time_limit=-1: must be a number above 0"),
        ("fish_swim", {"time_limit": "long"}, "env.time_limit=long: must be a number above 0"),
        ("stacker_stack_2", {"fully_observable": "no"}, "env.fully_observable=no: must be true or false"),
        ("fish_swim", {"environment_kwargs": 3}, "env.environment_kwargs=3: dm_control cannot make fish_swim"),
        ("fish_swim", {"environment_kwargs": {"flat": True}}, "dm_control cannot make fish_swim with this"),
        ("fish_swim", {"environment_kwargs": {"n_sub_steps": 2}}, "dm_control cannot make fish_swim with this"),
        ("reach_site", {"time_limit": 3}, "env.time_limit: reach_site is one of the manipulation tasks"),
    ],
)
def test_other_arguments_are_refused_by_name(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        make(name, 1, 1, 1, obs_type="state", options=options)
    assert said in str(error.value)


def test_a_limit_of_steps_replaces_that_of_time() -> None:
    for name in ("fish_swim", "lqr_lqr_6_2", "reach_site"):
        env = make(name, 1, 1, 1, obs_type="state", max_episode_steps=3)
        ends = [env.reset().last()] + [env.step(np.zeros(env.action_spec().shape)).last() for _ in range(3)]
        assert ends == [False, False, False, True]
        env.close()
    with pytest.raises(UserError, match=r"env\.time_limit=5 and max_episode_steps: give only one of them"):
        make("fish_swim", 1, 1, 1, obs_type="state", options={"time_limit": 5}, max_episode_steps=3)


def test_a_wrong_camera_is_refused_before_anything_is_drawn() -> None:
    with pytest.raises(UserError, match=r"camera='side': must be .* one of \['tracking_top', .*\] of fish_swim"):
        make("fish_swim", 1, 1, 1, obs_type="state", camera="side")
    with pytest.raises(UserError, match="camera=9: must be"):
        make("mine", 1, 1, 1, obs_type="state", camera=9, factory=short_env.make)
    with pytest.raises(UserError, match="camera=1: gymnasium:CartPole-v1 is not a MuJoCo simulation"):
        make("mine", 1, 1, 1, obs_type="state", camera=1, factory=partial(gymnasium.make, "CartPole-v1"))
