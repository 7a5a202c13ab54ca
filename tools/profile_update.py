"""Where the time of DrQ-v2's update goes: `python tools/profile_update.py`.

Prints milliseconds of an update and of an action with the paper's shapes, on the GPU if there is one, in each
precision, with and without a CUDA graph; then the kernels that take most time. The batch is on the device: no copy is
timed.
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
from benchmarks.learner import PAPER, random_batch
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.system import machine

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPETITIONS = 50 if DEVICE == "cuda" else 3


def main() -> None:
    """Run the command line described above."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False  # as in runs
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    batch = tuple(x.to(DEVICE) for x in random_batch(PAPER))
    precisions = ("bf16", "fp32") if DEVICE == "cuda" or machine.processor()[1] else ("fp32",)
    for precision in precisions:
        for compile in (True, False) if DEVICE == "cuda" else (False,):
            agent = made(precision, compile)
            update = median_ms(partial(agent.update, repeat(batch), 0))
            act = median_ms(partial(agent.act_batch, batch[0][:1].cpu().numpy(), 0, False))
            print(f"{DEVICE} {precision}{' graph' * compile}: update {update:.2f} ms, action {act:.2f} ms", flush=True)
    print(kernels(made(precisions[0], DEVICE == "cuda"), batch))


def made(precision: str, compile: bool) -> DrQV2Agent:
    """Return an agent of the paper's shapes."""
    shape = (PAPER.channels, PAPER.image_size, PAPER.image_size)
    sizes = (PAPER.feature_dim, PAPER.hidden_dim)
    schedule = "linear(1.0,0.1,100000)"
    return DrQV2Agent(
        *(shape, (PAPER.actions,), DEVICE, 1e-4, *sizes, 0.01, 0, 1, schedule, 0.3, True),
        precision=precision,
        compile=compile,
    )


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
