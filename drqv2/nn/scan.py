"""The recurrence behind GAE, V-trace and puff advantage: x_t = delta_t + decay_t x_{t+1}, from the last step back.

It is a loop over the steps, which takes less than a millisecond for what a learner collects; on a GPU, a Triton kernel.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
    kernel = _cuda_kernel() if deltas.is_cuda else None
    if kernel is None:
        return by_steps(deltas, decays, time_first).to(dtype)
    out = torch.empty_like(deltas)
    steps, rows = deltas.shape if time_first else deltas.shape[::-1]
    if out.numel():
        kernel(deltas, decays, out, rows, steps, *((1, rows) if time_first else (steps, 1)))
    return out.to(dtype)


def by_steps(deltas: Tensor, decays: Tensor, time_first: bool) -> Tensor:
    """Return the same by a loop over steps, vectorised over rows."""
    axis = 0 if time_first else 1
    if not deltas.shape[axis]:
        return torch.empty_like(deltas)
    found = [deltas.select(axis, -1)]
    for delta, decay in list(zip(deltas.unbind(axis), decays.unbind(axis), strict=True))[-2::-1]:
        found.append(torch.addcmul(delta, decay, found[-1]))
    return torch.stack(found[::-1], axis)


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
