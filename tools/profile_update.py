"""Where the time of DrQ-v2's update goes: `python tools/profile_update.py`.

Prints milliseconds of an update and of an action with the paper's shapes, on the GPU if there is one, in each
precision, with and without a CUDA graph; then the kernels that take most time. The update's batch is on the device; an
action includes the copies of observation and action.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.alternation import timed_ms
from benchmarks.learner import PAPER, make_agent, random_batch
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.system import machine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPETITIONS = 50 if DEVICE == "cuda" else 3


def main() -> None:
    """Run the command line described above."""
    batch = tuple(x.to(DEVICE) for x in random_batch(PAPER))
    precisions = ("bf16", "fp32") if DEVICE == "cuda" or machine.processor()[1] else ("fp32",)
    for precision in precisions:
        for compile in (True, False) if DEVICE == "cuda" else (False,):
            agent = make_agent(PAPER, DEVICE, precision, compile)
            update = median_ms(partial(agent.update, repeat(batch), 0))
            act = median_ms(partial(agent.act_batch, batch[0][:1].cpu().numpy(), 0, False))
            print(f"{DEVICE} {precision}{' graph' * compile}: update {update:.2f} ms, action {act:.2f} ms", flush=True)
    print(kernels(make_agent(PAPER, DEVICE, precisions[0], DEVICE == "cuda"), batch))


def median_ms(call: Callable[[], Any]) -> float:
    """Return the median time of a call, until the device has finished."""

    def finished() -> None:
        call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    timed_ms(finished, 5 if DEVICE == "cuda" else 1)
    return statistics.median(timed_ms(finished) for _ in range(REPETITIONS))


def kernels(agent: DrQV2Agent, batch: tuple[torch.Tensor, ...]) -> str:
    """Return a table of what takes most time in an update."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
    agent.update(repeat(batch), 0)
    with profile(activities=activities) as found:
        agent.update(repeat(batch), 0)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    order = f"self_{DEVICE}_time_total"
    return str(found.key_averages().table(sort_by=order, row_limit=20, max_name_column_width=80))


if __name__ == "__main__":
    main()
