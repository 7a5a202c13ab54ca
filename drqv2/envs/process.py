"""An environment in a process of its own, which is replaced if it dies or hangs.

Episodes are seeded by their numbers, so an environment's whole state is (index, episode, actions so far). Each reply of
the process carries what changed in that state. A process that is lost is replaced and its episode played again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np

from drqv2.envs.episode import Environment, EpisodeProgress, episode_state
from drqv2.envs.handles import EnvHandle, Request
from drqv2.envs.wrappers import ExtendedTimeStep
from drqv2.errors import ProcessError, UserError
from drqv2.system.signals import ignore_signals, signals_blocked

_log = logging.getLogger(__name__)

_REPLY_SECONDS = 30.0  # for a reply; after that the process counts as dead
_WARN_SECONDS = 5.0  # until a warning says that a reply is being waited for
_START_SECONDS = 300.0  # for a process to import mujoco, open OpenGL and play an episode again
_ATTEMPTS = 3  # processes that may be lost over one request
_ADVICE = "overlap=false (and num_envs=1) steps the environment in the main process, without a time limit"


class _Reply(NamedTuple):
    failed: bool
    progress: EpisodeProgress | None  # None before there is an environment
    result: Any  # with `_Shared` in place of the arrays that lie in shared memory


class _Shared(NamedTuple):
    """Where an array lies in shared memory."""

    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype


class ProcessEnv(EnvHandle):
    """An environment in a process of its own, which opens OpenGL there and ends with this process.

    Args:
        make: makes the environment; can be pickled.
        shared_bytes: size of the shared memory through which arrays come back, of any dtype and however nested. Those
            that do not fit go through the pipe, which is slower.
        threads: of software rendering in the process; None leaves that to OpenGL.
        reply_seconds: how long to wait for a reply.

    Attributes:
        step_seconds: simulated seconds in one agent step; None when unknown.

    Raises:
        UserError: raised by `make` in the process.
        RuntimeError: anything else is raised there.
        ProcessError: the process dies or hangs again and again.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        shared_bytes: int,
        threads: int | None = None,
        reply_seconds: float = _REPLY_SECONDS,
    ) -> None:
        self._make = make
        self._shared_bytes = shared_bytes
        self._threads = threads
        self._reply_seconds = reply_seconds
        self._progress: EpisodeProgress | None = None
        self._actions: list[np.ndarray] = []  # of the current episode
        self._process: Any = None
        self._exchange(None)

    def start(self, name: str, *args: Any) -> None:
        super().start(name, *args)
        with contextlib.suppress(_LostError):  # `finish` replaces the process
            self._send(name, args)

    def state(self) -> dict[str, Any]:
        assert self._progress is not None
        return episode_state(self._progress.env_index, self._progress.episode, self._actions, self._action_spec)

    def close(self) -> None:
        if self._process is not None:
            self._end(0.0 if self._started else 5.0)

    def _exchange(self, request: Request | None) -> Any:
        """Return the result of a request that was sent, from new processes where one is lost; None only starts one."""
        for _ in range(_ATTEMPTS):
            try:
                if self._process is None:
                    self._open()
                    if request is not None:
                        self._send(*request)
                if request is None:
                    return None
                return self._receive(request, _START_SECONDS if request[0] == "restore" else self._reply_seconds)
            except _LostError as reason:
                _log.warning("An environment process %s; it is replaced and its episode played again.", reason)
                self._end()
        what = "its start" if request is None else f"{request[0]}{request[1]!r:.100}"
        raise ProcessError(f"{_ATTEMPTS} processes of an environment failed at {what}; {_ADVICE}")

    def _open(self) -> None:
        """Start a process, and bring its environment to where the last one was."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["drqv2.envs"])
        self._shared = RawArray("B", self._shared_bytes)
        self._pipe, theirs = context.Pipe()
        args = (theirs, self._shared, self._make, self._threads)
        self._process = context.Process(target=_serve, args=args, name="environment", daemon=True)
        with signals_blocked():  # multiprocessing's servers, too, leave signals to the main process
            resource_tracker.ensure_running()  # it lets SIGINT and SIGTERM through again, so it comes first and alone
        with signals_blocked():
            self._process.start()
        theirs.close()
        # For programs that do not close this: at exit multiprocessing waits for processes that ignore SIGTERM.
        self._release = Finalize(self, _kill, (self._pipe, self._process), exitpriority=10)
        before = self._progress
        self._observation_spec, self._action_spec, self.step_seconds = self._receive(None, _START_SECONDS)
        if before is not None and before.episode >= 0:
            self._progress = before
            restore = ("restore", (self.state(),))
            self._send(*restore)
            self._receive(restore, _START_SECONDS)

    def _send(self, name: str, args: tuple[Any, ...]) -> None:
        try:
            self._pipe.send((name, args))
        except OSError as e:
            raise _LostError("has ended") from e

    def _receive(self, request: Request | None, seconds: float) -> Any:
        reply = self._wait(seconds)
        result = _from_shared(reply.result, self._shared)
        if request is not None:
            self._follow(request, reply.progress)
        else:
            self._progress = reply.progress
        if reply.failed:
            message, trace = result  # as text: exceptions need not survive a pipe
            raise UserError(message) if message is not None else RuntimeError(f"in an environment process:\n{trace}")
        return result

    def _follow(self, request: Request, progress: EpisodeProgress | None) -> None:
        """Keep the environment's state, which a replacement of the process starts from."""
        assert progress is not None
        if request[0] == "restore":
            self._actions = list(np.asarray(request[1][0]["actions"], self._action_spec.dtype))
        self._progress = progress
        last = progress.num_actions - 1  # replies to other requests than a step bring the last action once more
        self._actions[max(last, 0) :] = [] if progress.last_action is None else [progress.last_action]

    def _wait(self, seconds: float) -> _Reply:
        ends = [self._pipe, self._process.sentinel]
        ready = wait(ends, min(seconds, _WARN_SECONDS))
        if not ready and seconds > _WARN_SECONDS:
            if seconds < _START_SECONDS:
                _log.warning("An environment process has not replied for %.0f seconds.", _WARN_SECONDS)
            ready = wait(ends, seconds - _WARN_SECONDS)
        if not ready:
            raise _LostError(f"has not replied for {seconds:.0f} seconds")
        try:
            if not self._pipe.poll():
                raise EOFError
            reply: _Reply = self._pipe.recv()
            return reply
        except (EOFError, OSError) as e:
            self._process.join(1.0)
            raise _LostError(f"ended with status {self._process.exitcode}") from e

    def _end(self, seconds: float = 0.0) -> None:
        self._pipe.close()  # at which it ends by itself
        self._process.join(seconds)
        self._release()
        self._process = None


