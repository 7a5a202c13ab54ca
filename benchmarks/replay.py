"""Milliseconds to get one batch from the replay: `python -m benchmarks.replay [--json]`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from dm_env import StepType, specs

from benchmarks.common import Row, main, time_ms
from drqv2.envs import ExtendedTimeStep
from replay_buffer import ReplayBufferStorage, make_replay_loader

ABOUT = "one batch from make_replay_loader, files in the page cache, nothing else running; copy_ms: copying its bytes"
SIZE, STACK, BATCH, ACTIONS = 84, 3, 256, 6
LENGTH = 500  # transitions of an episode
BLOCK = 4  # batches timed together: with workers single ones come unevenly


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each number of workers."""
    seconds = 0.5 if quick else 4.0
    with tempfile.TemporaryDirectory() as folder:
        storage = fill(Path(folder), episodes=2 if quick else 10)
        return [measure_workers(storage, workers, seconds) for workers in (0, 1)]


def fill(replay_dir: Path, episodes: int) -> ReplayBufferStorage:
    """Write episodes of random pixels, which no file system can compress."""
    observation = specs.BoundedArray((3 * STACK, SIZE, SIZE), np.uint8, 0, 255, "observation")
    action = specs.BoundedArray((ACTIONS,), np.float32, -1, 1, "action")
    scalars = [specs.Array((1,), np.float32, name) for name in ("reward", "discount")]
    storage = ReplayBufferStorage((observation, action, *scalars), replay_dir, frame_stack=STACK)
    rng = np.random.default_rng(0)
    for _ in range(episodes):
        for t in range(LENGTH + 1):
            kind = StepType.FIRST if t == 0 else StepType.LAST if t == LENGTH else StepType.MID
            obs = rng.integers(0, 256, observation.shape, np.uint8)
            storage.add(ExtendedTimeStep(kind, 1.0, 1.0, obs, np.zeros(ACTIONS, np.float32)))
    return storage


def measure_workers(storage: ReplayBufferStorage, workers: int, seconds: float) -> Row:
    """Return the time of a batch with `workers` background workers."""
    loader = make_replay_loader(
        storage.replay_dir, None, BATCH, workers, False, 3, 0.99, storage=storage, frame_stack=STACK
    )
    batch = [array.numpy() for array in next(loader)]
    room = [np.empty_like(array) for array in batch]

    def take() -> None:
        for _ in range(BLOCK):
            next(loader)

    def copy() -> None:
        for target, source in zip(room, batch, strict=True):
            np.copyto(target, source)

    taken = time_ms(take, seconds, per=BLOCK)
    loader.close()
    return {
        "workers": workers,
        "batch_size": BATCH,
        "megabytes": sum(array.nbytes for array in batch) / 1e6,
        **taken,
        "copy_ms": time_ms(copy, seconds / 4)["ms"],
    }


if __name__ == "__main__":
    main("replay", ABOUT, measure)
