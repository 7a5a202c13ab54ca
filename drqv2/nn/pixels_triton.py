"""The kernel of `drqv2.nn.pixels`: one program for each row of each image."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _prepare(  # type: ignore[no-untyped-def]
    images, shifts, out, batch, height, width, CHANNELS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):
    b, y = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x, c = tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDE)[None, :]
    row = tl.minimum(tl.maximum(y + tl.load(shifts + b), 0), height - 1)
    column = tl.minimum(tl.maximum(x + tl.load(shifts + batch + b), 0), width - 1)
    known = (c < CHANNELS) & (x < width)
    pixels = tl.load(images + ((b * CHANNELS + c) * height + row) * width + column, known, 0).to(tl.float32)
    centred = tl.div_rn(pixels, tl.full((BLOCK, WIDE), 255.0, tl.float32)) - 0.5
    values = tl.where(c < CHANNELS, centred, 0.0).to(out.dtype.element_ty)
    tl.store(out + ((b * height + y) * width + x) * WIDE + c, values, (x < width) & (c < WIDE))


def prepare(images: Tensor, shift: Tensor, out: Tensor) -> None:
    """Fill `out`, [B, wide, H, W] in channels-last order; `images` [B, C, H, W] and `shift` [2, B] are contiguous."""
    batch, channels, height, width = images.shape
    kernel: Any = _prepare
    kernel[(batch, height)](
        images, shift, out, batch, height, width,
        CHANNELS=channels, WIDE=out.shape[1], BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
