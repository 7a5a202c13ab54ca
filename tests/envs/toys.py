"""Small environments whose every number is known."""

from __future__ import annotations

import sys
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs


class Counter(dm_env.Environment):
    """Frame t is an image full of t; rewards are t; the action taken is kept."""

    def __init__(self, length: int = 10, last_discount: float = 0.0, shape: tuple[int, ...] = (6, 4, 3)) -> None:
        self.length, self.last_discount, self.shape = length, last_discount, shape
        self.taken: list[np.ndarray] = []
        self.t = 0

    def _image(self) -> Any:
        return np.full(self.shape, self.t, np.uint8)

    def reset(self) -> dm_env.TimeStep:
        self.t = 0
        return dm_env.restart(self._image())

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        if self.t >= self.length:
            return self.reset()
        self.t += 1
        self.taken.append(np.array(action))
        if self.t >= self.length:
            return dm_env.TimeStep(dm_env.StepType.LAST, float(self.t), self.last_discount, self._image())
        return dm_env.transition(float(self.t), self._image(), 0.5)

    def observation_spec(self) -> Any:
        return specs.Array(self.shape, np.uint8, "image")

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float64, [-0.1, 0.0], [0.1, 3.0], "torque")


class ModulesSeen(Counter):
    """Its rewards are 1 where the process has imported torch."""

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        return super().step(action)._replace(reward=float("torch" in sys.modules))


class Dice(Counter):
    """Its frames are random, drawn from a generator that nobody else seeds."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.random_state = np.random.default_rng()

    def _image(self) -> Any:
        return {"pixels": self.random_state.integers(0, 256, self.shape, dtype=np.uint8)}

    def observation_spec(self) -> Any:
        return {"pixels": super().observation_spec()}


class Echo(Dice):
    """Its frames also show the actions of the episode so far."""

    def reset(self) -> dm_env.TimeStep:
        self.taken.clear()
        return super().reset()

    def _image(self) -> Any:
        image = super()._image()
        image["pixels"].flat[0] = 1000 * abs(np.sum(self.taken)) % 256
        return image


class Grid(gymnasium.Env[Any, Any]):
    """A gymnasium.Env with pixels in its observation ("image", "dict") or in `render()` alone ("render")."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012 (gymnasium's own form)

    def __init__(self, pixels: str = "image", truncates: bool = False, render_mode: str | None = None) -> None:
        self.render_mode, self.pixels, self.truncates = render_mode, pixels, truncates
        image = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        vector = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        both = gymnasium.spaces.Dict({"pixels": image, "state": vector})
        self.observation_space = {"image": image, "dict": both, "render": vector}[pixels]
        self.action_space = gymnasium.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32))
        self.renders = 0
        self.seeds: list[int | None] = []
        self.taken: list[Any] = []

    def _observe(self) -> Any:
        self.image = self.np_random.integers(0, 256, (8, 8, 3), np.uint8)
        vector = np.zeros(3, np.float32)
        return {"image": self.image, "dict": {"pixels": self.image, "state": vector}, "render": vector}[self.pixels]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.taken.append(action)
        self.t += 1
        over = self.t == 7
        return self._observe(), 1.0, over and not self.truncates, over and self.truncates, {}

    def render(self) -> Any:
        self.renders += 1
        return self.image
