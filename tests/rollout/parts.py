"""Environments whose observations are dicts, and policies for them; processes of actors can make both."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from dm_env import specs

from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.nn.policies import Policy

SIDE = 20
SHAPES = {"pixels": (1, SIDE, SIDE), "state": (2,), "goal": (1,)}
ACTION = specs.DiscreteArray(3, np.int64, "action")


class Parts(VectorEnv):
    """Environment i shows images of 40 i + t, the vectors (i, t) and (t / 2,) at step t of an episode of 3 + i steps.

    Attributes:
        returned: all its steps so far.
    """

    name = "environments with parts"

    def __init__(self, num_envs: int) -> None:
        image = specs.BoundedArray(SHAPES["pixels"], np.uint8, 0, 255, "pixels")
        vectors = {name: specs.Array(SHAPES[name], np.float32, name) for name in ("state", "goal")}
        super().__init__(num_envs, {"pixels": image, **vectors}, ACTION)
        self.at = np.zeros(num_envs, np.int64)  # the step that is due
        self.sent = np.zeros(num_envs, np.int64)
        self.returned: list[VectorStep] = []

    def _reset(self) -> VectorStep:
        self.at[:] = 0
        return self._recv()

    def _send(self, actions: np.ndarray) -> None:
        self.sent = actions

    def _recv(self) -> VectorStep:
        i, t = np.arange(self.num_envs), self.at.copy()
        over = t == 3 + i
        shade = np.broadcast_to((40 * i + t)[:, None, None, None], (self.num_envs, *SHAPES["pixels"]))
        observation: Any = {
            "pixels": (shade + np.arange(SIDE)).astype(np.uint8),
            "state": np.stack([i, t], 1).astype(np.float32),
            "goal": (t[:, None] / 2).astype(np.float32),
        }
        reward = np.where(t == 0, 0, self.sent == t % 3).astype(np.float32)
        self.at = np.where(over, 0, t + 1)
        even = i % 2 == 0
        self.returned.append(VectorStep(observation, reward, over & even, over & ~even, t == 0, i))
        return self.returned[-1]

    def close(self) -> None: ...


def vector(num_envs: int, actor: int = 0, restarts: int = 0) -> Parts:
    """Return new environments."""
    return Parts(num_envs)


def policy(lstm: bool = False, normalize: bool = False) -> Policy:
    """Return a policy for them, always the same."""
    torch.manual_seed(0)
    return Policy(SHAPES, ACTION, "small", 8, lstm, normalize)


def policy_for(lstm: bool, env: VectorEnv) -> Policy:
    """Return `policy(lstm)`, as an actor makes it for its environments."""
    return policy(lstm)


def of(steps: Any, name: str) -> torch.Tensor:
    """Return a part of the observations of steps, [N, T, ...]."""
    return torch.from_numpy(np.stack([step.observation[name] for step in steps], 1))
