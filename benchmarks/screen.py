"""Compare ideas on a small machine: a queue of training runs, with pairs of runs of the same task and seed.

python -m benchmarks.screen PLAN.yaml               # starts the runs, or continues where it was stopped
python -m benchmarks.screen PLAN.yaml --status      # what has run, and how long the rest will take
python -m benchmarks.screen PLAN.yaml --report      # writes report.md, returns.csv and returns.png now
python -m benchmarks.screen PLAN.yaml --report --out results/NAME      # copies them there, too

docs/screening.md describes plans.
"""

from __future__ import annotations

if __name__ == "__main__":
    from drqv2.system.signals import exit_quietly_on_ctrl_c

    exit_quietly_on_ctrl_c()

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import screen_plan, screen_report
from benchmarks.gpu.child import end_with_parent
from benchmarks.screen_plan import OUTPUT, ROOT, STATES, Entry, Found, Plan
from drqv2.config.formatting import counted
from drqv2.config.keys import Key
from drqv2.config.kinds import Bool, Int, Text
from drqv2.errors import Stopped, UserError
from drqv2.launch.arguments import run_tool
from drqv2.logging.provenance import git_commit
from drqv2.system import files, machine
from drqv2.system.signals import StopSignals

_TICK = 0.2  # seconds between two looks at the runs
_NICENESS = 10
KEYS = {
    Key("jobs", Int(1), "Number of runs at a time.", null="that of the plan"): None,
    Key("status", Bool(), "Print the state of each run, and nothing else."): False,
    Key("report", Bool(), "Write the report from what there is, and start nothing."): False,
    Key("retry", Bool(), "Also continue runs that have failed."): False,
    Key("out", Text(), "Folder to which the report is copied.", null="nowhere"): None,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    args = sys.argv[1:] if argv is None else argv
    run_tool(lambda paths, kwargs: screen(paths, **kwargs), __doc__, KEYS, args)


def screen(paths: Sequence[str], *, jobs: int | None, status: bool, report: bool, retry: bool, out: str | None) -> None:
    """Work on a plan, or show or report what has been done; see KEYS.

    Raises:
        UserError: the plan is wrong, does not fit the runs in its folder, or is being worked on.
        SystemExit: the process was asked to stop, or runs have failed.
    """
    if len(paths) != 1:
        raise UserError("give one plan: python -m benchmarks.screen PLAN.yaml [jobs=N] [--status]")
    if status and (report or retry or out):
        raise UserError("--status only prints: leave out --report, --retry and --out")
    plan = screen_plan.read(Path(paths[0]))
    jobs = jobs or plan.jobs
    with _explained(plan):
        if not status and not report:
            Queue(plan, jobs, retry).work()
        for entry in plan.entries:
            _require_same(entry)
        found = screen_plan.look(plan)
    print("\n".join(status_lines(plan, found, jobs)))
    if status:
        return
    with _explained(plan):
        written = screen_report.write(plan, found, Path(out) if out else None)
    print(written)
    if not report and any(one.state != "finished" for one in found.values()):
        sys.exit(1)


@contextmanager
def _explained(plan: Plan) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of standard output
        raise
    except OSError as error:
        advice = "free some disk space, or choose another folder"
        raise files.cannot_write(Path(error.filename or plan.folder), error, advice) from error


class Running(NamedTuple):
    """A run and its process."""

    entry: Entry
    process: subprocess.Popen[bytes]


class Queue:
    """Starts the runs of a plan that are not finished, `jobs` at a time.

    Args:
        plan: the plan.
        jobs: number of runs at a time.
        retry: also continue runs that have failed.
    """

    def __init__(self, plan: Plan, jobs: int, retry: bool) -> None:
        self._plan, self._jobs, self._retry = plan, jobs, retry
        self._threads = max(1, int(machine.cores() / jobs))  # of each run
        self._running: list[Running] = []

    def work(self) -> None:
        """Check the plan, then run until nothing is left to do.

        Raises:
            UserError: the plan is wrong, does not fit the runs in its folder, or is being worked on.
            SystemExit: the process was asked to stop; the runs have saved snapshots.
        """
        screen_plan.check(self._plan)
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        with files.locked(self._plan.folder, "folder"):
            waiting = self.waiting()
            if waiting:
                _record_machine(self._plan, self._threads)
            try:
                with ExitStack() as cleanup, StopSignals(self._plan.folder) as stop:
                    cleanup.callback(self._stop)  # after the signals have their usual effect again
                    self._until_done(waiting, stop)
            except Stopped as stopped:
                again = f"continue with: python -m benchmarks.screen {shlex.quote(str(self._plan.path))}"
                print(f"\n{stopped}, and the runs with it; {again}", file=sys.stderr)
                sys.exit(stopped.code)

    def waiting(self) -> deque[Entry]:
        """Return the runs to start, in order.

        Raises:
            UserError: a run was started with other overrides.
        """
        waiting, kept = deque[Entry](), Counter[str]()
        for entry in self._plan.entries:
            _require_same(entry)
            _wait_for(entry)
            state = screen_plan.look_at(self._plan, entry, live=False).state
            if state == "finished" or (state == "failed" and not self._retry):
                kept[state] += 1
            else:
                waiting.append(entry)
        failed = f", {kept['failed']} failed before (--retry continues them)" if kept["failed"] else ""
        print(
            f"{self._plan.folder}: {counted(len(waiting), 'run')} to do, {kept['finished']} finished{failed}",
            flush=True,
        )
        return waiting

    def _until_done(self, waiting: deque[Entry], stop: StopSignals) -> None:
        while waiting or self._running:
            while waiting and len(self._running) < self._jobs:
                self._running.append(_start(waiting.popleft(), self._threads))
            stop.raise_if_requested()
            time.sleep(_TICK)
            self._collect()

    def _collect(self) -> None:
        """Record the exit codes of the runs that have ended."""
        for one in [one for one in self._running if one.process.poll() is not None]:
            self._running.remove(one)
            screen_plan.write_record(one.entry, one.process.returncode)
            ended = screen_plan.look_at(self._plan, one.entry, live=True)
            because = f" with exit code {ended.code}: {ended.message}" if ended.state == "failed" else ""
            print(f"{one.entry.name}: {ended.state} at frame {ended.frame:,}{because}", flush=True)

    def _stop(self) -> None:
        """Ask the runs that are left to save snapshots and exit, and wait for them."""
        for one in self._running:
            one.process.send_signal(signal.SIGTERM)
        for one in self._running:
            one.process.wait()
        self._collect()


def _start(entry: Entry, threads: int) -> Running:
    entry.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "train.py"), *entry.overrides, "console=off", f"hydra.run.dir={entry.folder}"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": path}
    screen_plan.write_record(entry, None)
    with (entry.folder / OUTPUT).open("ab") as output:
        process = subprocess.Popen(
            command,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # ctrl-C reaches this process, which then stops the runs
            preexec_fn=_as_child,
        )
    print(f"{entry.name}: started", flush=True)
    return Running(entry, process)


