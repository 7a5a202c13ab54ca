"""Fills segments, H consecutive steps of one environment each, from a vector of environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.errors import NotFiniteError

State = tuple[Tensor, Tensor]
Act = Callable[[Tensor, State | None, Tensor], tuple[Tensor, Tensor, Tensor, State | None]]
_STEP = ("rewards", "terminated", "truncated", "first")
_NAMES = {"obs": "observation", "rewards": "reward"}  # of the fields of a VectorStep, where they differ


class Collector(Iterator[dict[str, Any]]):
    """Iterates over batches of segments, each collected when it is asked for.

    A step's observation is stored with the reward and the flags that came with it and with the action chosen for it.
    With a vector that hands over the environments that are ready first, some fill more segments than others; steps
    that do not make a whole segment yet are kept for the next batch.

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
        episodes: return and length in steps of each episode that ended since they were last taken.
    """

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
        self.segments, self.horizon, self.discount, self.spent_on = segments, horizon, discount, spent_on
        self.episodes: list[tuple[float, int]] = []
        self.current: VectorStep | None = None  # the one that is acted on next
        # Of the current episodes, up to the observation that was acted on last.
        self.returns, self.lengths = np.zeros(env.num_envs), np.full(env.num_envs, -1)
        self.sums = np.zeros(env.num_envs)  # of rewards, discounted from the past on
        self._waiting = np.zeros(env.num_envs, np.int64)  # steps of each environment that are in no batch yet
        self._steps: list[dict[str, np.ndarray]] = []  # these steps

    def __next__(self) -> dict[str, Any]:
        """Return a batch of new segments.

        Returns:
            obs, actions, log_probs, values, rewards, terminated, truncated, first, sums (of past rewards, discounted),
            [S, H, ...] each, and state: the LSTM's before each segment, two [S, hidden] or None.

        Raises:
            NotFiniteError: a reward is NaN or infinite.
        """
        assert self.current is not None, "start() comes first"
        while (self._waiting // self.horizon).sum() < self.segments:
            step = self.current
            index = torch.from_numpy(step.env_index)
            with self.spent_on("copy"):
                obs, first = (torch.from_numpy(x).to(self.device) for x in (step.observation, step.first))
                before = None if self.state is None else (self.state[0][index], self.state[1][index])
            with self.spent_on("forward"):
                actions, log_probs, values, after = self.act(obs, before, first)
                chosen = actions.cpu().numpy()
            with self.spent_on("env"):
                self.env.send(chosen)
            with self.spent_on("copy"):  # while the environments step
                self._count(step)
                self._store(step, chosen, log_probs, values, before)
                if self.state is not None and after is not None:
                    for x, y in zip(self.state, after, strict=True):
                        x[index] = y
            with self.spent_on("env"):
                self.current = self.env.recv()
        with self.spent_on("copy"):
            return self._batch()

    def start(self, step: VectorStep) -> None:
        """Begin at a step of the environments, which starts episodes in all of them."""
        self.current = step

    def state_dict(self) -> dict[str, Any]:
        """Return what the collector knows between two batches; complete where no steps are waiting."""
        totals = {"returns": self.returns, "lengths": self.lengths, "sums": self.sums}
        return {name: torch.from_numpy(x.copy()) for name, x in totals.items()} | {
            "episodes": list(self.episodes),
            "state": None if self.state is None else [x.clone() for x in self.state],
        }

    def load_state_dict(self, saved: dict[str, Any], step: VectorStep) -> None:
        """Restore what `state_dict` returned, with the step that the environments were at."""
        self.current = step
        self.returns, self.lengths, self.sums = (saved[name].numpy().copy() for name in ("returns", "lengths", "sums"))
        self.episodes = [(float(total), int(steps)) for total, steps in saved["episodes"]]
        if self.state is not None:
            for x, y in zip(self.state, saved["state"], strict=True):
                x.copy_(y)

    def _store(self, step: VectorStep, actions: np.ndarray, log_probs: Tensor, values: Tensor, before: Any) -> None:
        new = {name: getattr(step, _NAMES.get(name, name)) for name in ("obs", *_STEP)}
        new |= {"actions": actions, "log_probs": log_probs.cpu().numpy(), "values": values.cpu().numpy()}
        new |= {"index": step.env_index, "sums": self.sums[step.env_index].astype(np.float32)}
        if before is not None:
            new |= {"h": before[0].cpu().numpy(), "c": before[1].cpu().numpy()}
        self._steps.append(new)
        self._waiting[step.env_index] += 1

    def _count(self, step: VectorStep) -> None:
        index = step.env_index
        if not np.isfinite(step.reward).all():
            worst = int(np.argmin(np.isfinite(step.reward)))
            raise NotFiniteError(
                f"the reward is {step.reward[worst]} in environment {index[worst]}: fix the environment"
            )
        self.returns[index] += step.reward
        self.lengths[index] += 1
        self.sums[index] = self.discount * self.sums[index] + step.reward
        for i in index[step.terminated | step.truncated]:
            self.episodes.append((float(self.returns[i]), int(self.lengths[i])))
            self.returns[i], self.lengths[i] = 0.0, -1  # a first observation is no step
        self.sums[index[step.first]] = 0.0

    def _batch(self) -> dict[str, Any]:
        """Take the oldest whole segments out of the steps that are waiting."""
        flat = {name: np.concatenate([step[name] for step in self._steps]) for name in self._steps[0]}
        by_env = np.argsort(flat["index"], kind="stable")
        begins = np.cumsum(self._waiting) - self._waiting  # of each environment within `by_env`
        whole = self._waiting // self.horizon
        env = np.repeat(np.arange(len(whole)), whole)  # of each whole segment
        number = np.arange(len(env)) - np.repeat(np.cumsum(whole) - whole, whole)  # among those of its environment
        oldest = np.argsort(number, kind="stable")[: self.segments]
        rows = (begins[env] + number * self.horizon)[oldest]
        taken = by_env[rows[:, None] + np.arange(self.horizon)]  # [S, H]
        rest = np.ones(len(by_env), bool)
        rest[taken] = False
        self._steps = [{name: x[rest] for name, x in flat.items()}] if rest.any() else []
        self._waiting = np.bincount(flat.pop("index")[rest], minlength=len(whole))
        states = [torch.from_numpy(flat.pop(name)[taken[:, 0]]).to(self.device) for name in "hc" if name in flat]
        batch = {name: torch.from_numpy(x[taken]).to(self.device) for name, x in flat.items()}
        return batch | {"state": tuple(states) or None}
