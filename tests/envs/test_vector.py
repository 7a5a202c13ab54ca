"""Vectors of environments: what a step holds at the ends of episodes, and the order of calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from drqv2 import utils
from drqv2.envs import make
from drqv2.envs.env_process import ProcessEnv
from drqv2.envs.handles import LocalEnv
from drqv2.envs.pool import PoolVector
from drqv2.envs.vector import HandleVector, VectorEnv, VectorStep
from drqv2.errors import EnvNotFiniteError, UserError
from tests.envs.toys import Counter

LENGTHS = (2, 3)


def counter(index: int, discount: float) -> Any:
    factory = partial(Counter, length=LENGTHS[index], last_discount=discount)
    return make("counter", 1, 1, 0, factory=factory, stream=utils.TRAIN_ENV, index=index, image_size=15)


@pytest.fixture(params=[LocalEnv, ProcessEnv])
def vector(request: pytest.FixtureRequest) -> Iterator[HandleVector]:
    made = HandleVector([request.param(partial(counter, i, float(i))) for i in range(2)])
    yield made
    made.close()


def shown(step: VectorStep) -> list[int]:
    return [int(image.max()) for image in step.observation]


def test_episodes_follow_each_other_and_keep_their_last_observation(vector: HandleVector) -> None:
    actions = np.zeros((2, 2), np.float32)
    steps = [vector.reset(), *(vector.step(actions) for _ in range(5))]
    assert [shown(step) for step in steps] == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0], [2, 1]]
    assert [step.reward.tolist() for step in steps] == [[0, 0], [1, 1], [2, 2], [0, 3], [1, 0], [2, 1]]
    assert [step.terminated.tolist() for step in steps[1:4]] == [[False, False], [True, False], [False, False]]
    assert [step.truncated.tolist() for step in steps[1:4]] == [[False, False], [False, False], [False, True]]
    assert [step.first.tolist() for step in steps[2:5]] == [[False, False], [True, False], [False, True]]
    assert steps[1].observation.dtype == np.uint8
    assert steps[1].reward.dtype == np.float32
    assert steps[1].env_index.tolist() == [0, 1]


def test_a_wrong_order_of_calls_raises(vector: HandleVector) -> None:
    actions = np.zeros((2, 2), np.float32)
    with pytest.raises(RuntimeError, match=r"send\(\) before reset\(\)"):
        vector.send(actions)
    with pytest.raises(RuntimeError, match=r"recv\(\) without send\(\)"):
        vector.recv()
    vector.reset()
    vector.send(actions)
    with pytest.raises(RuntimeError, match=r"send\(\) twice"):
        vector.send(actions)
    with pytest.raises(RuntimeError, match=r"reset\(\) between send\(\) and recv\(\)"):
        vector.reset()
    assert shown(vector.recv()) == [1, 1]


def needs_envpool() -> None:
    """Skip where it is not installed; without importing it, which must come after OpenGL."""
    if find_spec("envpool") is None:
        pytest.skip("EnvPool is not installed")


def played(pool: VectorEnv, steps: int) -> list[VectorStep]:
    generator = np.random.default_rng(0)
    spec: Any = pool.action_spec()
    found = [pool.reset()]
    for _ in range(steps):
        rows = len(found[-1].env_index)
        discrete = hasattr(spec, "num_values")
        actions = (
            generator.integers(spec.num_values, size=rows)
            if discrete
            else generator.uniform(-1, 1, (rows, *spec.shape)).astype(np.float32)
        )
        found.append(pool.step(actions))
    pool.close()
    return found


def test_envpool_gives_the_same_stream() -> None:
    needs_envpool()
    steps = played(PoolVector("CartPole-v1", 3, 7), 60)
    ended = np.array([step.terminated | step.truncated for step in steps])
    first = np.array([step.first for step in steps])
    assert first[0].all()
    assert ended.any()
    np.testing.assert_array_equal(first[1:], ended[:-1])
    rewards = np.array([step.reward for step in steps])
    np.testing.assert_array_equal(rewards, np.where(first, 0.0, 1.0))
    assert all(step.observation.shape == (3, 4) and step.observation.dtype == np.float32 for step in steps)
    again = played(PoolVector("CartPole-v1", 3, 7), 60)
    for one, other in zip(steps, again, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(played(PoolVector("CartPole-v1", 3, 8), 0)[0].observation, steps[0].observation)


@pytest.mark.parametrize(
    ("name", "observed", "acted"),
    [
        ("Pong-v5", (4, 84, 84), ()),
        ("CarRacing-v2", (3, 96, 96), (3,)),  # EnvPool puts its channels last
        ("CartpoleBalance-v1", (5,), (1,)),
        ("Catch-v0", (50,), ()),
        ("Pendulum-v1", (3,), (1,)),
    ],
)
def test_envpool_of_other_spaces(name: str, observed: tuple[int, ...], acted: tuple[int, ...]) -> None:
    needs_envpool()
    pool = PoolVector(name, 2, 0)
    assert pool.observation_spec().shape == observed
    assert pool.action_spec().shape == acted
    assert all(step.observation.shape == (2, *observed) for step in played(pool, 3))


def test_envpool_hands_over_those_that_are_ready() -> None:
    needs_envpool()
    steps = played(PoolVector("CartPole-v1", 4, 0, batch_size=2), 40)
    assert {len(step.env_index) for step in steps} == {2}
    assert {int(i) for step in steps for i in step.env_index} == {0, 1, 2, 3}
    firsts = {int(i): 0 for i in range(4)}
    for step in steps:
        for index, first in zip(step.env_index, step.first, strict=True):
            firsts[int(index)] += first
    assert min(firsts.values()) >= 1


def test_a_second_reset_is_refused_while_some_environments_step() -> None:
    needs_envpool()
    pool = PoolVector("CartPole-v1", 4, 0, batch_size=2)
    pool.reset()
    with pytest.raises(RuntimeError, match="comes once"):
        pool.reset()
    whole = PoolVector("CartPole-v1", 4, 0)
    assert whole.reset().first.all()
    assert whole.reset().first.all()


def test_envpool_is_stopped_at_the_first_number_that_is_not_finite() -> None:
    needs_envpool()
    pool = PoolVector("Pendulum-v1", 2, 0)
    pool.reset()
    pool.step(np.zeros((2, 1), np.float32))
    with pytest.raises(EnvNotFiniteError, match=r"^envpool:Pendulum-v1, environment 1: the observation is nan"):
        pool.step(np.array([[0.0], [np.nan]], np.float32))
    pool.close()


def test_an_unknown_id_names_the_nearest() -> None:
    needs_envpool()
    with pytest.raises(UserError, match=r"envpool:CartPol-v1: envpool has no such environment; nearest: .*CartPole-v1"):
        PoolVector("CartPol-v1", 1, 0)


def test_the_first_reward_of_an_episode_is_zero() -> None:
    needs_envpool()
    steps = played(PoolVector("CartpoleBalance-v1", 3, 0, max_episode_steps=10), 30)
    first = np.stack([step.first for step in steps])
    rewards = np.stack([step.reward for step in steps])
    assert first.sum() > 3
    assert not rewards[first].any()
    assert rewards[~first].any()
