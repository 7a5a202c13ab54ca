"""The kernel of `drqv2.nn.conv_relu`'s backward pass: one program for some places of the maps, with all channels."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_PLACES = 512  # of a program


@triton.jit
def _mask_and_sum(  # type: ignore[no-untyped-def]
    gradient,
    out,
    passed,
    sums,
    places,
    channels,
    PLACES: tl.constexpr,
    DEPTH: tl.constexpr,  # channels up to a power of two
):
    first = tl.program_id(0).to(tl.int64)
    place = first * PLACES + tl.arange(0, PLACES)[:, None]
    c = tl.arange(0, DEPTH)
    known = (place < places) & (c[None, :] < channels)
    where = place * channels + c[None, :]
    values = tl.where(tl.load(out + where, known, 0.0) > 0, tl.load(gradient + where, known, 0.0), 0.0)
    tl.store(passed + where, values, known)
    tl.store(sums + first * channels + c, tl.sum(values.to(tl.float32), 0), c < channels)


def gradient_before_relu(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """See `drqv2.nn.conv_relu.gradient_before_relu`; both are in channels-last order."""
    batch, channels, height, width = out.shape
    places = batch * height * width
    programs = triton.cdiv(places, _PLACES)
    passed = torch.empty_like(out)
    sums = torch.empty(programs, channels, device=out.device)
    kernel: Any = _mask_and_sum
    depth = triton.next_power_of_2(channels)
    kernel[(programs,)](gradient, out, passed, sums, places, channels, _PLACES, depth, num_warps=8)
    return passed, sums.sum(0)
