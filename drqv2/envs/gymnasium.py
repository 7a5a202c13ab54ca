"""A gymnasium.Env as a dm_env.Environment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import TimeStep, specs

from drqv2.envs.cameras import picture_shape
from drqv2.envs.checks import as_number, shown
from drqv2.envs.faults import explained
from drqv2.envs.images import in_a_line
from drqv2.envs.info import numbers
from drqv2.errors import EnvError, UserError


class GymnasiumEnvironment(dm_env.Environment):
    """Keeps an end (terminated: discount 0) apart from a time-out (truncated: discount 1).

    Args:
        env: a gymnasium.Env with Box, Discrete or MultiDiscrete actions; its observations are a Box, or a Dict of
            Boxes, of which anything else is left out.

    Attributes:
        label: its name, for messages.
        render_mode: what `env.render()` returns: pictures if "rgb_array".
        success: what the last step's info says as `success` (or `is_success`); None where it has neither.
        info_numbers: the numbers in the info of the last step; None if there are none.
        left_out: parts of a Dict that are no Boxes, and what they are.

    Raises:
        UserError: `env` is no gymnasium.Env, its observations are others, or its `reset` takes no seed.
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
        space: Any = env.observation_space
        self._is_dict = isinstance(space, gymnasium.spaces.Dict)
        parts = space.spaces if self._is_dict else {"observation": space}
        boxes = {key: _box_spec(part, key) for key, part in parts.items() if isinstance(part, gymnasium.spaces.Box)}
        if not boxes:
            raise UserError(
                f"the environment's observations are {in_a_line(space)}: must be a Box or a Dict of Boxes\n"
                "Return one, or wrap the environment: gymnasium.wrappers.FlattenObservation (for a vector, that in "
                "gymnasium.wrappers.vector) makes a Box of most spaces"
            )
        self._observation_spec: Any = boxes if self._is_dict else boxes["observation"]
        self.left_out = {key: type(part).__name__ for key, part in parts.items() if key not in boxes}
        for method in (env.reset, env.unwrapped.reset):
            if not _takes(method, "seed"):
                raise EnvError(
                    f"{self.label}: reset() takes no seed\n"
                    "Define it as reset(self, *, seed=None, options=None), and call super().reset(seed=seed) first."
                )

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._next_seed = seed

    def reset(self) -> TimeStep:
        seed, self._next_seed = self._next_seed, None
        returned: Any = self._env.reset(seed=seed)
        if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], Mapping):
            raise EnvError(f"reset() returned {shown(returned)}: must return (observation, info), info a dict")
        self.success = None
        return dm_env.restart(self._kept(returned[0]))

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
        observation = self._kept(observation)
        if _flag(terminated, "terminated"):
            return dm_env.termination(reward, observation)
        if _flag(truncated, "truncated"):
            return dm_env.truncation(reward, observation)
        return dm_env.transition(reward, observation)

    def _kept(self, observation: Any) -> Any:
        """Return an observation without what is left out."""
        if not self.left_out or not isinstance(observation, Mapping):
            return observation
        return {key: value for key, value in observation.items() if key not in self.left_out}

    def picture(self) -> np.ndarray:
        """Return what `env.render()` shows, uint8 [H, W, C].

        Raises:
            EnvError: it is no picture.
        """
        with explained(f"{self.label}: render()"):
            image = np.asarray(self._env.render())
        return image.reshape(picture_shape(image, self.label))

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

    def own_action_spec(self) -> Any:
        """Return the spec of the environment's own actions: discrete ones need not start at 0."""
        start = getattr(self._actions, "start", None)
        if start is None:
            return self.action_spec()
        spec = self.action_spec()
        return specs.BoundedArray(spec.shape, self._actions.dtype, start, start + spec.maximum, "action")

    def control_timestep(self) -> float | None:
        """Return simulated seconds in one step, where the environment says how many frames a second are real time."""
        fps = self._env.metadata.get("render_fps")
        return 1.0 / fps if fps else None

    def close(self) -> None:
        self._env.close()


def _box_spec(box: Any, name: str) -> specs.BoundedArray:
    return specs.BoundedArray(box.shape, box.dtype, box.low, box.high, name)


def _takes(method: Callable[..., Any], name: str) -> bool:
    """Return whether a method takes an argument by name, as far as its signature can be known."""
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(method).parameters
        return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return True


def _flag(value: Any, name: str) -> bool:
    if type(value) is bool:
        return value
    number = as_number(value)
    if number not in (0.0, 1.0):
        raise EnvError(f"{name} is {shown(value)}: must be True or False")
    return bool(number)
