"""Cost of snapshots to the training loop: `python -m benchmarks.snapshots [--json]`."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

from omegaconf import DictConfig

from benchmarks.baseline.pixels import EPISODE, REPEAT
from benchmarks.common import Row, main, quartiles
from benchmarks.loop import ROOT, WORKERS
from drqv2.launch.command_line import launch
from drqv2.run import factory
from drqv2.run.hooks import Hooks
from drqv2.run.stats import RunSummary
from train import Workspace

ABOUT = "20 agent steps, paper settings; lost: ms per snapshot; share: relative to the default snapshot_every_seconds"
EVERY = 60.0  # seconds, the default


class Timed(Workspace):
    """Takes a snapshot before every second block of agent steps and measures each block.

    Attributes:
        steps: agent steps per block; enough for the snapshot's background write to finish.
        blocks: seconds of each block, once every step learns.
    """

    steps = 20

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Train."""
        self.blocks: list[float] = []
        self._block_start = float("nan")
        return super().train(hooks, epochs)

    def setup(self) -> None:
        """Make the run's parts; between rounds, the loop calls `save_sometimes`."""
        super().setup()
        self.epoch.between_rounds = self.save_sometimes  # type: ignore[method-assign]

    def save_sometimes(self, epoch_ends: bool, save: bool = False) -> bool:
        """Save before every second block, and nothing else."""
        first = self.cfg.num_seed_frames // REPEAT + self.steps  # the first block of updates warms up
        if self.global_step < first or self.global_step % self.steps:
            return False
        end = time.perf_counter()
        if self.global_step > first:
            self.blocks.append(end - self._block_start)
        self._block_start = end
        if len(self.blocks) % 2:
            self.save_snapshot()
        return False


def measure(quick: bool = False) -> list[Row]:
    """Return a row for blocks without a snapshot and one for blocks with."""
    pairs, Timed.steps = (2, 4) if quick else (8, 20)
    blocks: list[float] = []

    def run(cfg: DictConfig, work_dir: Path) -> None:
        factory.prepare_machine(cfg)
        workspace = Timed(cfg, work_dir)
        try:
            workspace.train()
        finally:
            workspace.close()
        blocks.extend(workspace.blocks)

    seed_frames = 2 * EPISODE
    small = ("preset=debug", "image_size=84", "action_repeat=2") if quick else ("preset=paper",)
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            *small,
            f"hydra.run.dir={folder}",
            f"replay_buffer_num_workers={WORKERS}",
            "env._target_=benchmarks.baseline.pixels.short_cartpole",
            f"num_seed_frames={seed_frames}",
            f"num_train_frames={seed_frames + REPEAT * Timed.steps * (2 * pairs + 2)}",
            "eval_every_frames=1000000",
            "num_eval_episodes=1",
            "save_video=false",
            "save_train_video=false",
        ]
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the results
            launch(run, str(ROOT / "cfgs"), argv=argv)
    without, with_snapshot = blocks[0::2], blocks[1::2]
    extra = [1000 * (b - a) for a, b in zip(without, with_snapshot, strict=False)]
    rows = []
    for name, seconds, lost in (("none", without, [0.0] * len(extra)), ("one", with_snapshot, extra)):
        row = {"snapshots": name, **quartiles([1000 * s for s in seconds], "ms"), **quartiles(lost, "lost")}
        share = 100 * statistics.median(lost) / (1000 * EVERY)
        rows.append({**row, "share_percent": share, "repetitions": len(extra)})
    return rows


if __name__ == "__main__":
    main("snapshots", ABOUT, measure)
