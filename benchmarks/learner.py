"""Milliseconds of one update of the agent: `python -m benchmarks.learner [--json]`."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.alternation import Side, alternate, timed_ms
from benchmarks.baseline.learner import PlainDrQV2
from benchmarks.common import Row, compare, main
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.system import machine, torch_settings

ABOUT = (
    "one update, including the batch's copy to the device; ratio: speed-up over the baseline; limit_ms: the same "
    "number of operations at the rate of a 2048x2048 matrix product"
)


class Shapes(NamedTuple):
    """Sizes of an update."""

    batch_size: int
    channels: int
    image_size: int
    feature_dim: int
    hidden_dim: int
    actions: int  # action dimensions


PAPER = Shapes(256, 9, 84, 50, 1024, 6)  # six actions, as cheetah_run has
SMALL = Shapes(8, 9, 40, 8, 32, 2)
PRODUCT = 2048  # rows and columns


def measure(quick: bool = False, within: float = math.inf) -> list[Row]:
    """Return a row for the baseline and for each precision, on CUDA with graphs only.

    A CPU that would emulate bf16 is measured in fp32 alone. `within` as in `alternate`.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes, seconds = (SMALL, 0.0) if quick else (PAPER, 70.0 if device == "cpu" else 20.0)
    precisions = {"fp32": torch.float32}
    if device == "cuda" or machine.processor()[1] != "emulated":
        precisions["bf16"] = torch.bfloat16
    else:
        print("bf16: this CPU has no instructions for it, left out", file=sys.stderr)
    updates: dict[str, Side] = {"baseline": partial(plain_updates, shapes, device)}
    graph = device == "cuda"
    for precision in precisions:
        updates[precision + " graph" * graph] = partial(updates_in, shapes, device, precision, graph)
    products: dict[str, Side] = {f"product {name}": partial(product, device, d) for name, d in precisions.items()}
    times = alternate(updates | products, seconds, warm_up=2, within=within)

    flop = update_flop(shapes)
    rows = []
    for name in updates:
        precision = "bf16" if "bf16" in name else "fp32"
        flop_per_ms = 2 * PRODUCT**3 / statistics.median(times[f"product {precision}"])
        row = {"side": name, "device": device, "batch_size": shapes.batch_size, "gflop": flop / 1e9}
        row |= compare(times["baseline"], times[name])
        rows.append({**row, "limit_ms": flop / flop_per_ms, "times_limit": row["ms"] * flop_per_ms / flop})
    return rows


def plain_updates(shapes: Shapes, device: str) -> Iterator[float]:
    """Yield the times of the baseline's updates."""
    agent = PlainDrQV2(_obs_shape(shapes), shapes.actions, device, shapes.feature_dim, shapes.hidden_dim)
    yield from _times(agent.update, shapes, device)


def updates_in(shapes: Shapes, device: str, precision: str, compile: bool) -> Iterator[float]:
    """Yield the times of this project's updates in a precision."""
    yield from _times(make_agent(shapes, device, precision, compile).update, shapes, device)


def make_agent(shapes: Shapes, device: str, precision: str, compile: bool) -> DrQV2Agent:
    """Return an agent of these shapes, torch being set as in runs."""
    torch_settings.set_numerics()
    if device == "cpu":
        torch_settings.keep_freed_memory()
    return DrQV2Agent(
        obs_shape=_obs_shape(shapes),
        action_shape=(shapes.actions,),
        device=device,
        lr=1e-4,
        feature_dim=shapes.feature_dim,
        hidden_dim=shapes.hidden_dim,
        critic_target_tau=0.01,
        num_expl_steps=0,
        update_every_steps=1,
        stddev_schedule="linear(1.0,0.1,100000)",
        stddev_clip=0.3,
        use_tb=True,
        precision=precision,
        compile=compile,
    )


def product(device: str, dtype: torch.dtype) -> Iterator[float]:
    """Yield the times of a matrix product."""
    a, b = (torch.randn(PRODUCT, PRODUCT, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def multiply() -> None:
        torch.mm(a, b, out=out)
        _wait(device)

    while True:
        yield min(timed_ms(multiply) for _ in range(3))


def update_flop(shapes: Shapes) -> float:
    """Return the floating-point operations of one update.

    The backward pass of a layer costs one forward pass for its weights and one for its inputs.
    """
    size, inputs, layers = shapes.image_size, shapes.channels, []
    for stride in (2, 1, 1, 1):
        size = (size - 3) // stride + 1
        layers.append(2 * 9 * inputs * 32 * size**2)
        inputs = 32
    trunk = 2 * 32 * size**2 * shapes.feature_dim
    hidden = shapes.hidden_dim
    policy = 2 * hidden * (shapes.feature_dim + hidden + shapes.actions)
    values = 2 * 2 * hidden * (shapes.feature_dim + shapes.actions + hidden + 1)  # Q1 and Q2
    encoder = 4 * sum(layers) - layers[0]  # forward: obs, next_obs; backward: obs, without gradients of the images
    critic = (trunk + policy) + (trunk + values) + 3 * (trunk + values)  # next action; target; forward and backward
    actor = (2 * trunk + 3 * policy) + (trunk + 2 * values)  # no gradients of the features and the critic's weights
    return float(shapes.batch_size * (encoder + critic + actor))


def _times(update: Callable[..., Any], shapes: Shapes, device: str) -> Iterator[float]:
    batches = repeat(random_batch(shapes))

    def call() -> None:
        update(batches, 0)
        _wait(device)

    while True:
        yield timed_ms(call)


def random_batch(shapes: Shapes) -> tuple[Tensor, ...]:
    """Return (obs, action, reward, discount, next_obs) of random pixels."""
    size = (shapes.batch_size, *_obs_shape(shapes))
    obs, next_obs = (torch.randint(0, 256, size, dtype=torch.uint8) for _ in range(2))
    action, reward = torch.rand(shapes.batch_size, shapes.actions) * 2 - 1, torch.rand(shapes.batch_size, 1)
    return obs, action, reward, torch.full((shapes.batch_size, 1), 0.97), next_obs


def _obs_shape(shapes: Shapes) -> tuple[int, int, int]:
    return (shapes.channels, shapes.image_size, shapes.image_size)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main("learner", ABOUT, measure)
