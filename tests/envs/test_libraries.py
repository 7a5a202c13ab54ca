"""Environments of other libraries by name, one at a time, with everything that `make` adds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from drqv2 import utils
from drqv2.envs import make
from drqv2.envs.episode import Environment
from drqv2.envs.ids import split
from drqv2.envs.libraries import factory
from drqv2.errors import UserError


def made(env_id: str, obs_type: str = "state", index: int = 0, image_size: int = 84) -> Environment:
    return make(
        split(env_id)[1],
        1,
        1,
        seed=3,
        factory=factory(env_id, {}),
        stream=utils.TRAIN_ENV,
        index=index,
        obs_type=obs_type,
        image_size=image_size,
    )


def played(env: Environment, steps: int) -> list[np.ndarray]:
    action = env.action_spec().generate_value()
    return [env.reset().observation, *(env.step(action).observation for _ in range(steps))]


def test_library_and_name() -> None:
    assert split("envpool:own/Long-v0") == ("envpool", "own/Long-v0")
    with pytest.raises(UserError, match=r"its name here is metaworld:reach-v3"):
        split("envpool:MetaWorld/Reach-v3")
    for wrong in ("CartPole-v1", "gym:CartPole-v1"):
        with pytest.raises(UserError, match=r"must be gymnasium:NAME or envpool:NAME"):
            split(wrong)


@pytest.mark.parametrize("env_id", ["gymnasium:CartPol-v1", "envpool:CartPol-v1"])
def test_an_unknown_name_is_answered_with_the_nearest(env_id: str) -> None:
    with pytest.raises(UserError, match=r"no such environment; nearest: .*CartPole-v1"):
        made(env_id)


@pytest.mark.parametrize("env_id", ["gymnasium:CartPole-v1", "envpool:CartPole-v1"])
def test_options_reach_the_library(env_id: str) -> None:
    with pytest.raises(UserError, match=f"^{env_id}: .*wheels"):
        factory(env_id, {"wheels": 3})()


@pytest.mark.parametrize("env_id", ["gymnasium:CartPole-v1", "envpool:CartPole-v1", "envpool:CartpoleBalance-v1"])
def test_episodes_are_numbered_and_can_be_restored(env_id: str) -> None:
    env, other = made(env_id), made(env_id)
    first, second = played(env, 5), played(env, 4)
    np.testing.assert_array_equal(first, played(other, 5))
    assert not np.array_equal(first[0], second[0])
    np.testing.assert_array_equal(other.restore(env.state()).observation, second[-1])
    np.testing.assert_array_equal(
        env.step(env.action_spec().generate_value())[3], other.step(env.action_spec().generate_value())[3]
    )
    assert not np.array_equal(played(made(env_id, index=1), 0), first[:1])
    assert env.render(48, 64).shape == (48, 64, 3)
    for each in (env, other):
        each.close()


def test_images_of_envpool_come_channels_first_and_are_filmed_in_colour() -> None:
    env = made("envpool:Pong-v5", "pixels")
    seen = played(env, 30)[-1]
    assert seen.shape == (4, 84, 84)
    assert seen.dtype == np.uint8
    frame = env.render(210, 160)
    assert frame.shape == (210, 160, 3)
    assert np.ptp(frame.astype(int), axis=2).max() > 50
    env.close()


class Undrawn(gymnasium.Env):
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(3, np.float32), 1.0, False, False, {}


def test_an_environment_that_does_not_draw_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    entry: Any = Undrawn
    monkeypatch.setitem(gymnasium.registry, "Undrawn-v0", gymnasium.envs.registration.EnvSpec("Undrawn-v0", entry))
    env = made("gymnasium:Undrawn-v0")
    assert played(env, 2)[2].tolist() == [1, 1, 1]
    assert env.render_mode is None


def test_several_discrete_actions() -> None:
    import gymnasium

    class Two(gymnasium.Env):
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])
        observation_space = gymnasium.spaces.Box(-9, 9, (2,))

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.float32(action), 0.0, False, False, {}

    env = make("two", 1, 1, 0, factory=Two, obs_type="state")
    assert env.action_spec().maximum.tolist() == [1, 2]
    env.reset()
    assert env.step(np.array([1, 2])).observation.tolist() == [1, 2]
    with pytest.raises(ValueError, match="bounds"):
        env.step(np.array([1, 3]))
