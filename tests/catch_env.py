"""Catch (bsuite, arXiv 1908.03568) drawn as an image."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

ROWS, COLUMNS = 10, 5


class Catch(gymnasium.Env):
    """A ball falls from a random column; the paddle at the bottom moves left, stays or moves right.

    The reward is 1 where the paddle is under the ball at the end, after nine steps, else -1. Without looking the best
    return is -0.6 on average.

    Args:
        image_size: side of the picture, at least 10 pixels.
    """

    action_space = spaces.Discrete(3)

    def __init__(self, image_size: int) -> None:
        self.observation_space = spaces.Box(0, 255, (image_size, image_size, 1), np.uint8)
        self._row, self._column = (np.arange(image_size) * n // image_size for n in (ROWS, COLUMNS))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.ball, self.fallen, self.paddle = int(self.np_random.integers(COLUMNS)), 0, COLUMNS // 2
        return self._image(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), COLUMNS - 1)
        self.fallen += 1
        over = self.fallen == ROWS - 1
        caught = 1.0 if self.paddle == self.ball else -1.0
        return self._image(), caught if over else 0.0, over, False, {}

    def _image(self) -> np.ndarray:
        board = np.zeros((ROWS, COLUMNS), np.uint8)
        board[self.fallen, self.ball] = board[ROWS - 1, self.paddle] = 255
        return board[self._row][:, self._column, None]


def make(image_size: int) -> gymnasium.Env:
    return Catch(image_size)
