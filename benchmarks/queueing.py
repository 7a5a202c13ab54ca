"""How actors, network and learner of IMPALA limit each other: in closed form, and simulated event by event.

A rollout takes a buffer from when an actor is asked for it until it is copied into a batch. Each actor is asked for two
at once, with the weights of that moment. Rollouts come to the learner over one link, one after another; weights leave
it in the other direction, once for each version and node that needs it. The learner takes batches, two of which are
prepared ahead.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

ASKED = 2  # rollouts that an actor is asked for at once
PREPARED = 2  # batches ahead of the learner, with num_learner_threads=1: one in its queue, one in the thread's hands


@dataclass
class Constants:
    """What limits a run.

    Attributes:
        learner_sps: agent steps that the learner learns from in a second.
        actor_sps: steps of an actor in a second, those of all of its environments.
        network_gbit: of the learner's link in each direction, in a second.
        rollout_steps: agent steps of an actor's rollout, those of all of its environments.
        rollout_bytes: of an actor's rollout.
        weight_bytes: of the policy.
        batch: rollouts of a batch.
        actors_per_node: that share what came over the network.
        buffers: rollouts under way; None: 2 for each actor, and two batches.
    """

    learner_sps: float
    actor_sps: float
    network_gbit: float
    rollout_steps: int
    rollout_bytes: int
    weight_bytes: int
    batch: int
    actors_per_node: int = 1
    buffers: int | None = None

    def nodes(self, actors: int) -> int:
        """Return the number of nodes for a number of actors."""
        return math.ceil(actors / self.actors_per_node)

    def num_buffers(self, actors: int) -> int:
        """Return the rollouts that may be in flight, with a number of actors."""
        return self.buffers or 2 * (actors + self.batch)


class Speeds(NamedTuple):
    """The speeds of a run.

    Attributes:
        sps: agent steps a second.
        lag: updates between a rollout's being asked for and its use, the mean.
        learner_waits: share of the learner's time without a batch.
        actors_wait: share of the actors' time in which they do not act.
        mb_in: rollouts on the network, 10^6 bytes a second.
        mb_out: weights.
    """

    sps: float
    lag: float
    learner_waits: float
    actors_wait: float
    mb_in: float
    mb_out: float


def weights_per_rollout(known: Constants, actors: int) -> float:
    """Return how often weights are sent, for each rollout, at most: the rollouts of a version come from many nodes."""
    return min(1.0, known.nodes(actors) / known.batch)


def limits(known: Constants, actors: int) -> dict[str, float]:
    """Return the agent steps a second to which each part limits a run."""
    rollouts = known.network_gbit * 1e9 / 8 / known.rollout_bytes
    weights = known.network_gbit * 1e9 / 8 / (known.weight_bytes * weights_per_rollout(known, actors))
    return {
        "actors": actors * known.actor_sps,
        "learner": known.learner_sps,
        "rollouts in": rollouts * known.rollout_steps,
        "weights out": weights * known.rollout_steps,
    }


def slowest(by_part: dict[str, float]) -> str:
    """Return the name of the least limit."""
    return min(by_part, key=by_part.__getitem__)


def closed_form(known: Constants, actors: int) -> Speeds:
    """Return the speeds of parts that all run as fast as the slowest of them lets them.

    By Little's law the lag, in updates, is the number of rollouts under way over those of a batch, and the updates
    from batches that had been made when it was asked for.
    """
    by_part = limits(known, actors)
    limit, buffers = slowest(by_part), known.num_buffers(actors)
    sps = by_part[limit]
    starved = limit in ("actors", "weights out")  # then a rollout does not wait once it is full
    under_way = min(buffers, ASKED * actors) if starved else buffers
    ahead = {"learner": PREPARED, "rollouts in": 0}.get(limit, sps / known.learner_sps)
    rollouts = sps / known.rollout_steps
    return Speeds(
        sps,
        under_way / known.batch + ahead,
        1 - sps / known.learner_sps,
        1 - sps / (actors * known.actor_sps),
        rollouts * known.rollout_bytes / 1e6,
        rollouts * weights_per_rollout(known, actors) * known.weight_bytes / 1e6,
    )


def draws(kind: str, mean: float, seed: int) -> Callable[[], float]:
    """Return a function that draws the seconds of a rollout.

    Args:
        kind: exponential, or normal with a deviation of a tenth of the mean.
        mean: seconds.
        seed: of the draws.
    """
    rng = random.Random(seed)
    if kind == "exponential":
        return lambda: rng.expovariate(1 / mean)
    return lambda: max(rng.gauss(mean, mean / 10), 0.0)


@dataclass
class _Actor:
    asked: deque[int]  # versions of the weights with which it shall fill rollouts
    node: int


@dataclass
class _Counts:
    """Sums since a point in time."""

    since: float
    lags: list[int]
    waited: float = 0.0  # seconds of the learner
    acted: float = 0.0  # seconds of all actors
    rollouts: int = 0  # that came over the network
    weights: int = 0  # that went over it


class _Link:
    """One direction of the network: one transfer after another."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._free_at = bytes_per_second, 0.0

    def done_at(self, now: float, size: int) -> float:
        """Return when a transfer that is asked for now will be done."""
        self._free_at = max(now, self._free_at) + size / self._rate
        return self._free_at


