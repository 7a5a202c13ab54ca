"""Handles on environments: you `start` a method of the environment, do something else, and `finish` to get its result.

`LocalEnv` runs the environment in this process, `ProcessEnv` in a separate one. Both give the same results.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from drqv2.envs import notices
from drqv2.envs.episode import Environment, episode_state
from drqv2.errors import ProcessError, UserError
from drqv2.system import processes
from drqv2.system.signals import ignore_signals

_log = logging.getLogger(__name__)

_REPLY_SECONDS = 300.0  # for a reply; after that the process counts as dead
_START_SECONDS = 300.0  # at least, for a process to import mujoco, open OpenGL and play an episode again
_ATTEMPTS = 3  # processes that may be lost over one request
_MEMORY = "; the kernel kills processes with status -9 where memory is short"

Request = tuple[str, tuple[Any, ...]]
"""A method of the `Environment` and its arguments."""


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
    """An environment in a separate process, which opens OpenGL there and ends with this process.

    A process that dies or hangs is replaced, and its episode is played again: each reply carries what changed in the
    environment's state (index, episode, actions so far).

    Args:
        make: makes the environment; can be pickled.
        threads: of software rendering in the process; None leaves that to OpenGL.
        reply_seconds: how long to wait for a reply.
        patience: what the user can do if that is too short, for the message.

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
        patience: str = "increase reply_seconds",
    ) -> None:
        self._make = make
        self._threads = threads
        self._reply_seconds, self._patience = reply_seconds, patience
        self._place: tuple[int, int] | None = None  # index and episode; None before the first episode
        self._actions: list[np.ndarray] = []  # of the current episode
        self._process: Any = None
        self._exchange(None)

    def start(self, name: str, *args: Any) -> None:
        super().start(name, *args)
        with contextlib.suppress(OSError):  # it has died: `finish` replaces it
            self._pipe.send((name, args))

    def state(self) -> dict[str, Any]:
        assert self._place is not None, "there is no state before the first episode"
        return episode_state(*self._place, self._actions, self._action_spec)

    def close(self) -> None:
        if self._process is not None:
            self._end(0.0 if self._started else 5.0)

    def _exchange(self, request: Request | None) -> Any:
        """Return the result of a request that was sent, from new processes where one is lost; None only starts one."""
        reason = advice = ""
        for _ in range(_ATTEMPTS):
            new = self._process is None
            if new:
                self._start_process()
            try:
                if new:
                    self._prepare(request)
                return None if request is None else self._receive(request)
            except (EOFError, OSError) as error:
                hangs = isinstance(error, TimeoutError)
                status = self._end(0.0 if hangs else 1.0)
                reason = str(error) if hangs else f"ended with status {status}"
                advice = self._patience if hangs else "fix the environment" + _MEMORY * (status == -signal.SIGKILL)
                _log.warning("An environment process %s; restarting it and replaying its episode.", reason)
        what = "its start" if request is None else f"{request[0]}{request[1]!r:.100}"
        raise ProcessError(f"{_ATTEMPTS} processes of an environment failed at {what}: the last {reason}\n{advice}")

    def _start_process(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["drqv2.envs.handles"])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._make, self._threads), name="environment")
        processes.start(self._process)
        theirs.close()
        # For programs that do not close this: at exit multiprocessing waits for its processes.
        self._release = Finalize(self, _kill, (self._pipe, self._process), exitpriority=10)

    def _prepare(self, request: Request | None) -> None:
        """Bring a new process to where the last one was, and send it the request."""
        self._observation_spec, self._action_spec, self.step_seconds = self._receive(None)
        if self._place is not None:
            restore = "restore", (self.state(),)
            self._pipe.send(restore)
            self._receive(restore)
        if request is not None:
            self._pipe.send(request)

    def _receive(self, request: Request | None) -> Any:
        """Return the result of a request, None being the start, and keep the state that it leaves behind.

        Raises:
            TimeoutError: the process hangs.
            EOFError, OSError: it has died.
        """
        starting = request is None or request[0] == "restore"
        seconds = max(_START_SECONDS, self._reply_seconds) if starting else self._reply_seconds
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"has not replied for {seconds:g} seconds")
        failed, progress, result, messages = self._pipe.recv()
        for message in messages:
            notices.notice(message)
        if request is not None:
            if request[0] == "restore":
                self._actions = list(np.asarray(request[1][0]["actions"], self._action_spec.dtype))
            index, episode, count, last = progress
            self._place = index, episode
            self._actions[max(count - 1, 0) :] = last  # replies to other requests than a step bring it once more
        if failed:
            known, trace = result  # as text: other exceptions need not survive a pipe
            raise known or RuntimeError(f"in an environment process:\n{trace}")
        return result

    def _end(self, seconds: float) -> int | None:
        """Wait this long for the process to end by itself, then kill it; return its exit status."""
        self._pipe.close()  # at which it ends
        self._process.join(seconds)
        self._release()
        status, self._process = self._process.exitcode, None
        return None if status is None else int(status)


def _kill(pipe: Connection, process: Any) -> None:
    pipe.close()
    process.kill()
    process.join(5.0)  # one that hangs in a driver cannot be killed, and is left behind


def _serve(pipe: Connection, make: Callable[[], Environment], threads: int | None) -> None:
    """Answer requests until the pipe's other end is closed."""
    ignore_signals()
    forwarded = notices.Forwarded()
    forwarded.install()
    if threads is not None:
        os.environ["LP_NUM_THREADS"] = str(threads)  # Mesa reads it when OpenGL is opened
    env: Environment | None = None
    request: Request = "", ()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            try:
                if env is None:
                    env = make()
                    result: Any = env.observation_spec(), env.action_spec(), env.step_seconds
                else:
                    name, args = request
                    result = getattr(env, name)(*args)
                failed = False
            except Exception as error:
                known = error.with_traceback(None) if isinstance(error, UserError) else None
                failed, result = True, (known, "".join(traceback.format_exception(error)))
            pipe.send((failed, None if env is None else env.progress(), result, forwarded.take()))
            if env is None:
                return
            request = pipe.recv()
    if env is not None:
        env.close()
