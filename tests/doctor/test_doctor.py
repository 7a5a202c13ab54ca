"""The doctor: working machines pass; each problem is reported with its fix and without a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drqv2.doctor import checks as doctor
from drqv2.doctor import measure
from drqv2.doctor.__main__ import main
from drqv2.system import machine
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "TIMEOUT", PATIENCE)


def cfg(**changes: object) -> dict:
    found = doctor.compose("cartpole_balance_sparse", "debug")
    return found | changes


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "drqv2.doctor", *arguments],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_this_machine_passes(tmp_path):
    done = run("--dir", str(tmp_path / "not" / "made" / "yet"))
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^(ok|warn|fail) +(\S.*?)  +(\S.*)$", done.stdout, re.M)
    names = [name for _, name, _ in rows]
    wanted = ["python", "torch", "mujoco", "dm-control", "hydra-core", "numpy", "ffmpeg", "device"]
    wanted += ["renderer", "render + step", "update", "disk", "memory", "shared memory"]
    assert set(wanted) <= set(names)
    assert "fail" not in {status for status, _, _ in rows}
    assert "GL_RENDERER" in done.stdout
    assert re.search(r"Ready: python train.py task=cartpole_balance_sparse preset=(paper|cpu)\n$", done.stdout)


def test_without_torch_and_hydra_it_still_reports(tmp_path):
    for name in ("torch", "hydra"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\")")
    done = run(PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(r"^ok +python", done.stdout, re.M)
    assert re.search(r"^fail +device +ModuleNotFoundError: No module named 'torch'$", done.stdout, re.M)


def test_a_bad_task_names_the_nearest():
    cfgs: list[dict] = []
    lines = list(doctor.settings("cartpole_balance_spars", cfgs))
    assert [line.status for line in lines] == ["fail"]
    assert "nearest: cartpole_balance_spars" in lines[0].text
    assert cfgs == []


def test_a_renderer_that_does_not_work_fails_with_advice(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    (line,) = doctor.rendering(cfg(), {})
    assert line.status == "fail"
    assert "nonsense" in line.text
    assert line.advice


def test_crashing_driver_is_reported(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (line,) = doctor.rendering(cfg(), {})
    assert line.status == "fail"
    assert "status -11" in line.text


@pytest.mark.slow
def test_rendering_is_measured():
    found: dict = {}
    lines = {line.name: line for line in doctor.rendering(cfg(), found)}
    assert "error" not in found, found
    assert found["ms"] > 0
    assert found["actions"] == 1
    assert lines["renderer"].status == (
        "warn" if machine.is_software(found["renderer"]) and machine.has_nvidia() else "ok"
    )
    assert ("software" in lines["renderer"].text) == machine.is_software(found["renderer"])
    assert lines["render + step"].status == "ok"
    (line,) = doctor.update(cfg(num_train_frames=5000), found)
    assert "a run (5,000 frames) takes about" in line.text
    (line,) = doctor.update(cfg(preset="paper" if torch.cuda.is_available() else "cpu"), found)
    assert "make train (5,000 frames) takes about" in line.text


def test_the_length_of_a_run_counts_its_evaluations():
    # 250 agent steps, an update at every second one of the last 200, and 2 evaluations of 2 episodes of 250 steps.
    keys = {"num_train_frames": 1000, "num_seed_frames": 200, "eval_every_frames": 1000, "num_eval_episodes": 2}
    assert doctor.hours_of_a_run(cfg(action_repeat=4, **keys), 3.6, 7.2) == pytest.approx(
        (250 * 3.6 + 100 * 7.2 + 2 * 2 * 250 * 3.6) / 3.6e6
    )


@pytest.mark.parametrize(
    ("renderer", "software"),
    [
        ("llvmpipe (LLVM 15.0.6, 256 bits)", True),
        ("Software Rasterizer", True),
        ("NVIDIA H100 80GB HBM3/PCIe/SSE2", False),
    ],
)
def test_software_renderers_are_known(renderer, software):
    assert machine.is_software(renderer) == software


@pytest.mark.parametrize(
    ("script", "words"), [(None, "No such file"), ("echo no such encoder >&2; exit 1", "no such encoder")]
)
def test_a_broken_ffmpeg_is_a_warning(tmp_path, monkeypatch, script, words):
    path = tmp_path / "ffmpeg"
    if script:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(path))
    (line,) = doctor.encoder()
    assert line.status == "warn"
    assert words in line.text
    assert line.advice == "unset IMAGEIO_FFMPEG_EXE"


def test_libraries_are_optional(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    missing = list(doctor.libraries())
    assert [(line.status, line.name) for line in missing] == [("ok", "gymnasium"), ("ok", "envpool"), ("ok", "ray")]
    assert [re.findall(r'".\[(\w+)\]"', line.text) for line in missing] == [["gym"], ["envpool"], ["cluster"]]


def test_replay_counts_each_frame_once():
    assert doctor.replay_bytes(doctor.compose("humanoid_walk", "paper")) == 1_000_000 * 3 * 84 * 84
    assert doctor.replay_bytes(doctor.compose("cartpole_balance_sparse", "paper")) == 550_000 * 3 * 84 * 84  # its end
    assert doctor.replay_bytes(doctor.compose("quadruped_run", "paper")) == 100_000 * 3 * 84 * 84


def test_a_disk_too_small_fails_with_advice(tmp_path):
    lines = {
        line.name: line for line in doctor.space(cfg(replay_buffer_size=10**12, num_train_frames=10**13), tmp_path)
    }
    assert lines["disk"].status == "fail"
    assert "hydra.run.dir=" in lines["disk"].advice
    assert lines["memory"].status == "warn"
    assert {line.name: line.status for line in doctor.space(cfg(), tmp_path)}["disk"] == "ok"


def test_too_little_shared_memory_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_MIN_SHARED", 1e15)
    lines = {line.name: line for line in doctor.space(cfg(), tmp_path)}
    assert lines["shared memory"].status == "warn"
    assert "--shm-size" in lines["shared memory"].advice


def test_a_check_that_raises_is_a_finding(capsys, monkeypatch):
    def broken():
        yield doctor.Finding("ok", "first", "fine")
        raise AttributeError("module has no attribute x\nsecond line")

    monkeypatch.setattr(doctor, "versions", broken)
    assert main(["--task", "nonsense"]) == main(["task=nonsense"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["ok", "first", "fine"]
    assert out[1].split(maxsplit=2) == ["fail", "broken", "AttributeError: module has no attribute x"]
    assert out[2].strip().startswith("-> make setup")
    assert out[-1].startswith("Not ready")


def test_versions_outside_their_bounds_fail(monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy>=99", "no-such-package>=1", "torch>=2"]'
    )
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    lines = {line.name: line for line in doctor.versions()}
    assert {name: line.status for name, line in lines.items()} == {
        "python": "ok",
        "numpy": "fail",
        "no-such-package": "fail",
        "torch": "ok",
    }
    assert 'pip install "numpy>=99"' in lines["numpy"].advice
    assert lines["no-such-package"].text == "not installed"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_openmp_spinning_is_limited_before_torch_is_loaded(given: dict[str, str], expected: str) -> None:
    code = (
        "import os, sys; from drqv2.system.machine import limit_openmp_spinning; limit_openmp_spinning(); "
        "print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))"
    )
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=others | given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", expected]
