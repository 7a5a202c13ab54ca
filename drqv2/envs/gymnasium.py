"""A gymnasium.Env as a dm_env.Environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import TimeStep, specs

from drqv2.envs.checks import as_number, explained, shown
from drqv2.envs.info import numbers
from drqv2.envs.spaces import ObservationSpace, action_spec
from drqv2.errors import EnvError, UserError


class GymnasiumEnvironment(dm_env.Environment):
    """Keeps an end (terminated: discount 0) apart from a time-out (truncated: discount 1).

    Args:
        env: a gymnasium.Env with Box, Discrete or MultiDiscrete actions; its observations are an `ObservationSpace`.

    Attributes:
        label: its name, for messages.
        render_mode: what `env.render()` returns: pictures if "rgb_array".
        success: what the last step's info says as `success` (or `is_success`); None where it has neither.
        info_numbers: the numbers in the info of the last step; None if there are none.
        left_out: parts of a Dict that no agent can see, and what they are.

    Raises:
        UserError: `env` is no gymnasium.Env, or its observations are others.
    """

    def __init__(self, env: Any) -> None:
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"{type(env).__name__}: must be a gymnasium.Env (the older gym is not supported)")
        self._env = env
        kind = type(env.unwrapped)
        self.label = f"gymnasium:{env.spec.id}" if env.spec else f"{kind.__module__}.{kind.__qualname__}"
        self._actions: Any = env.action_space
        self._next_seed: int | None = None
        self.success: Any = None
        self.info_numbers: dict[str, float] | None = None
        self.render_mode = env.render_mode
        self._observed = ObservationSpace(env.observation_space)
        self.left_out = self._observed.left_out

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._next_seed = seed

    def reset(self) -> TimeStep:
        seed, self._next_seed = self._next_seed, None
        returned: Any = self._env.reset(seed=seed)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
            raise EnvError(f"reset() returned {shown(returned)}: must return (observation, info), info a dict")
        self.success = None
        return dm_env.restart(self._observed(returned[0]))

    def step(self, action: np.ndarray) -> TimeStep:
        discrete = isinstance(self._actions, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete)
        taken = np.int64(action + self._actions.start) if discrete else action
        returned: Any = self._env.step(taken)
        if not isinstance(returned, tuple) or len(returned) != 5:
            must = "must return (observation, reward, terminated, truncated, info)"
            raise EnvError(f"step() returned {shown(returned)}: {must}")
        observation, reward, terminated, truncated, info = returned
        if not isinstance(info, Mapping):
            raise EnvError(f"step() returned {shown(info)} as info: must be a dict")
        self.success = info.get("success", info.get("is_success"))
        self.info_numbers = numbers(info)
        observation = self._observed(observation)
        if _flag(terminated, "terminated"):
            return dm_env.termination(reward, observation)
        if _flag(truncated, "truncated"):
            return dm_env.truncation(reward, observation)
        return dm_env.transition(reward, observation)

    def picture(self) -> np.ndarray:
        """Return what `env.render()` shows, uint8 [H, W, C].

        Raises:
            EnvError: it is no picture.
        """
        with explained(f"{self.label}: render()"):
            image = np.asarray(self._env.render())
        shape = image.shape
        if image.dtype != np.uint8 or len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] <= 4 < shape[2]):
            what = f"{self.label}: render() returned {image.dtype} {list(shape)}"
            raise EnvError(f"{what}: must be uint8 [height, width, channels]")
        return image.reshape((*shape, 1)[:3])

    def observation_spec(self) -> Any:
        """Return the spec of an array, or a dict of specs."""
        return self._observed.spec

    def action_spec(self) -> Any:
        """Return the spec of a Box of actions, or of (several) discrete ones from 0; any other space as it is."""
        return action_spec(self._actions)

    def own_action_spec(self) -> Any:
        """Return the spec of the environment's own actions: discrete ones need not start at 0."""
        start, spec = getattr(self._actions, "start", None), self.action_spec()
        if start is None:
            return spec
        return specs.BoundedArray(spec.shape, self._actions.dtype, start, start + spec.maximum, "action")

    def control_timestep(self) -> float | None:
        """Return simulated seconds in one step, where the environment says how many frames a second are real time."""
        fps = self._env.metadata.get("render_fps")
        return 1.0 / fps if fps else None

    def close(self) -> None:
        self._env.close()


def _flag(value: Any, name: str) -> bool:
    if type(value) is bool:
        return value
    number = as_number(value)
    if number not in (0.0, 1.0):
        raise EnvError(f"{name} is {shown(value)}: must be True or False")
    return bool(number)
