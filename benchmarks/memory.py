"""Anonymous resident memory with a large replay: `python -m benchmarks.memory [--json]`.

Writes 4.2 GB of episodes to the temporary directory (set TMPDIR to choose another) and deletes them at the end. Takes
one to three minutes, most of it for writing.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import Row, main
from benchmarks.learner import PAPER, SMALL, updates_in
from benchmarks.replay import BATCH, STACK, fill
from drqv2.system import machine
from replay_buffer import ReplayBufferStorage, make_replay_loader

ABOUT = (
    "RssAnon of all processes while batches are sampled: maximum, and growth from the second quarter to the last; "
    "200k transitions on disk (4.2 GB, deleted afterwards)"
)
WORKERS = 4  # as in the paper's settings


def measure(quick: bool = False) -> list[Row]:
    """Return a row for the replay alone, and one for the replay with a learner."""
    episodes, length, batches, updates = (2, 50, 20, 4) if quick else (400, 500, 800, 60)
    with tempfile.TemporaryDirectory() as folder:
        storage = fill(Path(folder), episodes, length)
        replay = row("replay", storage, batches, learner=None)
        learner = updates_in(SMALL if quick else PAPER, "cpu", machine.resolve_precision("auto", "cpu"), compile=False)
        return [replay, row("replay and learner", storage, updates, learner)]


def row(side: str, storage: ReplayBufferStorage, batches: int, learner: Iterator[float] | None) -> Row:
    """Sample `batches` batches, with an update after each if there is a learner, and measure the memory."""
    loader = make_replay_loader(
        storage.replay_dir, None, BATCH, WORKERS, False, 3, 0.99, storage=storage, frame_stack=STACK
    )
    anonymous: list[float] = []
    shared: list[float] = []
    begin = time.perf_counter()
    for _ in range(batches):
        obs, *_, next_obs = next(loader)
        obs.max(), next_obs.max()  # touch every page
        if learner is not None:
            next(learner)
        now = resident_mb()
        anonymous.append(now["RssAnon"])
        shared.append(now["RssShmem"])
    seconds = time.perf_counter() - begin
    loader.close()
    quarter = batches // 4
    growth = statistics.median(anonymous[-quarter:]) - statistics.median(anonymous[quarter : 2 * quarter])
    return {
        "side": side,
        "transitions": len(storage),
        "workers": WORKERS,
        "batches": batches,
        "seconds": seconds,
        "anonymous_mb": max(anonymous),
        "growth_mb": growth,
        "shared_mb": max(shared),
    }


def resident_mb() -> dict[str, float]:
    """Return the resident memory of this process and its descendants in MB: RssAnon, RssFile and RssShmem.

    From /proc/PID/status. Shared memory counts once for each process.
    """
    processes: dict[int, dict[str, str]] = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has just exited
            processes[int(path.parent.name)] = dict(line.split(":", 1) for line in path.read_text().splitlines())
    family, found = {os.getpid()}, 0
    while len(family) > found:
        found = len(family)
        family |= {pid for pid, status in processes.items() if int(status["PPid"]) in family}
    kinds = ("RssAnon", "RssFile", "RssShmem")
    return {kind: sum(1.024e-3 * int(processes[pid].get(kind, "0 kB").split()[0]) for pid in family) for kind in kinds}


if __name__ == "__main__":
    main("memory", ABOUT, measure)
