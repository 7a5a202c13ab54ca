"""Sweeps in real processes: side by side on this machine, as jobs of submitit, and on a cluster of two Ray nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from drqv2.run import factory as parts
from drqv2.system import files, machine
from tests.faults.harness import ROOT, SHORT, differences, finish


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(run_dir, "plain")
    return run_dir


def sweep(folder: Path, *argv: str, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "train.py", "-m", f"hydra.sweep.dir={folder}", *SHORT, *argv]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run_dirs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.yaml"))


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        if process.poll() is not None or time.monotonic() > until:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            pytest.fail(f"it did not come to it:\n{process.communicate()[0]}")
        time.sleep(0.05)


@pytest.mark.slow
def test_side_by_side(tmp_path, undisturbed):
    process = sweep(tmp_path / "sweep", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2")
    words = process.communicate()[0]
    assert process.returncode == 0, words
    one, two = run_dirs(tmp_path / "sweep")
    assert differences(undisturbed, one) == []
    assert "replay_storage" in differences(undisturbed, two)


@pytest.mark.slow
def test_a_mistake_in_one_job_leaves_the_others_alone(tmp_path):
    argv = ["seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    spoilt = tmp_path / "sweep" / "0_cartpole_balance_sparse_1"
    spoilt.mkdir(parents=True)
    (spoilt / "snapshot.pt").write_bytes(b"no snapshot")
    (spoilt / "config.yaml").write_text("seed: 7\n")
    process = sweep(tmp_path / "sweep", *argv)
    words = process.communicate()[0]
    assert process.returncode == 1
    assert "jobs failed" in words
    assert "0_cartpole_balance_sparse_1" in words
    assert "Traceback" not in words
    assert files.has_snapshot(tmp_path / "sweep" / "1_cartpole_balance_sparse_2")


@pytest.mark.slow
def test_a_job_that_is_preempted_is_requeued_and_ends_in_the_same_bits(tmp_path, undisturbed):
    process = sweep(tmp_path / "sweep", "hydra/launcher=submitit_local", "seed=1")  # requeues as Slurm does, here
    run_dir = tmp_path / "sweep" / "0_cartpole_balance_sparse_1"
    wait_for(lambda: (run_dir / "train.csv").exists(), process)
    jobs = psutil.Process(process.pid).children(recursive=True)
    (job,) = [child for child in jobs if "submitit.core._submit" in child.cmdline()]
    job.send_signal(signal.SIGTERM)  # as Slurm does first, and submitit lets go by
    job.send_signal(signal.SIGUSR2)
    words = process.communicate()[0]
    assert process.returncode == 0, words
    assert differences(undisturbed, run_dir) == []
    (log,) = (tmp_path / "sweep" / ".submitit").glob("*/*_0_log.err")
    assert "this job is preempted" in log.read_text()
    assert len((run_dir / "starts.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "job"),
    [
        (["joblib", "hydra.launcher.n_jobs=2"], "joblib.externals.loky.backend.popen_loky_posix"),
        (["submitit_local"], "submitit.core._submit"),
    ],
    ids=["joblib", "submitit"],
)
def test_a_job_that_is_killed_is_told(tmp_path, launcher, job):
    process = sweep(tmp_path / "sweep", f"hydra/launcher={launcher[0]}", *launcher[1:], "seed=1,2")
    wait_for(lambda: len(list((tmp_path / "sweep").glob("*/train.csv"))) == 2, process)
    jobs = psutil.Process(process.pid).children(recursive=True)
    next(child for child in jobs if job in child.cmdline()).kill()
    words = process.communicate()[0]
    assert process.returncode == 1, words
    assert "a job was lost" in words
    assert "Traceback" not in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "told"), [("slurm", "there is no Slurm here"), ("ray", "there is no Ray cluster")]
)
def test_no_cluster(tmp_path, launcher, told):
    if launcher == "slurm" and shutil.which("srun"):
        pytest.skip("there is a Slurm here")
    process = sweep(tmp_path / "sweep", f"hydra/launcher={launcher}", RAY_ADDRESS="")
    words = process.communicate()[0]
    assert process.returncode == 2, words
    assert told in words
    assert "Traceback" not in words


@pytest.mark.slow
def test_a_search_goes_on_after_a_trial_that_fails(tmp_path):
    spoilt = tmp_path / "sweep" / "0_cartpole_balance_sparse_1"
    spoilt.mkdir(parents=True)
    (spoilt / "snapshot.pt").write_bytes(b"no snapshot")
    (spoilt / "config.yaml").write_text("seed: 7\n")
    process = sweep(tmp_path / "sweep", "hydra/sweeper=search", "hydra.sweeper.n_trials=2", "lr=choice(1e-4,3e-4)")
    words = process.communicate()[0]
    assert process.returncode == 0, words
    assert "Traceback" not in words
    assert files.has_snapshot(tmp_path / "sweep" / "1_cartpole_balance_sparse_1")
    best = OmegaConf.load(tmp_path / "sweep" / "optimization_results.yaml")
    assert set(best.best_params) == {"lr"}


@pytest.mark.slow
def test_the_runs_of_a_lost_ray_node_go_on_on_the_other(tmp_path, undisturbed):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
        resources = ["hydra.launcher.ray.remote.num_cpus=2", "hydra.launcher.ray.remote.num_gpus=0"]
        argv = ["hydra/launcher=ray", *resources, "hydra.launcher.ray.remote.memory=null", "seed=1,2"]
        process = sweep(tmp_path / "sweep", *argv, RAY_ADDRESS=cluster.address)
        wait_for(lambda: len(list((tmp_path / "sweep").glob("*/train.csv"))) == 2, process)
        cluster.remove_node(nodes[0], allow_graceful=False)
        words = process.communicate()[0]
        assert process.returncode == 0, words
    finally:
        cluster.shutdown()
    one, two = run_dirs(tmp_path / "sweep")
    assert differences(undisturbed, one) == []
    starts = [len((run_dir / "starts.jsonl").read_text().splitlines()) for run_dir in (one, two)]
    assert sorted(starts) == [1, 2]


def test_jobs_that_fit(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 9.0)
    monkeypatch.setattr(machine, "memory", lambda: (64e9, 13e9))
    assert machine.jobs_that_fit() == 3  # memory
    monkeypatch.setattr(machine, "memory", lambda: (64e9, 60e9))
    assert machine.jobs_that_fit() == 4  # cores
    monkeypatch.setattr(machine, "cores", lambda: 1.0)
    assert machine.jobs_that_fit() == 1


def test_gpus_in_turn(monkeypatch):
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(HydraConfig, "initialized", lambda: True)
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    for job in range(3):
        monkeypatch.setattr(HydraConfig, "get", lambda job=job: {"job": {"num": job}})
        monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "")
        del os.environ["MUJOCO_EGL_DEVICE_ID"]
        parts._take_turns()
        assert os.environ["MUJOCO_EGL_DEVICE_ID"] == str(job % 2)
    assert taken == [0, 1, 0]
