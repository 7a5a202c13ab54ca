"""The scan of `drqv2.nn.scan` on a GPU: one thread a row."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_ROWS = 64  # of one program


@triton.jit
def _scan(deltas, decays, out, rows, steps, row, step, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < rows
    x = tl.zeros((BLOCK,), deltas.dtype.element_ty)
    for k in range(steps):
        at = i * row + (steps - 1 - k) * step
        x = tl.load(deltas + at, live, 0) + tl.load(decays + at, live, 0) * x
        tl.store(out + at, x, live)


def scan(deltas: Tensor, decays: Tensor, out: Tensor, rows: int, steps: int, row: int, step: int) -> None:
    """Fill `out`; see `reverse_scan`. `row` and `step` are the distances of rows and of steps in memory."""
    kernel: Any = _scan
    kernel[(triton.cdiv(rows, _ROWS),)](deltas, decays, out, rows, steps, row, step, BLOCK=_ROWS)
