"""Environments in separate processes, one or several in each, which are replaced when they die or hang."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from operator import methodcaller
from typing import Any

import numpy as np

from drqv2.envs import notices
from drqv2.envs.episode import Environment, episode_state
from drqv2.envs.handles import NOT_FETCHED, EnvHandle, Request
from drqv2.errors import ProcessError, UserError
from drqv2.system import processes
from drqv2.system.signals import hang_up_with_readers, ignore_signals

_log = logging.getLogger(__name__)

_REPLY_SECONDS = 300.0  # for a reply; after that the process counts as dead
_PATIENCE = "increase reply_seconds"
_START_SECONDS = 300.0  # at least, for a process to import mujoco, open OpenGL and play an episode again
_ATTEMPTS = 3  # processes that may be lost over the same requests
MEMORY = "; the kernel kills processes with status -9 where memory is short"

Reply = tuple[bool, Any, Any]
"""Whether it failed; its result, or what to report of the error; and what has changed, `Environment.progress`."""


class ProcessEnv(EnvHandle):
    """An environment in a separate process, which opens OpenGL there and ends with this process; see `EnvProcess`.

    Args:
        make: makes the environment; can be pickled.
        threads: of software rendering in the process; None leaves that to OpenGL.
        reply_seconds: how long to wait for a reply.
        patience: what the user can do if that is too short, for the message.
        host: the process where it joins others, see `sharing`; None starts one.

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
        host: EnvProcess | None = None,
    ) -> None:
        self.make = make
        self.place: tuple[int, int] | None = None  # index and episode; None before the first episode
        self.actions: list[np.ndarray] = []  # of the current episode
        self.host = host or EnvProcess(threads, reply_seconds, patience)
        self._number = self.host.add(self)
        if host is None:
            self.host.open()

    @classmethod
    def sharing(
        cls,
        makes: Sequence[Callable[[], Environment]],
        threads: int | None = None,
        reply_seconds: float = _REPLY_SECONDS,
        patience: str = _PATIENCE,
    ) -> list[ProcessEnv]:
        """Return environments in one process, with one message a step for all; arguments and errors as for one."""
        host = EnvProcess(threads, reply_seconds, patience)
        envs = [cls(make, host=host) for make in makes]
        host.open()
        return envs

    def start(self, name: str, *args: Any) -> None:
        self.host.start(self._number, plain(name, args))

    def finish(self) -> Any:
        return self.host.finish(self._number)

    def state(self) -> dict[str, Any]:
        assert self.place is not None, "there is no state before the first episode"
        return episode_state(*self.place, self.actions, self._action_spec)

    def close(self) -> None:
        """End the process, with all environments in it."""
        self.host.close()

    def describe(self, specs: tuple[Any, Any, float | None]) -> None:
        """Keep what the environment says of itself when it is made."""
        self._observation_spec, self._action_spec, self.step_seconds = specs

    def keep(self, request: Request, progress: tuple[int, int, int, list[np.ndarray]]) -> None:
        """Keep what a request has changed in the environment's state."""
        if request[0] == "restore":
            self.actions = list(np.asarray(request[1][0]["actions"], self._action_spec.dtype))
        index, episode, count, last = progress
        self.place = index, episode
        self.actions[max(count - 1, 0) :] = last  # replies to other requests than a step bring it once more


def plain(name: str, args: tuple[Any, ...]) -> Request:
    """Return a request without tensors, for which an environment's process would have to import torch."""
    if name == "restore":
        args = ({**args[0], "actions": np.asarray(args[0]["actions"])},)
    return name, args


