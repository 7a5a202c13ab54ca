"""Environments that step while something else is computed: in a process each, or in this one, with one interface.

`start` asks for something, `finish` waits for the answer. Episodes are seeded by their numbers, so an environment's
whole state is (index, episode, actions so far). That is kept here: a process that dies or hangs is replaced, and its
episode played again.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from drqv2.envs.episode import Environment
from drqv2.envs.wrappers import ExtendedTimeStep
from drqv2.errors import ProcessError, UserError
from drqv2.system.signals import ignore_signals, signals_blocked

_log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds for an answer; beyond that a process is taken for dead
_WORRY = 5.0  # seconds after which it is said that one is waited for
_STARTING = 300.0  # seconds for a process to import mujoco and open OpenGL
_ATTEMPTS = 3  # processes that may fail over one request
_ADVICE = "overlap=false (and num_envs=1) steps the environment in the main process, without a time limit"


class InProcess:
    """An environment of this process; `start` only notes what `finish` does.

    Args:
        make: makes the environment.
    """

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._env = make()
        self._asked: tuple[str, tuple[Any, ...]] | None = None
        self.observation_spec = self._env.observation_spec
        self.action_spec = self._env.action_spec
        self.step_seconds = self._env.step_seconds

    def start(self, name: str, *args: Any) -> None:
        """Ask for a method of the environment; what it returns is for `finish` to fetch."""
        assert self._asked is None, "the last answer has not been fetched"
        self._asked = name, args

    def finish(self) -> Any:
        """Return what was asked for."""
        assert self._asked is not None, "nothing was asked for"
        (name, args), self._asked = self._asked, None
        return getattr(self._env, name)(*args)

    def call(self, name: str, *args: Any) -> Any:
        """Ask, and return the answer."""
        self.start(name, *args)
        return self.finish()

    def render(self, height: int, width: int) -> np.ndarray:
        """Return the present picture, uint8 [height, width, 3]."""
        picture: np.ndarray = self.call("render", height, width)
        return picture

    def state(self) -> dict[str, Any]:
        """Return the environment's state, see `Environment.state`."""
        state: dict[str, Any] = self.call("state")
        return state

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class Worker(InProcess):
    """An environment in a process of its own, which opens OpenGL there and leaves when this process is gone.

    Args:
        make: makes the environment; can be pickled.
        room: bytes of shared memory through which arrays come back; larger ones are pickled.
        index: number of the environment that `make` makes.
        threads: of software rendering in the process; None leaves that to OpenGL.
        patience: seconds for an answer.

    Raises:
        UserError: what `make` raises in the process.
        RuntimeError: anything else is raised there.
        ProcessError: the process dies or hangs again and again.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        room: int,
        index: int = 0,
        threads: int | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        self._make = make
        self._room = room
        self._threads = threads
        self._patience = patience
        self._asked = None
        self._begun = index, -1  # environment and episode, as in `Environment`
        self._actions: list[np.ndarray] = []
        self._process: Any = None
        self._answer(None)

    def _open(self) -> None:
        """Start a process, and bring its environment to where the last one was."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["drqv2.envs"])
        self._shared = RawArray("B", self._room)
        self._pipe, theirs = context.Pipe()
        args = (theirs, self._shared, self._make, self._threads)
        self._process = context.Process(target=_serve, args=args, name="environment", daemon=True)
        with signals_blocked():  # the servers of multiprocessing, too, leave signals to the main process
            resource_tracker.ensure_running()  # lets SIGINT and SIGTERM through again: by itself, before the rest
        with signals_blocked():
            self._process.start()
        theirs.close()
        # When nobody closes this: multiprocessing waits, at the end of a program, for processes that ignore SIGTERM.
        self._release = Finalize(self, _let_go, (self._pipe, self._process), exitpriority=10)
        observation, action, self.step_seconds = self._receive(_STARTING)
        self.observation_spec = lambda: observation
        self.action_spec = lambda: action
        if self._begun[1] >= 0:
            self._send(("restore", (self.state(),)))
            self._receive(_STARTING)  # plays the episode's actions again

    def start(self, name: str, *args: Any) -> None:
        """Ask for a method of the environment; what it returns is for `finish` to fetch."""
        super().start(name, *args)
        with contextlib.suppress(_Gone):  # `finish` replaces it
            self._send((name, args))

    def finish(self) -> Any:
        """Return what was asked for, from a new process if the old one is dead or hangs."""
        assert self._asked is not None, "nothing was asked for"
        try:
            answer = self._answer(self._asked)
            self._remember(*self._asked)
        finally:
            self._asked = None
        return answer

    def _answer(self, asked: tuple[str, tuple[Any, ...]] | None) -> Any:
        """Return the answer to what was asked, from new processes where one dies or hangs; only start one for None."""
        for _ in range(_ATTEMPTS):
            try:
                if self._process is None:
                    self._open()
                    if asked is not None:
                        self._send(asked)
                if asked is None:
                    return None
                return self._receive(_STARTING if asked[0] == "restore" else self._patience)
            except _Gone as reason:
                _log.warning("An environment's process %s; it is replaced and its episode played again.", reason)
                self._end()
        what = "its start" if asked is None else f"{asked[0]}{asked[1]!r:.100}"
        raise ProcessError(f"{_ATTEMPTS} processes of an environment failed at {what}; {_ADVICE}")

    def _remember(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "step":
            self._actions.append(np.array(args[0], np.float32))
        elif name == "reset":
            self._begun, self._actions = (self._begun[0], self._begun[1] + 1), []
        elif name == "begin":
            self._begun, self._actions = (args[0], args[1]), []
        elif name == "restore":
            self._begun = args[0]["index"], max(args[0]["episode"], 0)
            self._actions = list(np.asarray(args[0]["actions"], np.float32))

    def state(self) -> dict[str, Any]:
        """Return the environment's state, see `Environment.state`."""
        import torch

        index, episode = self._begun
        actions = np.stack(self._actions) if self._actions else np.zeros((0, *self.action_spec().shape), np.float32)
        return {"index": index, "episode": episode, "actions": torch.from_numpy(actions)}

    def _send(self, asked: tuple[str, tuple[Any, ...]]) -> None:
        try:
            self._pipe.send(asked)
        except OSError as e:
            raise _Gone("has left") from e

    def _receive(self, patience: float) -> Any:
        ends = [self._pipe, self._process.sentinel]
        ready = wait(ends, min(patience, _WORRY))
        if not ready and patience > _WORRY:
            if patience < _STARTING:
                _log.warning("An environment's process has not answered for %.0f seconds.", _WORRY)
            ready = wait(ends, patience - _WORRY)
        if not ready:
            raise _Gone(f"has not answered for {patience:.0f} seconds")
        try:
            if not self._pipe.poll():
                raise EOFError
            kind, value, shape = self._pipe.recv()
        except (EOFError, OSError) as e:
            self._process.join(1.0)
            raise _Gone(f"ended with status {self._process.exitcode}") from e
        if kind == "error":
            told, trace = value  # as text: exceptions need not survive a pipe
            raise UserError(told) if told is not None else RuntimeError(f"in an environment's process:\n{trace}")
        if shape is None:
            return value
        array = np.frombuffer(self._shared, np.uint8, int(np.prod(shape))).reshape(shape).copy()
        return value._replace(observation=array) if isinstance(value, ExtendedTimeStep) else array

    def _end(self, patience: float = 0.0) -> None:
        self._pipe.close()  # it leaves by itself
        self._process.join(patience)
        self._release()
        self._process = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end(0.0 if self._asked else 5.0)


def _let_go(pipe: Connection, process: Any) -> None:
    pipe.close()
    process.kill()
    process.join(5.0)  # one that hangs in a driver cannot be killed, and is left behind


class _Gone(Exception):
    """A process has died or hangs."""


def _serve(pipe: Connection, shared: Any, make: Callable[[], Environment], threads: int | None) -> None:
    """Answer requests until the pipe's other end is closed."""
    ignore_signals()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    if threads is not None:
        os.environ["LP_NUM_THREADS"] = str(threads)  # read by Mesa when OpenGL is opened
    room = np.frombuffer(shared, np.uint8)
    env: Environment | None = None
    try:
        while True:
            try:
                if env is None:
                    env = make()
                    answer: Any = (env.observation_spec(), env.action_spec(), env.step_seconds)
                else:
                    name, args = pipe.recv()
                    answer = getattr(env, name)(*args)
                pipe.send(("answer", *_parted(answer, room)))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:
                told = str(error) if isinstance(error, UserError) else None
                pipe.send(("error", (told, "".join(traceback.format_exception(error))), None))
                if env is None:
                    return
    finally:
        if env is not None:
            env.close()


def _parted(answer: Any, room: np.ndarray) -> tuple[Any, tuple[int, ...] | None]:
    """Put an answer's uint8 array into `room`; return the rest, and the array's shape, None where none was put."""
    array = answer.observation if isinstance(answer, ExtendedTimeStep) else answer
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.size > room.size:
        return answer, None
    room[: array.size] = array.reshape(-1)
    return (answer._replace(observation=None) if isinstance(answer, ExtendedTimeStep) else None), array.shape
