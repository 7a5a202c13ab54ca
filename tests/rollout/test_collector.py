"""Segments against a loop over single environments."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drqv2.envs.handles import LocalEnv
from drqv2.envs.vector import HandleVector, VectorEnv, VectorStep
from drqv2.errors import NotFiniteError
from drqv2.rollout.collector import Collector
from tests.envs.test_vector import counter


class Numbered(VectorEnv):
    """Environment i shows (i, its step so far); only `ready` of them are handed over at a time, in a fixed order."""

    def __init__(self, num_envs: int, ready: list[list[int]] | None = None) -> None:
        super().__init__(num_envs, None, None)
        self.at = np.zeros(num_envs, np.int64)
        self.ready = ready or [list(range(num_envs))]
        self.calls = 0

    def _step(self) -> VectorStep:
        index = np.array(self.ready[self.calls % len(self.ready)])
        self.calls += 1
        none = np.zeros(len(index), bool)
        observation = np.stack([index, self.at[index]], 1).astype(np.float32)
        self.at[index] += 1
        return VectorStep(observation, np.ones(len(index), np.float32), none, none, none, index)

    _reset = _recv = _step

    def _send(self, actions: np.ndarray) -> None:
        self.sent = actions

    def close(self) -> None: ...


def started(env: VectorEnv, act: Any, state: Any, segments: int, horizon: int, discount: float = 1.0) -> Collector:
    collector = Collector(env, act, state, segments, horizon, discount)
    collector.start(env.reset())
    return collector


def act(obs: torch.Tensor, state: Any, first: torch.Tensor) -> Any:
    """Return the observation's last number as action, log probability and value; count steps in the state."""
    last = obs[:, -1]
    return last[:, None], last, last, None if state is None else (state[0] + 1, state[1] + obs[:, :1])


def test_segments_are_consecutive_steps_of_one_environment() -> None:
    collector = started(Numbered(3), act, None, segments=6, horizon=4)
    for begin in (0, 8):
        batch = next(collector)
        assert batch["obs"][:, :, 0].tolist() == [[i] * 4 for i in (0, 1, 2, 0, 1, 2)]
        steps = [[begin + k + t for t in range(4)] for k in (0, 0, 0, 4, 4, 4)]
        assert batch["obs"][:, :, 1].tolist() == steps
        assert torch.equal(batch["actions"][..., 0], batch["obs"][:, :, 1])
        assert torch.equal(batch["values"], batch["obs"][:, :, 1])
        assert batch["state"] is None


def test_environments_that_are_ready_first_fill_more_segments() -> None:
    ready = [[0, 1], [0, 2], [0, 1], [0, 3]]
    collector = started(Numbered(4, ready), act, None, segments=6, horizon=3)
    seen: dict[int, list[float]] = {i: [] for i in range(4)}
    for _ in range(4):
        batch = next(collector)
        assert batch["obs"].shape == (6, 3, 2)
        for segment in batch["obs"]:
            assert len(set(segment[:, 0].tolist())) == 1
            seen[int(segment[0, 0])] += segment[:, 1].tolist()
    assert all(steps == list(range(len(steps))) for steps in seen.values())  # in order, and none is lost
    assert len(seen[0]) > len(seen[1]) > len(seen[2]) > 0


def test_the_state_before_each_segment_is_kept() -> None:
    state = torch.zeros(3, 1), torch.zeros(3, 1)
    collector = started(Numbered(3), act, state, segments=6, horizon=4)
    next(collector)
    steps, sums = next(collector)["state"]
    assert steps[:, 0].tolist() == [8, 8, 8, 12, 12, 12]
    assert sums[:, 0].tolist() == [0, 8, 16, 0, 12, 24]


def test_returns_and_lengths_of_episodes() -> None:
    vector = HandleVector([LocalEnv(partial(counter, i, float(i))) for i in range(2)])
    collector = started(vector, zeros, None, segments=2, horizon=12)
    batch = next(collector)
    vector.close()
    assert sorted(collector.totals.episodes) == [(3.0, 2)] * 4 + [(6.0, 3)] * 3
    assert batch["terminated"][0].nonzero()[:, 0].tolist() == [2, 5, 8, 11]
    assert batch["truncated"][1].nonzero()[:, 0].tolist() == [3, 7, 11]
    assert batch["obs"].dtype == torch.uint8


def zeros(obs: torch.Tensor, state: Any, first: torch.Tensor) -> Any:
    return torch.zeros(len(obs), 2), torch.zeros(len(obs)), torch.zeros(len(obs)), None


