"""Scripted tasks of Gymnasium's, every number of which is known: gymnasium:tests.task_envs:Long-v0 and others.

Frame t of an episode is rewarded by t times the task's scale. An observation is (a number drawn at the reset, t, the
mean of the last action).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

MADE: list[Scripted] = []  # in this process, in order


class Scripted(gymnasium.Env[Any, Any]):
    """A task whose episodes are alike, but for a number drawn at the reset.

    Args:
        length: frames of an episode.
        terminates: it ends by a termination; otherwise by a time-out.
        action_size: numbers in an action.
        scale: of rewards.
        success_at: the frame that is a success, 0 for none; None: the task does not say.
        observation_size: numbers in an observation.
        lucky: the number drawn, and the mean of the action, are part of each reward and make episodes longer.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012 (gymnasium's own form)

    def __init__(
        self,
        length: int = 6,
        terminates: bool = False,
        action_size: int = 2,
        scale: float = 1.0,
        success_at: int | None = None,
        observation_size: int = 3,
        lucky: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.length, self.terminates, self.scale, self.success_at = length, terminates, scale, success_at
        self.render_mode, self.observation_size = render_mode, observation_size
        self.observation_space = spaces.Box(-np.inf, np.inf, (observation_size,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (action_size,), np.float32)
        self.lucky, self.base_length = lucky, length
        self.taken: list[np.ndarray] = []  # every action of every episode
        self.renders = 0
        self.closed = False
        MADE.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.drawn = 0, float(self.np_random.uniform())
        self.length = self.base_length + (int(5 * self.drawn) if self.lucky else 0)
        return self._observe(0.0), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.taken.append(np.array(action))
        over = self.t == self.length
        info = {} if self.success_at is None else {"success": self.t == self.success_at}
        seen = self._observe(float(np.mean(action)))
        reward = self.scale * self.t + (self.drawn + float(np.mean(action)) if self.lucky else 0.0)
        return seen, reward, over and self.terminates, over and not self.terminates, info

    def _observe(self, action: float) -> np.ndarray:
        observation = np.zeros(self.observation_size, np.float32)
        observation[:3] = self.drawn, self.t, action
        return observation

    def render(self) -> Any:
        self.renders += 1
        return np.full((64, 64, 3), 20 * self.t, np.uint8)

    def close(self) -> None:
        self.closed = True


class Buttons(Scripted):
    """A task with discrete actions."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Discrete(3)


_TASKS: dict[str, dict[str, Any]] = {
    "Long-v0": {"length": 10, "success_at": 3},
    "own/Long-v0": {"length": 10, "success_at": 3},
    "Short-v0": {"length": 4, "terminates": True, "action_size": 1, "scale": 10.0, "success_at": 0},
    "Silent-v0": {"length": 7, "action_size": 3, "scale": 0.5},
    "Wide-v0": {"observation_size": 5},
    "Lucky-v0": {"length": 3, "lucky": True},
    "Luckier-v0": {"length": 5, "lucky": True, "scale": 2.0, "terminates": True},
}
for _name, _kwargs in _TASKS.items():
    gymnasium.register(_name, f"{__name__}:Scripted", kwargs=_kwargs, disable_env_checker=True)
gymnasium.register("Buttons-v0", f"{__name__}:Buttons", disable_env_checker=True)
