"""Convolutions of images of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.errors import UserError


class PixelConv2d(nn.Conv2d):
    """A convolution of x / 255 - centre for pixels x: its weights are scaled and its bias moved, not the images.

    Args:
        centre: what is subtracted. Not together with a padding, which would not be at the centre.
    """

    def __init__(self, *args: Any, centre: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.centre = centre

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of images [B, C, H, W] of any dtype."""
        if not x.is_floating_point():
            device = x.device.type
            x = x.to(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.weight.dtype)
        bias = self.bias
        if self.centre:
            moved = -self.centre * self.weight.sum((1, 2, 3))
            bias = moved if bias is None else bias + moved
        return F.conv2d(x, self.weight / 255, bias, self.stride, self.padding)


def check_side(obs_shape: Sequence[int], layers: Iterable[tuple[int, int]], setting: str, advice: str = "") -> None:
    """Check that images are large enough for convolutions without padding.

    Args:
        obs_shape: (C, H, W).
        layers: (kernel size, stride) of each convolution.
        setting: the key and value that choose them, for the message.
        advice: ends the message.

    Raises:
        UserError: they are too small.
    """
    least = 1
    for kernel, stride in reversed(list(layers)):
        least = (least - 1) * stride + kernel
    if min(obs_shape[1:]) < least:
        shown = f"{setting}: images of {obs_shape[1]}x{obs_shape[2]} are too small"
        raise UserError(f"{shown}; set image_size to {least} or more{advice}")
