"""A gymnasium.Env as a dm_env.Environment."""

from __future__ import annotations

from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import TimeStep, specs

from drqv2.envs.cameras import image_shape
from drqv2.errors import UserError


class GymnasiumEnvironment(dm_env.Environment):
    """Keeps an end (terminated: discount 0) apart from a time-out (truncated: discount 1).

    Args:
        env: a gymnasium.Env with Box, Discrete or MultiDiscrete actions; its observations are a Box, or a Dict of
            Boxes, of which anything else is left out.

    Attributes:
        render_mode: what `env.render()` returns: pictures if "rgb_array".
        success: whether the last step succeeded, where its info has `success` (or `is_success`); else None.

    Raises:
        UserError: `env` is no gymnasium.Env, or its observations are others.
    """

    def __init__(self, env: Any) -> None:
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"{type(env).__name__}: must be a gymnasium.Env (the older gym is not supported)")
        self._env = env
        self._actions: Any = env.action_space
        self._next_seed: int | None = None
        self.success: float | None = None
        self.render_mode = env.render_mode
        space: Any = env.observation_space
        parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {"observation": space}
        boxes = {
            key: specs.Array(part.shape, part.dtype, key)
            for key, part in parts.items()
            if isinstance(part, gymnasium.spaces.Box)
        }
        if not boxes:
            raise UserError(f"the environment's observations are {space}: must be a Box or a Dict of Boxes")
        self._observation_spec: Any = boxes if isinstance(space, gymnasium.spaces.Dict) else boxes["observation"]

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._next_seed = seed

    def reset(self) -> TimeStep:
        seed, self._next_seed = self._next_seed, None
        observation, _ = self._env.reset(seed=seed)
        self.success = None
        return dm_env.restart(observation)

    def step(self, action: np.ndarray) -> TimeStep:
        discrete = isinstance(self._actions, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
        taken = np.int64(action + self._actions.start) if discrete else action
        observation, reward, terminated, truncated, info = self._env.step(taken)
        success = info.get("success", info.get("is_success"))
        self.success = None if success is None else float(success)
        if terminated:
            return dm_env.termination(float(reward), observation)
        if truncated:
            return dm_env.truncation(float(reward), observation)
        return dm_env.transition(float(reward), observation)

    def picture(self) -> np.ndarray:
        """Return what `env.render()` shows, uint8 [H, W, C]."""
        image = np.asarray(self._env.render())
        return image.reshape(image_shape(image.shape, image.dtype, "what the environment's render() returns"))

    def observation_spec(self) -> Any:
        """Return the spec of the Box of observations, or a dict of specs."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Return the spec of a Box of actions, or of (several) discrete ones from 0; any other space as it is."""
        if isinstance(self._actions, gymnasium.spaces.Discrete):
            return specs.DiscreteArray(int(self._actions.n), np.int64, "action")
        if isinstance(self._actions, gymnasium.spaces.MultiDiscrete) and len(self._actions.shape) == 1:
            return specs.BoundedArray(self._actions.shape, np.int64, 0, self._actions.nvec - 1, "action")
        if isinstance(self._actions, gymnasium.spaces.Box):
            return specs.BoundedArray(
                self._actions.shape, self._actions.dtype, self._actions.low, self._actions.high, "action"
            )
        return self._actions

    def control_timestep(self) -> float | None:
        """Return simulated seconds in one step, where the environment says how many frames a second are real time."""
        fps = self._env.metadata.get("render_fps")
        return 1.0 / fps if fps else None

    def close(self) -> None:
        self._env.close()
