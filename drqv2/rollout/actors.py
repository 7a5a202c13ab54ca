"""The actors of this machine: processes that fill rollouts, watched over and replaced when they die or hang."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.util import Finalize
from typing import Any

import numpy as np

from drqv2.errors import ProcessError
from drqv2.rollout.actor import (
    AHEAD,
    ANSWERED,
    ASKS,
    ATTEMPTS,
    START_SECONDS,
    SUSPENDED_SECONDS,
    ActorTask,
    Failed,
    Filled,
    lost_too_often,
    serve,
)
from drqv2.rollout.inference import Inference
from drqv2.system import processes

_log = logging.getLogger(__name__)

_WATCH_SECONDS = 0.5  # between two looks at the actors


@dataclass
class _Actor:
    """One process at a time, and what it was given."""

    index: int
    restarts: int = 0
    lost: int = 0  # processes since the last rollout
    process: Any = None
    pipe: Any = None
    release: Any = None
    slots: list[int] = field(default_factory=list)  # that it has, or will fill next
    steps: int = 0  # its count when it was looked at last
    moved_at: float = 0.0  # when that had changed
    started: bool = False  # whether it has taken a step


class ActorProcesses:
    """Actors in processes, and the queues of free and full rollouts between them and the learner.

    The queues are lists in the learner's process: an actor has only the end of a pipe, so that it can be killed at any
    time. What it was filling then is free again.

    Args:
        task: of the actors.
        num_actors: processes.
        num_buffers: rollouts in `task.buffers`.
        hang_seconds: without a step, after which an actor is replaced.
        inference: chooses the actions where `task.asked` is set.

    Attributes:
        full: rollouts in the order in which they were filled; who takes one gives it back by `give_back`.
        restarted: actors that were replaced.
    """

    def __init__(
        self,
        task: ActorTask,
        num_actors: int,
        num_buffers: int,
        hang_seconds: float,
        inference: Inference | None = None,
    ) -> None:
        self.inference = inference
        self.task, self.hang_seconds = task, hang_seconds
        self.full: queue.SimpleQueue[Filled] = queue.SimpleQueue()
        self.restarted = 0
        self._free = deque(range(num_buffers))
        self._lock = threading.Lock()  # of the free rollouts and of what actors have
        self._actors = [_Actor(i) for i in range(num_actors)]
        self._failure: Exception | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._watch, name="actors", daemon=True)

    def start(self) -> None:
        """Start the processes."""
        for actor in self._actors:
            self._start(actor)
        self._hand_out()
        self._thread.start()

    def rollout(self, filled: Filled) -> Mapping[str, np.ndarray]:
        """Return the arrays of a rollout that was taken from `full`."""
        return self.task.buffers.row(filled.slot)

    def give_back(self, filled: Filled) -> None:
        """Free a rollout that was taken from `full`."""
        with self._lock:
            self._free.append(filled.slot)
        self._hand_out()

    def check(self) -> None:
        """Raise what has made the actors fail for good.

        Raises:
            UserError: an environment cannot be made, or returns what it must not.
            RuntimeError: any other error in an actor.
            ProcessError: its processes die again and again.
        """
        if self._failure is not None:
            raise self._failure

    def held(self) -> int:
        """Return how many rollouts are free or with actors: all that are neither full nor taken."""
        with self._lock:
            return len(self._free) + sum(len(actor.slots) for actor in self._actors)

    def waited(self) -> float:
        """Return the seconds of all actors so far in which they had no free rollout to fill."""
        since = self.task.beats["waits_since"]
        return float(self.task.beats["waited"].sum() + (time.monotonic() - since[since > 0]).sum())

    def running(self) -> int:
        """Return how many actors there are."""
        return len(self._actors)

    def close(self) -> None:
        """End the processes."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        for actor in self._actors:
            if actor.process is not None:
                self._end(actor)

    def _hand_out(self) -> None:
        """Give free rollouts to actors, first to those that have fewest."""
        with self._lock:
            while self._free:
                actor = min(self._actors, key=lambda a: len(a.slots))
                if len(actor.slots) >= AHEAD:
                    return
                actor.slots.append(self._free.popleft())
                with contextlib.suppress(OSError):  # it has died: `_watch` replaces it
                    actor.pipe.send(actor.slots[-1])

    def _watch(self) -> None:
        """Take what actors have filled; replace those that die or hang."""
        try:
            while not self._closing:
                pipes, begin = {actor.pipe: actor for actor in self._actors}, time.monotonic()
                asking = [pipes[ready] for ready in connection.wait(list(pipes), _WATCH_SECONDS)]
                away = time.monotonic() - begin
                self._answer([actor for actor in asking if self._receive(actor) == ASKS])
                for actor in self._actors:
                    actor.moved_at += away if away > SUSPENDED_SECONDS else 0.0  # the actors were suspended, too
                    self._look_at(actor)
        except Exception as error:
            self._failure = error

    def _answer(self, actors: list[_Actor]) -> None:
        """Choose actions for actors that wait for them."""
        if not actors:
            return
        assert self.inference is not None
        self.inference.answer([actor.index for actor in actors])
        for actor in actors:
            with contextlib.suppress(OSError):  # it has died
                actor.pipe.send(ANSWERED)

    def _receive(self, actor: _Actor) -> Any:
        """Take a message of an actor and return it; None if it has died instead."""
        try:
            message = actor.pipe.recv()
        except (EOFError, OSError):
            actor.process.join(1.0)
            self._replace(actor, f"ended with status {actor.process.exitcode}")
            return None
        if message == ASKS:
            return message
        if isinstance(message, Failed):
            raise message.error or RuntimeError(f"in an actor:\n{message.trace}")
        actor.lost = 0
        with self._lock:
            actor.slots.remove(message.slot)
        self.full.put(message)
        self._hand_out()
        return message

    def _look_at(self, actor: _Actor) -> None:
        """Replace an actor that has something to do and does not step."""
        steps, now = int(self.task.beats["steps"][actor.index]), time.monotonic()
        if steps != actor.steps or not actor.slots:
            actor.started |= steps != actor.steps
            actor.steps, actor.moved_at = steps, now
        seconds = self.hang_seconds if actor.started else max(self.hang_seconds, START_SECONDS)
        if now - actor.moved_at > seconds:
            self._replace(actor, f"has not stepped for {seconds:.0f} s")

    def _replace(self, actor: _Actor, reason: str) -> None:
        self.task.beats["waits_since"][actor.index] = 0.0
        self.restarted += 1
        actor.restarts += 1
        actor.lost += 1
        if actor.lost >= ATTEMPTS:
            raise ProcessError(lost_too_often(actor.index, reason))
        _log.warning("Actor %d %s; restarting it.", actor.index, reason)
        with self._lock:  # meanwhile nothing is handed to it
            self._end(actor)
            self._free.extendleft(reversed(actor.slots))
            actor.slots.clear()
            self._start(actor)
        self._hand_out()

    def _start(self, actor: _Actor) -> None:
        context = multiprocessing.get_context("forkserver")
        processes.preload("drqv2.rollout.actor", *self.task.imports)
        actor.pipe, theirs = context.Pipe()
        arguments = theirs, self.task, actor.index, actor.restarts
        actor.process = context.Process(target=serve, args=arguments, name=f"actor {actor.index}")
        processes.start(actor.process)
        theirs.close()
        actor.started, actor.moved_at = False, time.monotonic()
        actor.steps = int(self.task.beats["steps"][actor.index])
        # For programs that do not close this: at exit multiprocessing waits for its processes.
        actor.release = Finalize(actor, _kill, (actor.pipe, actor.process), exitpriority=10)

    def _end(self, actor: _Actor) -> None:
        actor.release()
        actor.process = None


def _kill(pipe: connection.Connection, process: Any) -> None:
    pipe.close()
    process.kill()
    process.join(5.0)  # one that hangs in a driver cannot be killed, and is left behind
