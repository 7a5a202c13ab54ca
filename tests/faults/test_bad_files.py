"""Damaged files of a run are reported or harmless, and nothing else is lost. `make soak` damages 200."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from drqv2.snapshot import file as snapshot
from tests.faults.bad_files import damage, resume, trial
from tests.faults.harness import differences

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def longer(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("longer") / "run"
    shutil.copytree(whole, run_dir)
    code, said = resume(run_dir)
    assert code == 0, said
    return run_dir


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("kind", ["snapshot_previous.pt", "metrics.jsonl", "starts.jsonl", "config.yaml", "tb/*"])
def test_damage_is_reported_or_harmless(whole: Path, longer: Path, tmp_path: Path, kind: str) -> None:
    done, became = trial(whole, longer, tmp_path / "run", random.Random(kind), [kind])
    assert became in ("told", "harmless"), done


def test_a_damaged_snapshot_gives_way_to_the_one_before_it(longer: Path, run_dir: Path) -> None:
    damage(run_dir / "snapshot.pt", random.Random(1))
    code, said = resume(run_dir)
    assert code == 0
    assert "snapshot.pt" in said
    assert [p.name for p in (run_dir / "quarantine").iterdir()] == ["snapshot.pt"]
    assert [d for d in differences(longer, run_dir) if "quarantine" not in d] == []


def test_with_no_good_snapshot_nothing_is_touched(run_dir: Path) -> None:
    for name in ("snapshot.pt", "snapshot_previous.pt"):
        damage(run_dir / name, random.Random(1))
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p.name != "lock"}
    code, said = resume(run_dir)
    assert code == 2
    assert "snapshot.pt" in said
    assert before == {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file() and p.name != "lock"}


def test_damaged_logs_are_written_anew(whole: Path, run_dir: Path) -> None:
    (run_dir / "train.csv").write_bytes(b"\xff\x00 nonsense")
    (run_dir / "eval.csv").unlink()
    code, said = resume(run_dir, "num_train_frames=480")
    assert code == 0
    assert "train.csv" in said
    assert [d for d in differences(whole, run_dir) if "quarantine" not in d] == []


def test_damaged_episodes_are_not_sampled(run_dir: Path) -> None:
    state = snapshot.load(run_dir / "snapshot.pt")["replay_storage"]
    for path in (run_dir / "buffer").iterdir():
        damage(path, random.Random(2))
    code, said = resume(run_dir)
    assert code == 0
    assert said.count("checksum") == len(state["lengths"])
    assert "Traceback" not in said
