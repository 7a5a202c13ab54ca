"""An environment whose observations are a dict of an image and two vectors; it takes both to tell the best action."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Parts(gymnasium.Env):
    """The best action is the number of the image's bright column plus that of the goal, modulo 3; episodes of 7 steps.

    Attributes:
        at: steps of the episode so far.
        best: the action that is rewarded.
    """

    observation_space = spaces.Dict(
        {
            "goal": spaces.Box(0, 1, (3,), np.float32),
            "image": spaces.Box(0, 255, (20, 20, 1), np.uint8),
            "clock": spaces.Box(0, 100, (1,), np.float64),
        }
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        reward, self.at = float(action == self.best), self.at + 1
        return self._observe(), reward, self.at == 7, False, {}

    def _observe(self) -> dict[str, np.ndarray]:
        column, goal = self.np_random.integers(3, size=2)
        self.best = (column + goal) % 3
        image = self.np_random.integers(0, 60, (20, 20, 1)).astype(np.uint8)
        image[:, 2 + 6 * column : 6 + 6 * column] = 255
        return {"goal": np.eye(3, dtype=np.float32)[goal], "image": image, "clock": np.array([50.0 + self.at])}


def make() -> Parts:
    """Return the environment."""
    return Parts()
