"""Each benchmark runs and prints what it promises. No figure is compared with anything: machines differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MACHINE = {"cpu", "cores", "torch_threads", "gpu", "renderer", "load", "python", "torch", "mujoco", "dm-control"}
TIMED = {"ms", "ms_25", "ms_75", "repetitions"}
KEYS = {
    "learner": {"preset", "device", "batch_size", "image_size", "feature_dim", "hidden_dim"} | TIMED,
    "replay": {"workers", "batch_size", "megabytes", "copy_ms"} | TIMED,
    "env": {"task", "image_size", "render_ms", "physics_ms"} | TIMED,
    "loop": {"preset", "task", "episode_frames", "frames", "collecting_fps", "learning_fps"},
}
CASES = {
    "learner": ("preset", ["paper", "cpu"]),
    "replay": ("workers", [0, 1]),
    "env": ("task", ["cartpole_balance_sparse", "cheetah_run", "quadruped_walk", "humanoid_walk"]),
    "loop": ("preset", ["debug"]),
}


def bench(module: str, *options: str) -> str:
    command = [sys.executable, "-m", module, "--quick", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(results: dict[str, Any], names: set[str]) -> None:
    assert set(results) == {"machine", *names}
    assert set(results["machine"]) >= MACHINE
    for name in names:
        column, cases = CASES[name]
        assert [row[column] for row in results[name]] == cases
        for row in results[name]:
            assert set(row) == KEYS[name]
            assert all(value > 0 for key, value in row.items() if key.endswith(("ms", "_25", "_75", "fps")))
            assert row.get("ms_25", 0) <= row.get("ms", 0) <= row.get("ms_75", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_json_holds_what_is_promised(name: str) -> None:
    check(json.loads(bench(f"benchmarks.{name}", "--json")), {name})


@pytest.mark.slow
def test_one_table_for_people() -> None:
    lines = bench("benchmarks.replay").splitlines()
    assert lines[0].startswith("cpu ")
    header = lines.index(next(line for line in lines if line.startswith("replay: "))) + 1
    assert set(lines[header].split()) == KEYS["replay"]
    assert [line.split()[0] for line in lines[header + 1 :]] == ["0", "1"]


@pytest.mark.slow
def test_all_together() -> None:
    check(json.loads(bench("benchmarks", "--json")), set(KEYS))
