"""Turns of a run: it trains with its own random numbers, clocks and signals, and is paused in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drqv2.errors import UserError
from drqv2.run.stats import EpochStats
from drqv2.snapshot import rng


class Turns:
    """Gives a run its turns, so that several can train in one process, epoch by epoch.

    Args:
        run: a `BaseWorkspace`.

    Attributes:
        rng_state: the run's state of the global random generators while it is paused; None while it trains.
        between_epochs: whether its loop is paused at the end of an epoch.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        self.rng_state: dict[str, Any] | None = None
        self.between_epochs = False
        self._iterators = 0  # how often epochs were asked for

    def epochs(self, epochs: Iterator[EpochStats]) -> Iterator[EpochStats]:
        """Yield from the run's epochs, each trained in a turn.

        Raises:
            UserError: another iterator over the run's epochs has taken over.
        """
        self.revoke()
        number = self._iterators
        with self.run.console:
            while (epoch := self._next(epochs)) is not None:
                yield epoch
                if number != self._iterators:
                    raise UserError("this iterator's run was reset, or another iterator over its epochs has taken over")

    def revoke(self) -> None:
        """Make the newest iterator raise UserError at its next step."""
        self._iterators += 1

    def _next(self, epochs: Iterator[EpochStats]) -> EpochStats | None:
        self.between_epochs = False
        with self.taken():
            epoch = next(epochs, None)
        self.between_epochs = epoch is not None
        return epoch

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Context in which the run trains.

        Raises:
            UserError: it trains already, or is closed.
        """
        run = self.run
        run.require_open()
        if self.rng_state is None:
            raise UserError("a run cannot be trained by its own hooks")
        with self.random_numbers():
            run.timer.resume()
            run.time_shares.resume()
            try:
                with run.stop:
                    yield
            finally:
                run.timer.pause()
                run.time_shares.pause()

    @contextmanager
    def random_numbers(self) -> Iterator[None]:
        """Context in which the global random generators are the run's."""
        others = rng.rng_state()
        if self.rng_state is not None:
            rng.set_rng_state(self.rng_state)
        self.rng_state = None
        try:
            yield
        finally:
            self.rng_state = rng.rng_state()
            rng.set_rng_state(others)
