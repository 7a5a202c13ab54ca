"""The dashboard as text, at the widths and colours of terminals; the shares of time."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from drqv2.logging.console import COLUMNS, Console, Dashboard, PlainConsole, Status
from drqv2.logging.usage import TimeShares
from tests.short_run import SHORT

ROOT = Path(__file__).resolve().parents[2]
SHARES = {"environment": 0.064, "act": 0.02, "data": 0.004, "update": 0.8, "evaluation": 0.084, "other": 0.028}


def drawn(width: int, colour: bool = False, status: Status | None = None) -> str:
    out = io.StringIO()
    terminal = Terminal(
        file=out, width=width, force_terminal=colour, color_system="standard" if colour else None, legacy_windows=False
    )
    status = status or Status(412_000, 1_100_000, 812.34, SHARES)
    dashboard = Dashboard("cheetah_run, seed 1", lambda: status, lambda: {"CPU": "187 %", "memory": "1.9 GB"}, terminal)
    dashboard.show("train", {"frame": 411_000, "episode_reward": 799.9})
    dashboard.show("eval", {"frame": 410_000, "episode_reward": 812.34})
    terminal.print(dashboard.render())
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("colour", [False, True])
def test_dashboard(width: int, colour: bool) -> None:
    text = drawn(width, colour)
    plain = re.sub(r"\033\[[\d;]*m", "", text)
    assert ("\033[" in text) == colour
    assert {len(line) for line in plain.splitlines()} == {width}
    for words in (
        "cheetah_run, seed 1",
        "412,000/1,100,000 frames",
        "37.5 %",
        "train 799.9 at 411,000",
        "eval 812.3 at 410,000",
        "best eval 812.3",
        "update 80 %",
        "CPU 187 %",
        "memory 1.9 GB",
    ):
        assert words in plain, words
    shown = [int(n) for n in re.findall(r"(?:environment|act|data|update|evaluation|other)\s+(\d+) %", plain)]
    assert shown == [6, 2, 0, 80, 8, 3]


def test_dashboard_before_anything_has_happened() -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, width=80)
    terminal.print(Dashboard("cheetah_run, seed 1", lambda: Status(0, 1_000_000), terminal=terminal).render())
    assert "0/1,000,000 frames" in out.getvalue()
    assert "best" not in out.getvalue()
    assert "left" not in out.getvalue()


def test_nested_time_counts_for_the_inner_activity() -> None:
    now = 0.0
    shares = TimeShares("act", "update", "data", clock=lambda: now)
    assert shares.shares() == {}
    batches = shares.timed_iterator("data", iter([1, 2]))
    with shares.spent_on("update"):
        now += 3.0
        with shares.spent_on("act"):
            now += 1.0
        assert next(batches) == 1
    with shares.spent_on("act"):
        now += 2.0
    now += 4.0
    assert shares.shares() == {"act": 0.3, "update": 0.3, "data": 0.0, "other": 0.4}


def test_activities_in_progress_count() -> None:
    now = 0.0
    shares = TimeShares(clock=lambda: now)
    with shares.spent_on("evaluation"):
        now += 1.0
        with shares.spent_on("act"):
            now += 3.0
            assert shares.shares() == {"evaluation": 0.25, "act": 0.75, "other": 0.0}
    assert shares.shares() == {"evaluation": 0.25, "act": 0.75, "other": 0.0}


def test_warnings_appear_above_the_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of handlers that were bound to the output before the dashboard took it over."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    handler = logging.StreamHandler(sys.stdout)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # other tests' may be bound to outputs that are gone
    logging.getLogger().addHandler(handler)
    try:
        terminal = Terminal(file=out, width=80, force_terminal=True)
        with Dashboard("cheetah_run, seed 1", lambda: Status(1, 2), terminal=terminal):
            logging.getLogger().warning("something is wrong")
            assert handler.stream is not out
        assert handler.stream is out
    finally:
        logging.getLogger().removeHandler(handler)
    said = out.getvalue()
    assert said.count("something is wrong") == 1
    assert said.rindex("frames") > said.index("something is wrong")  # drawn anew below it


def test_dashboard_error_does_not_stop_the_run() -> None:
    def broken() -> dict[str, str]:
        raise ValueError("no status")

    terminal = Terminal(file=(out := io.StringIO()), width=80, force_terminal=True)
    dashboard = Dashboard("cheetah_run, seed 1", lambda: Status(1, 2), broken, terminal)
    with dashboard:
        pass
    assert "cannot be drawn (ValueError: no status)" in out.getvalue()


def test_waiting_for_a_batch_counts_as_data() -> None:
    now = 0.0

    def slow():
        nonlocal now
        now += 3.0
        yield "batch"

    shares = TimeShares(clock=lambda: now)
    with shares.spent_on("update"):
        assert next(shares.timed_iterator("data", slow())) == "batch"
        now += 1.0
    assert shares.shares() == {"data": 0.75, "update": 0.25, "other": 0.0}


def test_an_error_does_not_end_the_batches() -> None:
    class Loader:
        turns = iter([RuntimeError("a worker died"), "batch"])

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            turn = next(self.turns)
            if isinstance(turn, Exception):
                raise turn
            return turn

    batches = TimeShares().timed_iterator("data", Loader())
    with pytest.raises(RuntimeError, match="a worker died"):
        next(batches)
    assert next(batches) == "batch"


def test_nothing_is_shown_when_off(capsys: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        console.show("eval", {"frame": 2, "episode_reward": 1.0})
    assert capsys.readouterr().out == ""


def test_the_letters_are_explained_once_and_in_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole()
    for frame in (2, 4):
        console.show("eval", {"frame": frame, "episode_reward": 1.0})
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("columns: F frame, S step, E episode, L episode_length, R episode_reward")
    assert [row[:14] for row in rows] == ["| eval  | F: 2", "| eval  | F: 4"]
    page = (ROOT / "docs" / "metrics.md").read_text()
    for column, (label, _) in COLUMNS["train"].items():
        assert f"{label} `{column}`" in " ".join(page.split()), "docs/metrics.md explains the letters"


def test_an_evaluation_that_takes_long_is_shown_until_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, width=80)
    dashboard, plain = Dashboard("cheetah_run, seed 1", lambda: Status(0, 9), terminal=terminal), PlainConsole()
    for frame in (0, 2):
        for ended in (0, 3):
            for console in (Console(), dashboard, plain):
                console.evaluating(frame, ended, 10)
    assert capsys.readouterr().out == "".join(f"evaluating at frame {frame}, episodes: 10\n" for frame in (0, 2))
    terminal.print(dashboard.render())
    dashboard.show("eval", {"frame": 2, "episode_reward": 1.0})
    terminal.print(dashboard.render())
    assert out.getvalue().count("cheetah_run, seed 1, evaluating: 3/10 episodes ─") == 1
    assert out.getvalue().count("cheetah_run, seed 1 ─") == 1


@pytest.mark.slow
def test_a_run_in_a_terminal(tmp_path: Path) -> None:
    """On a pseudo-terminal the dashboard comes by itself, rows go into it, and the terminal is left as it was."""
    main, worker = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "train.py", *SHORT, f"hydra.run.dir={tmp_path / 'run'}"]
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=worker, stdout=worker, stderr=worker)
    os.close(worker)
    said = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        said += piece
    os.close(main)
    assert process.wait() == 0, said.decode()
    text = said.decode()
    assert "\033[?25l" in text  # the cursor is hidden,
    assert text.rindex("\033[?25h") > text.rindex("\033[?25l")  # and comes back
    last = text[text.rindex("480/480 frames") :]
    assert "100.0 %" in last
    assert "best eval" in last
    assert "| train | F:" not in text
    assert "evaluation return:" in last


@pytest.mark.parametrize("width", [80, 140])
def test_an_epoch_has_its_own_bar(width: int) -> None:
    status = Status(
        412_000,
        1_100_000,
        812.3,
        SHARES,
        {},
        42,
        epoch_frame=2_500,
        epoch_frames=10_000,
        env_step=206_000,
        gradient_step=9,
    )
    lines = drawn(width, status=status).splitlines()
    assert {len(line) for line in lines} == {width}
    (bar,) = [line for line in lines if "epoch 42" in line]
    assert re.search(r"epoch 42: 2,500/10,000 frames .*25.0 %", bar)
    assert any("env_step 206,000  gradient_step 9" in line for line in lines)
