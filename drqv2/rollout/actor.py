"""An actor: a process that acts with a copy of the policy and fills rollouts."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drqv2.envs import notices
from drqv2.envs.info import Sums
from drqv2.envs.vector import VectorEnv
from drqv2.errors import UserError
from drqv2.nn.policies import Policy, State
from drqv2.rollout.inference import ask
from drqv2.rollout.shared import Layout, SharedArrays, SharedWeights
from drqv2.rollout.unroll import Unroller, acts_with
from drqv2.system.signals import ignore_signals

ASKS, ANSWERED = "asks", "answered"  # messages of an actor that needs actions, and to it
# How actors are watched, in processes and on a cluster.
START_SECONDS = 300.0  # for a process to import mujoco and make its environments
ATTEMPTS = 3  # processes in a row that may be lost without a rollout
AHEAD = 2  # rollouts that an actor has at once: the one that it fills, and the next
SUSPENDED_SECONDS = 5.0  # between two looks at the actors, where the learner was not suspended


class Filled(NamedTuple):
    """What an actor reports about a rollout."""

    slot: int
    version: int  # of the weights that it began with
    episodes: list[tuple[float, int]]  # return and length in steps of those that ended
    info: Sums  # over these, of the numbers in `info`: sum of the episodes' means, and how many had it


class Failed(NamedTuple):
    """What an actor reports before it ends because of an error."""

    error: UserError | None  # the user's error; None for a bug
    trace: str


@dataclass
class ActorSetup:
    """What an actor is made of; can be pickled.

    Attributes:
        make_env: makes the environments of actor `i` after `k` restarts.
        make_policy: makes the policy for them, on the CPU, with any weights.
        seed: makes the seed of what actor `i` samples after `k` restarts.
    """

    make_env: Callable[[int, int], VectorEnv]
    make_policy: Callable[[VectorEnv], Policy]
    seed: Callable[[int, int], int]

    def open_env(self, actor: int, restarts: int) -> VectorEnv:
        """Return an actor's environments; only the first actor's notices are reported, for all."""
        notices.mute()  # the learner has made one, too
        env = self.make_env(actor, restarts)
        notices.mute(actor > 0 or restarts > 0)
        return env


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
    """Return shape and dtype of what each actor reports about itself.

    Its steps, the seconds in which it had no free rollout, and since when it has none now, 0 if it has one.
    """
    return {"steps": ((num_actors,), np.int64)} | dict.fromkeys(("waited", "waits_since"), ((num_actors,), np.float64))


def lost_too_often(actor: int, reason: str) -> str:
    """Return the message for an actor that was lost again and again, the last time for this reason."""
    advice = "increase actor_hang_seconds, or fix the environment" if "stepped" in reason else "fix the environment"
    advice += "; the kernel kills processes with status -9 where memory is short" if "-9" in reason else ""
    return f"{ATTEMPTS} processes of actor {actor} failed one after another: it {reason}\n{advice}"


class _LearnerEnded(Exception):
    """The other end of the pipe is closed."""


class _Learner:
    """The learner's process, at the other end of a pipe. Errors of the environments are not taken for the pipe's."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise _LearnerEnded from error

    def recv(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _LearnerEnded from error


def serve(pipe: Connection, task: ActorTask, actor: int, restarts: int) -> None:
    """Fill the rollouts whose numbers come through the pipe until its other end is closed."""
    ignore_signals()
    torch.set_num_threads(1)
    if task.render_threads is not None:
        os.environ["LP_NUM_THREADS"] = str(task.render_threads)  # Mesa reads it when OpenGL is opened
    threading.Thread(target=_end_with_learner, daemon=True).start()
    learner = _Learner(pipe)
    with contextlib.suppress(_LearnerEnded):
        try:
            _fill_rollouts(learner, task, actor, restarts)
        except _LearnerEnded:
            raise
        except Exception as error:
            known = error if isinstance(error, UserError) else None
            learner.send(Failed(known, "".join(traceback.format_exception(error))))


def _end_with_learner() -> None:
    """End the process when the learner's has ended, even while an environment hangs."""
    learner = multiprocessing.parent_process()
    assert learner is not None
    learner.join()
    os._exit(1)


def _fill_rollouts(learner: _Learner, task: ActorTask, actor: int, restarts: int) -> None:
    env = task.setup.open_env(actor, restarts)
    policy = task.setup.make_policy(env)
    generator = torch.Generator().manual_seed(task.setup.seed(actor, restarts))
    own, steps = acts_with(policy, generator), task.beats["steps"]
    slots, versions = deque[int](), list[int]()

    def choose(obs: Tensor, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, State | None]:
        steps[actor] += 1
        if task.asked is None:
            return own(obs, state, first)
        chosen = ask(task.asked, actor, wait_for_answer, obs, state, first)
        versions.append(int(task.asked["versions"][actor]))
        return chosen

    def wait_for_answer() -> None:
        learner.send(ASKS)
        while (message := learner.recv()) != ANSWERED:
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


def _wait_for_slot(learner: _Learner, beats: SharedArrays, actor: int) -> int:
    beats["waits_since"][actor] = begin = time.monotonic()
    slot: int = learner.recv()
    beats["waited"][actor] += time.monotonic() - begin
    beats["waits_since"][actor] = 0.0
    return slot
