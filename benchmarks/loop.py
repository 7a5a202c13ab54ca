"""Frames per second of the whole training loop: `python -m benchmarks.loop [--json]`."""

from __future__ import annotations

import contextlib
import io
import math
import multiprocessing as mp
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from omegaconf import DictConfig

from benchmarks.alternation import alternate
from benchmarks.baseline import loop, pixels
from benchmarks.baseline.learner import PlainDrQV2
from benchmarks.baseline.pixels import EPISODE, REPEAT
from benchmarks.common import Row, main, quartiles
from drqv2.launch.command_line import launch
from drqv2.run import factory
from drqv2.system import machine
from train import Workspace

ABOUT = "frames per second once updates have begun, with the paper's settings; ratio: speed-up over the baseline"
ROOT = Path(__file__).resolve().parents[1]
TASK = "cartpole_balance_sparse"
WORKERS = 4 if machine.cores() >= 8 else 1  # the paper has four, too many for two cores
STEPS = 10  # agent steps per measurement


def measure(quick: bool = False, within: float = math.inf) -> list[Row]:
    """Return a row for the baseline and one for train.py with precision=auto; `within` as in `alternate`."""
    sides = {"baseline": partial(plain_fps, quick), "train.py": partial(own_fps, quick)}
    seconds = 30.0 if torch.cuda.is_available() else 60.0
    fps = alternate(sides, 0.0 if quick else seconds, within=within)
    rows = []
    for name, values in fps.items():
        ratios = [own / slow for slow, own in zip(fps["baseline"], values, strict=True)]
        row = {"side": name, "task": TASK, "batch_size": 16 if quick else 256}
        rows.append({**row, **quartiles(values, "fps"), **quartiles(ratios, "ratio"), "repetitions": len(values)})
    return rows


def plain_fps(quick: bool) -> Iterator[float]:
    """Yield the baseline's frames per second, in one run that pauses in between."""
    env = pixels.wrap(pixels.short_cartpole(), camera=0) if quick else pixels.make(TASK, seed=1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    agent = PlainDrQV2((9, pixels.SIZE, pixels.SIZE), 1, device, hidden_dim=32 if quick else 1024)
    with tempfile.TemporaryDirectory() as folder:
        run = loop.train(env, agent, Path(folder), 16 if quick else 256, WORKERS, _seed_frames(quick) // REPEAT)
        while True:
            begin = time.perf_counter()
            for _ in range(STEPS):
                next(run)
            yield REPEAT * STEPS / (time.perf_counter() - begin)


def own_fps(quick: bool) -> Iterator[float]:
    """Yield the frames per second of train.py's Workspace, in one run that pauses in between; raises as `run_fps`."""
    short = ("env._target_=benchmarks.baseline.pixels.short_cartpole", "image_size=84", "action_repeat=2")
    setting = ("preset=debug", *short) if quick else ("preset=paper", f"task={TASK}")
    return run_fps([*setting, f"num_seed_frames={_seed_frames(quick)}"], REPEAT)


def run_fps(overrides: Sequence[str], frames: int) -> Generator[float, None, None]:
    """Yield the frames per second of a run, which pauses in between.

    Args:
        overrides: its command line.
        frames: environment frames in a round of its loop.

    Raises:
        RuntimeError: the run fails; its traceback is on stderr.
    """
    # In a separate process, so that the run has the main thread, as with train.py.
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        machine.limit_openmp_spinning()  # inherited by the process; train.py does the same
        pipe, child_pipe = context.Pipe()
        process = context.Process(target=_train, args=(list(overrides), folder, child_pipe))
        process.start()
        child_pipe.close()
        try:
            while True:
                pipe.send(True)
                yield frames * STEPS / pipe.recv()
        except (EOFError, BrokenPipeError):
            raise RuntimeError("the run has failed; see its output on stderr") from None
        finally:
            pipe.close()
            process.join()


class Paced(Workspace):
    """A run that never evaluates and that, once it learns, waits after every STEPS rounds of its loop for a message.

    Attributes:
        pipe: receives a message to continue; sends the seconds that the steps took.
    """

    pipe: Connection
    _block_start: float | None = None

    def setup(self) -> None:
        """Make the run's parts; between rounds, the loop calls `wait`."""
        super().setup()
        self.epoch.between_rounds = self.wait  # type: ignore[method-assign]

    def wait(self, epoch_ends: bool, save: bool = False) -> bool:
        """Wait until the next steps may be taken; evaluate and save nothing."""
        if self.seed_until_step(self.global_step) or self.global_step % (STEPS * self.round_steps):
            return False
        if self._block_start is not None:
            self.pipe.send(time.perf_counter() - self._block_start)
        with self.timer.paused():
            self.pipe.recv()
        self._block_start = time.perf_counter()
        return False


def _train(overrides: Sequence[str], folder: str, pipe: Connection) -> None:
    def run(cfg: DictConfig, work_dir: Path) -> None:
        factory.prepare_machine(cfg)
        workspace = Paced(cfg, work_dir)
        workspace.pipe = pipe
        try:
            with contextlib.suppress(EOFError):  # the benchmark is over
                workspace.train()
        finally:
            workspace.close()

    argv = [
        *overrides,
        f"hydra.run.dir={folder}",
        f"replay_buffer_num_workers={WORKERS}",
        "save_video=false",
        "save_train_video=false",
        "eval_every_frames=null",
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        launch(run, str(ROOT / "cfgs"), argv=argv)


def _seed_frames(quick: bool) -> int:
    return 3 * EPISODE if quick else 1000 * WORKERS  # an episode for each of the baseline's workers


if __name__ == "__main__":
    main("loop", ABOUT, measure)
