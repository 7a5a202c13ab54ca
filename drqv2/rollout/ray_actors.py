"""Actors on the nodes of a Ray cluster: weights and rollouts travel through its object store."""

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
import torch
from ray.exceptions import RayActorError, RayTaskError
from torch import nn

from drqv2.errors import UserError
from drqv2.rollout.actor import ActorSetup, Filled
from drqv2.rollout.shared import Layout
from drqv2.rollout.unroll import Unroller, acts_with

_log = logging.getLogger(__name__)

_AHEAD = 2  # rollouts that an actor is asked for at once
_WAIT_SECONDS = 0.2  # for a rollout, between two looks at the actors
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


class RemoteActor:
    """An actor somewhere on the cluster; see `drqv2.rollout.actor`."""

    def __init__(self, setup: ActorSetup, layout: Layout, actor: int, restarts: int) -> None:
        torch.set_num_threads(1)
        self.setup, self.layout, self.actor, self.restarts = setup, layout, actor, restarts
        self.version = -1
        self.unroller: Unroller | None = None

    def begin(self) -> Unroller:
        """Make the environments and the policy. In the constructor, an error would not arrive as what it is."""
        env = self.setup.make_env(self.actor, self.restarts)
        self.policy = self.setup.make_policy(env)
        generator = torch.Generator().manual_seed(self.setup.seed(self.actor, self.restarts))
        unroller = Unroller(env, acts_with(self.policy, generator), self.policy.initial_state(env.num_envs))
        unroller.start(env.reset())
        return unroller

    def fill(self, version: int, weights: list[Any]) -> tuple[int, list[tuple[float, int]], dict[str, np.ndarray]]:
        """Return the version of the weights, the episodes that ended and the arrays of the next rollout.

        Args:
            version: of the newest weights.
            weights: a reference to them, which is followed if they are new here.
        """
        self.unroller = self.unroller or self.begin()
        if version != self.version:
            self.policy.load_state_dict(ray.get(weights[0]))
            self.version = version
        out = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.layout.items()}
        return self.version, self.unroller.fill(out), out


@dataclass
class _Actor:
    """A remote actor, and what it was asked for."""

    index: int
    restarts: int = 0
    handle: Any = None
    asked: deque[Any] = field(default_factory=deque)  # references to rollouts, oldest first
    since: float = 0.0  # when the oldest became the one that it fills
    filled: int = 0  # rollouts of this one


class RayActors:
    """Actors on a Ray cluster, with the interface of `ActorProcesses`.

    Nodes may join and leave: an actor whose node is gone is started again where there is room. At most `num_buffers`
    rollouts are asked for or full at any time, so that no node's memory fills.

    Args:
        setup: of the actors.
        layout: of a rollout.
        num_actors: actors.
        num_buffers: rollouts asked for or full.
        hang_seconds: for a rollout, after which an actor is replaced.
    """

    def __init__(
        self, setup: ActorSetup, layout: Layout, num_actors: int, num_buffers: int, hang_seconds: float
    ) -> None:
        self.setup, self.layout, self.hang_seconds = setup, layout, hang_seconds
        self.full: queue.SimpleQueue[Filled] = queue.SimpleQueue()
        self.restarted = 0
        self._free = num_buffers
        self._rollouts: dict[int, dict[str, np.ndarray]] = {}  # that are full or taken, by number
        self._numbers = 0
        self._weights: tuple[int, Any] = (-1, None)  # newest version, and a reference to it
        self._lock, self._freed = threading.Lock(), threading.Event()
        self._actors = [_Actor(i) for i in range(num_actors)]
        self._failure: Exception | None = None
        self._closing = False
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
        """Raise what has made the actors fail for good."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the actors."""
        self._closing = True
        if self._thread.is_alive():
            self._thread.join()
        for actor in self._actors:
            if actor.handle is not None:
                ray.kill(actor.handle)

    def _start(self, actor: _Actor) -> None:
        actor.handle = ray.remote(num_cpus=1)(RemoteActor).remote(self.setup, self.layout, actor.index, actor.restarts)
        actor.since, actor.filled = time.monotonic(), 0

    def _watch(self) -> None:
        """Ask for rollouts, take those that are full, replace actors that are lost."""
        heard = time.monotonic()
        try:
            while not self._closing:
                self._freed.clear()
                self._ask()
                waiting = {actor.asked[0]: actor for actor in self._actors if actor.asked}
                if not waiting:
                    self._freed.wait(_WAIT_SECONDS)
                    continue
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_WAIT_SECONDS)
                for reference in ready:
                    self._take(waiting[reference], reference)
                heard = time.monotonic() if ready else heard
                if time.monotonic() - heard > _LONELY_SECONDS:
                    _log.warning(
                        "No actor has filled a rollout for %.0f seconds: is there room on the cluster?", _LONELY_SECONDS
                    )
                    heard = time.monotonic()
                for actor in self._actors:
                    if actor.filled and actor.asked and time.monotonic() - actor.since > self.hang_seconds:
                        self._replace(actor, f"has filled no rollout for {self.hang_seconds:.0f} seconds")
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
            if not actor.asked:
                actor.since = time.monotonic()
            actor.asked.append(actor.handle.fill.remote(version, [weights]))

    def _take(self, actor: _Actor, reference: Any) -> None:
        try:
            version, episodes, arrays = ray.get(reference)
        except RayActorError as error:
            self._replace(actor, f"is lost ({str(error).splitlines()[0]})")
            return
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, UserError) else RuntimeError(str(error))) from None
        actor.asked.popleft()
        actor.since, actor.filled = time.monotonic(), actor.filled + 1
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._rollouts[number] = arrays
        self.full.put(Filled(number, version, episodes))

    def _replace(self, actor: _Actor, reason: str) -> None:
        _log.warning("Actor %d %s; restarting it.", actor.index, reason)
        ray.kill(actor.handle)
        self.restarted += 1
        actor.restarts += 1
        with self._lock:
            self._free += len(actor.asked)
        actor.asked.clear()
        self._start(actor)
