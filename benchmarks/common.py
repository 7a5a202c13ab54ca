"""What the benchmarks share: timing, facts about the machine, options, and how results are shown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from drqv2 import envs, machine

Row = dict[str, Any]


def time_ms(
    call: Callable[[], Any], seconds: float, *, least: int = 3, most: int = 200, warm_up: int = 2, per: int = 1
) -> Row:
    """Call again and again and time each call.

    Args:
        call: what is measured.
        seconds: time to spend, warm-up included.
        least: repetitions in any case.
        most: repetitions at most.
        warm_up: calls before the first that counts.
        per: units that one call does; the result is for one unit.

    Returns:
        Milliseconds a unit: the median `ms` and the quartiles `ms_25` and `ms_75`; and the number of `repetitions`.
    """
    end = time.perf_counter() + seconds
    for _ in range(warm_up):
        call()
    times: list[float] = []
    while len(times) < least or (len(times) < most and time.perf_counter() < end):
        begin = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begin) / per)
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"ms": median, "ms_25": low, "ms_75": high, "repetitions": len(times)}


def machine_facts() -> Row:
    """Return what the results depend on: processor, threads, renderer, versions, and how busy the machine is."""
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
    """Print the facts, and a word of caution where others use the machine too."""
    print("\n".join(f"{name:<14}{value}" for name, value in facts.items() if value is not None))
    if facts["load"] > facts["cores"] / 2:
        print(f"The machine is busy (load {facts['load']}): an idle one is faster than this.")


def show_rows(name: str, about: str, rows: Sequence[Row]) -> None:
    """Print a benchmark's rows as a table."""
    cells = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    print(f"\n{name}: {about}")
    for line in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)), flush=True)


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def options(description: str | None) -> argparse.Namespace:
    """Read --json and --quick from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="only see that it runs: few repetitions, short limits")
    return parser.parse_args()


def main(name: str, about: str, measure: Callable[[bool], list[Row]]) -> None:
    """Run one benchmark from the command line.

    Args:
        name: of the benchmark.
        about: what it measures, one line.
        measure: returns the rows; its argument says whether to be quick.
    """
    args = options(about)
    facts = machine_facts()  # before the benchmark itself loads the machine
    rows = measure(args.quick)
    if args.json:
        print(json.dumps({"machine": facts, name: rows}, indent=2))
    else:
        show_machine(facts)
        show_rows(name, about, rows)
