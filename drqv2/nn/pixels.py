"""Images on their way to the first convolution on a GPU, by one kernel in place of twelve."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MULTIPLE = 16  # channels: fewer are not multiplied by tensor cores


def prepared(images: Tensor, shift: Tensor) -> Tensor:
    """Return images as `RandomShiftsAug` shifts them and `centred` centres them, with channels of zeros added.

    Needs Triton, see `has_kernel`.

    Args:
        images: uint8 [B, C, H, W].
        shift: int64 [2, B], as `RandomShiftsAug.draw` returns it.

    Returns:
        bfloat16 [B, C', H, W] in channels-last order, C' the next power of two of at least 16.
    """
    kernel = _kernel()
    assert kernel is not None
    batch, channels, height, width = images.shape
    wide = max(_MULTIPLE, 1 << (channels - 1).bit_length())
    out = torch.empty(
        (batch, wide, height, width), dtype=torch.bfloat16, device=images.device, memory_format=torch.channels_last
    )
    kernel(images.contiguous(), shift.contiguous(), out)
    return out


def has_kernel() -> bool:
    """Return whether there is Triton."""
    return _kernel() is not None


@functools.cache
def _kernel() -> Callable[[Tensor, Tensor, Tensor], None] | None:
    try:
        from drqv2.nn import pixels_triton
    except ModuleNotFoundError:
        return None
    kernel: Any = pixels_triton.prepare
    return kernel
