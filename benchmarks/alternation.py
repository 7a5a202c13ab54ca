"""Measuring in turn: each side of a comparison in a process of its own, one figure at a time."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

Side = Callable[[], Iterator[Any]]


def timed_ms(call: Callable[[], Any], times: int = 1) -> float:
    """Return the milliseconds of one call, the mean of `times`."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return 1000 * (time.perf_counter() - begin) / times


def alternate(sides: Mapping[str, Side], seconds: float, *, warm_up: int = 1, least: int = 3) -> dict[str, list[Any]]:
    """Measure several things in turn, so that whatever slows the machine for a while slows all of them.

    Each side lives in a process of its own, with its own allocator, threads and OpenGL: asked for its next figure,
    it measures while all others wait.

    Args:
        sides: by name, a module's function, or a partial of one, that returns an iterator of figures. What it does
            before the first is its set-up.
        seconds: to go on for, set-up and warm-up apart. A side that has no more figures ends it earlier.
        warm_up: rounds that do not count.
        least: rounds in any case.

    Returns:
        Each side's figures, one a round.

    Raises:
        RuntimeError: a side fails; its traceback is on stderr.
    """
    context = mp.get_context("spawn")
    processes, ends = [], {}
    try:
        for name, side in sides.items():
            ends[name], theirs = context.Pipe()
            processes.append(context.Process(target=_serve, args=(side, theirs)))
            processes[-1].start()
            theirs.close()  # or else the end of the process would not show
        for name, end in ends.items():
            _receive(name, end)  # all have been imported before any measures
        for _ in range(warm_up):
            _round(ends)
        rounds: list[list[Any]] = []
        stop = time.perf_counter() + seconds
        while len(rounds) < least or time.perf_counter() < stop:
            figures = _round(ends)
            if any(figure is None for figure in figures):
                break
            rounds.append(figures)
        return {name: [figures[i] for figures in rounds] for i, name in enumerate(sides)}
    finally:
        for end in ends.values():
            end.close()
        for process in processes:
            process.join()


def _round(ends: Mapping[str, Connection]) -> list[Any]:
    figures = []
    for name, end in ends.items():
        end.send(None)
        figures.append(_receive(name, end))
    return figures


def _receive(name: str, end: Connection) -> Any:
    try:
        return end.recv()
    except EOFError:
        raise RuntimeError(f"{name}: its process has ended; what it had to say is on stderr") from None


def _serve(side: Side, end: Connection) -> None:
    figures = side()
    end.send("ready")
    try:
        while True:
            end.recv()
            end.send(next(figures, None))
    except (EOFError, BrokenPipeError):
        pass  # nobody asks any more
    finally:
        if isinstance(figures, Generator):
            figures.close()  # its own clean-up
