"""Whole runs that are interrupted, resumed, refused or stopped."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import replay_buffer
import train
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.errors import DiskError
from drqv2.run.epochs import Epochs
from drqv2.run.stats import EvalStats
from drqv2.snapshot import file as snapshot
from drqv2.system import files
from tests.patience import PATIENCE
from tests.short_run import FULL, ROOT, SHORT, assert_same, resume, rows, run
from tests.system.test_files import holder


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first third of a run; tests resume copies of it."""
    return run(tmp_path_factory.mktemp("started") / "run", "num_train_frames=160")


def test_an_interrupted_run_ends_in_the_same_bits(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Exception):
        pass

    add = replay_buffer.ReplayBufferStorage.add
    left = 130  # a few steps into an episode, after the first eviction

    def add_and_break(self: Any, *args: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Interrupted
        add(self, *args)

    with monkeypatch.context() as m:
        m.setattr(replay_buffer.ReplayBufferStorage, "add", add_and_break)
        with pytest.raises(Interrupted):
            run(tmp_path / "run")
    resume(tmp_path / "run")
    assert_same(straight, tmp_path / "run")


@pytest.mark.slow
def test_a_run_interrupted_between_an_update_and_its_diagnostics_ends_in_the_same_bits(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Exception):
        pass

    between_rounds = Epochs.between_rounds

    def save_and_break(self: Epochs, epoch_ends: bool, save: bool = False) -> bool:
        step = self.run.progress.step
        between_rounds(self, epoch_ends, save=step == 119)  # updates come at even steps, a diagnosis at step 120
        if step == 119:
            raise Interrupted
        return False

    with monkeypatch.context() as m:
        m.setattr(Epochs, "between_rounds", save_and_break)
        with pytest.raises(Interrupted):
            run(tmp_path / "run")
    assert snapshot.load(tmp_path / "run" / "snapshot.pt")["frame"] == 238
    resume(tmp_path / "run")
    assert_same(straight, tmp_path / "run")


@pytest.mark.slow
def test_a_run_made_longer_by_a_resume_is_the_same_run(
    straight: Path, started: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = Path(shutil.copytree(started, tmp_path / "run"))
    run(run_dir)  # the same directory again is a resume
    assert_same(straight, run_dir)
    out = capsys.readouterr().out
    assert "num_train_frames 160 -> 480" in out
    assert OmegaConf.load(run_dir / "config.yaml").num_train_frames == 480  # what the next resume begins with


@pytest.mark.parametrize(
    ("by_directory", "override", "named"),
    [
        (True, "batch_size=4", "batch_size 8 -> 4"),
        (True, "agent.stddev_clip=null", "agent.stddev_clip"),
        (True, "nstep=1", "nstep 3 -> 1"),
        (False, "task=cartpole_balance", "task_name cartpole_balance_sparse -> cartpole_balance"),
        (False, "seed=5", "seed 1 -> 5"),
        (False, "image_size=48", "image_size 32 -> 48"),
    ],
)
def test_a_resume_that_would_learn_otherwise_is_refused(
    straight: Path, capsys: pytest.CaptureFixture[str], by_directory: bool, override: str, named: str
) -> None:
    before = {p: p.read_bytes() for p in straight.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(SystemExit) as leaving:
        (resume if by_directory else run)(straight, override)
    assert leaving.value.code == 2
    assert named in capsys.readouterr().err
    assert before == {p: p.read_bytes() for p in straight.rglob("*") if p.is_file() and p.name != "lock"}


def test_a_forced_resume_takes_other_settings(started: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(started, tmp_path / "run"))
    forced = ["resume_force=true", "lr=0.01", "agent.critic_target_tau=0.5", "num_train_frames=180"]
    resume(run_dir, *forced)
    agent = snapshot.load(run_dir / "snapshot.pt")["agent"]["children"]
    assert agent["critic_target_tau"] == 0.5
    assert "0.01" in str(agent["critic_opt"])
    resume(run_dir, "num_train_frames=200")  # what was forced is its own now
    assert OmegaConf.load(run_dir / "config.yaml").resume_force is False


@pytest.mark.slow
@pytest.mark.parametrize("at", ["save_snapshot", "act"])
def test_a_forced_setting_is_not_asked_for_again_after_a_kill(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    class Killed(Exception):
        pass

    def kill(*_: object) -> None:
        raise Killed

    run_dir = Path(shutil.copytree(started, tmp_path / "run"))
    with monkeypatch.context() as m:
        m.setattr(train.Workspace, at, kill)
        with pytest.raises(Killed):
            resume(run_dir, "resume_force=true", "lr=0.01", "num_train_frames=200")
    resume(run_dir)
    assert "0.01" in str(snapshot.load(run_dir / "snapshot.pt")["agent"]["children"]["critic_opt"])
    assert OmegaConf.load(run_dir / "config.yaml").resume_force is False


@pytest.mark.parametrize("why", ["a full disk", "save_snapshot=false"])
def test_a_forced_setting_is_not_asked_for_again_where_no_snapshot_holds_it(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def full(*_: object, **how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_dir = Path(shutil.copytree(started, tmp_path / "run"))
    forced = ["resume_force=true", "lr=0.01", "num_train_frames=200"]
    if why == "a full disk":
        with monkeypatch.context() as m:
            m.setattr(snapshot, "save", full)
            with pytest.raises(SystemExit) as leaving:
                resume(run_dir, *forced)
        assert leaving.value.code == DiskError.code
    else:
        resume(run_dir, *forced, why)
    resume(run_dir, "save_snapshot=true")
    assert "0.01" in str(snapshot.load(run_dir / "snapshot.pt")["agent"]["children"]["critic_opt"])
    assert OmegaConf.load(run_dir / "config.yaml").resume_force is False


def test_what_nobody_forced_is_still_refused_later(
    started: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = Path(shutil.copytree(started, tmp_path / "run"))
    resume(run_dir, "save_snapshot=false", "num_train_frames=200")  # both may change freely
    with pytest.raises(SystemExit):
        resume(run_dir, "batch_size=4")
    assert "batch_size" in capsys.readouterr().err


def test_resuming_a_finished_run_changes_nothing(straight: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(straight, tmp_path / "run"))
    resume(run_dir)
    assert_same(straight, run_dir)


def test_a_resume_chooses_its_precision(tmp_path: Path) -> None:
    run_dir = run(tmp_path / "run", "precision=bf16", "num_train_frames=130")
    resume(run_dir, "precision=fp32", "num_train_frames=140")
    agent = snapshot.load(run_dir / "snapshot.pt")["agent"]["children"]
    assert agent["precision"] == "fp32"


@pytest.mark.slow
def test_a_run_stopped_within_an_evaluation_repeats_it(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    act = DrQV2Agent.act
    left = 10

    def act_and_signal(self: DrQV2Agent, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        nonlocal left
        left -= eval_mode and step == 80
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        return act(self, obs, step, eval_mode)

    with monkeypatch.context() as m:
        m.setattr(DrQV2Agent, "act", act_and_signal)
        with pytest.raises(SystemExit) as leaving:
            run(tmp_path / "run")
    assert leaving.value.code == 75
    assert "SIGTERM" in capsys.readouterr().err
    saved = snapshot.load(tmp_path / "run" / "snapshot.pt")
    assert saved["frame"] == 160
    assert saved["progress"]["evaluations"] == 1
    resume(tmp_path / "run")
    assert_same(straight, tmp_path / "run")


def test_a_run_in_use_is_refused(straight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holder(straight) as process:  # the lock is a process's own
        with pytest.raises(SystemExit) as leaving:
            run(straight)
        process.kill()
    assert leaving.value.code == 2
    assert f"process {process.pid}" in capsys.readouterr().err


@pytest.mark.slow
def test_replay_deleted_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = run(tmp_path / "run", "keep_replay=false", "num_train_frames=240")
    assert not (run_dir / "buffer").exists()
    assert "deleted" in capsys.readouterr().out
    before = (run_dir / "snapshot.pt").read_bytes()
    run(run_dir, "keep_replay=false", "num_train_frames=240")
    assert "nothing left to do" in capsys.readouterr().out
    assert (run_dir / "snapshot.pt").read_bytes() == before
    with pytest.raises(SystemExit) as leaving:
        resume(run_dir, "num_train_frames=480")
    assert leaving.value.code == 2
    assert "keep_replay" in capsys.readouterr().err


def test_a_kill_while_the_replay_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(name: str) -> None:
        if name == "folder: renamed":
            raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(files, "crash_point", die)
        with pytest.raises(SystemExit):
            run(tmp_path / "run", "keep_replay=false", "num_train_frames=120")
    assert (tmp_path / "run" / ".buffer.tmp").exists()
    run(tmp_path / "run", "keep_replay=false", "num_train_frames=120")
    assert not (tmp_path / "run" / ".buffer.tmp").exists()
    assert not (tmp_path / "run" / "buffer").exists()


@pytest.mark.slow
def test_a_lost_replay_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = run(tmp_path / "run", "num_train_frames=120")
    with monkeypatch.context() as m:  # stopped before its end
        m.setattr(train.Workspace, "update", lambda self: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            run(run_dir, "num_train_frames=480")
    shutil.rmtree(run_dir / "buffer")
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        run(run_dir, "num_train_frames=480")
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert "replay" in err
    assert "init_from=" in err


@pytest.mark.slow
def test_a_failure_at_the_end_keeps_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = train.Workspace.eval

    def fail_at_the_end(self: train.Workspace) -> EvalStats:
        if self.global_step > 0:
            raise OSError("no space left on device")
        return evaluate(self)

    with monkeypatch.context() as m:
        m.setattr(train.Workspace, "eval", fail_at_the_end)
        with pytest.raises(OSError, match="no space"):
            run(tmp_path / "run", "keep_replay=false", "num_train_frames=120", "eval_every_frames=1000")
    assert list((tmp_path / "run" / "buffer").iterdir())
    run(tmp_path / "run", "keep_replay=false", "num_train_frames=120", "eval_every_frames=1000")
    assert rows(tmp_path / "run", "eval")[-1]["frame"] == "120"


@pytest.mark.slow
def test_leftovers_of_a_run_without_a_snapshot_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = run(tmp_path / "run", "num_train_frames=240")
    for snapshot_file in run_dir.glob("snapshot*.pt"):
        snapshot_file.unlink()
    with pytest.raises(SystemExit):
        run(run_dir, "num_train_frames=60", "seed=2")
    assert "a new run would delete them" in capsys.readouterr().err
    for weights in set(run_dir.glob("weights_*.pt")) - {run_dir / "weights_0.pt"}:
        weights.unlink()
    with pytest.raises(SystemExit):
        run(run_dir, "num_train_frames=60", "seed=2")
    evaluations = run_dir / "eval.csv"  # as if killed before the first snapshot was written
    evaluations.write_text("".join(evaluations.read_text().splitlines(keepends=True)[:2]))
    run(run_dir, "num_train_frames=60", "seed=2")
    assert [p.name for p in (run_dir / "buffer").iterdir()] == ["episode_00000000.safetensors"]


def test_half_written_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    run_dir = run(tmp_path / "run", "num_train_frames=60", "save_train_video=true")
    left = [run_dir / ".train.csv.1.tmp", run_dir / "train_video" / ".tmp-1-0.mp4"]
    left.append(run_dir / "buffer" / ".episode_00000000.safetensors.1.tmp")
    for path in left:
        path.touch()
    run(run_dir, "num_train_frames=120", "save_train_video=true")
    assert not any(path.exists() for path in left)


def processes_of(session: int) -> list[str]:
    """Return the command lines of a session's processes, of those that are over and not yet waited for apart."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_run_leaves_no_process_and_can_be_resumed(
    reference: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """A scheduler signals every process of a job; a terminal, every process of the foreground."""
    run_dir = tmp_path / "a run, with = in its name"
    processes = ["replay_buffer_num_workers=2", "overlap=true"]
    process = subprocess.Popen(
        [sys.executable, "train.py", *SHORT, *FULL, f"hydra.run.dir={run_dir}", *processes],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    table = run_dir / "train.csv"
    while process.poll() is None and not (table.exists() and table.read_text().count("\n") > 4):
        time.sleep(0.05)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, err
    assert number.name in err
    assert "Traceback" not in err
    end = time.monotonic() + PATIENCE
    while processes_of(process.pid):
        assert time.monotonic() < end, processes_of(process.pid)
        time.sleep(0.1)
    resume(run_dir)
    assert_same(reference, run_dir)
