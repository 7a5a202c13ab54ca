"""The actors of a Ray cluster, watched over and replaced when they are lost or hang.

Weights and rollouts travel through Ray's object store.
"""

from __future__ import annotations

import logging
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
from ray.exceptions import ObjectLostError, RayError, RaySystemError, RayTaskError
from torch import nn

from drqv2.errors import ProcessError, UserError
from drqv2.rollout.actor import ActorSetup, Filled
from drqv2.rollout.ray_actor import RemoteActor
from drqv2.rollout.shared import Layout

_log = logging.getLogger(__name__)

_AHEAD = 2  # rollouts that an actor is asked for at once
_ATTEMPTS = 3  # processes in a row that may be lost without a rollout
_START_SECONDS = 300.0  # for a process to make its environments
_WAIT_SECONDS = 0.2  # for a rollout, between two looks at the actors
_SUSPENDED_SECONDS = 5.0  # between two looks, where this process was not suspended
_LONELY_SECONDS = 60.0  # without any actor, between two warnings


def connect(address: str | None) -> None:
    """Connect to a Ray cluster; without an address and RAY_ADDRESS, start one on this machine alone.

    Raises:
        UserError: there is no cluster at the address.
    """
    if ray.is_initialized():
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.WARNING, log_to_driver=False, include_dashboard=False)
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
        self._watched = self._waited = 0.0  # seconds of all actors, and those without a free rollout
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

    def waiting(self) -> float:
        """Return the share of the actors' time so far in which they had no free rollout to fill."""
        return self._waited / max(self._watched, 1e-9)

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
        """Ask for rollouts, take those that are full, replace actors that are lost or hang."""
        looked = heard = time.monotonic()
        try:
            while not self._closing:
                self._freed.clear()
                self._ask()
                oldest = {actor.asked[0]: actor for actor in self._actors if actor.asked}
                ready = ray.wait(list(oldest), timeout=_WAIT_SECONDS)[0] if oldest else []
                if not oldest:
                    self._freed.wait(_WAIT_SECONDS)
                now = time.monotonic()
                passed, looked = now - looked, now
                self._watched += passed * len(self._actors)
                self._waited += passed * (len(self._actors) - len(oldest))
                if passed > _SUSPENDED_SECONDS:  # nobody looked at the actors
                    for actor in self._actors:
                        actor.moved_at = now
                for reference in ready:
                    self._take(oldest[reference], reference)
                for actor in self._actors:
                    self._look_at(actor, now)
                if any(actor.steps is not None for actor in self._actors):
                    heard = now
                elif now - heard > _LONELY_SECONDS:
                    _log.warning("No actor has run for %.0f seconds: is there room on the cluster?", now - heard)
                    heard = now
        except Exception as error:
            self._failure = error

    def _ask(self) -> None:
        """Ask the actors that have least to do for rollouts, as long as some are free."""
        version, weights = self._weights
        while self._free > 0:
            actor = min(self._actors, key=lambda a: len(a.asked))
            if len(actor.asked) >= _AHEAD:
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

    def _look_at(self, actor: _Actor, now: float) -> None:
        """Replace an actor that has something to do and does not step."""
        if actor.counted is not None and ray.wait([actor.counted], timeout=0)[0]:
            steps = self._get(actor, actor.counted)
            if steps is None:
                return
            actor.counted = None
            if actor.steps is None or steps > actor.steps:
                actor.steps, actor.moved_at = steps, now
        if actor.steps is None or not actor.asked:  # it waits for room on the cluster, or for a free rollout
            actor.moved_at = now
        seconds = self.hang_seconds if actor.steps else max(self.hang_seconds, _START_SECONDS)
        if now - actor.moved_at > seconds:
            self._replace(actor, f"has not stepped for {seconds:.0f} seconds")
        elif now - actor.moved_at > seconds / 4 and actor.counted is None:
            actor.counted = actor.handle.count_steps.remote()

    def _get(self, actor: _Actor, reference: Any) -> Any:
        """Return what an actor has answered; replace it and return None if the answer is lost.

        Raises:
            UserError, RuntimeError: an error of the environment, which another process would meet as well.
        """
        try:
            return ray.get(reference)
        except RayTaskError as error:
            if not isinstance(error.cause, (ObjectLostError, RaySystemError)):  # of the weights
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
        if actor.lost >= _ATTEMPTS:
            raise ProcessError(f"{_ATTEMPTS} processes of actor {actor.index} failed one after another: it {reason}")
        _log.warning("Actor %d %s; restarting it.", actor.index, reason)
        with self._lock:
            self._free += len(actor.asked)
        actor.asked.clear()
        self._start(actor)
