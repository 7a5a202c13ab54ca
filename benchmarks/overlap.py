"""Frames per second of the loop by `num_envs` and `overlap`: `python -m benchmarks.overlap [--json]`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product

from benchmarks.baseline.pixels import EPISODE, REPEAT
from benchmarks.common import Row, main, quartiles
from benchmarks.loop import TASK, run_fps

ABOUT = (
    "frames per second of the loop once updates have begun, by num_envs and overlap, one run after another; ratio: to "
    "num_envs=1 overlap=true. overlap: the environments, each in a process, step during the updates"
)
LEAST = 3  # measurements of a run


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each run."""
    return list(rows(quick))


def rows(quick: bool = False, seconds: float = 180.0) -> Iterator[Row]:
    """Yield a row for each run.

    Args:
        quick: fewer environments, short episodes, small images and networks.
        seconds: for all runs together, their starts included. Each takes at least LEAST measurements.
    """
    end = time.monotonic() + seconds
    numbers = (1, 2) if quick else (1, 4, 16)
    runs = list(product(numbers, (True, False)))
    first = 0.0
    for i, (number, overlap) in enumerate(runs):
        now = time.monotonic()
        until = now + (0.0 if quick else (end - now) * _cost(number) / sum(_cost(other) for other, _ in runs[i:]))
        row = quartiles(run(number, overlap, quick, until), "fps")
        first = first or row["fps"]
        yield {"num_envs": number, "overlap": overlap, **row, "ratio": row["fps"] / first}


def _cost(number: int) -> int:
    return 8 + number  # a start, and an episode of each environment


def run(number: int, overlap: bool, quick: bool, until: float) -> list[float]:
    """Return measurements of one run, until the monotonic clock shows `until`."""
    # Updates begin once an episode of each environment is stored.
    setting = ["preset=paper", f"task={TASK}", f"num_seed_frames={1000 * number}"]
    if quick:
        setting = [
            *("preset=debug", "env._target_=benchmarks.baseline.pixels.short_cartpole", "image_size=32"),
            *(f"action_repeat={REPEAT}", f"num_seed_frames={(EPISODE + REPEAT) * number}"),
        ]
    found: list[float] = []
    speeds = run_fps([*setting, f"num_envs={number}", f"overlap={str(overlap).lower()}"], REPEAT * number)
    try:
        next(speeds)  # with what is done once: compiling, the loader's start
        while len(found) < LEAST or time.monotonic() < until:
            found.append(next(speeds))
    finally:
        speeds.close()
    return found


if __name__ == "__main__":
    main("overlap", ABOUT, measure)
