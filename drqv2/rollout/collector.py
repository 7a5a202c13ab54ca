"""Fills segments, H consecutive steps of one environment each, from a vector of environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.parts import each
from drqv2.rollout.totals import EpisodeTotals, by_environment, joined_steps
from drqv2.rollout.unroll import as_fields, with_observations

State = tuple[Tensor, Tensor]
Act = Callable[[Any, State | None, Tensor], tuple[Tensor, Tensor, Tensor, State | None]]
Steps = dict[str, Tensor]  # [K, ...]


class Collector(Iterator[dict[str, Any]]):
    """Iterates over batches of segments, each collected when it is asked for.

    A step's observation is stored with the reward and the flags that came with it and with the action chosen for it.
    With a vector that hands over the environments that are ready first, some fill more segments than others; steps
    that do not make a whole segment yet are kept for the next batch.

    What is done at every step takes longer than the environments if these are small, so that is little: the rest is
    done for a whole batch.

    Args:
        env: the environments.
        act: takes observations [N, ...], state and `first`; returns actions, log probabilities, values, state.
        state: of the LSTM of all environments, two [num_envs, hidden]; None without one.
        segments: S, of a batch.
        horizon: H, steps in a segment.
        discount: of the discounted sums.
        device: of the tensors.
        spent_on: makes a context for what is done within it: "env", "forward", "copy".

    Attributes:
        totals: of the episodes.
        transform_reward: maps the rewards of a batch to those to learn from; None: the environment's own.
    """

    transform_reward: Callable[[np.ndarray], np.ndarray] | None = None

    def __init__(
        self,
        env: VectorEnv,
        act: Act,
        state: State | None,
        segments: int,
        horizon: int,
        discount: float = 1.0,
        device: torch.device | str = "cpu",
        spent_on: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self.env, self.act, self.state, self.device = env, act, state, torch.device(device)
        self.segments, self.horizon, self.spent_on = segments, horizon, spent_on
        self.totals = EpisodeTotals(env.num_envs, discount)
        self.current: VectorStep | None = None  # the one that is acted on next
        self._new: list[tuple[VectorStep, Steps]] = []  # since the last batch
        self._kept: Steps = {}  # before it, and not in it
        self._waiting = np.zeros(env.num_envs, np.int64)  # how many of both each environment has

    def __next__(self) -> dict[str, Any]:
        """Return a batch of new segments.

        Returns:
            obs (an array or a dict), actions, log_probs, values, rewards, terminated, truncated, first, sums (of past
            rewards, discounted), [S, H, ...] each, and state: the LSTM's before each segment, two [S, hidden] or None.

        Raises:
            NotFiniteError: a reward is NaN or infinite.
        """
        steps = int(self._waiting.sum())
        while steps < self.segments * self.horizon or (self._waiting // self.horizon).sum() < self.segments:
            steps += self._step()
        with self.spent_on("copy"):
            return self._batch()

    def start(self, step: VectorStep) -> None:
        """Begin at a step of the environments, which starts episodes in all of them."""
        self.current = step

    def state_dict(self) -> dict[str, Any]:
        """Return what the collector knows between two batches; complete where no steps are waiting."""
        return {"totals": self.totals.state_dict(), "state": self.state and [x.clone() for x in self.state]}

    def load_state_dict(self, saved: dict[str, Any], step: VectorStep) -> None:
        """Restore what `state_dict` returned, with the step that the environments were at."""
        self.current = step
        self.totals.load_state_dict(saved["totals"])
        if self.state is not None:
            for x, y in zip(self.state, saved["state"], strict=True):
                x.copy_(y)

    def _step(self) -> int:
        """Act once; return for how many environments."""
        assert self.current is not None, "start() comes first"
        step, state = self.current, self.state
        with self.spent_on("forward"):
            obs, first = each(self._tensor, step.observation), torch.from_numpy(step.first).to(self.device)
            index = torch.from_numpy(step.env_index)
            before = None if state is None else (state[0][index], state[1][index])
            actions, log_probs, values, after = self.act(obs, before, first)
            chosen = actions.cpu().numpy()
        with self.spent_on("env"):
            self.env.send(chosen)
            new = as_fields(obs) | {"actions": actions, "log_probs": log_probs, "values": values}
            if state is not None and before is not None and after is not None:
                new |= zip("hc", before, strict=True)
                for x, y in zip(state, after, strict=True):
                    x[index] = y
            self._new.append((step, new))
            self._waiting[step.env_index] += 1
            self.current = self.env.recv()
        return len(step.env_index)

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)  # some vectors return a transposed view

    def _batch(self) -> dict[str, Any]:
        """Take the oldest whole segments out of the steps that are waiting."""
        steps = self._take()
        index = steps["env_index"].numpy()
        taken = _oldest_segments(index, self.segments, self.horizon)
        rest = np.ones(len(index), bool)
        rest[taken] = False
        self._kept = {name: x[torch.from_numpy(rest)] for name, x in steps.items()} if rest.any() else {}
        self._waiting = np.bincount(index[rest], minlength=len(self._waiting))
        del steps["env_index"]
        where = torch.from_numpy(taken).to(self.device)
        states = tuple(steps.pop(name)[where[:, 0]] for name in "hc" if name in steps)
        batch = with_observations({name: x.to(self.device)[where] for name, x in steps.items()})
        return batch | {"state": states or None}

    def _take(self) -> Steps:
        """Return all steps that are waiting, each environment's in their order, and add the new ones to `totals`."""
        reward, terminated, truncated, first, index, info = joined_steps([step for step, _ in self._new])
        learnt = reward if self.transform_reward is None else self.transform_reward(reward)
        sums = self.totals.add(reward, terminated | truncated, first, index, learnt, info)
        self.env.tell_long_episode(self.totals.longest())
        arrays = {"rewards": learnt, "terminated": terminated, "truncated": truncated, "first": first, "sums": sums}
        steps = {name: torch.from_numpy(x) for name, x in (arrays | {"env_index": index}).items()}
        steps |= {name: torch.cat([new[name] for _, new in self._new]) for name in self._new[0][1]}
        self._new = []
        return {name: torch.cat([self._kept[name], x]) if self._kept else x for name, x in steps.items()}


def _oldest_segments(env_index: np.ndarray, segments: int, horizon: int) -> np.ndarray:
    """Return which steps make the whole segments that come first, [S, H]: of each environment its first, and so on."""
    by_env = by_environment(env_index)
    waiting = np.bincount(env_index)
    begins = np.cumsum(waiting) - waiting  # of each environment within `by_env`
    whole = waiting // horizon
    env = np.repeat(np.arange(len(whole)), whole)  # of each whole segment
    number = np.arange(len(env)) - np.repeat(np.cumsum(whole) - whole, whole)  # among those of its environment
    oldest = np.argsort(number, kind="stable")[:segments]
    rows = (begins[env] + number * horizon)[oldest]
    taken: np.ndarray = by_env[rows[:, None] + np.arange(horizon)]
    return taken
