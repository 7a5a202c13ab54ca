"""The actors of a Ray cluster, watched over and replaced when they are lost or hang.

Weights and rollouts travel through Ray's object store.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError
from torch import nn

from drqv2.errors import ProcessError, UserError
from drqv2.rollout.actor import (
    AHEAD,
    ATTEMPTS,
    START_SECONDS,
    SUSPENDED_SECONDS,
    ActorSetup,
    Filled,
    lost_too_often,
)
from drqv2.rollout.ray_actor import RemoteActor, WeightsLostError
from drqv2.rollout.shared import Layout

_log = logging.getLogger(__name__)

_WAIT_SECONDS = 0.2  # for a rollout, between two looks at the actors
_ROOM_SECONDS = 60.0  # without room for some actors, between two warnings


def connect(address: str | None) -> None:
    """Connect to a Ray cluster; without an address and RAY_ADDRESS, start one on this machine alone.

    Raises:
        UserError: there is no cluster at the address.
    """
    if ray.is_initialized():
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        where = address or os.environ.get("RAY_ADDRESS") or "local"  # Ray itself would join any cluster that it finds
        ray.init(where, logging_level=logging.WARNING, log_to_driver=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise UserError(f"cluster_address={address}: {text}; start one with: ray start --head") from error
    finally:  # Ray's own would end the run wherever it is
        signal.signal(signal.SIGTERM, before)


@dataclass
class _Actor:
    """A remote actor, and what it was asked for."""

    index: int
    restarts: int = 0
    lost: int = 0  # processes since the last rollout
    handle: Any = None
    asked: deque[Any] = field(default_factory=deque)  # references to rollouts, oldest first
    counted: Any = None  # reference to the number of its steps, where that was asked for
    steps: int | None = None  # the newest number known; None while it waits for room
    moved_at: float = 0.0  # when a new number became known


class RayActors:
    """Actors on a Ray cluster, with the interface of `ActorProcesses`.

    Nodes may join and leave: an actor whose node is gone is started again where there is room. At most `num_buffers`
    rollouts are asked for or full at any time, so that no node's memory fills.

    Args:
        setup: of the actors.
        layout: of a rollout.
        num_actors: actors.
        num_buffers: rollouts asked for or full.
        hang_seconds: without a step, after which an actor is replaced.

    Attributes:
        full: rollouts in the order in which they arrived; who takes one gives it back by `give_back`.
        restarted: actors that were replaced.
    """

    def __init__(
        self, setup: ActorSetup, layout: Layout, num_actors: int, num_buffers: int, hang_seconds: float
    ) -> None:
        self.setup, self.layout, self.hang_seconds = setup, layout, hang_seconds
        self.full: queue.SimpleQueue[Filled] = queue.SimpleQueue()
        self.restarted = 0
        self._free = num_buffers
        self._rollouts: dict[int, dict[str, np.ndarray]] = {}  # that are full or taken, by number
        self._numbers = 0  # of rollouts asked for
        self._weights: tuple[int, Any] = (-1, None)  # newest version, and a reference to it
        self._lock, self._freed = threading.Lock(), threading.Event()
        self._actors = [_Actor(i) for i in range(num_actors)]
        self._failure: Exception | None = None
        self._closing = False
        self._waited = 0.0  # seconds of all actors without a free rollout
        self._complete_at = time.monotonic()  # when there was room for all actors, or a warning that there is not
        self._thread = threading.Thread(target=self._watch, name="actors", daemon=True)

    @property
    def version(self) -> int:
        """The newest version of the weights."""
        return self._weights[0]

    def publish(self, module: nn.Module) -> int:
        """Make the module's weights those of rollouts asked for from now on; return the number of this version."""
        state = {name: x.detach().cpu().clone() for name, x in module.state_dict().items()}
        self._weights = self.version + 1, ray.put(state)
        return self.version

    def start(self) -> None:
        """Start the actors, as far as there is room."""
        for actor in self._actors:
            self._start(actor)
        self._thread.start()

    def rollout(self, filled: Filled) -> Mapping[str, np.ndarray]:
        """Return the arrays of a rollout that was taken from `full`."""
        return self._rollouts[filled.slot]

    def give_back(self, filled: Filled) -> None:
        """Free a rollout that was taken from `full`."""
        with self._lock:
            del self._rollouts[filled.slot]
            self._free += 1
        self._freed.set()

    def check(self) -> None:
        """Raise what has made the actors fail for good.

        Raises:
            UserError: an environment cannot be made, or a reward is not finite.
            RuntimeError: any other error in an actor.
            ProcessError: its processes are lost again and again.
        """
        if self._failure is not None:
            raise self._failure

    def waited(self) -> float:
        """Return the seconds of all actors so far in which they had no free rollout to fill."""
        return self._waited

    def running(self) -> int:
        """Return for how many actors there is room."""
        return sum(actor.steps is not None for actor in self._actors)

    def held(self) -> int:
        """Return how many rollouts are free or asked for: all that are neither full nor taken."""
        return self._free + sum(len(actor.asked) for actor in self._actors)

    def close(self) -> None:
        """End the actors."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        for actor in self._actors:
            if actor.handle is not None:
                ray.kill(actor.handle)

    def _start(self, actor: _Actor) -> None:
        remote = ray.remote(num_cpus=1, concurrency_groups={"watch": 1})(RemoteActor)  # type: ignore[call-overload]
        actor.handle = remote.remote(self.setup, self.layout, actor.index, actor.restarts)
        actor.steps, actor.counted = None, actor.handle.count_steps.remote()  # answered once there is room

    def _watch(self) -> None:
        """Ask for rollouts, take those that are full; look at the actors now and then."""
        looked = time.monotonic()
        try:
            while not self._closing:
                self._freed.clear()
                self._ask()
                oldest = {actor.asked[0]: actor for actor in self._actors if actor.asked}
                if oldest:
                    ray.wait(list(oldest), timeout=_WAIT_SECONDS)
                    for reference in _ready(oldest):
                        self._take(oldest[reference], reference)
                else:
                    self._freed.wait(_WAIT_SECONDS)
                now = time.monotonic()
                if now - looked >= _WAIT_SECONDS:
                    self._waited += (now - looked) * (self.running() - len(oldest))
                    self._look(now, suspended=now - looked > SUSPENDED_SECONDS)
                    looked = now
        except Exception as error:
            self._failure = error

    def _ask(self) -> None:
        """Ask the actors that have least to do for rollouts, as long as some are free.

        Those for which there is no room get none: the others need them all.
        """
        version, weights = self._weights
        placed = [actor for actor in self._actors if actor.steps is not None]
        while placed and self._free > 0:
            actor = min(placed, key=lambda a: len(a.asked))
            if len(actor.asked) >= AHEAD:
                return
            with self._lock:
                self._free -= 1
            self._numbers += 1
            actor.asked.append(actor.handle.fill.remote(self._numbers, version, [weights]))

    def _take(self, actor: _Actor, reference: Any) -> None:
        answer = self._get(actor, reference)
        if answer is not None:
            filled, arrays, actor.steps = answer
            actor.asked.popleft()
            actor.lost, actor.moved_at = 0, time.monotonic()
            self._rollouts[filled.slot] = arrays
            self.full.put(filled)

    def _look(self, now: float, suspended: bool) -> None:
        """Replace actors that have something to do and do not step.

        Args:
            now: seconds, of a monotonic clock.
            suspended: whether nobody looked at them for long.
        """
        counted = {actor.counted: actor for actor in self._actors if actor.counted is not None}
        for reference in _ready(counted):
            actor, steps = counted[reference], self._get(counted[reference], reference)
            if steps is not None:
                actor.counted = None
                if actor.steps is None or steps > actor.steps:
                    actor.steps, actor.moved_at = steps, now
        for actor in self._actors:
            if suspended or actor.steps is None or not actor.asked:  # it waits for room, or for a free rollout
                actor.moved_at = now
            seconds = self.hang_seconds if actor.steps else max(self.hang_seconds, START_SECONDS)
            if now - actor.moved_at > seconds:
                self._replace(actor, f"has not stepped for {seconds:.0f} s")
            elif now - actor.moved_at > seconds / 4 and actor.counted is None:
                actor.counted = actor.handle.count_steps.remote()
        running, wanted = self.running(), len(self._actors)
        if running == wanted:
            self._complete_at = now
        elif now - self._complete_at > _ROOM_SECONDS:
            _log.warning(
                "There is room for %d of %d actors on the cluster, for %.0f seconds now.",
                running,
                wanted,
                _ROOM_SECONDS,
            )
            self._complete_at = now

    def _get(self, actor: _Actor, reference: Any) -> Any:
        """Return what an actor has answered; replace it and return None if the answer is lost.

        Raises:
            UserError, RuntimeError: an error of the environment, which another process would meet as well.
        """
        try:
            return ray.get(reference)
        except RayTaskError as error:
            if not isinstance(error.cause, WeightsLostError):
                raise (error.cause if isinstance(error.cause, UserError) else RuntimeError(str(error))) from None
            reason: Exception = error.cause
        except RayError as error:  # the process, its node or the rollout is lost
            reason = error
        *_, last = str(reason).strip().splitlines()
        self._replace(actor, f"is lost ({type(reason).__name__}: {last.strip()[:200]})")
        return None

    def _replace(self, actor: _Actor, reason: str) -> None:
        ray.kill(actor.handle)
        self.restarted += 1
        actor.restarts += 1
        actor.lost += 1
        if actor.lost >= ATTEMPTS:
            raise ProcessError(lost_too_often(actor.index, reason))
        _log.warning("Actor %d %s; restarting it.", actor.index, reason)
        with self._lock:
            self._free += len(actor.asked)
        actor.asked.clear()
        self._start(actor)


def _ready(references: Mapping[Any, _Actor]) -> list[Any]:
    """Return the references that have an answer by now."""
    return ray.wait(list(references), num_returns=len(references), timeout=0)[0] if references else []
