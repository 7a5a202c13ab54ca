"""The recurrence behind GAE, V-trace and puff advantage: x_t = delta_t + decay_t x_{t+1}, from the last step back.

On a CPU it is a C++ loop, built at the first call; on a GPU, a Triton kernel.
Without a compiler or Triton it is ceil(log2 T) vectorised passes.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drqv2.nn import extension

_FUNCTIONS = {torch.float32: "scan_float", torch.float64: "scan_double"}


def reverse_scan(deltas: Tensor, decays: Tensor, time_first: bool) -> Tensor:
    """Return x with x_t = delta_t + decay_t x_{t+1}, where x after the last step is 0.

    Args:
        deltas: any float dtype, [T, B] with `time_first`, else [B, T].
        decays: of the same shape, or one that broadcasts to it; those of the last step are not used.
        time_first: whether time is the first axis or the second.

    Returns:
        Of the shape of `deltas` and the wider of the dtypes; half precisions are summed in float32.
    """
    dtype = torch.promote_types(deltas.dtype, decays.dtype)
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    deltas, decays = deltas.to(wide).contiguous(), decays.to(wide).expand_as(deltas).contiguous()
    kernel = _cuda_kernel() if deltas.is_cuda else _extension() if deltas.device.type == "cpu" else None
    if kernel is None:
        return by_doubling(deltas, decays, time_first).to(dtype)
    out = torch.empty_like(deltas)
    steps, rows = deltas.shape if time_first else deltas.shape[::-1]
    if out.numel():
        kernel(deltas, decays, out, rows, steps, *((1, rows) if time_first else (steps, 1)))
    return out.to(dtype)


def by_doubling(deltas: Tensor, decays: Tensor, time_first: bool) -> Tensor:
    """Return the same by passes that each double the number of steps summed (Hillis and Steele, 1986)."""
    axis = 0 if time_first else 1
    x, factor, steps = deltas, decays, deltas.shape[axis]
    reach = 1
    while reach < steps:
        head, tail = (slice(None),) * axis, steps - reach
        now, later = (*head, slice(0, tail)), (*head, slice(reach, None))
        further, left = x.clone(), factor.clone()
        further[now] = torch.addcmul(x[now], factor[now], x[later])
        left[now] = factor[now] * factor[later]
        left[(*head, slice(tail, None))] = 0
        x, factor, reach = further, left, 2 * reach
    return x.clone() if x is deltas else x


@functools.cache
def _extension() -> Callable[..., None] | None:
    """Return the C++ loop; None where it cannot be built."""
    library = extension.load("scan", (Path(__file__).with_suffix(".cpp"),))
    if library is None:
        return None

    def call(deltas: Tensor, decays: Tensor, out: Tensor, *sizes: int) -> None:
        pointers = (ctypes.c_void_p(x.data_ptr()) for x in (deltas, decays, out))
        getattr(library, _FUNCTIONS[deltas.dtype])(*pointers, *map(ctypes.c_int64, sizes))

    return call


@functools.cache
def _cuda_kernel() -> Callable[..., None] | None:
    """Return the Triton kernel, if it works here; without Triton, None."""
    try:
        from drqv2.nn import scan_triton

        ones, out = torch.ones(2, 3, device="cuda"), torch.zeros(2, 3, device="cuda")
        scan_triton.scan(ones, ones, out, 3, 2, 1, 3)
        if out.tolist() == [[2.0] * 3, [1.0] * 3]:
            kernel: Any = scan_triton.scan
            return kernel
        why = "it gives other numbers"
    except ModuleNotFoundError:
        return None
    except Exception as error:  # of the C compiler, the driver or Triton itself: there is other code for this
        why = " ".join(str(error).split())[:200]
    warnings.warn(f"returns are calculated without the Triton kernel, which fails here: {why}", stacklevel=2)
    return None
