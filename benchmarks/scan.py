"""The scan behind GAE, V-trace and puff advantage: `python -m benchmarks.scan [--json]`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.alternation import timed_ms
from benchmarks.common import Row, main, quartiles
from drqv2.nn.scan import by_doubling, reverse_scan

ABOUT = "[segments, horizon]; ratio: to a Python loop over steps; of_copy: speed in bytes over that of a copy in memory"
SHAPES = ((64, 64), (256, 64), (4096, 128))


def loop(deltas: Tensor, decays: Tensor, time_first: bool = False) -> Tensor:
    """Return the scan by a loop over the steps, vectorised over segments."""
    out = torch.empty_like(deltas)
    x = torch.zeros(len(deltas), device=deltas.device)
    for t in reversed(range(deltas.shape[1])):
        x = deltas[:, t] + decays[:, t] * x
        out[:, t] = x
    return out


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each way to compute it and each shape, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rounds = 2 if quick else 40
    rows: list[Row] = []
    for shape in SHAPES:
        deltas, decays = torch.randn(shape, device=device), torch.rand(shape, device=device)

        def call(function: Callable[[Tensor, Tensor, bool], Tensor], a: Tensor = deltas, b: Tensor = decays) -> None:
            function(a, b, False)
            if a.is_cuda:
                torch.cuda.synchronize()

        ways: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
            "loop": loop,
            "doubling": by_doubling,
            "scan": reverse_scan,
            "copy": lambda a, b, _: a.clone(),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for k in range(rounds + 1):
            for name, way in ways.items():
                ms = timed_ms(lambda way=way: call(way), 10)  # type: ignore[misc]
                if k:
                    times[name].append(ms)
        bytes_moved = {"copy": 2, "loop": 3, "doubling": 3, "scan": 3}  # reads and writes of whole arrays
        for name in ("loop", "doubling", "scan"):
            row = {"shape": f"{shape[0]}x{shape[1]}", "way": name, **quartiles(times[name], "ms")}
            ratios = [slow / fast for slow, fast in zip(times["loop"], times[name], strict=True)]
            shares = [
                bytes_moved[name] / ms / (bytes_moved["copy"] / copied)
                for ms, copied in zip(times[name], times["copy"], strict=True)
            ]
            rows.append(row | quartiles(ratios, "ratio") | quartiles(shares, "of_copy"))
    return rows


if __name__ == "__main__":
    main("scan", ABOUT, measure)
