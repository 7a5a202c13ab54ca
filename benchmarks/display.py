"""Cost of logging and the dashboard: `python -m benchmarks.display [--json]`."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console as Terminal

from benchmarks.common import Row, main, quartiles
from drqv2.logging.console import Console, Dashboard, Status
from drqv2.logging.logger import Logger
from drqv2.logging.usage import Usage

ABOUT = "CSV, metrics.jsonl, TensorBoard, dashboard; share_at_F_fps: percent of the time at F frames a second"
SPEEDS = (9, 100, 1000)  # frames per second: two cores, the published V100, a fast GPU
METRICS = "batch_reward critic_target_q critic_q1 critic_q2 critic_loss actor_loss actor_logprob actor_ent".split()


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each kind of output, and one for the total."""
    repetitions = 2 if quick else 200
    status = Status(412_000, 1_100_000, 812.3, dict.fromkeys(("environment", "act", "data", "update"), 1 / 6))
    terminal = Terminal(file=io.StringIO(), force_terminal=True, width=120)
    usage = Usage(torch.device("cpu"), every=0.0)
    shown = usage()
    dashboard = Dashboard("cheetah_run, seed 1", lambda: status, lambda: shown, terminal)
    metrics = {name: torch.rand(()) for name in METRICS}
    frame = 0

    def update() -> None:
        logger.log_metrics(metrics, frame, ty="train")

    def episode() -> None:
        nonlocal frame
        frame += 1000
        with logger.log_and_dump_ctx(frame, ty="train") as log:
            for name in ("fps", "total_time", "episode_reward", "episode_length", "episode", "buffer_size", "step"):
                log(name, 1.0)

    def draw() -> None:
        terminal.print(dashboard.render())

    with tempfile.TemporaryDirectory() as folder:
        logger = Logger(Path(folder), use_tb=True, hparams={}, sinks=[], console=Console())
        # Function to time, calls per second at a frame rate (the paper's settings, episodes of 1,000 frames), and the
        # number of updates logged before each call, untimed: a row is the mean over an episode's updates.
        parts: dict[str, tuple[Callable[[], object], Callable[[float], float], int]] = {
            "an update's metrics": (update, lambda fps: fps / 4, 0),
            "an episode's row": (episode, lambda fps: fps / 1000, 250),
            "the dashboard": (draw, lambda fps: 1.0, 0),
            "CPU and memory in it": (usage, lambda fps: 1 / 3, 0),
        }
        rows = []
        for name, (work, rate, updates) in parts.items():
            found = quartiles(_times(work, repetitions, partial(_repeat, update, updates)), "ms")
            shares = {f"share_at_{fps}_fps": found["ms"] * rate(fps) / 10 for fps in SPEEDS}
            rows.append({"part": name, **found, **shares, "repetitions": repetitions})
        logger.close()
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key.startswith("share")}
    return [*rows, {**dict.fromkeys(rows[0]), "part": "all", **total}]


def _repeat(work: Callable[[], object], number: int) -> None:
    for _ in range(number):
        work()


def _times(work: Callable[[], object], repetitions: int, before: Callable[[], object]) -> list[float]:
    _repeat(work, min(5, repetitions))
    times = []
    for _ in range(repetitions):
        before()
        begin = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - begin))
    return times


if __name__ == "__main__":
    main("display", ABOUT, measure)
