"""Runs that are killed end as if they had not been; `make soak` is the long form."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from drqv2.snapshot import file as snapshot
from drqv2.system.files import SNAPSHOTS
from tests.faults.harness import BOUNDARIES, differences, finish, forked, kill_at_boundary, kill_at_random, start
from tests.patience import PATIENCE
from tests.short_run import rows

pytestmark = pytest.mark.slow


def kill_twice_and_finish(run_dir: Path, mode: str, boundary: str, count: int) -> None:
    """Kill a run soon after it has been set up, then the resumed one at a boundary."""
    assert kill_at_random(run_dir, mode, random.Random(mode), seconds=0.3, shorter=True)
    assert kill_at_boundary(run_dir, mode, boundary, count, shorter=True)
    finish(run_dir, mode, shorter=True)


def test_a_killed_run_ends_in_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """With workers and overlap, which change nothing, so that its reference is the plain run."""
    assert set(BOUNDARIES) >= {".pt: old one moved", ".csv: row written"}
    kill_twice_and_finish(tmp_path / "victim", "overlap", ".pt: old one moved", 2)
    assert differences(whole, tmp_path / "victim") == []


# Of images and vectors, where there is a choice: `make soak` kills those of one image, too.
OTHERS = ["parts", "PPO of parts", "IMPALA", "multitask of parts", "parts offline", "SPQ", "SPQ offline"]


@pytest.mark.parametrize("regime", OTHERS)
def test_a_killed_run_of_another_regime_ends_in_the_same_bits(regime: str, tmp_path: Path) -> None:
    """IMPALA's with one actor, in turn with the learner."""
    finish(tmp_path / "reference", regime, shorter=True)
    kill_twice_and_finish(tmp_path / "victim", regime, ".csv: row written", 3)
    assert differences(tmp_path / "reference", tmp_path / "victim") == []


def test_a_killed_run_of_several_environments_ends_in_the_same_bits(whole: Path, tmp_path: Path) -> None:
    mode = "3 environments"
    finish(tmp_path / "reference", mode, shorter=True)
    kill_twice_and_finish(tmp_path / "victim", mode, ".csv: row written", 3)
    assert differences(tmp_path / "reference", tmp_path / "victim") == []
    # The comparison does see a difference, where there is one.
    assert {"agent", "train.csv", "TensorBoard"} <= set(differences(whole, tmp_path / "victim"))


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "the run has ended"
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.05)


def wait_for_rows(path: Path, number: int, process: subprocess.Popen[bytes]) -> None:
    until(lambda: number == 0 or (path.exists() and path.read_text().count("\n") > number), process)


def test_actors_end_with_a_killed_learner_and_the_resumed_run_starts_others(tmp_path: Path) -> None:
    run_dir, rng, frames = tmp_path / "run", random.Random(0), [0]
    for more in (0, 40, 0):  # rows of the log; without any, the actors are just starting
        process = start(run_dir, "actors")
        until(lambda pid=process.pid: len(forked(pid)) == 2, process)  # type: ignore[misc]
        others = psutil.Process(process.pid).children(recursive=True)
        wait_for_rows(run_dir / "train.csv", more and frames[-1] // 48 + more, process)
        time.sleep(rng.uniform(0.0, 1.0))
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(others, timeout=60)
        assert alive == []
        pids = [process.pid, *(one.pid for one in others)]
        assert [path for path in Path("/dev/shm").iterdir() if any(f"_{pid}_" in path.name for pid in pids)] == []
        newest = next((run_dir / name for name in SNAPSHOTS if (run_dir / name).exists()), None)
        frames.append(0 if newest is None else snapshot.load(newest)["frame"])
    words = finish(run_dir, "actors")
    assert "actors: 2 processes" in words
    assert "begin new episodes; rollouts in flight are lost" in words
    assert [json.loads(line)["frame"] for line in (run_dir / "starts.jsonl").read_text().splitlines()] == frames
    assert frames == sorted(frames)
    assert frames[-1] > 0
    assert [int(row["frame"]) for row in rows(run_dir, "train")] == list(range(48, 14401, 48))
