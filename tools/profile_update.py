"""Where the time of DrQ-v2's update goes: `python tools/profile_update.py [--json] [--quick]`.

Prints milliseconds of an update and of an action with the paper's shapes, on the GPU if there is one, in each
precision, with and without a CUDA graph; then the kernels that take most time, or operators on a CPU. The update's
batch is on the device; an action includes the copies of observation and action. With --json each row is a line of JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, repeat
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.alternation import timed_ms
from benchmarks.common import Row, options, show_rows
from benchmarks.learner import PAPER, SMALL, Shapes, make_agent, random_batch
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.system import machine

ABOUT = {
    "precision": "milliseconds of an update and of an action",
    "kernel": "what takes most time in an update in the first of the precisions",
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPETITIONS = 50 if DEVICE == "cuda" else 3
KERNELS = 25  # rows at most


def main() -> None:
    """Run the command line described above."""
    args = options(__doc__)
    rows = measure(SMALL if args.quick else PAPER)
    if args.json:
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    for names, table in groupby(rows, key=list):
        show_rows(names[0], ABOUT[names[0]], list(table))


def measure(shapes: Shapes) -> Iterator[Row]:
    """Yield a row for each precision, and one for each of the kernels."""
    batch = tuple(x.to(DEVICE) for x in random_batch(shapes))
    precisions = ("bf16", "fp32") if DEVICE == "cuda" or machine.processor()[1] != "emulated" else ("fp32",)
    for precision in precisions:
        for compile in (True, False) if DEVICE == "cuda" else (False,):
            agent = make_agent(shapes, DEVICE, precision, compile)
            update = median_ms(partial(agent.update, repeat(batch), 0))
            act = median_ms(partial(agent.act_batch, batch[0][:1].cpu().numpy(), 0, False))
            side = f"{precision}{' graph' * compile}"
            yield {"precision": side, "device": DEVICE, "update_ms": update, "action_ms": act}
    yield from kernels(make_agent(shapes, DEVICE, precisions[0], DEVICE == "cuda"), batch)


def median_ms(call: Callable[[], Any]) -> float:
    """Return the median time of a call, until the device has finished."""

    def finished() -> None:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    timed_ms(finished, 5 if DEVICE == "cuda" else 1)
    return statistics.median(timed_ms(finished) for _ in range(REPETITIONS))


def kernels(agent: DrQV2Agent, batch: tuple[torch.Tensor, ...]) -> Iterator[Row]:
    """Yield a row for each of the kernels that take most time in an update."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
    agent.update(repeat(batch), 0)
    with profile(activities=activities) as found:
        agent.update(repeat(batch), 0)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    # On a GPU without the operators, which count the time of their kernels, too.
    events: list[Any] = [event for event in found.key_averages() if event.device_type.name == DEVICE.upper()]
    times = [(1e-3 * _own_us(event), event) for event in events]
    whole = sum(ms for ms, _ in times)
    for ms, event in sorted(times, key=lambda pair: -pair[0])[:KERNELS]:
        name = event.key if len(event.key) <= 80 else event.key[:77] + "..."
        yield {"kernel": name, "calls": event.count, "ms": ms, "percent": 100 * ms / whole}


def _own_us(event: Any) -> float:
    return float(event.self_device_time_total if DEVICE == "cuda" else event.self_cpu_time_total)


if __name__ == "__main__":
    main()
