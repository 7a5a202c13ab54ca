"""Shared by the benchmarks: machine facts, options, summaries, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from drqv2 import envs
from drqv2.errors import UserError
from drqv2.system import machine

Row = dict[str, Any]


def quartiles(values: Sequence[float], name: str) -> Row:
    """Return the median as `name` and the quartiles as `name`_25 and `name`_75."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {name: median, f"{name}_25": low, f"{name}_75": high}


def compare(baseline: Sequence[float], values: Sequence[float]) -> Row:
    """Return quartiles of `ms` and of `ratio`, the speed-up over the baseline in each round, and `repetitions`."""
    ratios = [slow / fast for slow, fast in zip(baseline, values, strict=True)]
    return {**quartiles(values, "ms"), **quartiles(ratios, "ratio"), "repetitions": len(values)}


def machine_facts() -> Row:
    """Return what the results depend on: processor, threads, renderer, versions, load."""
    return {
        "cpu": machine.processor()[0],
        "cores": machine.cores(),
        "torch_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "renderer": envs.gl_renderer(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "mujoco", "dm-control", "numpy")},
    }


def show_machine(facts: Mapping[str, Any]) -> None:
    """Print the facts, with a warning if the machine is busy."""
    print("\n".join(f"{name:<14}{value}" for name, value in facts.items() if value is not None))
    if facts["load"] > facts["cores"] / 2:
        print(f"The machine is busy (load {facts['load']}): results would be better on an idle one.")


def show_rows(name: str, about: str, rows: Sequence[Row]) -> None:
    """Print a benchmark's rows as a table."""
    cells = [list(rows[0]), *([text(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    print(f"\n{name}: {about}")
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def text(value: Any) -> str:
    """Return a cell of a table."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def options(description: str | None) -> argparse.Namespace:
    """Read --json and --quick from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="smoke test: few repetitions and sides, small sizes")
    return parser.parse_args()


def main_of_tasks(name: str, about: str, description: str | None, measure: Callable[[str, bool], list[Row]]) -> None:
    """Run a benchmark whose command line names tasks; `measure` returns the rows of a task, see `main`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("task", nargs="+")
    parser.add_argument("--quick", action="store_true", help="smoke test: few repetitions, small sizes")
    args = parser.parse_args()
    show_machine(machine_facts())
    try:
        rows = [row for task in args.task for row in measure(task, args.quick)]
    except UserError as error:
        sys.exit(str(error))
    show_rows(name, about, rows)


def main(name: str, about: str, measure: Callable[[bool], list[Row]]) -> None:
    """Run one benchmark from the command line.

    Args:
        name: name of the benchmark.
        about: what it measures, in one line.
        measure: returns the rows; its argument is `quick`.
    """
    args = options(about)
    facts = machine_facts()  # before the benchmark itself loads the machine
    try:
        rows = measure(args.quick)
    except KeyboardInterrupt:
        sys.exit("stopped by Ctrl-C")
    if args.json:
        print(json.dumps({"machine": facts, name: rows}, indent=2))
    else:
        show_machine(facts)
        show_rows(name, about, rows)
