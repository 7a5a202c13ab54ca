"""Actions for all actors that wait for some, chosen at once on the learner's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drqv2.nn.observations import Observation
from drqv2.nn.policies import Policy, State
from drqv2.rollout.shared import Layout, SharedArrays, SharedWeights
from drqv2.rollout.unroll import acts_with, as_fields, observations, observed


def asking_layout(rollout: Layout, num_actors: int) -> Layout:
    """Return shape and dtype of what actors ask with, and of the answers, from the layout of a rollout."""
    layout: dict[str, tuple[tuple[int, ...], Any]] = {"versions": ((num_actors,), np.int64)}
    for name in (*observed(rollout), "first", "actions", "log_probs"):
        (envs, _, *rest), dtype = rollout[name]
        layout[name] = (num_actors, envs, *rest), dtype
    return layout | {name: ((num_actors, *rollout[name][0]), np.float32) for name in "hc" if name in rollout}


class Inference:
    """Chooses actions with a copy of the learner's policy, so that it can learn meanwhile.

    Args:
        policy: the copy, on the learner's device.
        weights: of the learner.
        asked: of `asking_layout`.
        seed: of the samples.
    """

    def __init__(self, policy: Policy, weights: SharedWeights, asked: SharedArrays, seed: int) -> None:
        self.policy, self.weights, self.asked = policy, weights, asked
        device = next(policy.parameters()).device
        self.choose = acts_with(policy, torch.Generator(device).manual_seed(seed))
        self.version = weights.read(policy)
        self._observed = observed(asked.names)

    def answer(self, actors: Sequence[int]) -> None:
        """Write actions, their log probabilities, the LSTM's next state and the version of the weights."""
        if self.weights.version != self.version:
            self.version = self.weights.read(self.policy)
        asked, rows = self.asked, list(actors)
        obs = observations({name: self._batch(name, rows) for name in self._observed})
        first = self._batch("first", rows)
        state = (self._batch("h", rows), self._batch("c", rows)) if "h" in asked.names else None
        actions, log_probs, after = self.choose(obs, state, first)
        answers = {"actions": actions, "log_probs": log_probs} | dict(zip("hc", after or (), strict=False))
        for name, x in answers.items():
            asked[name][rows] = x.numpy().reshape(len(rows), -1, *x.shape[1:])
        asked["versions"][rows] = self.version

    def _batch(self, name: str, rows: list[int]) -> Tensor:
        return torch.from_numpy(self.asked[name][rows]).flatten(0, 1)


def ask(
    asked: SharedArrays, actor: int, wait: Callable[[], None], obs: Observation, state: State | None, first: Tensor
) -> tuple[Tensor, Tensor, State | None]:
    """Return actions, log probabilities and the next state that the learner's process has chosen.

    Args:
        asked: of `asking_layout`.
        actor: its number.
        wait: tells the learner's process, and waits for its answer.
        obs: of the actor's environments, [E, ...], or a dict of these.
        state: of the LSTM, two [E, hidden]; None without one.
        first: where an observation starts an episode, bool [E].
    """
    mine = asked.row(actor)
    inputs = as_fields(obs) | {"first": first} | dict(zip("hc", state or (), strict=False))
    for name, x in inputs.items():
        mine[name][...] = x.numpy()
    wait()
    after = None if state is None else (torch.from_numpy(mine["h"].copy()), torch.from_numpy(mine["c"].copy()))
    return torch.from_numpy(mine["actions"].copy()), torch.from_numpy(mine["log_probs"].copy()), after