class Simulation:
    """A run, event by event.

    Args:
        known: what limits it.
        actors: their number.
        times: kind of the seconds that a rollout takes, see `draws`.
        seed: of the draws.
    """

    def __init__(self, known: Constants, actors: int, times: str = "exponential", seed: int = 0) -> None:
        self.known, self.now, self.version = known, 0.0, 0
        self._draw = draws(times, known.rollout_steps / known.actor_sps, seed)
        self._update_seconds = known.batch * known.rollout_steps / known.learner_sps
        self._in, self._out = (_Link(known.network_gbit * 1e9 / 8) for _ in range(2))
        nodes = known.nodes(actors)
        self._actors = [_Actor(deque(), i % nodes) for i in range(actors)]
        self._by_asked: list[dict[int, None]] = [dict.fromkeys(range(actors)), *({} for _ in range(ASKED))]
        self._versions = [{0} for _ in range(nodes)]  # of the weights on each node
        self._free = known.num_buffers(actors)
        self._full, self._prepared, self._learning = deque[int](), deque[list[int]](), False
        self._idle_since = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()  # events at the same moment come in the order in which they were planned
        self._counts = _Counts(0.0, [])

    def run(self, warm_up: int, updates: int) -> Speeds:
        """Return the speeds over a number of updates, after a warm-up."""
        self._ask()
        self._until(warm_up)
        self._counts = counts = _Counts(self.now, [])
        self._until(warm_up + updates)
        known, seconds = self.known, self.now - counts.since
        return Speeds(
            updates * known.batch * known.rollout_steps / seconds,
            sum(counts.lags) / len(counts.lags),
            counts.waited / seconds,
            1 - counts.acted / (seconds * len(self._actors)),
            counts.rollouts * known.rollout_bytes / seconds / 1e6,
            counts.weights * known.weight_bytes / seconds / 1e6,
        )

    def _until(self, version: int) -> None:
        while self.version < version:
            self.now, _, happen, arguments = heapq.heappop(self._events)
            happen(*arguments)

    def _at(self, time: float, happen: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), happen, arguments))

    def _ask(self) -> None:
        """Ask the actors that have least to do for rollouts, as long as there are buffers."""
        while self._free and (level := next((n for n in range(ASKED) if self._by_asked[n]), None)) is not None:
            i = next(iter(self._by_asked[level]))
            self._move(i, level, level + 1)
            self._free -= 1
            self._actors[i].asked.append(self.version)
            if level == 0:
                self._begin(i)

    def _move(self, i: int, before: int, after: int) -> None:
        del self._by_asked[before][i]
        self._by_asked[after][i] = None

    def _begin(self, i: int) -> None:
        """Have an actor fetch the weights, if its node lacks them, and act."""
        version, there = self._actors[i].asked[0], self._versions[self._actors[i].node]
        if version in there:
            self._act(i)
            return
        there.add(version)
        self._counts.weights += 1
        self._at(self._out.done_at(self.now, self.known.weight_bytes), self._act, i)

    def _act(self, i: int) -> None:
        seconds = self._draw()
        self._at(self.now + seconds, self._filled, i, seconds)

    def _filled(self, i: int, seconds: float) -> None:
        actor = self._actors[i]
        self._counts.acted += seconds
        self._at(self._in.done_at(self.now, self.known.rollout_bytes), self._arrived, actor.asked.popleft())
        self._move(i, len(actor.asked) + 1, len(actor.asked))
        if actor.asked:
            self._begin(i)
        self._ask()

    def _arrived(self, version: int) -> None:
        self._counts.rollouts += 1
        self._full.append(version)
        self._prepare()

    def _prepare(self) -> None:
        """Copy full rollouts into batches, and free their buffers."""
        while len(self._full) >= self.known.batch and len(self._prepared) < PREPARED:
            self._prepared.append([self._full.popleft() for _ in range(self.known.batch)])
            self._free += self.known.batch
            self._ask()
            self._learn()

    def _learn(self) -> None:
        if self._learning or not self._prepared:
            return
        self._counts.lags += [self.version - version for version in self._prepared.popleft()]
        self._counts.waited += self.now - self._idle_since
        self._learning = True
        self._at(self.now + self._update_seconds, self._learned)

    def _learned(self) -> None:
        self.version += 1
        self._learning, self._idle_since = False, self.now
        self._learn()
        self._prepare()


def simulate(known: Constants, actors: int, times: str = "exponential", seed: int = 0) -> Speeds:
    """Return the speeds of a simulated run, once as many rollouts as there are buffers have come a few times."""
    round_of_buffers = math.ceil(known.num_buffers(actors) / known.batch)
    return Simulation(known, actors, times, seed).run(3 * round_of_buffers, 10 * round_of_buffers + 300)
