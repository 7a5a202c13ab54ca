"""Fills segments [S, H] from a vector of environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.errors import UserError

State = tuple[Tensor, Tensor]
Act = Callable[[Tensor, State | None, Tensor], tuple[Tensor, Tensor, Tensor, State | None]]


class Collector:
    """Steps environments and stores what they show, H consecutive steps of one environment in each segment.

    With an asynchronous vector, the environments that are ready first may fill more segments than others; steps of
    those that have no segment left are dropped.

    Args:
        env: the environments.
        act: takes observations [N, ...], state and `first`; returns actions, log probabilities, values, state.
        state: of the LSTM of all environments, two [num_envs, hidden]; None without one.
        segments: S, at least the number of environments.
        horizon: H, steps in a segment.
        device: of the tensors.

    Attributes:
        episodes: return and length in steps of the episodes that ended since they were last taken.
        steps: steps stored so far, first observations included.
        dropped: steps that found no segment so far.

    Raises:
        UserError: there are more environments than segments.
    """

    def __init__(
        self, env: VectorEnv, act: Act, state: State | None, segments: int, horizon: int, device: torch.device | str
    ) -> None:
        if env.num_envs > segments:
            raise UserError(
                f"num_envs={env.num_envs}: more environments than the {segments} segments of {horizon} steps in a "
                "batch; make the batch larger or the horizon shorter"
            )
        self.env, self.act, self.state, self.device = env, act, state, torch.device(device)
        self.episodes: list[tuple[float, int]] = []
        self.steps = self.dropped = 0
        self._shape = segments, horizon
        self._step: VectorStep | None = None
        self._returns, self._lengths = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)

    def collect(self) -> dict[str, Any]:
        """Return a batch of new segments.

        Returns:
            obs, actions, log_probs, values, rewards, terminated, truncated, first, [S, H, ...] each, and state: the
            LSTM's before each segment, two [S, hidden] or None.
        """
        segments, horizon = self._shape
        stored: dict[str, Tensor] = {}
        starts = None if self.state is None else tuple(x.new_empty(segments, x.shape[1]) for x in self.state)
        row = torch.arange(self.env.num_envs)  # of each environment; `segments` where none is left
        column = torch.zeros(self.env.num_envs, dtype=torch.long)
        free, full = self.env.num_envs, 0
        step = self.env.reset() if self._step is None else self._step
        while full < segments:
            index = torch.from_numpy(step.env_index)
            self._count(step)
            obs, first = (torch.from_numpy(x).to(self.device) for x in (step.observation, step.first))
            before = None if self.state is None else (self.state[0][index], self.state[1][index])
            actions, log_probs, values, after = self.act(obs, before, first)
            new = {"obs": obs, "actions": actions, "log_probs": log_probs, "values": values, "first": first}
            new |= {"rewards": torch.from_numpy(step.reward).to(self.device)}
            new |= {name: torch.from_numpy(getattr(step, name)).to(self.device) for name in ("terminated", "truncated")}
            if not stored:
                # One row more, which takes what no segment has room for.
                stored = {name: x.new_empty(segments + 1, horizon, *x.shape[1:]) for name, x in new.items()}
            rows, columns = row[index], column[index]
            for name, x in new.items():
                stored[name][rows, columns] = x
            if starts is not None and before is not None:
                begins = (columns == 0) & (rows < segments)
                for start, x in zip(starts, before, strict=True):
                    start[rows[begins]] = x[begins]
            if self.state is not None and after is not None:
                for x, y in zip(self.state, after, strict=True):
                    x[index] = y
            self.env.send(actions.cpu().numpy())
            column[index] = columns + 1
            for i in index[columns + 1 == horizon].tolist():
                full += int(row[i] < segments)
                row[i], column[i] = min(free, segments), 0
                free += 1
            lost = int((rows == segments).sum())
            self.dropped += lost
            self.steps += len(rows) - lost
            step = self.env.recv()
        self._step = step
        return {name: x[:segments] for name, x in stored.items()} | {"state": starts}

    def _count(self, step: VectorStep) -> None:
        index = step.env_index
        self._returns[index] = np.where(step.first, 0.0, self._returns[index] + step.reward)
        self._lengths[index] = np.where(step.first, 0, self._lengths[index] + 1)
        for i in index[step.terminated | step.truncated]:
            self.episodes.append((float(self._returns[i]), int(self._lengths[i])))
