"""A gymnasium.Env as a dm_env.Environment."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import TimeStep, specs

from drqv2.envs.cameras import image_shape
from drqv2.errors import UserError, not_installed

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise UserError(not_installed("gymnasium", "gym")) from error


class GymnasiumEnvironment(dm_env.Environment):
    """Keeps an end (terminated: discount 0) apart from a time-out (truncated: discount 1).

    Pixels come from the observation where it is an image or a dict with `pixels`, else from `env.render()`.

    Args:
        env: a gymnasium.Env with a Box of actions.

    Attributes:
        renders: whether pixels come from `env.render()`.

    Raises:
        UserError: `env` is no gymnasium.Env, its actions are no Box, or it has no pixels.
    """

    def __init__(self, env: Any) -> None:
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"{type(env).__name__}: must be a gymnasium.Env (the older gym is not supported)")
        if not isinstance(env.action_space, gymnasium.spaces.Box):
            raise UserError(f"the environment's actions are {env.action_space}: must be a Box with finite bounds")
        self._env = env
        self._box = env.action_space
        self._next_seed: int | None = None
        space: Any = env.observation_space
        if isinstance(space, gymnasium.spaces.Dict):
            space = space.spaces.get("pixels")
        self.renders = not (isinstance(space, gymnasium.spaces.Box) and len(space.shape) in (2, 3))
        if not self.renders:
            self._observation_spec = specs.Array(space.shape, space.dtype, "pixels")
        elif env.render_mode != "rgb_array":
            raise UserError(
                f"the environment's observations are {env.observation_space} and its render_mode is "
                f'{env.render_mode!r}: must be pixels, or gymnasium.make(..., render_mode="rgb_array")'
            )

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._next_seed = seed

    def reset(self) -> TimeStep:
        """Start an episode."""
        seed, self._next_seed = self._next_seed, None
        observation, _ = self._env.reset(seed=seed)
        return dm_env.restart(self._pixels(observation))

    def step(self, action: np.ndarray) -> TimeStep:
        """Take one step."""
        observation, reward, terminated, truncated, _ = self._env.step(action)
        pixels = self._pixels(observation)
        if terminated:
            return dm_env.termination(float(reward), pixels)
        if truncated:
            return dm_env.truncation(float(reward), pixels)
        return dm_env.transition(float(reward), pixels)

    def _pixels(self, observation: Any) -> dict[str, Any]:
        if self.renders:
            return {}
        return {"pixels": observation["pixels"] if isinstance(observation, dict) else observation}

    def picture(self) -> np.ndarray:
        """Return what `env.render()` shows, uint8 [H, W, C]."""
        image = np.asarray(self._env.render())
        return image.reshape(image_shape(image.shape, image.dtype, "what the environment's render() returns"))

    def observation_spec(self) -> dict[str, specs.Array]:
        """Return {"pixels": ...}, or {} where pixels come from `picture`."""
        return {} if self.renders else {"pixels": self._observation_spec}

    def action_spec(self) -> specs.BoundedArray:
        """Return the Box of actions."""
        return specs.BoundedArray(self._box.shape, self._box.dtype, self._box.low, self._box.high, "action")

    def control_timestep(self) -> float | None:
        """Return simulated seconds in one step, where the environment says how many frames a second are real time."""
        fps = self._env.metadata.get("render_fps")
        return 1.0 / fps if fps else None

    def close(self) -> None:
        """Close the environment."""
        self._env.close()
