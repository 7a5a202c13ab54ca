"""The actors of this machine: processes that fill rollouts in memory that they share with the learner."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drqv2.errors import UserError
from drqv2.nn.observations import Observation
from drqv2.nn.policies import State
from drqv2.rollout.actors import AHEAD, SUSPENDED_SECONDS, Actors, ActorSetup, Filled, WatchedActor
from drqv2.rollout.inference import Inference, ask
from drqv2.rollout.shared import Layout, SharedArrays, SharedWeights
from drqv2.rollout.unroll import Unroller
from drqv2.system import processes
from drqv2.system.signals import hang_up_with_readers, ignore_signals

_ASKS, _ANSWERED = "asks", "answered"  # messages of an actor that needs actions, and to it
_WATCH_SECONDS = 0.5  # between two looks at the actors


class _Failed(NamedTuple):
    """What an actor tells before it ends because of an error."""

    error: UserError | None  # one for people; None where it is a bug
    trace: str


@dataclass
class ActorTask:
    """What the processes of actors get; can be pickled.

    Attributes:
        setup: of an actor.
        buffers: of the rollouts.
        beats: of `beats_layout`.
        weights: of the learner.
        render_threads: of software rendering in a process; None leaves that to OpenGL.
        asked: where actors ask the learner's process for actions; None: they choose them.
        imports: modules that `setup` needs, imported once for all actors.
    """

    setup: ActorSetup
    buffers: SharedArrays
    beats: SharedArrays
    weights: SharedWeights
    render_threads: int | None = None
    asked: SharedArrays | None = None
    imports: Sequence[str] = ()


def beats_layout(num_actors: int) -> Layout:
    """Return shape and dtype of what each actor tells of itself.

    Its steps, the seconds in which it had no free rollout, and since when it has none now, 0 if it has one.
    """
    return {"steps": ((num_actors,), np.int64)} | dict.fromkeys(("waited", "waits_since"), ((num_actors,), np.float64))


@dataclass
class _Actor(WatchedActor):
    process: Any = None
    pipe: Any = None
    release: Any = None
    slots: list[int] = field(default_factory=list)  # that it has, or will fill next
    steps: int = 0  # its count when it was looked at last
    started: bool = False  # whether it has taken a step


class ActorProcesses(Actors[_Actor]):
    """Actors in processes, and the queues of free and full rollouts between them and the learner.

    The queues are lists in the learner's process: an actor has only the end of a pipe, so that it can be killed at any
    time. What it was filling then is free again.

    Args:
        task: of the actors.
        num_actors: processes.
        num_buffers: rollouts in `task.buffers`.
        hang_seconds: without a step, after which an actor is replaced.
        inference: chooses the actions where `task.asked` is set.
    """

    def __init__(
        self,
        task: ActorTask,
        num_actors: int,
        num_buffers: int,
        hang_seconds: float,
        inference: Inference | None = None,
    ) -> None:
        super().__init__([_Actor(i) for i in range(num_actors)], hang_seconds)
        self.task, self.inference = task, inference
        self._free = deque(range(num_buffers))

    def rollout(self, filled: Filled) -> Mapping[str, np.ndarray]:
        return self.task.buffers.row(filled.slot)

    def give_back(self, filled: Filled) -> None:
        with self._lock:
            self._free.append(filled.slot)
        self._hand_out()

    def waited(self) -> float:
        since = self.task.beats["waits_since"]
        return float(self.task.beats["waited"].sum() + (time.monotonic() - since[since > 0]).sum())

    def running(self) -> int:
        return len(self._actors)

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
        self._hand_out()
        pipes, begin = {actor.pipe: actor for actor in self._actors}, time.monotonic()
        ready = [pipes[pipe] for pipe in connection.wait(list(pipes), _WATCH_SECONDS)]
        away = time.monotonic() - begin
        self._answer([actor for actor in ready if self._receive(actor) == _ASKS])
        for actor in self._actors:
            actor.moved_at += away if away > SUSPENDED_SECONDS else 0.0  # the actors were suspended, too
            steps, now = int(self.task.beats["steps"][actor.index]), time.monotonic()
            if steps != actor.steps or not actor.slots:
                actor.started |= steps != actor.steps
                actor.steps, actor.moved_at = steps, now
            self._replace_if_hung(actor, now, actor.started)

    def _answer(self, actors: list[_Actor]) -> None:
        """Choose actions for actors that wait for them."""
        if not actors:
            return
        assert self.inference is not None
        self.inference.answer([actor.index for actor in actors])
        for actor in actors:
            with contextlib.suppress(OSError):  # it has died
                actor.pipe.send(_ANSWERED)

    def _receive(self, actor: _Actor) -> Any:
        """Take a message of an actor and return it; None if it has died instead."""
        try:
            message = actor.pipe.recv()
        except (EOFError, OSError):
            actor.process.join(1.0)
            self._replace(actor, f"ended with status {actor.process.exitcode}")
            return None
        if isinstance(message, _Failed):
            raise message.error or RuntimeError(f"in an actor:\n{message.trace}")
        if isinstance(message, Filled):
            actor.lost = 0
            with self._lock:
                actor.slots.remove(message.slot)
            self.full.put(message)
            self._hand_out()
        return message

    def _free_rollouts_of(self, actor: _Actor) -> None:
        self.task.beats["waits_since"][actor.index] = 0.0
        self._free.extendleft(reversed(actor.slots))
        actor.slots.clear()

    def _start(self, actor: _Actor) -> None:
        context = multiprocessing.get_context("forkserver")
        processes.preload(__name__, *self.task.imports)
        actor.pipe, theirs = context.Pipe()
        arguments = theirs, self.task, actor.index, actor.restarts
        actor.process = context.Process(target=_serve, args=arguments, name=f"actor {actor.index}")
        processes.start(actor.process)
        theirs.close()
        actor.started, actor.moved_at = False, time.monotonic()
        actor.steps = int(self.task.beats["steps"][actor.index])
        # For programs that do not close this: at exit multiprocessing waits for its processes.
        actor.release = Finalize(actor, processes.kill, (actor.pipe, actor.process), exitpriority=10)

    def _end(self, actor: _Actor) -> None:
        if actor.process is not None:
            actor.release()
            actor.process = None


def _serve(learner: connection.Connection, task: ActorTask, actor: int, restarts: int) -> None:
    """Fill the rollouts whose numbers come through the pipe until its other end is closed."""
    ignore_signals()
    hang_up_with_readers()  # an environment may print
    torch.set_num_threads(1)
    if task.render_threads is not None:
        os.environ["LP_NUM_THREADS"] = str(task.render_threads)  # Mesa reads it when OpenGL is opened
    threading.Thread(target=_end_with_learner, daemon=True).start()
    try:
        _fill_rollouts(learner, task, actor, restarts)
    except Exception as error:
        known = error if isinstance(error, UserError) else None
        with contextlib.suppress(OSError):  # the learner has closed the pipe, which may be the error itself
            learner.send(_Failed(known, "".join(traceback.format_exception(error))))


def _end_with_learner() -> None:
    """End the process when the learner's has ended, even while an environment hangs."""
    learner = multiprocessing.parent_process()
    assert learner is not None
    learner.join()
    os._exit(1)


