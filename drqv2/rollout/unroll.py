"""Rollouts: T steps of some environments, written in place; the last observation of one is the first of the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drqv2.envs.info import Sums
from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.nn.observations import Observation
from drqv2.nn.policies import Policy, State
from drqv2.parts import each
from drqv2.rollout.shared import Layout
from drqv2.rollout.totals import EpisodeTotals, joined_steps

Choose = Callable[[Any, State | None, Tensor], tuple[Tensor, Tensor, State | None]]
"""From observations [E, ...], state and `first` to actions, log probabilities and the next state."""

_PART = "obs/"  # begins the name of a field that is a part of observations


def as_fields(obs: Any) -> dict[str, Any]:
    """Return observations as fields by name: `obs`, or of a dict each part as `obs/NAME`."""
    return {_PART + name: part for name, part in obs.items()} if isinstance(obs, Mapping) else {"obs": obs}


def observed(names: Iterable[str]) -> list[str]:
    """Return which names of fields are those of observations, see `as_fields`."""
    return [name for name in names if name == "obs" or name.startswith(_PART)]


def observations(fields: Mapping[str, Any]) -> Any:
    """Return the observations among fields by name, see `as_fields`."""
    if "obs" in fields:
        return fields["obs"]
    return {name.removeprefix(_PART): fields[name] for name in observed(fields)}


def with_observations(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields by name with their observations as `obs`, see `as_fields`."""
    own = observed(fields)
    return {"obs": observations(fields), **{name: x for name, x in fields.items() if name not in own}}


def acts_with(policy: Policy, generator: torch.Generator) -> Choose:
    """Return a function that samples actions from a policy, on the device of both; its tensors are on the CPU."""
    device = generator.device

    def choose(obs: Observation, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, State | None]:
        if device.type != "cpu":
            obs, first = each(lambda x: x.to(device), obs), first.to(device)
            state = None if state is None else (state[0].to(device), state[1].to(device))
        actions, log_probs, _, after = policy.choose(obs, state, first, generator)
        return actions.cpu(), log_probs.cpu(), None if after is None else (after[0].cpu(), after[1].cpu())

    return choose


def rollout_layout(env: Any, state: State | None, unroll_length: int) -> Layout:
    """Return shape and dtype of a rollout's arrays, of which observations may be several, see `as_fields`.

    Args:
        env: a vector of E environments.
        state: of the LSTM in them, two [E, hidden]; None without one.
        unroll_length: T; there are T + 1 steps, and the action of the last one is left out.
    """
    steps, action = (env.num_envs, unroll_length + 1), env.action_spec()
    discrete = np.issubdtype(action.dtype, np.integer)
    layout: dict[str, tuple[tuple[int, ...], Any]] = {
        **as_fields(each(lambda spec: ((*steps, *spec.shape), spec.dtype), env.observation_spec())),
        "actions": ((*steps, *action.shape), np.int64 if discrete else np.float32),
        "log_probs": (steps, np.float32),
        "rewards": (steps, np.float32),
        "terminated": (steps, bool),
        "truncated": (steps, bool),
        "first": (steps, bool),
    }
    return layout | {name: (tuple(x.shape), np.float32) for name, x in zip("hc", state or (), strict=False)}


class Unroller:
    """Acts in a vector of environments and writes rollouts.

    Args:
        env: E environments, all of which each `recv` returns.
        choose: acts.
        state: of the LSTM where episodes start, two [E, hidden]; None without one.

    Attributes:
        totals: of the episodes.
    """

    def __init__(self, env: VectorEnv, choose: Choose, state: State | None) -> None:
        self.env, self.choose, self.state = env, choose, state
        self.totals = EpisodeTotals(env.num_envs, None)
        self.current: VectorStep | None = None

    def start(self, step: VectorStep) -> None:
        """Begin at a step that starts episodes in all environments."""
        self.current = step
        self._count([step])

    def fill(self, out: Mapping[str, np.ndarray]) -> tuple[list[tuple[float, int]], Sums]:
        """Write the next rollout; return what `EpisodeTotals` has of the episodes that ended in it.

        Its first step is the last of the rollout before, with the LSTM's state there.

        Args:
            out: arrays of `rollout_layout`.

        Raises:
            NotFiniteError: a reward is NaN or infinite.
        """
        assert self.current is not None, "start() comes first"
        step, taken = self.current, []
        if self.state is not None:
            out["h"][...], out["c"][...] = (x.numpy() for x in self.state)
        length = out["rewards"].shape[1] - 1
        for t in range(length + 1):
            rows = step.env_index
            for name, part in as_fields(step.observation).items():
                out[name][rows, t] = part
            out["rewards"][rows, t], out["first"][rows, t] = step.reward, step.first
            out["terminated"][rows, t], out["truncated"][rows, t] = step.terminated, step.truncated
            if t == length:
                break
            actions, log_probs = self._act(step)
            self.env.send(actions)
            out["actions"][rows, t], out["log_probs"][rows, t] = actions, log_probs
            step = self.env.recv()
            taken.append(step)
        self.current = step
        self._count(taken)
        return self.totals.take()

    def state_dict(self) -> dict[str, Any]:
        """Return what the actor knows between two rollouts, but for the environments."""
        return {"totals": self.totals.state_dict(), "state": self.state and [x.clone() for x in self.state]}

    def load_state_dict(self, saved: dict[str, Any], step: VectorStep) -> None:
        """Restore what `state_dict` returned, with the step that the environments were at."""
        self.current = step
        self.totals.load_state_dict(saved["totals"])
        if self.state is not None:
            for x, y in zip(self.state, saved["state"], strict=True):
                x.copy_(y)

    def _act(self, step: VectorStep) -> tuple[np.ndarray, np.ndarray]:
        rows = torch.from_numpy(step.env_index)
        obs, first = each(torch.from_numpy, step.observation), torch.from_numpy(step.first)
        before = None if self.state is None else (self.state[0][rows], self.state[1][rows])
        actions, log_probs, after = self.choose(obs, before, first)
        if self.state is not None and after is not None:
            for x, y in zip(self.state, after, strict=True):
                x[rows] = y
        return actions.numpy(), log_probs.numpy()

    def _count(self, steps: list[VectorStep]) -> None:
        reward, terminated, truncated, first, index, info = joined_steps(steps)
        self.totals.add(reward, terminated | truncated, first, index, info=info)
        self.env.tell_long_episode(self.totals.longest())
