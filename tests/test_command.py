"""The command `drqv2`, from another folder; what a wheel has."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from drqv2 import __version__
from tests.short_run import SHORT

ROOT = Path(__file__).parents[1]


def drqv2(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drqv2", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 0, "drqv2 train task=walker_walk"),
        (("--help",), 0, "drqv2 eval RUN_DIR"),
        (("--version",), 0, f"drqv2 {__version__}"),
        (("trian",), 2, "error: trian: there is no such command; nearest: train; see drqv2 --help"),
        (("train", "sede=3"), 2, "error: sede=3: there is no such key; nearest: seed"),
        (("eval", "nowhere"), 2, "error: nowhere: no such run directory or file"),
        (("config",), 0, "# Configuration"),
    ],
)
def test_commands(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = drqv2(tmp_path, *words)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_from_another_folder(tmp_path: Path) -> None:
    done = drqv2(tmp_path, "train", *SHORT, "hydra.run.dir=run", "console=plain")
    assert done.returncode == 0, done.stderr
    assert "resume with: drqv2 train resume=run" in done.stdout
    done = drqv2(tmp_path, "eval", "run", "episodes=1", "film=none")
    assert done.returncode == 0, done.stderr
    assert "mean" in done.stdout


@pytest.mark.slow
def test_a_wheel_has_the_programs_and_their_data_in_the_package_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"drqv2", f"drqv2_workspace-{__version__}.dist-info"}
    scripts = {f"drqv2/program/{path.name}" for path in ROOT.glob("*.py")} - {"drqv2/program/setup.py"}
    cfgs = {f"drqv2/program/{path.relative_to(ROOT)}" for path in ROOT.glob("cfgs/**/*.yaml")}
    published = {f"drqv2/program/{path.relative_to(ROOT)}" for path in ROOT.glob("results/published/*.csv")}
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("drqv2/**/*") if path.suffix in (".py", ".cpp", ".js")}
    assert names >= scripts | cfgs | published | modules | {"drqv2/py.typed", "drqv2/report/page.html"}
