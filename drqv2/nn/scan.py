"""The recurrence behind GAE, V-trace and puff advantage: x_t = delta_t + decay_t x_{t+1}, from the last step back.

On a CPU it is a C++ loop, built at the first call and kept in torch's cache of extensions; on a GPU, a Triton kernel.
Without a compiler or Triton it is ceil(log2 T) vectorised passes.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Free of torch's headers, which take half a minute to compile. `last` and `next` are distances in memory: of rows, and
# of the steps within one. Eight rows at a time, since within one each step waits for the one after it.
SOURCE = r"""
#include <algorithm>
#include <cstdint>

template <typename T>
void scan(const T* deltas, const T* decays, T* out, int64_t rows, int64_t steps, int64_t row, int64_t step) {
    constexpr int64_t kBlock = 8;
    for (int64_t begin = 0; begin < rows; begin += kBlock) {
        const int64_t width = std::min(kBlock, rows - begin);
        T x[kBlock] = {};
        for (int64_t t = steps - 1; t >= 0; --t)
            for (int64_t i = 0; i < width; ++i) {
                const int64_t at = (begin + i) * row + t * step;
                x[i] = deltas[at] + (t + 1 < steps ? decays[at] * x[i] : T(0));
                out[at] = x[i];
            }
    }
}

extern "C" void scan_float(const float* a, const float* b, float* out, int64_t n, int64_t t, int64_t r, int64_t s) {
    scan(a, b, out, n, t, r, s);
}

extern "C" void scan_double(const double* a, const double* b, double* out, int64_t n, int64_t t, int64_t r, int64_t s) {
    scan(a, b, out, n, t, r, s);
}
"""
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
    if not shutil.which("c++") or not shutil.which("ninja"):
        return None
    try:
        library = ctypes.CDLL(str(_built()))
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        warnings.warn(f"the C++ scan cannot be built ({reason}): a slower way is used", stacklevel=2)
        return None

    def call(deltas: Tensor, decays: Tensor, out: Tensor, *sizes: int) -> None:
        pointers = (ctypes.c_void_p(x.data_ptr()) for x in (deltas, decays, out))
        getattr(library, _FUNCTIONS[deltas.dtype])(*pointers, *map(ctypes.c_int64, sizes))

    return call


def _built() -> Path:
    """Return the library, built if necessary.

    torch's loader leaves a lock behind when its process is killed, and then waits for it forever. So each process
    builds in a directory of its own.
    """
    from torch.utils import cpp_extension

    key = hashlib.sha256(f"{SOURCE}{platform.machine()}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()) / "drqv2"
    library = cache / f"scan_{key}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            source = Path(folder, "scan.cpp")
            source.write_text(SOURCE)
            cpp_extension.load("scan", [str(source)], ["-O3"], build_directory=folder, is_python_module=False)
            Path(folder, "scan.so").replace(library)
    return library


@functools.cache
def _cuda_kernel() -> Callable[..., None] | None:
    """Return the Triton kernel; None without Triton."""
    try:
        from drqv2.nn import scan_triton
    except ModuleNotFoundError:
        return None
    kernel: Any = scan_triton.scan
    return kernel
