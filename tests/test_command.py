"""The command `drqv2`, from another folder; what a wheel has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drqv2 import __main__ as command
from drqv2 import __version__, programs
from tests.short_run import SHORT

ROOT = Path(__file__).parents[1]


def drqv2(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "drqv2", *words]
    return subprocess.run(argv, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to call the command in within this process, which gets back what the command changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", sys.path[:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of runpy: other tests import these programs
        yield tmp_path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 0, "drqv2 train task=walker_walk"),
        (("--help",), 0, "drqv2 eval RUN_DIR"),
        (("--version",), 0, f"drqv2 {__version__}"),
        (("trian",), 2, "error: trian: there is no such command; nearest: train; see drqv2 --help"),
        (("train", "sede=3"), 2, "error: sede=3: there is no such key; nearest: seed"),
        (("train", "--help"), 0, "usage: drqv2 train [regime=NAME]"),
        (("eval",), 2, "give one run directory or one file of weights: drqv2 eval RUN_DIR"),
        (("eval", "--help"), 0, "drqv2 eval RUN_DIR episodes=20"),
        (("eval", "nowhere"), 2, "error: nowhere: no such run directory or file"),
        (("datasets", "lsit"), 2, "error: lsit: must be list, card, check, convert"),
        (("datasets", "card"), 2, "error: card takes 1 place, got 0"),
        (("snapshot", "export", "run"), 2, "error: give RUN_DIR, or export RUN_DIR FILE"),
        (("config",), 0, "# Configuration"),
    ],
)
def test_commands(here: Path, words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    sys.argv = ["drqv2", *words]
    found: Any = 0
    try:
        command.main()
    except SystemExit as end:
        found = end.code or 0
    told = capsys.readouterr()
    assert found == code, told.err
    assert said in told.out + told.err
    assert not list(here.iterdir())


def test_it_is_a_program_too(tmp_path: Path) -> None:
    done = drqv2(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"drqv2 {__version__}\n")
    assert drqv2(tmp_path, "trian").returncode == 2


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("drqv2 ", "train eval report config datasets doctor play snapshot"),
        ("drqv2 train task=walker_w", "task=walker_walk"),
        ("drqv2 eval task=walker_w", ""),
    ],
)
def test_tab_completes(tmp_path: Path, line: str, offered: str) -> None:
    assert drqv2(tmp_path, "-sc", "query=bash", COMP_LINE=line).stdout.strip() == offered


def test_the_shell_is_told_what_to_complete(tmp_path: Path) -> None:
    assert drqv2(tmp_path, "-sc", "install=bash").stdout.endswith("-F hydra_bash_completion drqv2\n")


MESSAGE = """EnvPool is missing: pip install -e ".[envpool]", then python train.py, or pip install -e '.[nothing]'"""


def test_messages_fit_the_place_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert programs.as_here(MESSAGE) == MESSAGE
    monkeypatch.setattr(programs, "INSTALLED", True)
    requirements = ["torch>=2", 'envpool<2,>=1; extra == "envpool"', 'onnx>=1; extra == "export"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requirements)
    said = programs.as_here(MESSAGE)
    assert 'missing: pip install "envpool<2,>=1", then drqv2 train' in said
    assert programs.as_here("pip install -e '.[export,envpool]'") == 'pip install "envpool<2,>=1" "onnx>=1"'


@pytest.mark.slow
def test_a_run_from_another_folder(tmp_path: Path) -> None:
    done = drqv2(tmp_path, "train", *SHORT, "hydra.run.dir=run", "console=plain")
    assert done.returncode == 0, done.stderr
    assert "resume with: drqv2 train resume=run" in done.stdout
    done = drqv2(tmp_path, "eval", "run", "episodes=1", "film=none")
    assert done.returncode == 0, done.stderr
    assert "mean" in done.stdout


OF_USERS = "configuration metrics regimes environments multitask spq ppo impala offline library from_other_libraries"
OF_USERS += " troubleshooting deployment security porting differences"


@pytest.mark.parametrize("name", OF_USERS.split())
def test_the_docs_say_what_is_in_the_repository_alone(name: str) -> None:
    for section in re.split(r"\n##+ ", (ROOT / f"docs/{name}.md").read_text()):
        absent = re.search(r"(?<![/\w])(tests/|tools/|policies/|benchmarks\.\w|make (bench|gpu|lint|train)\b)", section)
        assert absent is None or "repository" in section, absent[0]


@pytest.mark.slow
def test_a_wheel_has_the_programs_and_their_data_in_the_package_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"  # without what an earlier build has left
    others = shutil.ignore_patterns(
        "build", "tests", "docs", "exp_local", "policies", "__pycache__", "*.egg-info", ".*"
    )
    shutil.copytree(ROOT, source, ignore=others)
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run([*map(str, argv)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    about = f"drqv2_workspace-{__version__}.dist-info"
    files = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    scripts = {f"drqv2/program/{path.name}" for path in ROOT.glob("*.py")} - {"drqv2/program/setup.py"}
    cfgs = {f"drqv2/program/{path.relative_to(ROOT)}" for path in ROOT.glob("cfgs/**/*.yaml")}
    published = {f"drqv2/program/{path.relative_to(ROOT)}" for path in ROOT.glob("results/published/*.csv")}
    suffixes = (".py", ".cpp", ".js", ".html", ".typed")
    package = {str(path.relative_to(ROOT)) for path in ROOT.glob("drqv2/**/*") if path.suffix in suffixes}
    assert names == {f"{about}/{name}" for name in files} | scripts | cfgs | published | package