def _as_child() -> None:
    os.nice(_NICENESS)
    with suppress(OSError):  # Linux may share processors among sessions first: then niceness counts only within one
        Path("/proc/self/autogroup").write_text(str(_NICENESS))
    end_with_parent()


def _require_same(entry: Entry) -> None:
    """Refuse to continue a run with other overrides than it was started with."""
    before = screen_plan.read_record(entry).get("overrides", list(entry.overrides))
    if before != list(entry.overrides):
        changed = sorted(set(before) ^ set(entry.overrides)) or ["their order"]
        raise UserError(
            f"{entry.folder} was started with other overrides ({', '.join(changed)})\n"
            "Give the changed arm another name, choose another folder, or delete the directories of these runs."
        )


def _wait_for(entry: Entry) -> None:
    """Wait for a run that an earlier call left behind when it was killed."""
    if files.in_use(entry.folder):
        print(f"{entry.name}: is running already; waiting until it ends", flush=True)
        while files.in_use(entry.folder):
            time.sleep(_TICK)


def _record_machine(plan: Plan, threads: int) -> None:
    """Add code and machine to machine.json, unless they are the same as in the last call."""
    commit, dirty = git_commit(ROOT)
    now = {
        "commit": commit,
        "dirty": dirty,
        "processor": machine.processor()[0],
        "cores": machine.cores(),
        "threads": threads,
        "torch": version("torch"),
    }
    known = screen_report.machines(plan)
    if not known or {name: known[-1].get(name) for name in now} != now:
        known.append({"time": datetime.now(UTC).isoformat(timespec="seconds"), **now})
        files.write_atomically(plan.folder / screen_report.MACHINE, (json.dumps(known, indent=1) + "\n").encode())


def status_lines(plan: Plan, found: dict[Entry, Found], jobs: int) -> list[str]:
    """Return a table of the runs, how many are in which state, and how long the rest will take."""
    rows: list[Sequence[str]] = [("run", "state", "frame", "return", "frames/s")]
    for entry, one in found.items():
        run = one.run
        newest = f"{run.returns[-1]:.1f}" if run is not None and len(run.returns) else "-"
        speed = f"{run.fps:.1f}" if run is not None and np.isfinite(run.fps) else "-"
        state = f"{one.state} ({one.code})" if one.state == "failed" else one.state
        rows.append((entry.name, state, f"{one.frame:,}", newest, speed))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{r[0]:<{widths[0]}}  {r[1]:<{widths[1]}}  " + _right(r[2:], widths[2:]) for r in rows]
    lines += [f"{entry.name}: {one.message}" for entry, one in found.items() if one.message]
    lines += screen_plan.elsewhere(plan, found)
    counts = Counter(one.state for one in found.values())
    lines.append(", ".join(f"{counts[state]} {state}" for state in STATES if counts[state]))
    hours = remaining_hours(plan, found, jobs)
    if hours is None:
        return [*lines, "time left: unknown before the first row of train.csv"]
    text = f"{hours:.1f} hours" if hours >= 1 else counted(round(60 * hours), "minute")
    return [*lines, f"time left: {text} with jobs={jobs}, without evaluations"] if hours else lines


def _right(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def remaining_hours(plan: Plan, found: dict[Entry, Found], jobs: int) -> float | None:
    """Return the hours of training that are left, at each arm's median speed; None before any speed is known."""
    speeds: dict[str, list[float]] = {}
    for entry, one in found.items():
        if one.run is not None and np.isfinite(one.run.fps):
            speeds.setdefault(entry.arm, []).append(one.run.fps)
    left = [(entry.arm, plan.frames - one.frame) for entry, one in found.items() if one.state not in _ENDED]
    if not left:
        return 0.0
    if not speeds:
        return None
    usual = float(np.median([speed for own in speeds.values() for speed in own]))
    seconds = [max(0, frames) / (np.median(speeds[arm]) if arm in speeds else usual) for arm, frames in left]
    return float(max(sum(seconds) / min(jobs, len(left)), max(seconds)) / 3600)


_ENDED = ("finished", "failed")


if __name__ == "__main__":
    main()
