"""Actors, which act with copies of the policy and fill rollouts: what those in processes and on a cluster share."""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch

from drqv2.envs import notices
from drqv2.envs.env_process import MEMORY
from drqv2.envs.info import Sums
from drqv2.envs.vector import VectorEnv
from drqv2.errors import ProcessError
from drqv2.nn.policies import Policy
from drqv2.rollout.unroll import Choose, acts_with

_log = logging.getLogger(__name__)

_ATTEMPTS = 3  # processes of an actor in a row that may be lost without a rollout
_START_SECONDS = 300.0  # for a process to import mujoco and make its environments
AHEAD = 2  # rollouts that an actor has at once: the one that it fills, and the next
SUSPENDED_SECONDS = 5.0  # between two looks at the actors, where the learner was not suspended


class Filled(NamedTuple):
    """What an actor tells of a rollout."""

    slot: int
    version: int  # of the weights that it began with
    episodes: list[tuple[float, int]]  # return and length in steps of those that ended
    info: Sums  # over these, of the numbers in `info`: sum of the episodes' means, and how many had it


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

    def open(self, actor: int, restarts: int) -> tuple[VectorEnv, Policy, Choose]:
        """Return an actor's environments, its policy, and a function that samples actions from it.

        The first actor alone repeats what is to be said of the environments of all.
        """
        notices.mute()  # the learner has made one, too
        env = self.make_env(actor, restarts)
        notices.mute(actor > 0 or restarts > 0)
        policy = self.make_policy(env)
        return env, policy, acts_with(policy, torch.Generator().manual_seed(self.seed(actor, restarts)))


@dataclass
class WatchedActor:
    """One process of an actor at a time."""

    index: int
    restarts: int = 0
    lost: int = 0  # processes since the last rollout
    moved_at: float = 0.0  # when it was last seen to step, or to have nothing to do


A = TypeVar("A", bound=WatchedActor)


class Actors(ABC, Generic[A]):
    """Actors that a thread of the learner's process watches over, and replaces when they are lost or hang.

    Args:
        actors: those to start.
        hang_seconds: without a step, after which an actor is replaced.

    Attributes:
        full: rollouts in the order in which they arrived; who takes one gives it back by `give_back`.
        restarted: actors that were replaced.
    """

    def __init__(self, actors: Sequence[A], hang_seconds: float) -> None:
        self.full: queue.SimpleQueue[Filled] = queue.SimpleQueue()
        self.restarted, self.hang_seconds = 0, hang_seconds
        self._actors = list(actors)
        self._lock = threading.Lock()  # of the free rollouts and of what actors have
        self._failure: Exception | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._watch_until_closed, name="actors", daemon=True)

    def start(self) -> None:
        """Start the actors, as far as there is room."""
        for actor in self._actors:
            self._start(actor)
        self._thread.start()

    def check(self) -> None:
        """Raise what has made the actors fail for good.

        Raises:
            UserError: an environment cannot be made, or returns what it must not.
            RuntimeError: any other error in an actor.
            ProcessError: its processes are lost again and again.
        """
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the actors."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        for actor in self._actors:
            self._end(actor)

    def _watch_until_closed(self) -> None:
        try:
            while not self._closing:
                self._watch()
        except Exception as error:
            self._failure = error

    def _replace_if_hung(self, actor: A, now: float, started: bool) -> None:
        seconds = self.hang_seconds if started else max(self.hang_seconds, _START_SECONDS)
        if now - actor.moved_at > seconds:
            advice = "increase actor_hang_seconds, or fix the environment"
            self._replace(actor, f"has not stepped for {seconds:.0f} s", advice)

    def _replace(self, actor: A, reason: str, advice: str = "fix the environment") -> None:
        self.restarted += 1
        actor.restarts += 1
        actor.lost += 1
        if actor.lost >= _ATTEMPTS:
            advice += MEMORY * ("status -9" in reason)
            raise ProcessError(
                f"{_ATTEMPTS} processes of actor {actor.index} failed one after another: it {reason}\n{advice}"
            )
        _log.warning("Actor %d %s; restarting it.", actor.index, reason)
        with self._lock:  # meanwhile nothing is handed to it
            self._end(actor)
            self._free_rollouts_of(actor)
            self._start(actor)

    @abstractmethod
    def rollout(self, filled: Filled) -> Mapping[str, np.ndarray]:
        """Return the arrays of a rollout that was taken from `full`."""

    @abstractmethod
    def give_back(self, filled: Filled) -> None:
        """Free a rollout that was taken from `full`."""

    @abstractmethod
    def waited(self) -> float:
        """Return the seconds of all actors so far in which they had no free rollout to fill."""

    @abstractmethod
    def running(self) -> int:
        """Return how many actors there are; on a cluster, those for which there is room."""

    @abstractmethod
    def _watch(self) -> None:
        """Take what actors have filled, and look at them once; called over and over."""

    @abstractmethod
    def _start(self, actor: A) -> None: ...

    @abstractmethod
    def _end(self, actor: A) -> None: ...

    @abstractmethod
    def _free_rollouts_of(self, actor: A) -> None: ...
