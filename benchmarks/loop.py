"""Frames a second of training as a whole: `python -m benchmarks.loop [--json]`."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from omegaconf import DictConfig

from benchmarks.baseline import loop, pixels
from benchmarks.baseline.learner import PlainDrQV2
from benchmarks.baseline.pixels import EPISODE, REPEAT
from benchmarks.common import Row, main, quartiles
from benchmarks.turns import alternate
from drqv2 import parts
from drqv2.launch import launch
from train import Workspace

ABOUT = "frames a second once updates have begun, the paper's settings; ratio: this over the baseline"
ROOT = Path(__file__).resolve().parents[1]
COLLECTING = 3  # short episodes before the first update
WORKERS = 1  # two cores have no room for the paper's four
STEPS = 10  # agent steps in a figure


def measure(quick: bool = False) -> list[Row]:
    """Return a row for the baseline and one for train.py with precision=auto."""
    sides = {"baseline": partial(plain_fps, quick), "train.py": partial(own_fps, quick)}
    fps = alternate(sides, seconds=0.0 if quick else 60.0)
    rows = []
    for name, values in fps.items():
        ratios = [own / slow for slow, own in zip(fps["baseline"], values, strict=True)]
        row = {"side": name, "task": "cartpole_balance_sparse", "batch_size": 16 if quick else 256}
        rows.append({**row, **quartiles(values, "fps"), **quartiles(ratios, "ratio"), "repetitions": len(values)})
    return rows


def plain_fps(quick: bool) -> Iterator[float]:
    """Yield the baseline's frames a second, in one run that waits in between."""
    env = pixels.wrap(pixels.short_cartpole(), camera=0)
    agent = PlainDrQV2((9, pixels.SIZE, pixels.SIZE), 1, hidden_dim=32 if quick else 1024)
    with tempfile.TemporaryDirectory() as folder:
        seed_steps = COLLECTING * EPISODE // REPEAT
        run = loop.train(env, agent, Path(folder), 16 if quick else 256, WORKERS, seed_steps)
        while True:
            begin = time.perf_counter()
            for _ in range(STEPS):
                next(run)
            yield REPEAT * STEPS / (time.perf_counter() - begin)


class Paced(Workspace):
    """A run that never evaluates, and that waits, once it learns, after every STEPS agent steps until it may go on."""

    asked: SimpleQueue[bool] = SimpleQueue()  # True: go on; False: enough
    seconds: SimpleQueue[float | None] = SimpleQueue()  # of the steps since; None: the run has ended
    _begun: float | None = None

    def train(self) -> None:
        """Train until nobody asks for more."""
        with contextlib.suppress(_EnoughError):
            super().train()

    def _evaluate_if_due(self) -> None:
        if self.seed_until_step(self.global_step) or self.global_step % STEPS:
            return
        if self._begun is not None:
            self.seconds.put(time.perf_counter() - self._begun)
        if not self.asked.get():
            raise _EnoughError
        self._begun = time.perf_counter()


class _EnoughError(Exception):
    pass


def own_fps(quick: bool) -> Iterator[float]:
    """Yield the frames a second of train.py's Workspace, in one run that waits in between.

    It takes whole episodes of the task, but for a quick look.
    """
    short = ("env._target_=benchmarks.baseline.pixels.short_cartpole", f"num_seed_frames={COLLECTING * EPISODE}")
    small = ("preset=debug", "image_size=84", "action_repeat=2", *short)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        argv = [
            *(small if quick else ("preset=paper", "num_seed_frames=1000")),
            f"hydra.run.dir={folder}",
            f"replay_buffer_num_workers={WORKERS}",
            "save_video=false",
            "save_train_video=false",
        ]
        training = pool.submit(_train, argv)
        training.add_done_callback(lambda _: Paced.seconds.put(None))
        try:
            while True:
                Paced.asked.put(True)
                seconds = Paced.seconds.get()
                if seconds is None:
                    return training.result()  # raises what ended it
                yield REPEAT * STEPS / seconds
        finally:
            Paced.asked.put(False)


def _train(argv: list[str]) -> None:
    def run(cfg: DictConfig, work_dir: Path) -> None:
        parts.settle_machine(cfg)
        workspace = Paced(cfg, work_dir)
        try:
            workspace.train()
        finally:
            workspace.close()

    with contextlib.redirect_stdout(io.StringIO()):
        launch(run, str(ROOT / "cfgs"), argv=argv)


if __name__ == "__main__":
    main("loop", ABOUT, measure)
