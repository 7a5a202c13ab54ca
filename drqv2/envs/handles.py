"""Handles on environments: you `start` a method of the environment, do something else, and `finish` to get its result.

`LocalEnv` runs the environment in this process, `ProcessEnv` in a separate one. Both give the same results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drqv2.envs.env_process import EnvProcess, Request
from drqv2.envs.episode import Environment

_REPLY_SECONDS = 300.0  # for a reply; after that the process counts as dead
_PATIENCE = "increase reply_seconds"


class EnvHandle(ABC):
    """What the training loop and evaluations need of an environment.

    Attributes:
        step_seconds: simulated seconds in one agent step; None when unknown.
    """

    step_seconds: float | None
    _observation_spec: Any
    _action_spec: Any
    _started: Request | None = None

    def observation_spec(self) -> Any:
        """Return the spec of an observation: one array's, or a dict of them."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Return the spec of an action."""
        return self._action_spec

    def start(self, name: str, *args: Any) -> None:
        """Start a method of the `Environment`; at most one at a time."""
        assert self._started is None, "the result of the last start() has not been fetched with finish()"
        self._started = name, args

    def finish(self) -> Any:
        """Wait for the method that was started and return its result."""
        assert self._started is not None, "finish() without a start()"
        try:
            return self._exchange(self._started)
        finally:
            self._started = None

    def call(self, name: str, *args: Any) -> Any:
        """Start a method and return its result."""
        self.start(name, *args)
        return self.finish()

    def render(self, height: int, width: int) -> np.ndarray:
        """Return the current frame, uint8 [height, width, 3]."""
        picture: np.ndarray = self.call("render", height, width)
        return picture

    @abstractmethod
    def _exchange(self, request: Request) -> Any:
        """Return the result of a request that was started."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the environment's state after the last `finish`, see `Environment.state`."""

    @abstractmethod
    def close(self) -> None:
        """Free the environment."""


class LocalEnv(EnvHandle):
    """An environment in this process; `finish` does the work.

    Args:
        make: makes the environment.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._env = make()
        self.step_seconds = self._env.step_seconds
        self._observation_spec, self._action_spec = self._env.observation_spec(), self._env.action_spec()

    def _exchange(self, request: Request) -> Any:
        name, args = request
        return getattr(self._env, name)(*args)

    def state(self) -> dict[str, Any]:
        return self._env.state()

    def close(self) -> None:
        self._env.close()


class ProcessEnv(EnvHandle):
    """An environment in a separate process, which opens OpenGL there and ends with this process; see `EnvProcess`.

    Args:
        make: makes the environment; can be pickled.
        threads: of software rendering in the process; None leaves that to OpenGL.
        reply_seconds: how long to wait for a reply.
        patience: what the user can do if that is too short, for the message.

    Attributes:
        host: the process, in which `sharing` has put others beside it.

    Raises:
        UserError: raised by `make` in the process.
        RuntimeError: anything else is raised there.
        ProcessError: the process dies or hangs again and again.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        threads: int | None = None,
        reply_seconds: float = _REPLY_SECONDS,
        patience: str = _PATIENCE,
    ) -> None:
        self._take_seat(EnvProcess([make], threads, reply_seconds, patience), 0)

    @classmethod
    def sharing(
        cls,
        makes: Sequence[Callable[[], Environment]],
        threads: int | None = None,
        reply_seconds: float = _REPLY_SECONDS,
        patience: str = _PATIENCE,
    ) -> list[ProcessEnv]:
        """Return environments in one process, with one message a step for all; arguments and errors as for one."""
        host, envs = EnvProcess(makes, threads, reply_seconds, patience), [cls.__new__(cls) for _ in makes]
        for number, env in enumerate(envs):
            env._take_seat(host, number)
        return envs

    def _take_seat(self, host: EnvProcess, number: int) -> None:
        self.host, self._number, self._member = host, number, host.members[number]
        self.step_seconds = self._member.step_seconds
        self._observation_spec, self._action_spec = self._member.observation_spec, self._member.action_spec

    def start(self, name: str, *args: Any) -> None:
        super().start(name, *args)
        self.host.start(self._number, name, args)

    def _exchange(self, request: Request) -> Any:
        return self.host.finish(self._number)

    def state(self) -> dict[str, Any]:
        return self._member.state()

    def close(self) -> None:
        """End the process, with all environments in it."""
        self.host.close()