def _kill(pipe: Connection, process: Any) -> None:
    pipe.close()
    process.kill()
    process.join(5.0)  # one that hangs in a driver cannot be killed, and is left behind


class _LostError(Exception):
    """The process has died or hangs."""


def _serve(pipe: Connection, shared: Any, make: Callable[[], Environment], threads: int | None) -> None:
    """Answer requests until the pipe's other end is closed."""
    ignore_signals()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    if threads is not None:
        os.environ["LP_NUM_THREADS"] = str(threads)  # Mesa reads it when OpenGL is opened
    env: Environment | None = None
    request: Request = "", ()
    try:
        while True:
            try:
                if env is None:
                    env = make()
                    result: Any = env.observation_spec(), env.action_spec(), env.step_seconds
                else:
                    name, args = request
                    result = getattr(env, name)(*args)
                failed, result = False, _to_shared(result, shared)
            except Exception as error:
                message = str(error) if isinstance(error, UserError) else None
                failed, result = True, (message, "".join(traceback.format_exception(error)))
            pipe.send(_Reply(failed, None if env is None else env.progress(), result))
            if env is None:
                return
            request = pipe.recv()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    finally:
        if env is not None:
            env.close()


def _to_shared(value: Any, shared: Any, begin: int = 0) -> Any:
    """Return a result with its arrays moved to shared memory, from byte `begin` on, where they fit."""
    if isinstance(value, ExtendedTimeStep):
        return value._replace(observation=_to_shared(value.observation, shared))
    if isinstance(value, dict):
        sizes = [item.nbytes if isinstance(item, np.ndarray) else 0 for item in value.values()]
        begins = [begin + sum(sizes[:i]) for i in range(len(sizes))]
        return {key: _to_shared(item, shared, at) for (key, item), at in zip(value.items(), begins, strict=True)}
    if not isinstance(value, np.ndarray) or begin + value.nbytes > len(shared):
        return value
    np.frombuffer(shared, value.dtype, value.size, begin).reshape(value.shape)[...] = value
    return _Shared(begin, value.shape, value.dtype)


def _from_shared(value: Any, shared: Any) -> Any:
    """Return a result with copies of the arrays that lie in shared memory."""
    if isinstance(value, _Shared):
        size = math.prod(value.shape)
        return np.frombuffer(shared, value.dtype, size, value.begin).reshape(value.shape).copy()
    if isinstance(value, ExtendedTimeStep):
        return value._replace(observation=_from_shared(value.observation, shared))
    return {key: _from_shared(item, shared) for key, item in value.items()} if isinstance(value, dict) else value
