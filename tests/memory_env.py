"""A corridor that ends in a junction: the way to turn is shown at its beginning alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env):
    """A short T-maze (Bakker, 2001). Observations: the sign, -1 or 1, at first, then 0; whether this is the end.

    Both actions lead on; at the end they turn left and right: 1 if the sign said so, else -1. Without memory
    the best return is 0 on average.

    Args:
        length: steps from the sign to the junction.
        reward: of the right turn, and minus that of the wrong one.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 6, reward: float = 1.0) -> None:
        self.length, self.reward = length, float(reward)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.at, self.sign = 0, int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        over = self.at == self.length
        reward = (self.reward if int(action) == self.sign else -self.reward) if over else 0.0
        self.at += 1
        return self._observation(), reward, over, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([2 * self.sign - 1 if self.at == 0 else 0, self.at == self.length], np.float32)
