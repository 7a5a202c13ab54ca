"""`make gpu`: sections with time limits, results as they come, and learning runs that the next call resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.gpu import child, learning
from benchmarks.gpu.__main__ import SECTIONS
from benchmarks.gpu.child import Outcome
from benchmarks.gpu.results import FILES, Results
from benchmarks.gpu.sections import SECTIONS as FUNCTIONS

ROOT = Path(__file__).resolve().parents[1]


def run(
    code: str, seconds: float = 300.0, grace: float = 300.0, rows_until_stop: int = 1000
) -> tuple[Outcome, list[Any], list[str]]:
    """Run a program of Python, which is asked to stop when it has printed so many rows."""
    rows: list[Any] = []
    lines: list[str] = []
    command = [sys.executable, "-c", code]
    stopped = lambda: len(rows) >= rows_until_stop  # noqa: E731
    return child.run(command, os.environ, ROOT, seconds, grace, rows.append, lines.append, stopped), rows, lines


def wait_for(what: Callable[[], Any], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


def alive(words: str) -> list[str]:
    """Return the commands of the processes whose arguments contain these words."""
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [command for command in commands if words in command]


# Ignores SIGTERM, and says so.
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('{}', flush=True); time.sleep(987654)"


class TestChild:
    def test_rows_are_lines_of_json_objects(self) -> None:
        prints = ['\'{"row": {"a": 1}}\'', "'said'", "5", "'error', file=sys.stderr", "'{', end=''"]
        outcome, rows, lines = run("import sys; " + "; ".join(f"print({what})" for what in prints))
        assert (outcome.status, outcome.code, rows) == ("done", 0, [{"row": {"a": 1}}])
        assert sorted(lines) == sorted(["said", "5", "error", "{"])

    def test_a_failure(self) -> None:
        outcome, _, lines = run("raise SystemExit('why')")
        assert (outcome.status, outcome.code, lines) == ("failed", 1, ["why"])

    def test_cut_off_at_the_limit(self) -> None:
        outcome, *_ = run("import time; time.sleep(987654)", seconds=0.5)
        assert (outcome.status, outcome.code) == ("cut", -signal.SIGTERM)

    def test_what_it_prints_on_sigterm_is_kept(self) -> None:
        code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print(2))); print('{}', flush=True)"
        outcome, rows, lines = run(f"{code}; time.sleep(987654)", rows_until_stop=1)
        assert (outcome.status, outcome.code, rows, lines) == ("stopped", 0, [{}], ["2"])

    @pytest.mark.parametrize("leader", [DEAF, "import time; time.sleep(987654)"], ids=["deaf", "obedient"])
    def test_nothing_is_left_of_its_group(self, leader: str) -> None:
        """A process that it has started holds the pipes and ignores SIGTERM."""
        code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}]); {leader}"
        outcome, *_ = run(code, grace=0.5, rows_until_stop=1 + (leader == DEAF))
        assert outcome.status == "stopped"
        assert outcome.code == (-signal.SIGKILL if leader == DEAF else -signal.SIGTERM)
        wait_for(lambda: not alive("987654"))


def document(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


class TestResults:
    def test_rows_are_on_disk_as_they_come(self, tmp_path: Path) -> None:
        (tmp_path / "log.txt").write_text("of an earlier call")
        results = Results(tmp_path, {"facts": "Machine", "learning": "Learning"}, 8)
        results.begin("facts", 10.0)
        results.add({"about": "what counts"})
        results.add({"row": {"fact": "gpu", "value": None}})
        results.add({"row": {"fact": "cpu", "value": "a | b"}})
        page = (tmp_path / "summary.md").read_text()
        assert "| facts | running |" in page
        assert "| cpu | a \\| b |" in page
        assert "There is no GPU" in page
        assert document(tmp_path)["sections"]["facts"]["rows"] == [
            {"fact": "gpu", "value": None},
            {"fact": "cpu", "value": "a | b"},
        ]
        assert "of an earlier call" not in (tmp_path / "log.txt").read_text()

    def test_files_of_an_earlier_call_are_never_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Results(tmp_path, {"facts": "Machine"}, 8)
        there: list[bool] = []
        replace = os.replace

        def look(source: Path, to: Path) -> None:
            there.extend((tmp_path / name).exists() for name in ("summary.md", "results.json"))
            replace(source, to)

        monkeypatch.setattr(os, "replace", look)
        Results(tmp_path, {"facts": "Machine"}, 8)
        assert there == [True] * 4

    def test_a_row_replaces_that_of_its_key(self, tmp_path: Path) -> None:
        results = Results(tmp_path, {"learning": "Learning"}, 8)
        results.begin("learning", 10.0)
        for frame in (1000, 2000):
            for name in ("one", "two"):
                results.add({"row": {"run": name, "frames": frame}, "key": name})
                results.add({"curve": {"run": name, "kind": "train", "frame": frame, "more": 1}})
        results.end(Outcome("cut", 10.04, -15))
        rows = document(tmp_path)["sections"]["learning"]["rows"]
        assert rows == [{"run": "one", "frames": 2000}, {"run": "two", "frames": 2000}]
        lines = (tmp_path / "learning.csv").read_text().splitlines()
        assert lines[0] == "run,kind,frame,episode_reward,fps,total_time"
        assert lines[1:3] == ["one,train,1000,,,", "two,train,1000,,,"]
        assert "Cut off after 10.0 seconds" in (tmp_path / "summary.md").read_text()

    def test_whatever_comes_the_files_stay_small(self, tmp_path: Path) -> None:
        results = Results(tmp_path, dict.fromkeys(SECTIONS, "x"), 8)
        point = {"run": "x" * 100_000}
        for name in SECTIONS:
            results.begin(name, 10.0)
            for _ in range(12):
                results.add({"curve": point})
                results.log("x" * 100_000)
            results.end(Outcome("failed", 1.0, 1))
        for i in range(600):
            results.add({"row": {"frames": i}})
        assert len(document(tmp_path)["sections"]["learning"]["rows"]) == 500
        assert {path.name for path in tmp_path.iterdir()} == set(FILES)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 16e6

    def test_failed_tests_are_named(self, tmp_path: Path) -> None:
        results = Results(tmp_path, {"tests": "Tests"}, 8)
        results.begin("tests", 10.0)
        for number, outcome in enumerate(("passed", "passed", "failed")):
            results.add({"row": {"test": f"test_{number}", "outcome": outcome, "seconds": 1.0, "says": "no"}})
        results.end(Outcome("done", 3.0, 0))
        page = (tmp_path / "summary.md").read_text()
        assert "| passed | 2 | 2 |" in page
        assert "| test_2 | failed | 1 | no |" in page
        assert "test_1" not in page
        assert results.failed() == ["tests"]


def test_each_section_has_a_function() -> None:
    assert list(SECTIONS) == list(FUNCTIONS)


def test_what_needs_a_gpu_is_marked() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert "skipif(" + "not torch.cuda" not in path.read_text(), path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--minutes", "soon"], "'soon': must be a number of minutes"),
        (["--only", "facts,lunch"], "'lunch': must be some of facts, tests,"),
        (["--wheels", "cfgs"], "'cfgs': must be a folder with *.whl files in it"),
        (["--out", "Makefile/out"], "--out Makefile/out: Not a directory"),
    ],
)
def test_arguments_that_cannot_be(arguments: list[str], says: str) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start `make gpu`'s program with results in folder/out and runs in folder/runs."""
    places = {"OUT": str(folder / "out"), "RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, **places, **variables}, text=True, stdout=-1)


def check_files(folder: Path) -> Any:
    """Check that all results are there as far as they go, and return results.json's contents."""
    files = [path for path in folder.iterdir() if not path.name.endswith(".tmp")]
    assert {path.name for path in files} - {"learning.csv"} == set(FILES) - {"learning.csv"}
    assert sum(path.stat().st_size for path in files) < 16e6
    found, page = document(folder), (folder / "summary.md").read_text()
    for section in found["sections"].values():
        assert f"## {section['title']}\n" in page
    return found


@pytest.mark.slow
def test_all_sections_get_a_share_of_very_little_time(tmp_path: Path) -> None:
    with start(tmp_path, MINUTES="0.3") as process:
        output = process.communicate()[0]
    found = check_files(tmp_path / "out")
    assert list(found["sections"]) == list(SECTIONS)
    assert {section["status"] for section in found["sections"].values()} <= {"done", "cut"}
    assert (process.returncode, found["status"]) == (0, "complete"), output
    wait_for(lambda: not alive(str(tmp_path)))


@pytest.mark.slow
def test_measurements(tmp_path: Path) -> None:
    with start(tmp_path, "--only", "facts,kernels", MINUTES="20") as process:
        process.communicate()
    sections = check_files(tmp_path / "out")["sections"]
    assert [(name, section["status"]) for name, section in sections.items()] == [("facts", "done"), ("kernels", "done")]
    facts = {row["fact"]: row["value"] for row in sections["facts"]["rows"]}
    assert facts["torch"] == torch.__version__
    assert (facts["gpu"] is not None) == torch.cuda.is_available()
    assert sum(row.get("percent", 0) for row in sections["kernels"]["rows"]) > 50
    assert ("There is no GPU" in (tmp_path / "out" / "summary.md").read_text()) != torch.cuda.is_available()


def test_command_lines_of_learning_runs() -> None:
    found = learning.command_lines(
        "task=cheetah_run preset=paper; task=a preset=spq seed=2;  task=a preset=spq x=2/y ;"
    )
    assert found[0] == ["task=cheetah_run", "preset=paper"]
    assert [learning.name_of(words) for words in found] == ["cheetah_run_paper", "a_spq_seed=2", "a_spq_x=2-y"]
    assert all(learning.name_of(words).endswith("_paper") for words in learning.command_lines(learning.LEARN))


@pytest.mark.slow
def test_killed_while_it_learns_then_resumed_and_stopped(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(tmp_path, "--only", "facts,learning", MINUTES="60") as process:
        wait_for((out / "learning.csv").exists)
        process.kill()
    found = check_files(out)
    assert (found["status"], found["sections"]["facts"]["status"]) == ("running", "done")
    (row,) = found["sections"]["learning"]["rows"]
    assert row["frames"] >= 1000
    wait_for(lambda: not alive(str(tmp_path)))  # its run has saved a snapshot
    (snapshot,) = (tmp_path / "runs").glob("*/snapshot.pt")

    with start(tmp_path, "--only", "learning", MINUTES="60") as process:
        wait_for(lambda: "Resumed: cartpole_balance" in (out / "summary.md").read_text())
        wait_for((out / "learning.csv").exists)
        process.terminate()
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    found = check_files(out)
    assert (found["status"], found["sections"]["learning"]["status"]) == ("stopped", "stopped")
    assert (out / "learning.csv").read_text().splitlines()[1].split(",")[2] == "1000"  # it begins with the run's start
    assert not alive(str(tmp_path))
    assert snapshot.exists()
