"""A whole run of regime=impala on a Ray cluster, one node of which is killed, and another one added."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.short_run import ROOT

pytest.importorskip("ray")
from tests.rollout.ray_cluster import add_node, kill_raylet, ray_cluster

pytestmark = pytest.mark.slow

# Steps take so long that the speed is that of the actors, each with two environments. The run goes on until the test
# ends it: how many rows it writes before Ray has seen that a node is dead depends on the machine.
RUN = (
    "regime=impala cluster=ray env._target_=tests.rollout.cartpole.Slow +env.seconds=0.005 task_name=slow_cartpole "
    "num_actors=2 num_envs=4 batch_size=4 unroll_length=20 eval_every_frames=1e9 num_eval_episodes=1 save_video=false "
    "log_every_seconds=0 actor_hang_seconds=10 agent.hidden_dim=8 total_timesteps=1e7"
).split()


def rows(run_dir: Path) -> list[dict[str, str]]:
    """Return the whole rows of train.csv so far."""
    path = run_dir / "train.csv"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return list(csv.DictReader(line for line in lines if line.endswith("\n")))


def restarts(run_dir: Path) -> float:
    return float(rows(run_dir)[-1]["actors_restarted"])


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, f"the run has ended: {log.read_text()}"
        assert time.monotonic() < end, f"it has not happened: {log.read_text()}"
        time.sleep(0.1)


def test_a_run_outlives_its_nodes_and_uses_new_ones(tmp_path: Path) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "log"
    with ray_cluster() as cluster, log.open("wb") as out:
        command = [sys.executable, "train.py", *RUN, f"cluster_address={cluster.address}", f"hydra.run.dir={run_dir}"]
        process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=out, stderr=out)
        try:
            until(lambda: len(rows(run_dir)) > 20, process, log)
            process.send_signal(signal.SIGSTOP)  # as a laptop's lid does
            time.sleep(13)
            process.send_signal(signal.SIGCONT)
            resumed = len(rows(run_dir))
            until(lambda: len(rows(run_dir)) > resumed + 10, process, log)
            assert restarts(run_dir) == 0
            victim = min(cluster.worker_nodes, key=lambda node: node.node_id)
            lost = len(rows(run_dir))
            kill_raylet(victim)
            until(lambda: restarts(run_dir) == 1 and len(rows(run_dir)) > lost + 20, process, log)
            cluster.remove_node(victim)
            found = len(rows(run_dir))
            add_node(cluster)
            until(lambda: rows(run_dir)[-1]["actors_running"] == "2.0", process, log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 75, log.read_text()
        finally:
            process.kill()
            process.wait()
    done = rows(run_dir)
    assert [int(row["frame"]) for row in done] == [80 * (i + 1) for i in range(len(done))]
    assert {row["actors_restarted"] for row in done} == {"0.0", "1.0"}
    assert "Traceback" not in log.read_text()

    running = [int(float(row["actors_running"])) for row in done]
    assert (running[lost - 1], min(running[lost:found]), running[-1]) == (2, 1, 2)
