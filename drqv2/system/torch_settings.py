"""How torch computes in this process: freed memory, and numbers that a GPU repeats."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import torch


def keep_freed_memory() -> None:
    """Make glibc, where there is one, keep freed memory for the next allocation of the main thread.

    An update on a CPU allocates and frees the same hundreds of megabytes each time. Otherwise page faults take a third
    of its time or more.
    """
    m_trim_threshold, m_mmap_max = -1, -4  # malloc.h
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def set_numerics() -> None:
    """Set how a GPU computes: the same seed gives the same bits, fp32 is fp32, and bf16 products are summed in fp32.

    With torch's default, sums in bf16, three updates of the golden test end four times as far from those in fp32
    (results/gpu/README.md).
    """
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
