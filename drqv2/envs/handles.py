"""Handles on environments: you `start` a method of the environment, do something else, and `finish` to get its result.

`LocalEnv` runs the environment in this process, `drqv2.envs.process.ProcessEnv` in one of its own. Both give the same
results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from drqv2.envs.episode import Environment

NOT_FINISHED = "the result of the last start() has not been fetched with finish()"
NOT_STARTED = "finish() without a start()"


class EnvHandle(Protocol):
    """What the training loop and evaluations need of an environment.

    Attributes:
        step_seconds: simulated seconds in one agent step; None when unknown.
    """

    step_seconds: float | None

    def observation_spec(self) -> Any:
        """Return the spec of an observation: one array's, or a dict of them."""

    def action_spec(self) -> Any:
        """Return the spec of an action."""

    def start(self, name: str, *args: Any) -> None:
        """Start a method of the `Environment`; at most one at a time."""

    def finish(self) -> Any:
        """Wait for the method that was started and return its result."""

    def call(self, name: str, *args: Any) -> Any:
        """Start a method and return its result."""

    def render(self, height: int, width: int) -> np.ndarray:
        """Return the current picture, uint8 [height, width, 3]."""

    def state(self) -> dict[str, Any]:
        """Return the environment's state after the last `finish`, see `Environment.state`."""

    def close(self) -> None:
        """Free the environment."""


class LocalEnv:
    """An environment in this process; `finish` does the work.

    Args:
        make: makes the environment.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._env = make()
        self._started: tuple[str, tuple[Any, ...]] | None = None
        self.step_seconds = self._env.step_seconds

    def observation_spec(self) -> Any:
        """Return the spec of an observation: one array's, or a dict of them."""
        return self._env.observation_spec()

    def action_spec(self) -> Any:
        """Return the spec of an action."""
        return self._env.action_spec()

    def start(self, name: str, *args: Any) -> None:
        """Note the method that `finish` is to call."""
        assert self._started is None, NOT_FINISHED
        self._started = name, args

    def finish(self) -> Any:
        """Call the method that was started and return its result."""
        assert self._started is not None, NOT_STARTED
        (name, args), self._started = self._started, None
        return getattr(self._env, name)(*args)

    def call(self, name: str, *args: Any) -> Any:
        """Start a method and return its result."""
        self.start(name, *args)
        return self.finish()

    def render(self, height: int, width: int) -> np.ndarray:
        """Return the current picture, uint8 [height, width, 3]."""
        return self._env.render(height, width)

    def state(self) -> dict[str, Any]:
        """Return the environment's state after the last `finish`, see `Environment.state`."""
        return self._env.state()

    def close(self) -> None:
        """Free the environment."""
        self._env.close()
