"""Turns of a run: it trains with its own random numbers, clocks and signals, and is paused in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from drqv2.errors import Stopped, UserError
from drqv2.logging.console import Console
from drqv2.logging.usage import TimeShares
from drqv2.snapshot import rng
from drqv2.system import machine
from drqv2.system.signals import StopSignals
from drqv2.utils import Timer


class Run(Protocol):
    """What a turn needs of a run."""

    work_dir: Path
    device: torch.device
    closed: bool
    console: Console
    stop: StopSignals
    timer: Timer
    time_shares: TimeShares

    @property
    def snapshots(self) -> Finishes:
        """The run's snapshots."""


class Finishes(Protocol):
    """What a turn needs of snapshots."""

    def finish(self) -> None:
        """Wait until the newest one is on disk."""


class Turns:
    """Gives a run its turns, so that several can train in one process, epoch by epoch.

    Args:
        run: the run.

    Attributes:
        rng_state: the run's state of the global random generators while it is paused; None while it trains.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.rng_state: dict[str, Any] | None = None
        self._shown = False
        self._newest = object()  # what the newest iterator over epochs holds

    def require_open(self) -> None:
        """Raise UserError if the run is closed."""
        if self._run.closed:
            raise UserError(f"the run in {self._run.work_dir} is closed; open it again with make_workspace")

    def revoke(self) -> object:
        """Make older iterators over the run's epochs invalid, see `require_newest`; return what a new one holds."""
        self._newest = object()
        return self._newest

    def require_newest(self, held: object) -> None:
        """Raise UserError if another iterator over the run's epochs has taken over from the one that holds this."""
        if held is not self._newest:
            raise UserError("this iterator's run was reset, or another iterator over its epochs has taken over")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Context in which the run is on the console; it can be entered within itself."""
        if self._shown:
            yield
            return
        self._shown = True
        try:
            with self._run.console:
                yield
        finally:
            self._shown = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Context in which the run trains.

        Raises:
            UserError: it trains already, or is closed.
            DiskError: it was asked to stop, and its snapshot cannot be written.
        """
        run = self._run
        self.require_open()
        if self.rng_state is None:
            raise UserError("a run cannot be trained by its own hooks")
        with self.shown(), self.process_state():
            run.timer.resume()
            run.time_shares.resume()
            try:
                with run.stop:
                    yield
            except Stopped:
                run.snapshots.finish()  # or DiskError; a slow disk has more time than the way to a safe point
                raise
            finally:
                run.timer.pause()
                run.time_shares.pause()

    @contextmanager
    def process_state(self) -> Iterator[None]:
        """Context in which the global random generators and the current GPU are the run's."""
        others = rng.rng_state()
        try:
            with machine.on(self._run.device):
                if self.rng_state is not None:
                    rng.set_rng_state(self.rng_state)
                self.rng_state = None
                try:
                    yield
                finally:
                    self.rng_state = rng.rng_state()
        finally:
            rng.set_rng_state(others)
