"""Convolutions of images of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from drqv2.errors import UserError

PIXEL_LAYERS = {  # kernel and stride of each layer; million multiplications for nine channels of 84x84
    "patch": ((4, 4), (3, 2), (3, 1)),  # 4
    "strided": ((3, 2), (3, 2), (3, 2), (3, 1)),  # 10, MR.Q's
}


class PixelConv2d(nn.Conv2d):
    """A convolution of x / 255 - centre for pixels x: its weights are scaled and its bias moved, not the images.

    With `frames` stacked along the channels, newest last, the weights are those of the newest and of the differences
    between successive ones, which count four times: images that follow each other are so alike that motion is otherwise
    hard to learn.

    Args:
        centre: what is subtracted. Not together with a padding, which would not be at the centre.
        frames: number of stacked images; of one alone the weights are its own.

    Raises:
        ValueError: there are groups, a padding that is not at the centre, or channels that are no multiple of `frames`.
    """

    def __init__(self, *args: Any, centre: float = 0.0, frames: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.in_channels % frames or self.groups > 1 or (centre and any(self.padding)):
            raise ValueError(f"{self}: with frames={frames} and centre={centre}")
        self.centre, self.frames = centre, frames

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of images [B, C, H, W] of any dtype."""
        if not x.is_floating_point():
            device = x.device.type
            x = x.to(torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.weight.dtype)
        weight, bias = self.weight, self.bias
        if self.frames > 1:
            *differences, newest = weight.chunk(self.frames, 1)
            changes = [*(4.0 * difference for difference in differences), -newest]
            weight = torch.cat([-changes[0], *(before - after for before, after in pairwise(changes))], 1)
        if self.centre:
            moved = -self.centre * weight.sum((1, 2, 3))
            bias = moved if bias is None else bias + moved
        return self._conv_forward(x, weight / 255, bias)


def pixel_convolutions(obs_shape: Sequence[int], name: str, frames: int, key: str) -> nn.Sequential:
    """Return the encoder's convolutions of 32 channels, each with its nonlinearity, see `PixelConv2d` for the first.

    Args:
        obs_shape: (C, H, W) of the images, of which `frames` are stacked.
        name: a key of `PIXEL_LAYERS`.
        frames: as of `PixelConv2d`.
        key: of the configuration that has chosen `name`, for messages.

    Raises:
        UserError: there is no such `name`, or the images are too small.
    """
    check_name(name, key)
    check_side(obs_shape, PIXEL_LAYERS[name], f"{key}={name}")
    first, *others = PIXEL_LAYERS[name]
    layers: list[nn.Module] = [PixelConv2d(obs_shape[0], 32, *first, centre=0.5, frames=frames), nn.ReLU(inplace=True)]
    for kernel, stride in others:
        layers += [nn.Conv2d(32, 32, kernel, stride), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def check_name(name: str, key: str) -> None:
    """Raise UserError if the value of a key is none of `PIXEL_LAYERS`."""
    if name not in PIXEL_LAYERS:
        raise UserError(f"{key}={name} must be {' or '.join(PIXEL_LAYERS)}")


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
