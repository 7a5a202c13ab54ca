"""The actors of a Ray cluster, each a process on one of its nodes.

Weights and rollouts travel through Ray's object store.
"""

from __future__ import annotations

import logging
import os
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
from ray.exceptions import RayError, RayTaskError
from torch import Tensor, nn

from drqv2.errors import UserError
from drqv2.nn.observations import Observation
from drqv2.nn.policies import State
from drqv2.rollout.actors import AHEAD, SUSPENDED_SECONDS, Actors, ActorSetup, Filled, WatchedActor
from drqv2.rollout.shared import Layout
from drqv2.rollout.unroll import Unroller

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


class WeightsLostError(Exception):
    """An actor could not fetch the weights: a node is lost, theirs or its own."""


class RemoteActor:
    """An actor somewhere on the cluster.

    One thread of its process runs every `fill`, and so owns the environments; another one counts the steps meanwhile.
    """

    def __init__(self, setup: ActorSetup, layout: Layout, actor: int, restarts: int) -> None:
        self.setup, self.layout, self.actor, self.restarts = setup, layout, actor, restarts
        self.version, self.steps = -1, 0
        self.unroller: Unroller | None = None

    def begin(self) -> Unroller:
        """Make the environments and the policy. In the constructor, an error would not arrive as what it is."""
        torch.set_num_threads(1)
        os.environ.setdefault("LP_NUM_THREADS", "1")  # of software rendering: it has one core of its node
        env, self.policy, act = self.setup.open(self.actor, self.restarts)

        def choose(obs: Observation, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, State | None]:
            self.steps += 1
            return act(obs, state, first)

        unroller = Unroller(env, choose, self.policy.initial_state(env.num_envs))
        unroller.start(env.reset())
        return unroller

    def fill(self, number: int, version: int, weights: list[Any]) -> tuple[Filled, dict[str, np.ndarray], int]:
        """Return what is known of the next rollout, its arrays, and how many steps the actor has taken.

        Args:
            number: of the rollout.
            version: of the newest weights.
            weights: a reference to them, which is followed if they are new here.

        Raises:
            WeightsLostError: they cannot be fetched.
        """
        self.unroller = self.unroller or self.begin()
        if version != self.version:
            try:
                state = ray.get(weights[0])
            except Exception as error:  # also OSError, where Ray's process of this node dies meanwhile
                raise WeightsLostError(f"{type(error).__name__}: {error}") from error
            self.policy.load_state_dict(state)
            self.version = version
        out = {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.layout.items()}
        episodes, info = self.unroller.fill(out)
        return Filled(number, self.version, episodes, info), out, self.steps

    @ray.method(concurrency_group="watch")
    def count_steps(self) -> int:
        """Return how many steps it has taken; answered while a rollout is filled."""
        return self.steps


@dataclass
class _Actor(WatchedActor):
    handle: Any = None
    asked: deque[Any] = field(default_factory=deque)  # references to rollouts, oldest first
    counted: Any = None  # reference to the number of its steps, where that was asked for
    steps: int | None = None  # the newest number known; None while it waits for room


class RayActors(Actors[_Actor]):
    """Actors on a Ray cluster.

    Nodes may join and leave: an actor whose node is gone is started again where there is room. At most `num_buffers`
    rollouts are asked for or full at any time, so that no node's memory fills.

    Args:
        setup: of the actors.
        layout: of a rollout.
        num_actors: actors.
        num_buffers: rollouts asked for or full.
        hang_seconds: without a step, after which an actor is replaced.
    """

    def __init__(
        self, setup: ActorSetup, layout: Layout, num_actors: int, num_buffers: int, hang_seconds: float
    ) -> None:
        super().__init__([_Actor(i) for i in range(num_actors)], hang_seconds)
        self.setup, self.layout = setup, layout
        self._free, self._freed = num_buffers, threading.Event()
        self._rollouts: dict[int, dict[str, np.ndarray]] = {}  # that are full or taken, by number
        self._numbers = 0  # of rollouts asked for
        self._weights: tuple[int, Any] = (-1, None)  # newest version, and a reference to it
        self._waited = 0.0  # seconds of all actors without a free rollout
        self._looked_at = self._complete_at = time.monotonic()  # when there was room for all, or a warning that not

    @property
    def version(self) -> int:
        """The newest version of the weights."""
        return self._weights[0]

    def publish(self, module: nn.Module) -> int:
        """Make the module's weights those of rollouts asked for from now on; return the number of this version."""
        state = {name: x.detach().cpu().clone() for name, x in module.state_dict().items()}
        self._weights = self.version + 1, ray.put(state)
        return self.version

    def rollout(self, filled: Filled) -> Mapping[str, np.ndarray]:
        return self._rollouts[filled.slot]

    def give_back(self, filled: Filled) -> None:
        with self._lock:
            del self._rollouts[filled.slot]
            self._free += 1
        self._freed.set()

    def waited(self) -> float:
        return self._waited

    def running(self) -> int:
        return sum(actor.steps is not None for actor in self._actors)

    def _start(self, actor: _Actor) -> None:
        remote = ray.remote(num_cpus=1, concurrency_groups={"watch": 1})(RemoteActor)  # type: ignore[call-overload]
        actor.handle = remote.remote(self.setup, self.layout, actor.index, actor.restarts)
        actor.steps, actor.counted = None, actor.handle.count_steps.remote()  # answered once there is room

    def _end(self, actor: _Actor) -> None:
        if actor.handle is not None:
            ray.kill(actor.handle)

    def _free_rollouts_of(self, actor: _Actor) -> None:
        self._free += len(actor.asked)
        actor.asked.clear()

    def _watch(self) -> None:
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
        if (seconds := now - self._looked_at) >= _WAIT_SECONDS:
            self._waited += seconds * (self.running() - len(oldest))
            self._look(now, suspended=seconds > SUSPENDED_SECONDS)
            self._looked_at = now

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
        """Replace actors that have something to do and do not step; `suspended`: nobody looked at them for long."""
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
            if now - actor.moved_at > self.hang_seconds / 4 and actor.counted is None:
                actor.counted = actor.handle.count_steps.remote()
            self._replace_if_hung(actor, now, started=bool(actor.steps))
        running, wanted = self.running(), len(self._actors)
        if running == wanted:
            self._complete_at = now
        elif now - self._complete_at > _ROOM_SECONDS:
            words = "There is room for %d of %d actors on the cluster, for %.0f seconds now."
            _log.warning(words, running, wanted, _ROOM_SECONDS)
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


def _ready(references: Mapping[Any, _Actor]) -> list[Any]:
    """Return the references that have an answer by now."""
    return ray.wait(list(references), num_returns=len(references), timeout=0)[0] if references else []
