"""Alternating measurements: each side of a comparison runs in its own process, one at a time."""

from __future__ import annotations

import math
import multiprocessing as mp
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

Side = Callable[[], Iterator[Any]]


def timed_ms(call: Callable[[], Any], times: int = 1) -> float:
    """Return the milliseconds per call, averaged over `times` calls."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return 1000 * (time.perf_counter() - begin) / times


def alternate(
    sides: Mapping[str, Side], seconds: float, *, warm_up: int = 1, least: int = 3, within: float = math.inf
) -> dict[str, list[Any]]:
    """Measure several sides alternately, so that a temporary slow-down of the machine affects all of them.

    Each side has its own process, allocator, threads and OpenGL context, and measures while the others wait.

    Args:
        sides: by name, a picklable function that returns an iterator of measurements. The code before the first one is
            the set-up.
        seconds: duration without set-up and warm-up. It ends earlier if a side's iterator is exhausted.
        warm_up: rounds to discard.
        least: minimum number of rounds.
        within: seconds for everything, set-up and warm-up included; the rounds after the least end earlier if need be.

    Returns:
        The measurements of each side, one per round.

    Raises:
        RuntimeError: a side fails; the message has its traceback.
    """
    context, latest = mp.get_context("forkserver"), time.perf_counter() + within
    context.set_forkserver_preload(["torch"])  # once for all sides, instead of seconds for each
    processes, pipes = [], {}
    try:
        for name, side in sides.items():
            pipes[name], child_pipe = context.Pipe()
            processes.append(context.Process(target=_serve, args=(side, child_pipe)))
            processes[-1].start()
            child_pipe.close()  # otherwise there is no EOF when the process exits
        for name, pipe in pipes.items():
            _receive(name, pipe)  # wait until all processes have finished importing
        for _ in range(warm_up):
            _round(pipes)
        rounds: list[list[Any]] = []
        stop = min(time.perf_counter() + seconds, latest)
        while len(rounds) < least or time.perf_counter() < stop:
            figures = _round(pipes)
            if any(figure is None for figure in figures):
                break
            rounds.append(figures)
        return {name: [figures[i] for figures in rounds] for i, name in enumerate(sides)}
    finally:
        for pipe in pipes.values():
            pipe.close()
        for process in processes:
            process.join()


def _round(pipes: Mapping[str, Connection]) -> list[Any]:
    figures = []
    for name, pipe in pipes.items():
        pipe.send(None)
        figures.append(_receive(name, pipe))
    return figures


def _receive(name: str, pipe: Connection) -> Any:
    try:
        found = pipe.recv()
    except EOFError:
        raise RuntimeError(f"{name}: its process has ended; see its output on stderr") from None
    if isinstance(found, _Failure):
        raise RuntimeError(f"{name}: {found.traceback}")
    return found


class _Failure(NamedTuple):
    """What a side sends in place of a measurement."""

    traceback: str


def _serve(side: Side, pipe: Connection) -> None:
    figures: Iterator[Any] = iter(())
    try:
        figures = side()
        pipe.send("ready")
        while True:
            pipe.recv()
            pipe.send(next(figures, None))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass  # the benchmark is over
    except Exception:  # any: the main process raises it with this traceback
        pipe.send(_Failure(traceback.format_exc()))
    finally:
        if isinstance(figures, Generator):
            figures.close()