def _fill_rollouts(learner: connection.Connection, task: ActorTask, actor: int, restarts: int) -> None:
    env, policy, own = task.setup.open(actor, restarts)
    steps, slots, versions = task.beats["steps"], deque[int](), list[int]()

    def choose(obs: Observation, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, State | None]:
        steps[actor] += 1
        if task.asked is None:
            return own(obs, state, first)
        chosen = ask(task.asked, actor, wait_for_answer, obs, state, first)
        versions.append(int(task.asked["versions"][actor]))
        return chosen

    def wait_for_answer() -> None:
        learner.send(_ASKS)
        while (message := learner.recv()) != _ANSWERED:
            slots.append(message)

    unroller = Unroller(env, choose, policy.initial_state(env.num_envs))
    unroller.start(env.reset())
    version = -1
    try:
        while True:
            if not slots:
                slots.append(_wait_for_slot(learner, task.beats, actor))
            slot = slots.popleft()
            if task.asked is None and task.weights.version != version:
                version = task.weights.read(policy)
            versions[:] = [version] if task.asked is None else []
            episodes, info = unroller.fill(task.buffers.row(slot))
            learner.send(Filled(slot, versions[0], episodes, info))
    finally:
        env.close()


def _wait_for_slot(learner: connection.Connection, beats: SharedArrays, actor: int) -> int:
    beats["waits_since"][actor] = begin = time.monotonic()
    slot: int = learner.recv()
    beats["waited"][actor] += time.monotonic() - begin
    beats["waits_since"][actor] = 0.0
    return slot
