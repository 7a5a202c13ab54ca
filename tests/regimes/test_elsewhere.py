"""A regime that a file elsewhere defines: its help, its checks, whole runs, resumes and evaluations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import eval as evaluation
import report
import train
from drqv2.config import schema
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from tests.short_run import rows

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "elsewhere"
CHOSEN = [f"regime_dir={HERE}", "regime=climb"]
SHORT = (
    "task=cartpole_balance overlap=false device=cpu console=off use_tb=false save_video=false action_repeat=20 "
    "max_episode_steps=10 num_train_frames=1000 eval_every_frames=500 num_eval_episodes=1 snapshot_every_seconds=0"
).split()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """No other test knows this regime."""
    yield
    schema.REGIMES.pop("climb", None)
    schema.every_key.cache_clear()


def run(run_dir: Path, *overrides: str) -> Path:
    launch(train.main, "cfgs", argv=[*CHOSEN, *SHORT, f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


def test_it_runs_resumes_and_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run(tmp_path / "whole", "agent.noise=0.5")
    returns = [float(row["episode_reward"]) for row in rows(whole, "train")]
    assert len(returns) == 4
    assert len(set(returns)) > 1
    assert [float(row["frame"]) for row in rows(whole, "eval")] == [0, 500, 1000]

    part = run(tmp_path / "part", "agent.noise=0.5", "num_train_frames=500")
    schema.REGIMES.pop("climb")  # as in a process of its own
    launch(train.main, "cfgs", argv=[f"resume={part}", "num_train_frames=1000"])
    for name in ("episode_reward", "frame"):
        assert [row[name] for row in rows(part, "train")] == [row[name] for row in rows(whole, "train")]

    capsys.readouterr()
    evaluation.main([str(whole), "episodes=1", "film=none", f"out={tmp_path}"])
    assert "cartpole_balance" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:  # a file alone may come from anybody
        evaluation.main([str(whole / "snapshot.pt"), "episodes=1", "film=none", f"out={tmp_path}"])
    assert refused.value.code == 2
    assert "names code to run" in capsys.readouterr().err
    report.main([str(whole), f"out={tmp_path / 'report.html'}"])
    assert "cartpole_balance" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_its_keys_are_described_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run(
        [sys.executable, "train.py", *CHOSEN, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "regime: climb (hill climbing, linear policies from states; its keys are below)" in done.stdout
    assert "Standard deviation of a change of weights. [a number above 0; default 0.1]" in " ".join(done.stdout.split())
    for wrong, message in (
        ("agent.noise=0", "agent.noise=0: must be a number above 0"),
        ("num_envs=2", "num_envs=2: regime=climb has one environment"),
        ("nstep=3", "nstep: is a key of regime=drqv2 and"),
    ):
        with pytest.raises(UserError, match=message):
            train.compose(*CHOSEN, wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must define REGIME = Regime\(name='mine'"),
        ("from drqv2.config.regimes.drqv2 import REGIME", r"must define REGIME = Regime\(name='mine'"),
    ],
)
def test_files_without_a_regime(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UserError, match=message):
        train.compose(f"regime_dir={tmp_path}", "regime=mine")
    with pytest.raises(UserError, match="regime=other: there is no such regime"):
        train.compose(f"regime_dir={tmp_path}", "regime=other")
