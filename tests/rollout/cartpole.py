"""Environments and policies for tests of actors, which their processes can make."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import gymnasium
import torch

from drqv2 import utils
from drqv2.envs import libraries, make
from drqv2.envs.handles import LocalEnv
from drqv2.envs.vector import HandleVector, VectorEnv
from drqv2.nn.policies import Policy


def vector(num_envs: int, actor: int = 0, restarts: int = 0) -> HandleVector:
    """Return environments of CartPole."""
    one = partial(
        make,
        *("CartPole-v1", 1, 1, 0),
        factory=libraries.factory("gymnasium:CartPole-v1", {}),
        stream=utils.TRAIN_ENV,
        obs_type="state",
    )
    return HandleVector([LocalEnv(partial(one, index=100 * restarts + 10 * actor + i)) for i in range(num_envs)])


def policy(lstm: bool = False) -> Policy:
    """Return a policy for them, always the same."""
    torch.manual_seed(0)
    return Policy((4,), vector(1).action_spec(), "mlp", 8, lstm)


def policy_for(lstm: bool, env: VectorEnv) -> Policy:
    """Return `policy(lstm)`, as an actor makes it for its environments."""
    return policy(lstm)


class Slow(gymnasium.Wrapper):
    """CartPole, each step of which takes some time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)
