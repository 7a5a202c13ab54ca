"""Short learning runs for the time that is left, which the next call resumes."""

from __future__ import annotations

import csv
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = Path(os.environ.get("RUNS") or ROOT / "exp_local" / "gpu")
# Command lines of the runs, separated by semicolons.
LEARN = os.environ.get("LEARN") or "; ".join(
    f"task={task} preset=paper" for task in ("cartpole_balance", "cheetah_run", "walker_walk")
)
# As in results/gpu, without the evaluation before the first update. imageio-ffmpeg, for videos, may be missing.
SETTING = (
    "seed=1 eval_every_frames=20000 eval_at_start=false save_video=false save_train_video=false use_tb=false "
    "console=plain"
).split()
STOPPED = (75, -signal.SIGTERM)  # exit status of a run that SIGTERM has stopped, and of one that had hardly begun
_SAVING = 10.0  # seconds that a run may take to stop
_RECENT = 10  # rows for the speed
_TICK = 1.0

Emit = Callable[[Mapping[str, Any]], None]


class Run:
    """A run of train.py, begun or resumed, and what it has written.

    Args:
        words: of its command line; its directory in RUNS is named after them, of the first two after the values.
    """

    _KINDS = ("train", "eval")

    def __init__(self, words: Sequence[str]) -> None:
        self.name = name_of(words)
        self.folder = RUNS / self.name
        self._seen = dict.fromkeys(self._KINDS, -1.0)  # frame of the last row that was returned
        before = self._rows("train") if (self.folder / "snapshot.pt").exists() else []
        self.resumed = before[-1]["frame"] if before else None  # frame, about
        arguments = [*SETTING, *words, f"hydra.run.dir={self.folder}"]
        self.process = subprocess.Popen([sys.executable, str(ROOT / "train.py"), *arguments], cwd=ROOT)

    def new_points(self) -> list[dict[str, str]]:
        """Return the rows of train.csv and eval.csv that are new, as points of the curves."""
        found = []
        for kind in self._KINDS:
            # By their frames: what a resumed run repeats is the same.
            rows = [row for row in self._rows(kind) if float(row["frame"]) > self._seen[kind]]
            found += [{"run": self.name, "kind": kind, **row} for row in rows]
            self._seen[kind] = float(rows[-1]["frame"]) if rows else self._seen[kind]
        return found

    def _rows(self, kind: str) -> list[dict[str, str]]:
        path = self.folder / f"{kind}.csv"
        if not path.exists():
            return []
        complete = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return list(csv.DictReader(complete))

    def summary(self) -> dict[str, Any]:
        """Return the run's row in the table: how far it is, how fast, and what it has learnt."""
        trained, evaluated = (self._rows(kind) for kind in self._KINDS)
        last, test = (trained or [{}])[-1], (evaluated or [{}])[-1]
        recent = [float(row["fps"]) for row in trained[-_RECENT:]]
        return {
            "run": self.name,
            "frames": _number(last, "frame"),
            "seconds": _number(last, "total_time"),
            "fps": statistics.median(recent) if recent else None,
            "training return": _number(last, "episode_reward"),
            "evaluated at frame": _number(test, "frame"),
            "evaluation return": _number(test, "episode_reward"),
        }


def train(emit: Emit, until: float, small: bool) -> None:
    """Train until the time is over, or until SIGTERM; all runs save a snapshot then.

    Args:
        emit: gets the points of the curves, and a row for each run.
        until: the time by the monotonic clock until which the last run has stopped.
        small: one run with preset=cpu, not those of LEARN, of which the default ones are as many as the GPU and the
            cores allow.
    """
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    left = until - time.monotonic()
    end = until - min(_SAVING, left / 2)
    from drqv2.system.machine import jobs_that_fit

    commands = command_lines(LEARN)
    if small:
        commands = [["task=cartpole_balance", "preset=cpu"]]
    elif not os.environ.get("LEARN"):
        commands = commands[: jobs_that_fit()]
    runs = [Run(words) for words in commands]
    shown = "; ".join(map(" ".join, commands))
    emit({"about": f"`python train.py {' '.join(SETTING)}` with {shown}: {len(runs)} at once, in {_shown(RUNS)}"})
    if any(run.resumed for run in runs):
        emit({"note": "Resumed: " + ", ".join(f"{run.name} at frame {run.resumed}" for run in runs if run.resumed)})
    while time.monotonic() < end and not stop and any(run.process.poll() is None for run in runs):
        _report(runs, emit)
        time.sleep(_TICK)
    for run in runs:
        run.process.terminate()  # a second signal does no harm
    for run in runs:
        run.process.wait()
    _report(runs, emit)
    if failed := [run.name for run in runs if run.process.returncode not in (0, *STOPPED)]:
        sys.exit(f"failed: {', '.join(failed)}")


def command_lines(text: str) -> list[list[str]]:
    """Return the words of each command line in a text that separates them by semicolons."""
    return [line.split() for line in text.split(";") if line.strip()]


def name_of(words: Sequence[str]) -> str:
    """Return a directory's name: the values of the first two words, then the others."""
    return "_".join([*(word.partition("=")[2] for word in words[:2]), *words[2:]]).replace("/", "-")


def _report(runs: list[Run], emit: Emit) -> None:
    for run in runs:
        if points := run.new_points():
            for point in points:
                emit({"curve": point})
            emit({"row": run.summary(), "key": run.name})


def _number(row: Mapping[str, str], name: str) -> float | None:
    return float(row[name]) if row.get(name) else None


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