def test_discounted_sums_start_anew_with_each_episode() -> None:
    vector = HandleVector([LocalEnv(partial(counter, i, float(i))) for i in range(2)])
    collector = started(vector, zeros, None, segments=2, horizon=4, discount=0.5)
    sums = torch.cat([next(collector)["sums"], next(collector)["sums"]], 1)
    vector.close()
    # rewards 0, 1, 2 and 0, 1, 2, 3 of the two environments
    assert sums[0].tolist() == [0, 1, 2.5, 0, 1, 2.5, 0, 1]
    assert sums[1].tolist() == [0, 1, 2.5, 4.25] * 2


def test_a_reward_that_is_not_finite_is_named() -> None:
    class Broken(Numbered):
        def _step(self) -> VectorStep:
            step = super()._step()
            return step._replace(reward=np.where(self.at > 3, np.nan, step.reward))

        _recv = _step

    with pytest.raises(NotFiniteError, match="the reward is nan in environment 0: fix the environment"):
        next(started(Broken(2), act, None, segments=2, horizon=8))


class Uneven(VectorEnv):
    """Environments whose episodes end at random, handed over in random order, some more often than others."""

    def __init__(self, num_envs: int, ready: int, rng: np.random.Generator) -> None:
        super().__init__(num_envs, None, None)
        self.ready, self.rng, self.over = ready, rng, np.ones(num_envs, bool)
        self.steps: list[list[Any]] = [[] for _ in range(num_envs)]  # reward, terminated, truncated, first of each

    def _recv(self) -> VectorStep:
        often = np.arange(1.0, self.num_envs + 1) ** 2
        some = self.rng.choice(self.num_envs, self.ready, replace=False, p=often / often.sum())
        index = some if self.ready < self.num_envs else np.arange(self.num_envs)
        first = self.over[index]
        ended = (self.rng.random(self.ready) < 0.2) & ~first
        truncated = ended & (self.rng.random(self.ready) < 0.5)
        reward = np.where(first, 0, self.rng.integers(-4, 5, self.ready)).astype(np.float32)
        self.over[index] = ended
        obs = np.array([[i, len(self.steps[i])] for i in index], np.float32)
        for i, *step in zip(index, reward, ended & ~truncated, truncated, first, strict=True):
            self.steps[i].append(step)
        return VectorStep(obs, reward, ended & ~truncated, truncated, first, index)

    _reset = _recv

    def _send(self, actions: np.ndarray) -> None: ...

    def close(self) -> None: ...


def act_with_memory(obs: torch.Tensor, state: Any, first: torch.Tensor) -> Any:
    """Return numbers made from the observation; the state counts an episode's steps and adds up their numbers."""
    h, c = (x * ~first[:, None] for x in state)
    value = 10 * obs[:, 0] + obs[:, 1]
    return value[:, None], value + 1, value + 2, (h + 1, c + obs[:, 1:])


@pytest.mark.slow
@given(seed=st.integers(0, 10_000))
def test_batches_in_any_order_equal_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_envs, horizon = int(rng.integers(1, 6)), int(rng.integers(2, 6))
    env = Uneven(num_envs, int(rng.integers(1, num_envs + 1)), rng)
    state, segments = (torch.zeros(num_envs, 1), torch.zeros(num_envs, 1)), num_envs * int(rng.integers(1, 4))
    collector = started(env, act_with_memory, state, segments, horizon, discount=0.5)
    taken = [0] * num_envs
    for batch in (next(collector) for _ in range(4)):
        values = 10 * batch["obs"][..., 0] + batch["obs"][..., 1]
        assert torch.equal(batch["actions"][..., 0], values)
        assert torch.equal(batch["log_probs"], values + 1)
        assert torch.equal(batch["values"], values + 2)
        for s in range(segments):
            i = int(batch["obs"][s, 0, 0])
            assert batch["obs"][s].tolist() == [[i, taken[i] + t] for t in range(horizon)]
            before, total = [0, 0], 0.0  # steps of the episode and the sum of their numbers; discounted rewards
            for t, (reward, terminated, truncated, first) in enumerate(env.steps[i][: taken[i] + horizon]):
                if t == taken[i]:
                    assert [float(x[s]) for x in batch["state"]] == before
                before = [1, t] if first else [before[0] + 1, before[1] + t]
                total = 0.5 * total * (not first) + reward
                if t >= taken[i]:
                    k = t - taken[i]
                    found = [batch[name][s, k] for name in ("rewards", "terminated", "truncated", "first", "sums")]
                    expected = [reward, terminated, truncated, first, total]
                    assert [float(x) for x in found] == pytest.approx([float(x) for x in expected], rel=1e-5, abs=1e-6)
            taken[i] += horizon
