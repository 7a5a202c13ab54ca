"""A replay larger than the page cache: `python -m benchmarks.cold [--json]`.

Writes 1.8 GB of distinct frames to the temporary directory (set TMPDIR to choose another) and deletes them at the end.
Takes about a minute.

`limited` is a process limited to 600 MB, page cache included, by a cgroup or systemd-run; the row is omitted where
neither is possible. `evicted` drops the files' pages before each measurement, as after a restart.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.alternation import timed_ms
from benchmarks.common import Row, main, quartiles
from benchmarks.replay import BATCH, STACK, fill
from replay_buffer import make_replay_loader

ABOUT = "one batch, gathered in the foreground; disk_mb: data read from disk for it, read-ahead included"
LIMIT = 600_000_000  # bytes
BLOCK = 4  # batches per measurement
WARM_UP = 24  # batches
ROOT = Path(__file__).resolve().parents[1]


def measure(quick: bool = False) -> list[Row]:
    """Return a row for files in the page cache, for evicted files, and for files that exceed the page cache."""
    episodes, length, figures = (2, 50, 2) if quick else (170, 500, 12)
    with tempfile.TemporaryDirectory() as folder:
        stored = fill(Path(folder), episodes, length).nbytes() / 1e6
        rows = [measure_state(folder, state, figures, stored, []) for state in ("warm", "evicted")]
        with memory_limit() as prefix:
            if prefix is None:
                print("limited: omitted, neither a cgroup nor systemd can limit memory here", file=sys.stderr)
            else:
                rows.append(measure_state(folder, "limited", figures, stored, prefix))
    return rows


def measure_state(folder: str, state: str, figures: int, stored: float, prefix: list[str]) -> Row:
    """Measure in a separate process, whose command follows `prefix`."""
    code = f"from benchmarks.cold import show; show({folder!r}, {state!r}, {figures})"
    command = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    limit = LIMIT / 1e6 if state == "limited" else None
    found: Row = json.loads(done.stdout)
    return {"state": state, "stored_mb": stored, "limit_mb": limit, "batch_size": BATCH, **found}


def show(folder: str, state: str, figures: int) -> None:
    """Print the time of a batch in this process and the data read from disk, as JSON."""
    if state == "limited":
        evict(Path(folder))  # pages cached by other processes would not count towards the limit
    loader = make_replay_loader(folder, None, BATCH, 0, False, 3, 0.99, frame_stack=STACK)
    source: Any = loader._source
    for _ in range(WARM_UP):
        next(loader)
    times, read = [], 0
    for _ in range(figures):
        if state == "evicted":
            for episode in source._gatherer._episodes.values():
                unmap_pages(episode.observation[0])  # mapped pages stay in the cache
            evict(Path(folder))
        before = bytes_read()
        times.append(timed_ms(lambda: next(loader), times=BLOCK))
        read += bytes_read() - before
    loader.close()
    print(json.dumps({**quartiles(times, "ms"), "disk_mb": read / 1e6 / BLOCK / figures, "repetitions": figures}))


def unmap_pages(array: np.ndarray) -> None:
    """Unmap the pages of a memory-mapped array; the next access maps them again."""
    first = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    length = array.ctypes.data + array.nbytes - first
    if ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_DONTNEED):
        raise OSError("madvise failed")


def evict(folder: Path) -> None:
    """Drop the pages of the files in `folder` from the page cache."""
    for path in folder.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def bytes_read() -> int:
    """Return the bytes that this process has read from disk."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


@contextmanager
def memory_limit() -> Iterator[list[str] | None]:
    """Yield a command prefix that limits a process to LIMIT bytes, page cache included; None if not possible."""
    group = limited_group()
    if group:
        try:
            yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        finally:
            group.rmdir()
    elif shutil.which("systemd-run") and Path("/run/systemd/system").exists():
        user = [] if os.geteuid() == 0 else ["--user"]
        yield ["systemd-run", "--quiet", "--scope", *user, "-p", f"MemoryMax={LIMIT}", "-p", "MemorySwapMax=0"]
    else:
        yield None


def limited_group() -> Path | None:
    """Create a cgroup of LIMIT bytes inside this process's; None if not permitted."""
    root = Path("/sys/fs/cgroup")
    # 0::/path is the single hierarchy of cgroup v2; N:memory:/path is the memory controller of v1.
    cgroups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    if "memory" in cgroups:
        parent, limit = root / "memory" / cgroups["memory"].lstrip("/"), "memory.limit_in_bytes"
    elif (root / "cgroup.controllers").exists():
        parent, limit = root / cgroups[""].lstrip("/"), "memory.max"
    else:
        return None
    group = parent / f"benchmark_{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        with (group / limit).open("r+") as f:
            f.write(str(LIMIT))
    except OSError:  # this process's group does not delegate the memory controller
        group.rmdir()
        return None
    return group


if __name__ == "__main__":
    main("cold", ABOUT, measure)
