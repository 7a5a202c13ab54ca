"""Milliseconds to sample one batch from the replay: `python -m benchmarks.replay [--json]`."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dm_env import StepType, specs

from benchmarks.alternation import Side, alternate, timed_ms
from benchmarks.baseline.loader import plain_loader, save_episode
from benchmarks.common import Row, compare, main
from drqv2.envs import ExtendedTimeStep
from replay_buffer import ReplayBufferStorage, make_replay_loader

ABOUT = (
    "one batch, files in the page cache, nothing else running; ratio: speed-up over the baseline with one worker; "
    "limit_ms: copying the batch's bytes"
)
SIZE, STACK, BATCH, ACTIONS = 84, 3, 256, 6
AHEAD = 16  # batches that a loader may prefetch while the others are measured


def measure(quick: bool = False, within: float = math.inf) -> list[Row]:
    """Return a row for each loader and number of background workers.

    If quick or with a GPU, there are fewer of them; with a GPU, also replay on it. `within` as in `alternate`.
    """
    seconds, episodes, block = (0.0, 2, 2) if quick else (60.0, 10, 16)
    with tempfile.TemporaryDirectory() as folder:
        storage = fill(Path(folder), episodes, length=50 if quick else 500)
        stack_episodes(storage)
        gpu = torch.cuda.is_available()
        workers: dict[str, tuple[int, ...]] = {"baseline": (1, 2), "ours": (0, 1, 2), "segments": () if gpu else (0, 1)}
        if gpu or quick:
            workers = {side: numbers and (1,) for side, numbers in workers.items()}
        loaders: dict[str, Side] = {
            **{f"baseline/{n}": partial(plain_batches, Path(folder), n, block) for n in workers["baseline"]},
            **{f"ours/{n}": partial(batches, Path(folder), n, block) for n in workers["ours"]},
            **{f"segments/{n}": partial(batches, Path(folder), n, block, segment=3) for n in workers["segments"]},
        }
        if gpu:
            loaders["on the GPU/0"] = partial(batches, Path(folder), 0, block, "cuda")
            loaders["segments on the GPU/0"] = partial(batches, Path(folder), 0, block, "cuda", 3)
        times = alternate({**loaders, "copy": copies}, seconds, warm_up=2, within=within)
    limit = statistics.median(times["copy"])
    rows = []
    for name in loaders:
        side, number = name.split("/")
        row = {"side": side, "workers": int(number), "batch_size": BATCH}
        row |= compare(times["baseline/1"], times[name])
        rows.append({**row, "limit_ms": limit, "times_limit": row["ms"] / limit})
    return rows


def fill(replay_dir: Path, episodes: int, length: int) -> ReplayBufferStorage:
    """Write episodes of `length` transitions, all frames distinct and of random pixels."""
    observation = specs.BoundedArray((3 * STACK, SIZE, SIZE), np.uint8, 0, 255, "observation")
    action = specs.BoundedArray((ACTIONS,), np.float32, -1, 1, "action")
    scalars = [specs.Array((1,), np.float32, name) for name in ("reward", "discount")]
    storage = ReplayBufferStorage((observation, action, *scalars), replay_dir, frame_stack=STACK)
    rng = np.random.default_rng(0)
    obs = np.zeros(observation.shape, np.uint8)
    for _ in range(episodes):
        for t in range(length + 1):
            kind = StepType.FIRST if t == 0 else StepType.LAST if t == length else StepType.MID
            obs[-3:] = np.frombuffer(rng.bytes(3 * SIZE**2), np.uint8).reshape(3, SIZE, SIZE)  # only this one is stored
            action_taken = rng.uniform(-1, 1, ACTIONS).astype(np.float32)
            storage.add(ExtendedTimeStep(kind, float(rng.random()), 1.0, obs, action_taken))
    return storage


def stack_episodes(storage: ReplayBufferStorage) -> None:
    """Write the same episodes again in the baseline's format, with stacked observations."""
    for number in range(storage.num_episodes):
        episode = storage.load_episode(number)
        frames = episode.pop("frame")  # [T + 1, 3, H, W]
        padded = np.concatenate([frames[:1]] * (STACK - 1) + [frames])
        stacks = np.concatenate([padded[i : i + len(frames)] for i in range(STACK)], axis=1)
        save_episode(storage.replay_dir / f"{number:08d}.npz", {"observation": stacks, **episode})


def plain_batches(replay_dir: Path, workers: int, block: int) -> Iterator[float]:
    """Yield the times of a batch from the baseline's loader."""
    yield from _times(iter(plain_loader(replay_dir, BATCH, workers)), block)


def batches(
    replay_dir: Path, workers: int, block: int, replay_device: str = "disk", segment: int | None = None
) -> Generator[float, None, None]:
    """Yield the times of a batch from this project's loader; one of segments of 3 has as many frames as the others."""
    places: dict[str, Any] = {"frame_stack": STACK, "replay_device": replay_device, "segment": segment}
    loader = make_replay_loader(replay_dir, None, BATCH, workers, False, 3, 0.99, **places)
    try:
        yield from _times(iter(loader), block)
    finally:
        loader.close()


def copies() -> Iterator[float]:
    """Yield the times of a copy of a batch's images."""
    source = [np.random.default_rng(0).integers(0, 256, (BATCH, 3 * STACK, SIZE, SIZE), np.uint8) for _ in range(2)]
    target = [np.empty_like(images) for images in source]

    def copy() -> None:
        for to, images in zip(target, source, strict=True):
            np.copyto(to, images)

    while True:
        yield timed_ms(copy, times=10)


def _times(loader: Iterator[Any], block: int) -> Iterator[float]:
    while True:
        for _ in range(AHEAD):  # skip batches prefetched while the other sides were measured
            next(loader)
        yield timed_ms(lambda: _finished(next(loader)), times=block)


def _finished(batch: Any) -> None:
    if batch[0].is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main("replay", ABOUT, measure)
