"""A dot on a line, drawn without OpenGL: an environment for tests of what is around it."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class Dot(dm_env.Environment):
    """The action pushes the dot; the reward is greatest in the middle; an episode has 30 steps of two frames."""

    def __init__(self, image_size: int) -> None:
        self._size = image_size
        self.seed(0)

    def seed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def reset(self) -> dm_env.TimeStep:
        self._frame, self._at = 0, self._rng.uniform(-1.0, 1.0)
        return dm_env.restart(self._image())

    def step(self, action: Any) -> dm_env.TimeStep:
        self._frame += 1
        self._at = float(np.clip(self._at + 0.1 * np.asarray(action)[0], -1.0, 1.0))
        make = dm_env.truncation if self._frame == 60 else dm_env.transition
        return make(1.0 - abs(self._at), self._image())

    def _image(self) -> np.ndarray:
        image = np.full((self._size, self._size, 3), 50, np.uint8)
        image[:, int((self._at + 1.0) / 2.0 * (self._size - 1))] = 255
        return image

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((self._size, self._size, 3), np.uint8, 0, 255, "pixels")

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0, "action")


def make(image_size: int) -> dm_env.Environment:
    return Dot(image_size)
