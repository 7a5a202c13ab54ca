"""Sweeps in real processes: in parallel on this machine, as jobs of submitit, and on a cluster of two Ray nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import psutil
import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from drqv2.launch.jobs import explain_launcher
from drqv2.launch.overrides import PLUGINS
from drqv2.run import factory
from drqv2.system import machine
from tests.faults.harness import ROOT, SHORT, differences, finish
from tests.launch.harness import RUNS, refused, start

RESOURCES = {"num_cpus": 2, "num_gpus": 0, "memory": "null"}  # of one Ray task


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    finish(run_dir, "plain")
    return run_dir


def sweep(folder: Path, *argv: str, **env: str) -> subprocess.Popen[str]:
    """Start seeds 1 and 2 of the run that `undisturbed` is, in `folder`."""
    command = [sys.executable, "train.py", "-m", f"hydra.sweep.dir={folder}", *SHORT, "seed=1,2", *argv]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run_dirs(folder: Path) -> list[Path]:
    return [folder / f"{job}_cartpole_balance_sparse_{job + 1}" for job in range(2)]


def wait_for_rows(folder: Path, process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    """Wait until both runs have logged something."""
    until = time.monotonic() + seconds
    while not all((run_dir / "train.csv").exists() for run_dir in run_dirs(folder)):
        if process.poll() is not None or time.monotonic() > until:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            pytest.fail(f"the runs logged nothing:\n{process.communicate()[0]}")
        time.sleep(0.05)


def process_of(run_dir: Path) -> psutil.Process:
    return psutil.Process(int((run_dir / "lock").read_text().split()[1]))


def starts(run_dir: Path) -> int:
    return len((run_dir / "starts.jsonl").read_text().splitlines())


@pytest.mark.slow
def test_joblib(tmp_path, undisturbed):
    """One run ends in the bits of a single run, while the other one fails."""
    one, two = run_dirs(tmp_path)
    two.mkdir()
    (two / "snapshot.pt").write_bytes(b"no snapshot")
    (two / "config.yaml").write_text("seed: 7\n")
    process = sweep(tmp_path, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    output = process.communicate()[0]
    assert process.returncode == 1, output
    assert "jobs failed" in output
    assert two.name in output
    assert "Traceback" not in output
    assert differences(undisturbed, one) == []


@pytest.mark.slow
def test_submitit(tmp_path, undisturbed):
    """A preempted job is requeued and ends in the bits of a single run; a killed one is reported as lost."""
    process = sweep(tmp_path, "hydra/launcher=submitit_local")  # requeues as Slurm does, on this machine
    wait_for_rows(tmp_path, process)
    preempted, killed = run_dirs(tmp_path)
    process_of(killed).kill()
    job = process_of(preempted)
    job.send_signal(signal.SIGTERM)  # Slurm sends it first, and submitit ignores it
    job.send_signal(signal.SIGUSR2)
    output = process.communicate()[0]
    assert process.returncode == 1, output
    assert "a job was lost" in output
    assert "Traceback" not in output
    assert differences(undisturbed, preempted) == []
    assert any("this job is preempted" in log.read_text() for log in (tmp_path / ".submitit").glob("*/*_0_log.err"))
    assert starts(preempted) == 2


@pytest.mark.slow
def test_ray(tmp_path, undisturbed):
    """The runs of a lost node resume on the other one."""
    from ray.cluster_utils import Cluster

    from tests.rollout.ray_cluster import CONFIG, clusters

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": CONFIG}
    with clusters():
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
            argv = [f"hydra.launcher.ray.remote.{name}={value}" for name, value in RESOURCES.items()]
            process = sweep(tmp_path, "hydra/launcher=ray", *argv, RAY_ADDRESS=cluster.address)
            wait_for_rows(tmp_path, process)
            cluster.remove_node(nodes[0], allow_graceful=False)
            output = process.communicate()[0]
            assert process.returncode == 0, output
        finally:
            cluster.shutdown()
    one, two = run_dirs(tmp_path)
    assert differences(undisturbed, one) == []
    assert sorted((starts(one), starts(two))) == [1, 2]


@pytest.mark.slow
def test_no_cluster(capsys, monkeypatch):
    from tests.rollout.ray_cluster import clusters

    monkeypatch.setenv("RAY_ADDRESS", "")
    with clusters(none=True):
        assert "there is no Ray cluster here" in refused(capsys, "-m", "hydra/launcher=ray", "seed=1,2")
    if not shutil.which("srun"):
        assert "there is no Slurm here" in refused(capsys, "-m", "hydra/launcher=slurm", "seed=1,2")


def test_a_lost_process_of_joblib():
    with pytest.raises(Exception, match="terminated") as error:
        joblib.Parallel(n_jobs=2)([joblib.delayed(os._exit)(1)] * 2)
    told = explain_launcher(error.value, [])
    assert told is not None
    assert told.code == 1
    assert str(told).startswith("a job was lost: ")


@pytest.mark.slow
def test_a_search_continues_after_a_trial_that_fails(tmp_path):
    trials = ["hydra/sweeper=search", "hydra.sweeper.n_trials=2", "lr=choice(1e-4,3e-4)"]
    start("-m", "hydra.sweep.dir=sweep", "experiment=search", *trials)
    assert len(RUNS) == 2
    best = OmegaConf.load(tmp_path / "sweep" / "optimization_results.yaml")
    assert best.best_value == RUNS[1][0].lr


def test_a_search_needs_a_number(capsys):
    trials = ["-m", "hydra/sweeper=search", "hydra.sweeper.n_trials=1", "seed=choice(1,2)"]
    assert "objective=train/NAME" in refused(capsys, *trials, "eval_every_frames=null")


def test_plugins_that_are_not_installed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    for option, (_, extra) in PLUGINS.items():
        assert f"pip install -e '.[{extra}]'" in refused(capsys, "-m", option, "seed=1,2")


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
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "")  # what it was before the test comes back afterwards
    del os.environ["MUJOCO_EGL_DEVICE_ID"]
    monkeypatch.setattr(factory, "_assigned", {})
    for job in range(3):
        monkeypatch.setattr(HydraConfig, "get", lambda job=job: {"job": {"num": job}})
        factory._assign_gpu()
        assert os.environ["MUJOCO_EGL_DEVICE_ID"] == str(job % 2)
    assert taken == [0, 1, 0]
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "7")  # yours
    factory._assign_gpu()
    assert os.environ["MUJOCO_EGL_DEVICE_ID"] == "7"
