"""tools/impala.sbatch on two nodes of Ray on this machine, with stand-ins for srun and scontrol: there is no Slurm."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then echo 127.0.0.1; echo other; else echo "$@" > requeued; fi
"""
RAY = "#!/bin/bash\n[[ $1 == status ]] || exec sleep 1000\n"
RUN = """import os, pathlib, signal
signal.signal(signal.SIGUSR2, lambda *_: os._exit(75))
pathlib.Path("runs").touch()
signal.pause()
"""
ENDED = """import os, pathlib, signal, time
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
pathlib.Path("runs").touch()
time.sleep(0.3)
os._exit(3)
"""
SHORT = (
    "env_id=gymnasium:CartPole-v1 batch_size=4 unroll_length=20 eval_every_frames=100000000 num_eval_episodes=1 "
    "save_video=false use_tb=false agent.hidden_dim=8 log_every_seconds=0"
).split()


@pytest.fixture
def temporary() -> Iterator[str]:
    """Yield a directory with a name that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield folder


def start(project: Path, temporary: str, *words: str) -> subprocess.Popen[str]:
    commands = project / "commands"
    commands.mkdir(exist_ok=True)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    for name in ("train.py", "cfgs", "drqv2"):
        if not (project / name).exists():
            (project / name).symlink_to(ROOT / name)
    job = {"JOB_NUM_NODES": 2, "CPUS_PER_TASK": 2, "JOB_ID": os.getpid(), "JOB_NODELIST": "2", "SUBMIT_DIR": project}
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {f"SLURM_{name}": str(value) for name, value in job.items()} | {"PATH": path}
    env |= {"LEARNER_CPUS": "1", "ENVS_PER_ACTOR": "2", "TMPDIR": temporary}
    command = ["bash", str(ROOT / "tools" / "impala.sbatch"), *SHORT, *words]
    return subprocess.Popen(command, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_rows(table: Path, job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not table.exists() or len(table.read_text().splitlines()) < 3:
        assert job.poll() is None, job.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_cancelled_job_stops_the_run_and_is_not_requeued(tmp_path: Path, temporary: str) -> None:
    """With stand-ins for Ray and for the run, which is stopped as the one below is."""
    job = started(tmp_path, temporary, RUN)
    job.terminate()
    output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 75, output
    assert not (tmp_path / "requeued").exists()


def test_the_status_of_a_run_survives_any_number_of_signals(tmp_path: Path, temporary: str) -> None:
    job = started(tmp_path, temporary, ENDED)
    deadline = time.monotonic() + PATIENCE
    while job.poll() is None and time.monotonic() < deadline:
        job.terminate()
        time.sleep(0.002)
    output, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 3, output


def started(project: Path, temporary: str, run: str) -> subprocess.Popen[str]:
    """Start a job with stand-ins for Ray and for the run, and return it when that runs."""
    (project / "train.py").write_text(run)
    (project / "commands").mkdir()
    (project / "commands" / "ray").write_text(RAY)
    (project / "commands" / "ray").chmod(0o755)
    job = start(project, temporary)
    deadline = time.monotonic() + PATIENCE
    try:
        while not (project / "runs").exists():
            assert job.poll() is None, job.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
    except BaseException:
        job.terminate()
        raise
    return job


def test_a_job_ends_requeues_itself_and_resumes(tmp_path: Path, temporary: str) -> None:
    table = tmp_path / "exp_local" / f"slurm_{os.getpid()}" / "train.csv"
    jobs = [start(tmp_path, temporary, "total_timesteps=100000000")]
    try:
        wait_for_rows(table, jobs[0])
        jobs[0].send_signal(signal.SIGUSR2)  # as Slurm does before the limit of time
        output, _ = jobs[0].communicate(timeout=PATIENCE)
        assert jobs[0].returncode == 75, output
        assert "actors: 3 processes, each with 2 environments" in output
        assert (tmp_path / "requeued").read_text().split() == ["requeue", str(os.getpid())]

        steps = int(list(csv.DictReader(table.read_text().splitlines()))[-1]["step"])
        (tmp_path / "requeued").unlink()
        jobs.append(start(tmp_path, temporary, f"total_timesteps={steps + 400}"))
        output, _ = jobs[1].communicate(timeout=PATIENCE)
        assert jobs[1].returncode == 0, output
        assert f"resumed {table.parent} at frame " in output
        assert not (tmp_path / "requeued").exists()
    finally:
        for job in jobs:
            job.terminate()
            job.communicate(timeout=PATIENCE)
