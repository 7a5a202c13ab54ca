"""Batches of rollouts for the learner: from actors, prepared by threads; or from one actor in turn with the learner."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from drqv2.envs.info import Sums, merge
from drqv2.rollout.actors import Actors, Filled
from drqv2.rollout.shared import Layout
from drqv2.rollout.unroll import Unroller, with_observations

_CHECK_SECONDS = 0.2  # between two looks at whether the actors have failed, while the learner waits


def stack(rollouts: Sequence[Mapping[str, np.ndarray]], device: torch.device) -> dict[str, Any]:
    """Return the fields of `Segments`, [B, T + 1, ...], from rollouts of [E, T + 1, ...]."""
    joined = {name: np.concatenate([rollout[name] for rollout in rollouts]) for name in rollouts[0]}
    batch = with_observations({name: torch.from_numpy(x).to(device) for name, x in joined.items()})
    state = tuple(batch.pop(name) for name in "hc" if name in batch)
    return batch | {"values": torch.zeros_like(batch["rewards"]), "state": state or None}


@dataclass
class Statistics:
    """Statistics of the batches that were handed over since the last row of the log.

    Attributes:
        episodes: return and length in steps of each that ended.
        info: over these, of the numbers in `info`: sum of the episodes' means, and how many had it.
        lags: updates that the learner had taken since each rollout was begun.
        wins: episodes that ended with a reward above 0.8, as TorchBeast counts them.
        ends: all that ended.
        dropped: rollouts that were not used since their lag was too long.
    """

    episodes: list[tuple[float, int]] = field(default_factory=list)
    info: Sums = field(default_factory=dict)
    lags: list[int] = field(default_factory=list)
    wins: int = 0
    ends: int = 0
    dropped: int = 0

    def add(self, batch: Mapping[str, Any], filled: Sequence[Filled], version: int) -> None:
        """Add a batch, which the learner uses at this version of its weights."""
        over = (batch["terminated"] | batch["truncated"])[:, 1:]
        self.ends += int(over.sum())
        self.wins += int((over & (batch["rewards"][:, 1:] > 0.8)).sum())
        self.episodes += [episode for one in filled for episode in one.episodes]
        self.lags += [version - one.version for one in filled]
        for one in filled:
            merge(self.info, one.info)


class Batches:
    """Batches from actors.

    Args:
        actors: started by the first batch.
        rollouts: of a batch.
        threads: that prepare batches, each one ahead of the learner.
        device: of the learner.
        version: returns the newest version of the weights.
        max_lag: updates; older rollouts are dropped. None: all are used.

    Attributes:
        statistics: of the batches; the reader replaces it.
    """

    def __init__(
        self,
        actors: Actors[Any],
        rollouts: int,
        threads: int,
        device: torch.device,
        version: Callable[[], int],
        max_lag: int | None,
    ) -> None:
        self.actors, self.rollouts, self.device = actors, rollouts, device
        self.version, self.max_lag, self.statistics = version, max_lag, Statistics()
        self._ready: queue.Queue[tuple[dict[str, Any], list[Filled]]] = queue.Queue(maxsize=1)
        self._dropped: queue.SimpleQueue[int] = queue.SimpleQueue()  # rollouts, by the threads
        self._taking = threading.Lock()
        self._started = self._closing = False
        self._failure: Exception | None = None  # of a thread
        self._threads = [
            threading.Thread(target=self._prepare, name=f"batches {i}", daemon=True) for i in range(threads)
        ]

    def take(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Return the next batch; None if `stop` returns true before there is one.

        Raises:
            UserError, RuntimeError, ProcessError: the actors have failed.
        """
        if not self._started:
            self._started = True
            self.actors.start()
            for thread in self._threads:
                thread.start()
        while not self._dropped.empty():
            self.statistics.dropped += self._dropped.get()
        while not stop():
            self.actors.check()
            if self._failure is not None:
                raise self._failure
            try:
                batch, filled = self._ready.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                continue
            if any(self._too_old(one) for one in filled):
                self.statistics.dropped += len(filled)
                continue
            self.statistics.add(batch, filled, self.version())
            return batch
        return None

    def _too_old(self, filled: Filled) -> bool:
        return self.max_lag is not None and self.version() - filled.version > self.max_lag

    def _prepare(self) -> None:
        """Prepare batches until this closes; what a thread runs."""
        try:
            while not self._closing:
                with self._taking:
                    filled = self._take()
                if len(filled) < self.rollouts:
                    return
                batch = stack([self.actors.rollout(one) for one in filled], self.device)
                for one in filled:
                    self.actors.give_back(one)
                self._hand_over((batch, filled))
        except Exception as error:
            self._failure = error

    def _take(self) -> list[Filled]:
        """Return enough rollouts for a batch, fewer if this closes."""
        filled: list[Filled] = []
        while len(filled) < self.rollouts and not self._closing:
            try:
                one = self.actors.full.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                continue
            if self._too_old(one):
                self.actors.give_back(one)
                self._dropped.put(1)
            else:
                filled.append(one)
        return filled

    def _hand_over(self, prepared: tuple[dict[str, Any], list[Filled]]) -> None:
        while not self._closing:
            try:
                self._ready.put(prepared, timeout=_CHECK_SECONDS)
                return
            except queue.Full:
                continue

    def close(self) -> None:
        """End the threads and the actors."""
        self._closing = True
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self.actors.close()


class BatchesInTurn:
    """Batches from one actor in this process, collected when the learner asks: the same seed gives the same bits.

    Args:
        unroller: has started.
        layout: of a rollout.
        rollouts: of a batch.
        device: of the learner.

    Attributes:
        statistics: of the batches; the reader replaces it.
    """

    def __init__(self, unroller: Unroller, layout: Layout, rollouts: int, device: torch.device) -> None:
        self.unroller, self.device, self.statistics = unroller, device, Statistics()
        self._buffers = [
            {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()} for _ in range(rollouts)
        ]

    def take(self, stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Return the next batch."""
        filled = [Filled(i, 0, *self.unroller.fill(buffer)) for i, buffer in enumerate(self._buffers)]
        batch = stack(self._buffers, self.device)
        self.statistics.add(batch, filled, 0)
        return batch

    def close(self) -> None:
        """Close the environments."""
        self.unroller.env.close()
