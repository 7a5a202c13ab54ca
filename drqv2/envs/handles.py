"""Handles on environments: you `start` a method of the environment, do something else, and `finish` to get its result.

`LocalEnv` runs the environment in this process, `env_process.ProcessEnv` in a separate one: the results are the same.
A `TaskEnv` is one of several tasks that one agent plays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
from dm_env import specs

from drqv2.envs.episode import Environment
from drqv2.envs.observed import parts_of
from drqv2.errors import UserError

Request = tuple[str, tuple[Any, ...]]
"""A method of the `Environment` and its arguments."""
NOT_FETCHED = "the result of the last start() has not been fetched with finish()"


class EnvHandle(ABC):
    """What the training loop and evaluations need of an environment.

    Attributes:
        step_seconds: simulated seconds in one agent step; None when unknown.
    """

    step_seconds: float | None
    _observation_spec: Any
    _action_spec: Any

    def observation_spec(self) -> Any:
        """Return the spec of an observation: one array's, or a dict of them."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Return the spec of an action."""
        return self._action_spec

    @abstractmethod
    def start(self, name: str, *args: Any) -> None:
        """Start a method of the `Environment`; at most one at a time."""

    @abstractmethod
    def finish(self) -> Any:
        """Wait for the method that was started and return its result."""

    def call(self, name: str, *args: Any) -> Any:
        """Start a method and return its result."""
        self.start(name, *args)
        return self.finish()

    def cancel(self) -> None:
        """Leave the method that was started without its result: whatever it returns or raises does not count."""
        with suppress(Exception):
            self.finish()

    def render(self, height: int, width: int) -> np.ndarray:
        """Return the current frame, uint8 [height, width, 3]."""
        picture: np.ndarray = self.call("render", height, width)
        return picture

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the environment's state after the last `finish`, see `Environment.state`."""

    @abstractmethod
    def close(self) -> None:
        """Free the environment."""


class Requests:
    """Requests to several environments; as a context manager it cancels those that are left at its end.

    Args:
        envs: the environments.
    """

    def __init__(self, envs: Sequence[EnvHandle]) -> None:
        self._envs, self._pending = envs, set[int]()

    def start(self, i: int, name: str, *args: Any) -> None:
        """Start a method of an environment, by its index."""
        self._envs[i].start(name, *args)
        self._pending.add(i)

    def finish(self, i: int) -> Any:
        """Wait for the method that was started and return its result."""
        self._pending.discard(i)
        return self._envs[i].finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for i in self._pending:  # after an error; the environments can then be used again
            self._envs[i].cancel()


class LocalEnv(EnvHandle):
    """An environment in this process; `finish` does the work.

    Args:
        make: makes the environment.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._env, self._started = make(), list[Request]()
        self.step_seconds = self._env.step_seconds
        self._observation_spec, self._action_spec = self._env.observation_spec(), self._env.action_spec()

    def start(self, name: str, *args: Any) -> None:
        assert not self._started, NOT_FETCHED
        self._started.append((name, args))

    def finish(self) -> Any:
        name, args = self._started.pop()
        return getattr(self._env, name)(*args)

    def cancel(self) -> None:
        self._started.clear()

    def state(self) -> dict[str, Any]:
        return self._env.state()

    def close(self) -> None:
        self._env.close()


class TaskEnv(EnvHandle):
    """An environment as one of several tasks.

    Its time steps have the task's index. Its actions are padded to the size of the largest task's: numbers beyond the
    task's own never reach the environment, and are 0 in time steps.

    Args:
        env: the environment.
        task: its task's index.
        action_sizes: numbers in an action of each task.
    """

    def __init__(self, env: EnvHandle, task: int, action_sizes: Sequence[int]) -> None:
        self._env, self._task = env, task
        self.step_seconds, self._observation_spec = env.step_seconds, env.observation_spec()
        self.action_sizes, self._own_size = list(action_sizes), action_sizes[task]
        self._action_spec = specs.BoundedArray((max(action_sizes),), env.action_spec().dtype, -1.0, 1.0, "action")

    def start(self, name: str, *args: Any) -> None:
        """Start a method of the `Environment`; a step gets the task's own numbers of an action."""
        self._env.start(name, *([args[0][: self._own_size]] if name == "step" else args))

    def finish(self) -> Any:
        """Return the result; a time step with its task and a padded action."""
        result = self._env.finish()
        if not hasattr(result, "step_type"):
            return result
        action = np.zeros(self._action_spec.shape, self._action_spec.dtype)
        action[: self._own_size] = result.action
        return result._replace(action=action, task=self._task)

    def cancel(self) -> None:
        self._env.cancel()

    def state(self) -> dict[str, Any]:
        """Return the environment's state."""
        return self._env.state()

    def close(self) -> None:
        """Free the environment."""
        self._env.close()


def as_tasks(envs: Sequence[EnvHandle], names: Sequence[str]) -> list[EnvHandle]:
    """Return environments as those of several tasks, as many of each, task by task.

    Raises:
        UserError: observations of tasks have different shapes, or a task's actions are not a vector.
    """
    per_task = len(envs) // len(names)
    first = envs[0].observation_spec()
    for i, env in enumerate(envs):
        name, seen = names[i // per_task], env.observation_spec()
        if _kinds(seen) != _kinds(first):
            common = [part for part in _kinds(first).items() if part in _kinds(seen).items()]
            parts = [part for part, _ in common] if isinstance(first, Mapping) else []
            those = f", observation_parts=[{','.join(parts)}]" if parts else ""
            raise UserError(
                f"tasks: {names[0]} shows {_shown(first)} and {name} shows {_shown(seen)}: one agent needs the same of "
                f"all; use obs_type=pixels{those}, or tasks of one domain"
            )
        action = env.action_spec()
        if np.issubdtype(action.dtype, np.integer) or len(action.shape) != 1:
            raise UserError(f"tasks: the actions of {name} are discrete, {action}: must be one vector of numbers")
    sizes = [env.action_spec().shape[0] for env in envs[::per_task]]
    return [TaskEnv(env, i // per_task, sizes) for i, env in enumerate(envs)]


def _kinds(spec: Any) -> dict[str, Any]:
    return {part: (one.shape, one.dtype) for part, one in parts_of(spec).items()}


def _shown(spec: Any) -> str:
    if isinstance(spec, Mapping):
        return ", ".join(f"{part}: {_shown(one)}" for part, one in spec.items())
    return f"images of {list(spec.shape)}" if math.prod(spec.shape) > 10_000 else f"{spec.dtype} {list(spec.shape)}"
