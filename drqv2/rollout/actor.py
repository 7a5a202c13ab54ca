"""An actor: a process that acts with a copy of the policy and fills rollouts."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from drqv2.envs.vector import VectorEnv
from drqv2.errors import UserError
from drqv2.nn.policies import Policy, State
from drqv2.rollout.inference import ask
from drqv2.rollout.shared import SharedArrays, SharedWeights
from drqv2.rollout.unroll import Unroller
from drqv2.system.signals import ignore_signals

ASKS, ANSWERED = "asks", "answered"  # messages of an actor that needs actions, and to it


class Filled(NamedTuple):
    """What an actor tells of a rollout."""

    slot: int
    version: int  # of the weights that it began with
    episodes: list[tuple[float, int]]  # return and length in steps of those that ended


class Failed(NamedTuple):
    """What an actor tells before it ends because of an error."""

    message: str | None  # for people; None where the error is a bug
    trace: str


@dataclass
class ActorSetup:
    """What an actor is made of; can be pickled.

    Attributes:
        make_env: makes the environments of actor `i` after `k` restarts.
        make_policy: makes the policy, with any weights.
        seed: makes the seed of what actor `i` samples after `k` restarts.
    """

    make_env: Callable[[int, int], VectorEnv]
    make_policy: Callable[[], Policy]
    seed: Callable[[int, int], int]


@dataclass
class ActorTask:
    """What the processes of actors get; can be pickled.

    Attributes:
        setup: of an actor.
        buffers: of the rollouts.
        beats: steps that each actor has taken, [num_actors].
        weights: of the learner.
        render_threads: of software rendering in a process; None leaves that to OpenGL.
        asked: where actors ask the learner's process for actions; None: they choose them.
    """

    setup: ActorSetup
    buffers: SharedArrays
    beats: SharedArrays
    weights: SharedWeights
    render_threads: int | None = None
    asked: SharedArrays | None = None


def serve(pipe: Connection, task: ActorTask, actor: int, restarts: int) -> None:
    """Fill the rollouts whose numbers come through the pipe until its other end is closed."""
    ignore_signals()
    torch.set_num_threads(1)
    if task.render_threads is not None:
        os.environ["LP_NUM_THREADS"] = str(task.render_threads)  # Mesa reads it when OpenGL is opened
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            _fill_rollouts(pipe, task, actor, restarts)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            message = str(error) if isinstance(error, UserError) else None
            pipe.send(Failed(message, "".join(traceback.format_exception(error))))


def _fill_rollouts(pipe: Connection, task: ActorTask, actor: int, restarts: int) -> None:
    env, policy = task.setup.make_env(actor, restarts), task.setup.make_policy()
    generator = torch.Generator().manual_seed(task.setup.seed(actor, restarts))
    beats: np.ndarray = task.beats["steps"]
    slots, versions = deque[int](), list[int]()

    def choose(obs: Tensor, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, State | None]:
        beats[actor] += 1
        if task.asked is None:
            actions, log_probs, _, after = policy.choose(obs, state, first, generator)
            return actions, log_probs, after
        chosen = ask(task.asked, actor, wait_for_answer, obs, state, first)
        versions.append(int(task.asked["versions"][actor]))
        return chosen

    def wait_for_answer() -> None:
        pipe.send(ASKS)
        while (message := pipe.recv()) != ANSWERED:
            slots.append(message)

    unroller = Unroller(env, choose, policy.initial_state(env.num_envs))
    unroller.start(env.reset())
    version = -1
    try:
        while True:
            slot = slots.popleft() if slots else pipe.recv()
            if task.asked is None and task.weights.version != version:
                version = task.weights.read(policy)
            versions[:] = [version] if task.asked is None else []
            episodes = unroller.fill(task.buffers.row(slot))
            pipe.send(Filled(slot, versions[0], episodes))
    finally:
        env.close()
