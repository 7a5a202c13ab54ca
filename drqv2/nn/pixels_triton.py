"""The kernel of `drqv2.nn.pixels`: one program for each row of each image."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _prepare(  # type: ignore[no-untyped-def]
    images,
    shifts,
    out,
    batch,
    height,
    width,
    CHANNELS: tl.constexpr,  # of the images
    ALL: tl.constexpr,  # of the result
    ROW: tl.constexpr,  # pixels in a row, and ALL, up to a power of two
    DEPTH: tl.constexpr,
):
    b, y = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x, c = tl.arange(0, ROW)[:, None], tl.arange(0, DEPTH)[None, :]
    row = tl.minimum(tl.maximum(y + tl.load(shifts + b), 0), height - 1)
    column = tl.minimum(tl.maximum(x + tl.load(shifts + batch + b), 0), width - 1)
    known = (c < CHANNELS) & (x < width)
    pixels = tl.load(images + ((b * CHANNELS + c) * height + row) * width + column, known, 0).to(tl.float32)
    centred = tl.div_rn(pixels, tl.full((ROW, DEPTH), 255.0, tl.float32)) - 0.5
    values = tl.where(c < CHANNELS, centred, 0.0).to(out.dtype.element_ty)
    tl.store(out + ((b * height + y) * width + x) * ALL + c, values, (x < width) & (c < ALL))


def prepare(images: Tensor, shift: Tensor, out: Tensor) -> None:
    """Fill `out`, [B, C', H, W] in channels-last order; `images` [B, C, H, W] and `shift` [2, B] are contiguous."""
    batch, channels, height, width = images.shape
    kernel: Any = _prepare
    row, depth = map(triton.next_power_of_2, (width, out.shape[1]))
    kernel[(batch, height)](images, shift, out, batch, height, width, channels, out.shape[1], row, depth)
