"""This project's tasks as Gymnasium environments."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import drqv2.envs.as_gymnasium
from drqv2 import envs
from drqv2.config.dm_control import every_task
from drqv2.errors import UserError
from tests.patience import PATIENCE


def made(task: str = "cartpole_balance", **options: Any) -> Any:
    return gymnasium.make(f"drqv2/{task}-v0", **options)


@pytest.mark.parametrize("options", [{}, {"obs_type": "state"}, {"channels_last": True}])
@pytest.mark.filterwarnings("ignore:.*infinity. This is probably too")  # a state vector has no bounds
def test_gymnasiums_checker_has_no_complaint(options: dict[str, Any]) -> None:
    env = made(render_mode="rgb_array", **options)
    check_env(env.unwrapped, skip_render_check=False)
    env.close()


def test_every_task_is_registered() -> None:
    assert {f"drqv2/{task}-v0" for task in every_task()} <= set(gymnasium.registry)
    env = made("fish_swim", obs_type="state")
    assert env.reset(seed=1)[0].shape == env.observation_space.shape == (24,)
    env.close()


def test_observations_and_rewards_are_those_that_an_agent_of_this_project_gets() -> None:
    env = made("walker_walk", action_repeat=4, image_size=64, frame_stack=2)
    observation, _ = env.reset(seed=7)
    own = envs.make("walker_walk", 2, 4, 0, image_size=64)
    index = int(np.random.default_rng(7).integers(2**31))
    time_step = own.begin(index, 0)
    generator = np.random.default_rng(0)
    for _ in range(5):
        assert observation.shape == (6, 64, 64)
        np.testing.assert_array_equal(observation, time_step.observation)
        action = generator.uniform(-1, 1, 6).astype(np.float32)
        observation, reward, terminated, truncated, info = env.step(action)
        time_step = own.step(action)
        assert (reward, terminated, truncated, info) == (time_step.reward, False, False, {})
    for one in (env, own):
        one.close()


def test_channels_last() -> None:
    first, last = made(image_size=32), made(image_size=32, channels_last=True)
    seen = [env.reset(seed=1)[0] for env in (first, last)]
    assert seen[1].shape == last.observation_space.shape == (32, 32, 9)
    np.testing.assert_array_equal(seen[0], seen[1].transpose(2, 0, 1))
    for env in (first, last):
        env.close()


def test_a_seed_names_an_episode_and_the_next_ones_differ() -> None:
    env = made(obs_type="state")

    def starts(seed: int) -> list[bytes]:
        return [env.reset(seed=seed)[0].tobytes(), env.reset()[0].tobytes(), env.reset()[0].tobytes()]

    first, other = starts(3), starts(4)
    assert starts(3) == first
    assert len({*first, *other}) == 6
    env.close()


def test_an_episode_ends_by_a_time_out() -> None:
    env = made(obs_type="state", action_repeat=50)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(20)]
    assert ends == [(False, False)] * 19 + [(False, True)]
    env.close()


def test_a_terminal_state_is_a_termination() -> None:
    env = made("quadruped_walk", obs_type="state", action_repeat=1)
    env.reset(seed=0)
    env.unwrapped._env._base._task.get_termination = lambda physics: 0.0
    assert env.step(env.action_space.sample())[2:4] == (True, False)
    env.close()


def test_pictures_have_their_own_size_and_rate() -> None:
    env = made(render_mode="rgb_array", obs_type="state", render_size=48, action_repeat=4)
    env.reset(seed=0)
    assert env.render().shape == (48, 48, 3)
    assert env.metadata["render_fps"] == 25  # cartpole's 100 steps a second, four at a time
    env.close()


def test_a_name_is_enough() -> None:
    name = "drqv2.envs.as_gymnasium:drqv2/cartpole_balance-v0"
    code = f"import gymnasium; print(gymnasium.make('{name}', obs_type='state').reset(seed=1)[0].shape)"
    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert made.stdout == "(5,)\n"


@pytest.mark.parametrize(
    ("task", "space"),
    [
        ("gymnasium:CartPole-v1", gymnasium.spaces.Discrete(2)),
        ("gymnasium:Pendulum-v1", gymnasium.spaces.Box(-1, 1, (1,), np.float32)),
    ],
)
def test_environments_of_other_libraries(task: str, space: Any) -> None:
    env = gymnasium.make("drqv2/env-v0", task=task, obs_type="state", action_repeat=2, options={"max_episode_steps": 8})
    assert env.action_space == space
    env.reset(seed=1)
    ends = [env.step(env.action_space.sample())[3] for _ in range(4)]
    assert ends == [False, False, False, True]
    env.close()


def test_the_limit_of_another_library_is_replaced() -> None:
    env = gymnasium.make(
        "drqv2/env-v0", task="gymnasium:Pendulum-v1", obs_type="state", action_repeat=1, episode_steps=230
    )  # 200 by itself
    env.reset(seed=1)
    assert [t for t in range(1, 231) if env.step(np.zeros(1, np.float32))[3]] == [230]
    env.close()


def test_limits_and_options_of_a_task() -> None:
    env = made(obs_type="state", episode_steps=3, action_repeat=1)
    assert env.unwrapped.arguments.items() >= {"task": "cartpole_balance", "episode_steps": 3, "options": None}.items()
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]
    env.close()
    env = made(obs_type="state", options={"time_limit": 0.02}, action_repeat=1)
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(2)] == [False, True]
    env.close()


def test_mistakes() -> None:
    with pytest.raises(UserError, match="cartpole_balance"):
        drqv2.envs.as_gymnasium.DrQV2Env("cartpole_balanced")
    with pytest.raises(UserError, match="must be 'rgb_array' or None"):
        drqv2.envs.as_gymnasium.DrQV2Env("cartpole_balance", render_mode="human")


def test_a_process_that_has_made_an_environment_can_be_forked_into_others_that_draw() -> None:
    """As gymnasium.make_vec(..., vectorization_mode="async") does on Linux."""
    code = (
        "import gymnasium, drqv2.envs.as_gymnasium\n"
        "name = 'drqv2/cartpole_balance-v0'\n"
        "envs = gymnasium.make_vec(name, 2, 'async', {'context': 'fork'})\n"
        "print(envs.reset(seed=1)[0].shape); envs.close()\n"
    )
    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert made.stdout == "(2, 9, 84, 84)\n"
