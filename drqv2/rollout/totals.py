"""Returns, lengths and discounted sums of the episodes of many environments, from steps in any order of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from drqv2.envs.info import Sums, add, joined, means, merge, summed
from drqv2.envs.vector import VectorStep
from drqv2.errors import NotFiniteError
from drqv2.nn.scan import reverse_scan


class Ended(NamedTuple):
    """Episodes that have ended.

    Attributes:
        episodes: return and length in steps of each.
        info: over these, of the numbers in `info`: sum of the episodes' means, and how many had it.
    """

    episodes: list[tuple[float, int]]
    info: Sums


class EpisodeTotals:
    """Adds up the rewards of N environments, batch by batch.

    Args:
        num_envs: N.
        discount: of the discounted sums; None leaves them at 0.

    Attributes:
        episodes: return and length in steps of each episode that ended since they were last taken.
        info: of the numbers in `info`, over the same episodes: sum of the episodes' means, and how many had it.
    """

    def __init__(self, num_envs: int, discount: float | None) -> None:
        self.discount = discount
        self.episodes: list[tuple[float, int]] = []
        self.info: Sums = {}
        # Of the current episodes; a first observation is no step.
        self._returns, self._lengths = np.zeros(num_envs), np.full(num_envs, -1)
        self._sums = np.zeros(num_envs)  # of rewards, discounted from the past on
        self._info: list[Sums] = [{} for _ in range(num_envs)]  # over the steps of the current episodes

    def add(
        self,
        reward: np.ndarray,
        ended: np.ndarray,
        first: np.ndarray,
        env_index: np.ndarray,
        learnt: np.ndarray | None = None,
        info: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Add K steps, those of one environment in the order in which they were taken.

        Args:
            reward: float32 [K].
            ended: whether the step was an episode's last, bool [K].
            first: whether an episode starts there, bool [K].
            env_index: number of the environment, int64 [K].
            learnt: the rewards to learn from, float32 [K], of which the discounted sums are; `reward` by default.
            info: numbers of each step, float64 [K], NaN where there is none.

        Returns:
            The discounted sum of its episode's rewards up to each step, float32 [K].

        Raises:
            NotFiniteError: a reward is NaN or infinite.
        """
        if not np.isfinite(reward).all():
            worst = int(np.argmin(np.isfinite(reward)))
            raise NotFiniteError(
                f"the reward is {reward[worst]} in environment {env_index[worst]}: fix the environment"
            )
        order = by_environment(env_index)
        env, reward, ended, first = env_index[order], reward[order].astype(np.float64), ended[order], first[order]
        begins = np.diff(env, prepend=-1) != 0  # of each environment's steps
        self._add_episodes(env, reward, ended, begins, {key: x[order] for key, x in (info or {}).items()})
        sums = np.zeros(len(env), np.float32)
        if self.discount is not None:
            summed = reward if learnt is None else learnt[order].astype(np.float64)
            sums[order] = self._add_sums(env, summed, first, begins, self.discount)
        return sums

    def _add_episodes(
        self,
        env: np.ndarray,
        reward: np.ndarray,
        ended: np.ndarray,
        begins: np.ndarray,
        info: Mapping[str, np.ndarray],
    ) -> None:
        starts = np.flatnonzero(begins | np.append(True, ended[:-1]))  # of episodes, or of what is here of one
        stops = np.append(starts[1:], len(env))
        parts = env[starts], np.add.reduceat(reward, starts), stops - starts, ended[stops - 1]
        bounds = zip(starts.tolist(), stops.tolist(), strict=True)
        numbers = [summed(info, start, stop) for start, stop in bounds] if info else None
        for part, (i, total, steps, over) in enumerate(zip(*(part.tolist() for part in parts), strict=True)):
            self._returns[i] += total
            self._lengths[i] += steps
            if numbers:
                merge(self._info[i], numbers[part])
            if over:
                self.episodes.append((float(self._returns[i]), int(self._lengths[i])))
                self._returns[i], self._lengths[i] = 0.0, -1
                if self._info[i]:
                    add(self.info, means(self._info[i]))
                    self._info[i] = {}

    def longest(self) -> int:
        """Return the steps of the longest unfinished episode."""
        return int(self._lengths.max())

    def take(self) -> Ended:
        """Return `episodes` and `info`, and begin new ones."""
        taken = Ended(self.episodes, self.info)
        self.episodes, self.info = [], {}
        return taken

    def _add_sums(
        self, env: np.ndarray, reward: np.ndarray, first: np.ndarray, begins: np.ndarray, discount: float
    ) -> np.ndarray:
        """Return s_t = reward_t + discount s_{t-1} along each environment's steps."""
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=len(env))
        t = np.arange(lengths.max())[:, None]
        rows = starts + np.minimum(t, lengths - 1)  # [T, N], whose last ones repeat
        decays, inputs = np.where(first, 0.0, discount)[rows], reward[rows]
        inputs[0] += decays[0] * self._sums[env[starts]]
        backwards = [torch.from_numpy(x[::-1].copy()) for x in (inputs, decays)]
        sums = reverse_scan(backwards[0], backwards[1], time_first=True).numpy()[::-1]
        self._sums[env[starts]] = sums[lengths - 1, np.arange(len(starts))]
        found = np.empty_like(reward)
        own = t < lengths
        found[rows[own]] = sums[own]
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of the current episodes, and the episodes that were not taken."""
        totals = {"returns": self._returns, "lengths": self._lengths, "sums": self._sums}
        numbers = {"episodes": list(self.episodes), "info": dict(self.info), "infos": [dict(x) for x in self._info]}
        return {name: torch.from_numpy(x.copy()) for name, x in totals.items()} | numbers

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._returns, self._lengths, self._sums = (saved[x].numpy().copy() for x in ("returns", "lengths", "sums"))
        self.episodes = list(saved["episodes"])
        self.info, self._info = dict(saved["info"]), [dict(x) for x in saved["infos"]]


def joined_steps(steps: Sequence[VectorStep]) -> tuple[Any, Any, Any, Any, Any, dict[str, np.ndarray]]:
    """Return reward, terminated, truncated, first, env_index and numbers in `info` of steps, one after another."""
    _, *fields, infos = zip(*steps, strict=True)
    reward, terminated, truncated, first, index = map(np.concatenate, fields)
    return reward, terminated, truncated, first, index, joined(infos, [len(step.reward) for step in steps])


def by_environment(env_index: np.ndarray) -> np.ndarray:
    """Return the order that brings the steps of each environment together, and keeps theirs [K]."""
    # Numpy sorts short integers in linear time.
    return np.argsort(env_index.astype(np.uint16) if env_index.max() < 2**16 else env_index, kind="stable")
