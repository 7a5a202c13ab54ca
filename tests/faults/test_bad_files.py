"""Damaged files of a run: told or harmless, nothing else lost, no traceback. `make soak` does 200."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from drqv2.snapshot import file as snapshot
from tests.faults.bad_files import damage, go_on, trial
from tests.faults.harness import differences, finish

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    finish(run_dir, "plain")
    return run_dir


@pytest.fixture(scope="module")
def longer(whole: Path) -> Path:
    run_dir = whole.parent / "longer"
    shutil.copytree(whole, run_dir)
    code, said = go_on(run_dir)
    assert code == 0, said
    return run_dir


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_told_or_harmless(whole: Path, longer: Path, tmp_path: Path, seed: int) -> None:
    done, became = trial(whole, longer, tmp_path / "run", random.Random(seed))
    assert became in ("told", "harmless"), done


def test_a_damaged_snapshot_gives_way_to_the_one_before_it(whole: Path, longer: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    damage(run_dir / "snapshot.pt", random.Random(1))
    code, said = go_on(run_dir)
    assert code == 0
    assert "moved to" in said
    assert "Going on from the snapshot before it" in said
    assert [p.name for p in (run_dir / "quarantine").iterdir()] == ["snapshot.pt"]
    assert [d for d in differences(longer, run_dir) if "quarantine" not in d] == []


def test_with_no_good_snapshot_nothing_is_touched(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    for name in ("snapshot.pt", "snapshot_previous.pt"):
        damage(run_dir / name, random.Random(1))
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p.name != "lock"}
    code, said = go_on(run_dir)
    assert code == 2
    assert "snapshot.pt: not a whole snapshot" in said
    assert before == {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p.name != "lock"}


def test_damaged_logs_are_made_anew(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    (run_dir / "train.csv").write_bytes(b"\xff\x00 nonsense")
    (run_dir / "eval.csv").unlink()
    code, said = go_on(run_dir, "num_train_frames=960")
    assert code == 0
    assert "train.csv: does not match what was logged" in said
    assert [d for d in differences(whole, run_dir) if "quarantine" not in d] == []


def test_a_damaged_episode_is_not_sampled(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    state = snapshot.load(run_dir / "snapshot.pt")["replay_storage"]
    for path in (run_dir / "buffer").iterdir():
        damage(path, random.Random(2))
    code, said = go_on(run_dir)
    assert code == 0
    assert said.count("its checksum is wrong, it is not sampled any more") == len(state["lengths"])
    assert "Traceback" not in said
