"""An actor on a node of a Ray cluster: it acts with a copy of the policy and returns rollouts."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from drqv2.nn.policies import State
from drqv2.rollout.actor import ActorSetup, Filled
from drqv2.rollout.shared import Layout
from drqv2.rollout.unroll import Unroller, acts_with


class WeightsLostError(Exception):
    """An actor could not fetch the weights: a node is lost, theirs or its own."""


class RemoteActor:
    """An actor somewhere on the cluster; see `drqv2.rollout.actor`.

    One thread of its process runs every `fill`, and so owns the environments; another one counts the steps meanwhile.
    """

    def __init__(self, setup: ActorSetup, layout: Layout, actor: int, restarts: int) -> None:
        self.setup, self.layout, self.actor, self.restarts = setup, layout, actor, restarts
        self.version, self.steps = -1, 0
        self.unroller: Unroller | None = None

    def begin(self) -> Unroller:
        """Make the environments and the policy. In the constructor, an error would not arrive as what it is."""
        torch.set_num_threads(1)
        os.environ.setdefault("LP_NUM_THREADS", "1")  # of software rendering: it has one core of its node
        env = self.setup.open_env(self.actor, self.restarts)
        self.policy = self.setup.make_policy(env)
        act = acts_with(self.policy, torch.Generator().manual_seed(self.setup.seed(self.actor, self.restarts)))

        def choose(obs: Tensor, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, State | None]:
            self.steps += 1
            return act(obs, state, first)

        unroller = Unroller(env, choose, self.policy.initial_state(env.num_envs))
        unroller.start(env.reset())
        return unroller

    def fill(self, number: int, version: int, weights: list[Any]) -> tuple[Filled, dict[str, np.ndarray], int]:
        """Return what is known of the next rollout, its arrays, and how many steps the actor has taken.

        Args:
            number: of the rollout.
            version: of the newest weights.
            weights: a reference to them, which is followed if they are new here.

        Raises:
            WeightsLostError: they cannot be fetched.
        """
        self.unroller = self.unroller or self.begin()
        if version != self.version:
            self.policy.load_state_dict(_fetch(weights[0]))
            self.version = version
        out = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.layout.items()}
        episodes, info = self.unroller.fill(out)
        return Filled(number, self.version, episodes, info), out, self.steps

    @ray.method(concurrency_group="watch")
    def count_steps(self) -> int:
        """Return how many steps it has taken; answered while a rollout is filled."""
        return self.steps


def _fetch(reference: Any) -> dict[str, torch.Tensor]:
    try:
        state: dict[str, torch.Tensor] = ray.get(reference)
    except Exception as error:  # also OSError, where Ray's process of this node dies meanwhile
        raise WeightsLostError(f"{type(error).__name__}: {error}") from error
    return state
