"""What counts as an image in an observation, and how its axes are read.

One rule for every environment:

- An image is an array of `uint8` with two to four axes, or of floats between declared bounds of 0 and 1 with three or
  four. Floats are converted to `uint8`.
- Of a dict, the image is the one called `pixels`, or else all of them are seen. `image_key` chooses one.
- Two axes are [H, W]. Of three, the axis of the channels is the first or the last, whichever differs from the other
  two axes, which are equal; or else the smaller one, of at most 16 channels. Where that does not decide, `channels`
  does.
- With four axes, the first counts stacked images, oldest first, which become channels of one image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drqv2.errors import UserError, nearest

NUMERIC = "biuf"  # kinds of dtypes: bool, signed and unsigned integers, floats
PIXELS = "pixels"  # what an image is called that is drawn, or the only array of an observation
MOST_CHANNELS = 16  # of an image whose height and width differ
FORMAT = "uint8 [height, width, channels], or floats between declared bounds of 0 and 1"


class Image:
    """The image in an observation, and how it becomes uint8 [H, W, C].

    Args:
        spec: of the array.
        key: of the array in the observation; None where the observation is the array.
        channels: "first", "last", or "auto": inferred from the shape.

    Attributes:
        shape: (H, W, C).
        notes: what is unusual about it, in words.

    Raises:
        UserError: the array is no image, or its shape does not tell where the channels are.
    """

    def __init__(self, spec: Any, key: str | None, channels: str = "auto") -> None:
        self.key, own, dtype = key, tuple(spec.shape), np.dtype(spec.dtype)
        what = f"{named(key)} is {described(spec)}"
        if not is_image(spec):
            raise UserError(f"{what}: an image must be {FORMAT}")
        if 0 in own or (len(own) == 4 and own[0] > MOST_CHANNELS):
            raise UserError(f"{what}: of four axes the first counts stacked images, at most {MOST_CHANNELS}; none is 0")
        self._axes, self._stacked, self._unit = len(own), len(own) == 4, dtype != np.uint8
        axes = own[-3:]
        first = channels_first(axes, channels) if len(axes) == 3 else False
        if first is None:
            raise UserError(
                f"{what}: it is not clear which axis holds the channels\nSay so: channels=first or channels=last"
            )
        self._first = first
        height, width, depth = (*axes, 1) if len(axes) == 2 else (axes[1], axes[2], axes[0]) if self._first else axes
        self.shape = (height, width, depth * (own[0] if self._stacked else 1))
        self.notes = []
        if self._first:
            self.notes.append("channels first")
        if self._stacked:
            self.notes.append(f"stacks of {own[0]} images, which frame_stack stacks again unless it is 1")
        if self._unit:
            self.notes.append("floats in [0, 1], converted to uint8")

    def read(self, observation: Any) -> np.ndarray:
        """Return the image of an observation, uint8 [H, W, C], or of a batch; it may be the environment's own array."""
        image = np.asarray(observation if self.key is None else observation[self.key])
        batch = image.shape[: image.ndim - self._axes]
        if self._unit:
            image = unit_to_uint8(image)
        if self._first:
            image = np.moveaxis(image, -3, -1)
        if self._stacked:
            image = np.moveaxis(image, -4, -2)  # [H, W, stack, C]: the newest image's channels are the last
        return image.reshape(*batch, *self.shape)


def named(key: str | None) -> str:
    """Return what an array of an observation is called in messages, by its key in a dict."""
    return "the observation" if key is None else f"the observation {key!r}"


def is_image(spec: Any) -> bool:
    """Return whether an array of an observation, or a Box, counts as an image."""
    axes, dtype = len(spec.shape), np.dtype(spec.dtype)
    if dtype == np.uint8:
        return 2 <= axes <= 4
    return 3 <= axes <= 4 and np.issubdtype(dtype, np.floating) and is_unit(spec)


def is_numeric(spec: Any) -> bool:
    """Return whether an array of an observation holds numbers or flags, and not texts or objects."""
    return np.dtype(spec.dtype).kind in NUMERIC


def state_keys(spec: Any) -> list[Any]:
    """Return the keys of what makes up the state: arrays of numbers that are no images; [None] for such an array."""
    parts = spec if isinstance(spec, Mapping) else {None: spec}
    return [key for key, part in parts.items() if is_numeric(part) and not is_image(part)]


def is_unit(spec: Any) -> bool:
    """Return whether the declared bounds of an array, or of one of Gymnasium's Boxes, are 0 and 1."""
    low = getattr(spec, "minimum", getattr(spec, "low", None))
    high = getattr(spec, "maximum", getattr(spec, "high", None))
    return low is not None and high is not None and bool(np.all(low == 0) and np.all(high == 1))


def described(spec: Any) -> str:
    """Return a spec of observations in words: dtype and shape, of a dict those of each part."""
    if isinstance(spec, Mapping):
        return ", ".join(f"{key}: {described(part)}" for key, part in spec.items())
    return f"{np.dtype(spec.dtype)} {list(spec.shape)}" if hasattr(spec, "shape") else in_a_line(spec)


def in_a_line(value: Any) -> str:
    """Return a space or a spec as one line of at most 200 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def image_keys(spec: Any, image_key: str | None = None, several: bool = False) -> list[Any]:
    """Return the keys of the images that an agent may see; [None] for an image alone, none where there is no image.

    Args:
        spec: of the observation: of an array, or a dict of them.
        image_key: the only part of a dict to be seen; None: `pixels`, or all images.
        several: all images, even if one is called `pixels`.

    Raises:
        UserError: there is no such part.
    """
    if not isinstance(spec, Mapping):
        if image_key is not None:
            raise UserError(f"image_key={image_key}: the observation is one array, not a dict; leave it out")
        return [None] if is_image(spec) else []
    if image_key is not None and image_key not in spec:
        near = ", ".join(nearest(image_key, spec) or map(str, spec))
        raise UserError(f"image_key={image_key}: the observation has no such part; it has {near}")
    if image_key is not None:
        return [image_key]
    images = [key for key, part in spec.items() if is_image(part)]
    return [PIXELS] if PIXELS in images and not several else images


def channels_first(axes: Sequence[int], channels: str = "auto") -> bool | None:
    """Return whether the first of an image's three axes holds the channels; None where that is not clear."""
    if channels != "auto":
        return channels == "first"
    first, middle, last = axes
    if (first == middle) != (middle == last):
        return middle == last
    small = min(first, last)
    return None if first == last or middle <= small or small > MOST_CHANNELS else first == small


def unit_to_uint8(images: np.ndarray) -> np.ndarray:
    """Return floats as uint8: clipped to [0, 1], times 255, rounded."""
    return np.rint(np.clip(images, 0, 1) * np.float32(255)).astype(np.uint8)
