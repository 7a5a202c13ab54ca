"""A small environment of Gymnasium with numbers in its `info`, and vectors of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

IMAGE = gymnasium.spaces.Box(0, 255, (6, 6, 3), np.uint8)
VECTOR = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
OBSERVATIONS = {
    "vector": VECTOR,
    "dict": gymnasium.spaces.Dict({"b": VECTOR, "a": gymnasium.spaces.Box(0, 9, (), np.int64)}),
    "image": IMAGE,
}
ACTIONS = {
    "box": gymnasium.spaces.Box(np.array([-0.3, 0.0]), np.array([0.1, 7.0]), dtype=np.float64),
    "discrete": gymnasium.spaces.Discrete(3, start=-1),
    "several": gymnasium.spaces.MultiDiscrete([2, 5]),
}


class Walk(gymnasium.Env[Any, Any]):
    """Episodes of random lengths that end in both ways; each number depends on the seed and on all actions so far.

    In `info`, the mean of `t` over an episode of L steps is (L + 1) / 2, and that of `at_end` is L.
    """

    def __init__(self, observation: str = "vector", action: str = "box", longest: int = 6) -> None:
        self.longest = longest
        self.kind, self.observation_space, self.action_space = observation, OBSERVATIONS[observation], ACTIONS[action]

    def _observe(self) -> Any:
        vector = self.np_random.normal(size=2) + self.sum
        image = self.np_random.integers(0, 256, (6, 6, 3), np.uint8)
        return {"vector": vector, "dict": {"b": vector, "a": np.int64(self.t % 10)}, "image": image}[self.kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.sum, self.length = 0, 0.0, int(self.np_random.integers(1, self.longest + 1))
        return self._observe(), {"distance": -100.0, "only_at_reset": 1}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        assert self.t < self.length, "stepped after the end of its episode"
        self.t += 1
        self.sum += float(np.sum(action))
        over = self.t == self.length
        info = {"distance": self.sum, "flag": np.bool_(self.t % 2), "success": self.t > 2, "text": "x", "array": [1, 2]}
        info |= {"t": self.t, "at_end": self.t} if over else {"t": self.t}
        reward = self.np_random.normal() + self.sum
        return self._observe(), reward, over and self.t % 2 == 0, over and self.t % 6 not in (2, 4), info


def vector(
    num_envs: int, mode: str = "NEXT_STEP", observation: str = "vector", action: str = "box", longest: int = 6
) -> Any:
    return SyncVectorEnv([partial(Walk, observation, action, longest)] * num_envs, autoreset_mode=AutoresetMode[mode])
