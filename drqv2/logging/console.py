"""Console output of a run: one line per logged row, or a dashboard on a terminal."""

from __future__ import annotations

import datetime
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from rich.columns import Columns
from rich.console import Console as Terminal
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_FLOAT = "{:.4f}".format


def _time(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=int(seconds))


# Column: label and format. Console lines show exactly these; every CSV file begins with them.
_TRAIN: dict[str, tuple[str, Callable[[float], object]]] = {
    "frame": ("F", int),
    "step": ("S", int),
    "episode": ("E", int),
    "episode_length": ("L", int),
    "episode_reward": ("R", _FLOAT),
    "buffer_size": ("BS", int),
    "fps": ("FPS", _FLOAT),
    "total_time": ("T", _time),
}
COLUMNS = {
    "train": _TRAIN,
    "eval": {name: value for name, value in _TRAIN.items() if name not in ("buffer_size", "fps")},
}
LETTERS = ", ".join(f"{label} {column}" for column, (label, _) in _TRAIN.items())
_COLOURS = {"train": "\033[33m", "eval": "\033[32m"}


class TaskRows:
    """The evaluations of several tasks as lines: newest return and success, and a small plot of all so far.

    Args:
        tasks: the names in the columns of eval.csv: `episode_reward_NAME`, `success_NAME`. Their mean is a line, too.
    """

    _BARS = "▁▂▃▄▅▆▇█"
    _WIDTH = 30  # evaluations in a plot

    def __init__(self, tasks: Sequence[str]) -> None:
        self._columns = {task: f"_{task}" for task in tasks} | ({"mean": ""} if tasks else {})
        self._history: dict[str, list[float]] = {task: [] for task in self._columns}
        self._returns: dict[str, float] = {}
        self._success: dict[str, float] = {}

    def add(self, row: Mapping[str, float]) -> None:
        """Take a row of eval.csv; success is plotted where there is one, else the return."""
        for task, column in self._columns.items():
            if (success := row.get(f"success{column}")) is not None:
                self._success[task] = success
            if (value := row.get(f"episode_reward{column}")) is not None:
                self._history[task].append(value if success is None else success)
                self._returns[task] = value

    def lines(self) -> list[str]:
        """Return a line for each task that has been evaluated, and one for their mean."""
        known = [task for task, history in self._history.items() if history]
        width = max(map(len, known), default=0)
        lines = []
        for task in known:
            success = f"  success {self._success[task]:.2f}" if task in self._success else ""
            lines.append(f"{task:<{width}}  {self._returns[task]:>8.1f}{success}  {self._plot(task)}")
        return lines

    def _plot(self, task: str) -> str:
        values = self._history[task]
        low, high = min(0.0, *values), max(1.0 if task in self._success else 0.0, *values)
        scale = (len(self._BARS) - 1) / ((high - low) or 1.0)
        return "".join(self._BARS[round((value - low) * scale)] for value in values[-self._WIDTH :])


class Console:
    """Shows logged rows. Usable as a context; `show` must also work outside of it. The base class shows nothing."""

    def show(self, ty: str, row: Mapping[str, float]) -> None:
        """Show a row of `train.csv` or `eval.csv`."""

    def remember(self, ty: str, row: Mapping[str, float]) -> None:
        """Remember a row from before a resume, which is not shown again."""

    def evaluating(self, frame: int, ended: int, episodes: int) -> None:
        """Show the progress of a long evaluation, until its row: how many of its episodes have ended."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


class PlainConsole(Console):
    """Prints a line for each row, and after an evaluation of several tasks one for each of them.

    A line before the first explains the letters.

    Args:
        tasks: their names, none for a single one.
    """

    def __init__(self, tasks: Sequence[str] = ()) -> None:
        self._tasks = TaskRows(tasks)
        self._explained = False
        self._evaluating = -1  # frame of the evaluation that was announced last

    def show(self, ty: str, row: Mapping[str, float]) -> None:
        """Print the row's known columns."""
        if not self._explained:
            print(f"columns: {LETTERS}", flush=True)
            self._explained = True
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        name = f"{_COLOURS[ty]}{ty}\033[0m" if colour else ty
        pieces = [f"| {name}{' ' * (5 - len(ty))}"]
        pieces += [f"{label}: {show(row[column])}" for column, (label, show) in COLUMNS[ty].items() if column in row]
        print(" | ".join(pieces), flush=True)
        if ty == "eval":
            self._tasks.add(row)
            for line in self._tasks.lines():
                print(f"|   {line}", flush=True)

    def remember(self, ty: str, row: Mapping[str, float]) -> None:
        """Remember the evaluations before a resume, for the plots of the tasks."""
        if ty == "eval":
            self._tasks.add(row)

    def evaluating(self, frame: int, ended: int, episodes: int) -> None:
        """Print a line, once for each evaluation."""
        if self._evaluating != frame:
            print(f"evaluating at frame {frame}, episodes: {episodes}", flush=True)
            self._evaluating = frame


