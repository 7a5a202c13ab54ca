"""The kernel of `drqv2.nn.pixels`: one program for some pixels of an image, with all channels."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_PIXELS = 256  # of a program


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
    PIXELS: tl.constexpr,
    DEPTH: tl.constexpr,  # ALL up to a power of two
):
    b = tl.program_id(0).to(tl.int64)
    place, c = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)[:, None], tl.arange(0, DEPTH)[None, :]
    inside = place < height * width
    row = tl.minimum(tl.maximum(place // width + tl.load(shifts + b).to(tl.int32), 0), height - 1)
    column = tl.minimum(tl.maximum(place % width + tl.load(shifts + batch + b).to(tl.int32), 0), width - 1)
    where = images + b * CHANNELS * height * width + (c * height + row) * width + column
    pixels = tl.load(where, (c < CHANNELS) & inside, 0).to(tl.float32)
    product = pixels * (1.0 / 255.0)
    quotient = tl.fma(tl.fma(product, -255.0, pixels), 1.0 / 255.0, product)  # pixels / 255 to the last bit
    values = tl.where(c < CHANNELS, quotient - 0.5, 0.0).to(out.dtype.element_ty)
    tl.store(out + (b * height * width + place) * ALL + c, values, inside & (c < ALL))


def prepare(images: Tensor, shift: Tensor, out: Tensor) -> None:
    """Fill `out`, [B, C', H, W] in channels-last order; `images` [B, C, H, W] and `shift` [2, B] are contiguous."""
    batch, channels, height, width = images.shape
    kernel: Any = _prepare
    programs, depth = triton.cdiv(height * width, _PIXELS), triton.next_power_of_2(out.shape[1])
    kernel[(batch, programs)](images, shift, out, batch, height, width, channels, out.shape[1], _PIXELS, depth)
