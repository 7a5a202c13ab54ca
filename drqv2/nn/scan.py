"""The recurrence behind GAE, V-trace and puff advantage: x_t = delta_t + decay_t x_{t+1}, from the last step back.

Three ways compute it. On a CPU, a C++ loop, which torch builds at the first call and keeps in its cache of extensions;
where that cannot be built, and on a GPU without Triton, ceil(log2 T) vectorised passes; on a GPU, a Triton kernel.
"""

from __future__ import annotations

import functools
import shutil
import warnings
from typing import Any

import torch
from torch import Tensor

SOURCE = r"""
#include <ATen/Parallel.h>
#include <torch/types.h>

// Rows are independent and their steps are adjacent in memory. Eight rows at a time: within one, each step waits for
// the one after it.
template <typename T>
void scan_rows(const T* deltas, const T* decays, T* out, int64_t steps, int64_t rows) {
    constexpr int64_t kBlock = 8;
    const int64_t blocks = (rows + kBlock - 1) / kBlock, grain = 1 + 16384 / (kBlock * steps + 1);
    at::parallel_for(0, blocks, grain, [&](int64_t first, int64_t last) {
        for (int64_t block = first; block < last; ++block) {
            const int64_t begin = block * kBlock, width = std::min(kBlock, rows - begin);
            T x[kBlock] = {};
            for (int64_t t = steps - 1; t >= 0; --t)
                for (int64_t i = 0; i < width; ++i) {
                    const int64_t at = (begin + i) * steps + t;
                    x[i] = deltas[at] + decays[at] * x[i];
                    out[at] = x[i];
                }
        }
    });
}

// Steps are independent of the rows: [steps, rows], rows adjacent in memory.
template <typename T>
void scan_columns(const T* deltas, const T* decays, T* out, int64_t steps, int64_t rows) {
    at::parallel_for(0, rows, 1 + 16384 / (steps + 1), [&](int64_t first, int64_t last) {
        for (int64_t t = steps - 1; t >= 0; --t)
            for (int64_t at = t * rows + first; at < t * rows + last; ++at)
                out[at] = deltas[at] + (t + 1 < steps ? decays[at] * out[at + rows] : T(0));
    });
}

torch::Tensor scan(torch::Tensor deltas, torch::Tensor decays, bool time_first) {
    auto out = torch::empty_like(deltas);
    const int64_t steps = deltas.size(time_first ? 0 : 1), rows = deltas.size(time_first ? 1 : 0);
    AT_DISPATCH_FLOATING_TYPES(deltas.scalar_type(), "scan", [&] {
        (time_first ? scan_columns<scalar_t> : scan_rows<scalar_t>)(
            deltas.data_ptr<scalar_t>(), decays.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), steps, rows);
    });
    return out;
}
"""


def reverse_scan(deltas: Tensor, decays: Tensor, time_first: bool) -> Tensor:
    """Return x with x_t = delta_t + decay_t x_{t+1}, where x after the last step is 0.

    Args:
        deltas: any float dtype, [T, B] with `time_first`, else [B, T].
        decays: of the same shape and dtype.
        time_first: whether time is the first axis or the second.

    Returns:
        Of the same shape and dtype; half precisions are summed in float32.
    """
    dtype = deltas.dtype
    if dtype in (torch.float16, torch.bfloat16):
        deltas, decays = deltas.float(), decays.float()
    if deltas.device.type == "cpu" and (extension := _extension()) is not None:
        return extension.scan(deltas.contiguous(), decays.contiguous(), time_first).to(dtype)
    return by_doubling(deltas, decays, time_first).to(dtype)


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
    return x


@functools.cache
def _extension() -> Any:
    """Return the C++ loop, built at the first call; None where there is no compiler."""
    if not shutil.which("c++") or not shutil.which("ninja"):
        return None
    from torch.utils.cpp_extension import load_inline

    try:
        return load_inline("drqv2_scan", [SOURCE], functions=["scan"], extra_cflags=["-O3", "-march=native"])
    except (RuntimeError, OSError) as error:
        warnings.warn(
            f"the C++ scan cannot be built ({str(error).splitlines()[0]}): a slower way is used", stacklevel=2
        )
        return None
