"""Stored images of any layout as this project stores them: one image a row, uint8, channels first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from drqv2.datasets.episodes import Unusable, not_finite
from drqv2.envs.images import channels_first, unit_to_uint8

Announce = Callable[[str], None]  # called with each line on how data are read, once for a data set


class Layout(NamedTuple):
    """How a row of images is laid out.

    Attributes:
        channels: the axis that holds them; auto: inferred from the shape.
        unclear: the axis that holds them where the shape does not tell; empty: such images are refused.
        stacked: whether images may be stacked along the channels, as the public DrQ-v2's are.
    """

    channels: Literal["auto", "first", "last"] = "auto"
    unclear: Literal["", "first", "last"] = ""
    stacked: bool = False


def to_frames(images: np.ndarray, announce: Announce, first_row: int, layout: Layout) -> np.ndarray:
    """Return the images of an episode as they are stored, uint8 [T + 1, C, H, W], with all of their channels.

    Axes are read as those of an environment's images are: a row is [H, W], [C, H, W], [H, W, C], or one of these with
    an axis in front that counts stacked images, oldest first, which become channels of one image. Of three axes, that
    of the channels is the first or the last, whichever differs from the other two, which are equal; or else the
    smaller one. Of images that may be stacked along the channels the newest is kept, which loses nothing: in a stack
    each row is the one before, shifted by an image. Others keep all channels.

    Args:
        images: a row each: uint8, other integers in [0, 255], or floats in [0, 1], which are multiplied by 255 and
            rounded.
        announce: called with lines on numbers that are converted.
        first_row: number of the first row in its file.
        layout: of a row.

    Raises:
        Unusable: numbers are out of range, or the shape does not tell where the channels are.
    """
    if not images[:1].size:
        raise Unusable(f"images {images.dtype} {list(images.shape)} have no pixels")
    images = _to_uint8(images, announce, first_row)
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    if not _channels_first(images.shape[-3:], layout):
        images = np.moveaxis(images, -1, -3)
    frames = images.reshape(len(images), -1, *images.shape[-2:])
    if layout.stacked:
        frames = frames[:, -_channels_of_a_frame(frames) :]
    number, channels = images.shape[1], frames.shape[1]
    if images.ndim > 4 and channels > images.shape[2]:
        announce(f"stacks of {number} images are images of {channels} channels; frame_stack=1 fits them")
    return np.ascontiguousarray(frames)


def _to_uint8(images: np.ndarray, announce: Announce, first_row: int) -> np.ndarray:
    if images.dtype == np.uint8:
        return images
    if line := not_finite("image", images, first_row):
        raise Unusable(line)
    floats = np.issubdtype(images.dtype, np.floating)
    if not floats and not np.issubdtype(images.dtype, np.integer):
        raise Unusable(f"images are {images.dtype}: must be uint8, or floats in [0, 1]")
    low, high = images.min(), images.max()
    if low < 0 or high > (1 if floats else 255):
        raise Unusable(
            f"images are {images.dtype} {list(images.shape[1:])} from {low!s} to {high!s}: must be uint8, or floats in "
            "[0, 1]; a state has a single axis"
        )
    if not floats:
        announce(f"images of {images.dtype} are converted to uint8")
        return images.astype(np.uint8)
    announce(f"images of {images.dtype} in [0, 1] are converted to uint8 (times 255, rounded)")
    return unit_to_uint8(images)


def _channels_first(shape: tuple[int, ...], layout: Layout) -> bool:
    """Return whether the first of an image's three axes holds the channels."""
    if (first := channels_first(shape, layout.channels)) is not None:
        return first
    if not layout.unclear:
        raise Unusable(
            f"images {list(shape)}: it is not clear which axis holds the channels; say so: channels=first or "
            "channels=last"
        )
    return layout.unclear == "first"


def _channels_of_a_frame(frames: np.ndarray) -> int:
    """Return of how many channels each of the images stacked in a row has; all, if no images are stacked."""
    channels = frames.shape[1]
    if not _equal(frames[1:], frames[:-1]):
        parts = (c for c in range(1, channels) if channels % c == 0)
        return next((c for c in parts if _equal(frames[1:, :-c], frames[:-1, c:])), channels)
    # Of an episode in which nothing moves, a stack is known by its equal images: RGB, RGBA or grey ones.
    parts = (c for c in (3, 4, 1) if channels % c == 0)
    return next((c for c in parts if _equal(frames[:, c:], frames[:, :-c])), channels)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a[:4], b[:4]) and np.array_equal(a, b)  # a few rows decide almost always