@dataclass
class Status:
    """What the dashboard shows besides the rows.

    Attributes:
        frame: environment frames so far.
        num_frames: environment frames of the whole run.
        best_return: best evaluation return so far; -inf before the first evaluation.
        shares: fraction of the time spent on each activity, by name; sums to 1.
        details: further lines, by label.
        epoch: number of the current epoch, from 1; 0 where there is none.
        epoch_frame: environment frames since it began.
        epoch_frames: its length, environment frames.
        env_step: agent steps so far.
        gradient_step: steps of the optimizers so far.
    """

    frame: int
    num_frames: int
    best_return: float = float("-inf")
    shares: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    epoch: int = 0
    epoch_frame: int = 0
    epoch_frames: int = 0
    env_step: int = 0
    gradient_step: int = 0


class Dashboard(Console):
    """Progress bar, latest returns, time shares and machine usage. Needs a terminal.

    A thread redraws it every second; prints and warnings appear above it.

    Args:
        title: title of the run.
        status: returns the current status.
        machine: returns CPU, memory and GPU usage as text by name.
        terminal: standard output by default.
        tasks: names of several tasks, none for a single one.
    """

    def __init__(
        self,
        title: str,
        status: Callable[[], Status],
        machine: Callable[[], Mapping[str, str]] = dict,
        terminal: Terminal | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        self._tasks = TaskRows(tasks)
        self._title, self._status, self._machine = title, status, machine
        self._rows: dict[str, Mapping[str, float]] = {}
        self._evaluating = ""
        self._start = (time.monotonic(), 0)
        self._live = Live(get_renderable=self._render_or_error, console=terminal or Terminal(), refresh_per_second=1)
        self._entered = ExitStack()

    def show(self, ty: str, row: Mapping[str, float]) -> None:
        """Show the row at the next redraw, if an episode ended in it."""
        if "episode_reward" in row:
            self._rows[ty] = dict(row)
        if ty == "eval":
            self._tasks.add(row)
            self._evaluating = ""

    remember = show  # the dashboard is the same after a resume

    def evaluating(self, frame: int, ended: int, episodes: int) -> None:
        """Show how far the evaluation is, from the next redraw on."""
        self._evaluating = f", evaluating: {ended:,}/{episodes:,} episodes"

    def __enter__(self) -> Self:
        outputs = (sys.stdout, sys.stderr)
        self._start = (time.monotonic(), self._status().frame)
        self._entered.enter_context(self._live)
        for handler in logging.getLogger().handlers:  # they keep the stream from before the redirection
            if isinstance(handler, logging.StreamHandler) and handler.stream in outputs:
                self._entered.callback(handler.setStream, handler.stream)
                handler.setStream(sys.stdout)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.close()

    def _render_or_error(self) -> RenderableType:
        try:
            return self.render()
        except Exception as error:  # must not stop the run
            return Text(f"the dashboard cannot be drawn ({type(error).__name__}: {error}); use console=plain instead")

    def render(self) -> RenderableType:
        """Return the dashboard as it is now."""
        status = self._status()
        started, first_frame = self._start
        fps = (status.frame - first_frame) / (time.monotonic() - started)  # since the process started, with pauses
        bar = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None, None, None):
            bar.add_column(ratio=ratio, no_wrap=True)
        bar.add_row(
            f"{status.frame:,}/{status.num_frames:,} frames",
            ProgressBar(total=max(1, status.num_frames), completed=status.frame),
            f"{100 * status.frame / max(1, status.num_frames):.1f} %",
            f"{fps:.0f} fps" if fps > 0 else "",
            f"{_time(max(0, status.num_frames - status.frame) / fps)} left" if fps > 0 else "",
        )
        if status.epoch:
            done = min(status.epoch_frame / max(1, status.epoch_frames), 1.0)
            label = f"epoch {status.epoch}: {status.epoch_frame:,}/{status.epoch_frames:,} frames"
            bar.add_row(label, ProgressBar(total=1.0, completed=done), f"{100 * done:.1f} %", "", "")
        lines: list[RenderableType] = [bar, self._returns(status)]
        if status.epoch:
            length = self._rows.get("train", {}).get("episode_length")
            last = "" if length is None else f"  episode_length {length:.0f}"
            lines.append(Text(f"steps    env_step {status.env_step:,}  gradient_step {status.gradient_step:,}{last}"))
        if tasks := self._tasks.lines():
            rows = Table.grid()
            shown = Columns([Text(line, no_wrap=True) for line in tasks], padding=(0, 3), column_first=True)
            rows.add_row("tasks    ", shown)
            lines.append(rows)
        if status.shares:
            shares = [f"{name} {100 * share:.0f} %" for name, share in status.shares.items()]
            lines.append(Text("time     " + "  ".join(shares), overflow="fold"))
        lines += [Text(f"{label:<9}{text}", overflow="fold") for label, text in status.details.items()]
        if machine := self._machine():
            lines.append(Text("machine  " + "  ".join(f"{name} {value}" for name, value in machine.items())))
        return Panel(Group(*lines), title=self._title + self._evaluating, title_align="left")

    def _returns(self, status: Status) -> Text:
        text = Text("return   ")
        for ty, style in (("train", "yellow"), ("eval", "green")):
            if row := self._rows.get(ty):
                text.append(f"{ty} {row['episode_reward']:.1f}", style)
                text.append(f" at {int(row['frame']):,}  ")
        if status.best_return > float("-inf"):
            text.append(f"best eval {status.best_return:.1f}", "bold green")
        return text