class EnvProcess:
    """A process with environments, which are stepped there in turn; it opens OpenGL itself and ends with this process.

    Requests are sent once all environments have one, or the result of one of them is asked for; the replies come all at
    once. A process that dies or hangs is replaced, and the current episodes of all its environments are played again:
    each reply carries what changed in the environment's state (index, episode, actions so far). Arguments and errors
    are those of `ProcessEnv`.

    Attributes:
        envs: the environments.
        process: the current one.
    """

    def __init__(self, threads: int | None, reply_seconds: float, patience: str) -> None:
        self.envs: list[ProcessEnv] = []
        self.process: Any = None
        self._threads, self._reply_seconds, self._patience = threads, reply_seconds, patience
        self._waiting: dict[int, Request] = {}  # to be sent
        self._sent: dict[int, Request] = {}  # without a reply
        self._replies: dict[int, Reply] = {}  # that nobody has asked for yet

    def add(self, env: ProcessEnv) -> int:
        """Add an environment before the process is opened; return its number."""
        self.envs.append(env)
        return len(self.envs) - 1

    def open(self) -> None:
        """Start the process and make the environments there."""
        self._exchange()

    def start(self, number: int, request: Request) -> None:
        """Start a method of an environment, by its number."""
        assert not any(number in had for had in (self._waiting, self._sent, self._replies)), NOT_FETCHED
        self._waiting[number] = request
        if len(self._waiting) == len(self.envs):
            self._send()

    def finish(self, number: int) -> Any:
        """Wait for the method that was started and return its result."""
        if number in self._waiting:
            self._send()
        if number in self._sent:
            self._exchange()
        failed, result, _ = self._replies.pop(number)
        return _raised(result) if failed else result

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self._end(0.0 if self._sent else 5.0)

    def _send(self) -> None:
        self._sent, self._waiting = self._waiting, {}
        with contextlib.suppress(OSError):  # it has died: `_exchange` replaces it
            self._pipe.send(self._sent)

    def _exchange(self) -> None:
        """Receive the replies to what was sent, from new processes where one is lost; at first, only start one."""
        reason = advice = ""
        for _ in range(_ATTEMPTS):
            new = self.process is None
            try:
                if new:
                    self._start_process()
                    self._prepare()
                if self._sent:
                    replies = self._receive(self._sent)
                    self._sent = {}
                    self._replies |= replies
                return
            except (EOFError, OSError) as error:
                hangs = isinstance(error, TimeoutError)
                status = self._end(0.0 if hangs else 1.0)
                reason = str(error) if hangs else f"ended with status {status}"
                advice = self._patience if hangs else "fix the environment" + MEMORY * (status == -signal.SIGKILL)
                what = "its episode" if len(self.envs) == 1 else f"the episodes of its {len(self.envs)}"
                _log.warning("An environment process %s; restarting it and replaying %s.", reason, what)
        requests = ", ".join(f"{name}{args!r:.100}" for name, args in list(self._sent.values())[:1]) or "its start"
        raise ProcessError(f"{_ATTEMPTS} processes of an environment failed at {requests}: the last {reason}\n{advice}")

    def _start_process(self) -> None:
        processes.preload(__name__)
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._answers = context.RawValue("L", 0)
        arguments = theirs, [env.make for env in self.envs], self._threads, self._answers
        self.process = context.Process(target=_serve, args=arguments, name="environment")
        processes.start(self.process)
        theirs.close()
        # For programs that do not close this: at exit multiprocessing waits for its processes.
        self._release = Finalize(self, processes.kill, (self._pipe, self.process), exitpriority=10)

    def _prepare(self) -> None:
        """Bring the environments of a new process to the state of the last one's, and send it the pending requests."""
        for i, (failed, result, _) in self._replied(max(_START_SECONDS, self._reply_seconds)).items():
            self.envs[i].describe(_raised(result) if failed else result)
        played = {i: env for i, env in enumerate(self.envs) if env.place is not None}
        replays = {i: plain("restore", (env.state(),)) for i, env in played.items()}
        if replays:
            self._pipe.send(replays)
            for failed, result, _ in self._receive(replays).values():
                if failed:
                    _raised(result)
        if self._sent:
            self._pipe.send(self._sent)

    def _receive(self, requests: Mapping[int, Request]) -> dict[int, Reply]:
        """Return the replies to requests, and keep the states that these leave behind."""
        restoring = any(name == "restore" for name, _ in requests.values())
        seconds = max(_START_SECONDS, self._reply_seconds) if restoring else self._reply_seconds
        replies = self._replied(seconds)
        for i, (_, _, progress) in replies.items():
            self.envs[i].keep(requests[i], progress)
        return replies

    def _replied(self, seconds: float) -> dict[int, Reply]:
        """Return the next replies by the numbers of their environments.

        Args:
            seconds: for each of them; one that hangs is noticed after at most twice that time.

        Raises:
            TimeoutError: the process hangs.
            EOFError, OSError: it has died.
        """
        before = self._answers.value
        while not self._pipe.poll(seconds):
            if self._answers.value == before:
                raise TimeoutError(f"has not replied for {seconds:g} s")
            before = self._answers.value
        replies, messages = self._pipe.recv()
        for message in messages:
            notices.notice(message)
        found: dict[int, Reply] = replies
        return found

    def _end(self, seconds: float) -> int | None:
        """Wait this long for the process to end by itself, then kill it; return its exit status."""
        self._pipe.close()  # at which it ends
        self.process.join(seconds)
        self._release()
        status, self.process = self.process.exitcode, None
        return None if status is None else int(status)


def _raised(result: tuple[UserError | None, str]) -> Any:
    known, trace = result  # as text: other exceptions need not survive a pipe
    raise known or RuntimeError(f"in an environment process:\n{trace}")


def _serve(pipe: Connection, makes: Sequence[Callable[[], Environment]], threads: int | None, answers: Any) -> None:
    """Make the environments and answer requests until the pipe's other end is closed; count each answer."""
    ignore_signals()
    hang_up_with_readers()  # an environment may print
    notices.take()  # from now on, the main process says them
    if threads is not None:
        os.environ["LP_NUM_THREADS"] = str(threads)  # Mesa reads it when OpenGL is opened
    envs: list[Environment] = []

    def made(make: Callable[[], Environment]) -> tuple[Any, Any, float | None]:
        envs.append(env := make())
        return env.observation_spec(), env.action_spec(), env.step_seconds

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        replies: dict[int, Reply] = {i: (*_tried(answers, made, make), None) for i, make in enumerate(makes)}
        pipe.send((replies, notices.take()))
        while len(envs) == len(makes):  # else the main process knows why not
            requests: dict[int, Request] = pipe.recv()
            replies = {}
            for i, (name, args) in requests.items():
                replies[i] = *_tried(answers, methodcaller(name, *args), envs[i]), envs[i].progress()
            pipe.send((replies, notices.take()))
    for env in envs:
        env.close()


def _tried(answers: Any, function: Callable[[Any], Any], argument: Any) -> tuple[bool, Any]:
    try:
        return False, function(argument)
    except Exception as error:
        known = error.with_traceback(None) if isinstance(error, UserError) else None
        return True, (known, "".join(traceback.format_exception(error)))
    finally:
        answers.value += 1
