"""Columns of numbers and images of any layout, as files of other formats have them, as an episode of this project.

Images are stored one a row, uint8, channels first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from drqv2.datasets.episodes import Episode, FirstRows, Unusable, not_finite, rows_differ
from drqv2.envs.images import channels_first, unit_to_uint8

Announce = Callable[[str], None]  # is told how data are read, once for a data set


class Layout(NamedTuple):
    """How a row of images is laid out.

    Attributes:
        channels: the axis that holds them; auto: what the shape tells.
        unclear: the axis that holds them where the shape does not tell; empty: such images are refused.
        stacked: whether images may be stacked along the channels, as the public DrQ-v2's are.
    """

    channels: Literal["auto", "first", "last"] = "auto"
    unclear: Literal["", "first", "last"] = ""
    stacked: bool = False


class Columns(NamedTuple):
    """An episode's columns, [T + 1, ...] each; row 0 is the reset.

    Attributes:
        where: see `Episode`.
        observed: images in any layout that `to_frames` takes, or vectors, or numbers; or a dict of these.
        action: of the step that led to the row: floats, or integers, which are discrete. Row 0 is not used.
        reward: of the same step; [T + 1] or [T + 1, 1]. Row 0 is not used.
        discount: as `reward`; 0 after a terminal state.
        first_rows: see `Episode`.
        layout: of a row of `observed`, if these are images.
    """

    where: str
    observed: np.ndarray | Mapping[str, np.ndarray]
    action: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    first_rows: FirstRows = (0, 0)
    layout: Layout = Layout()


def to_episode(columns: Columns, announce: Announce) -> Episode:
    """Return columns as an episode.

    Args:
        columns: of one episode.
        announce: called with lines on numbers that are converted or not used.

    Raises:
        Unusable: the numbers cannot be what they stand for, or columns differ in length.
    """
    where, observed, action, reward, discount, first_rows, layout = columns
    parts = {f".{key}": part for key, part in observed.items()} if isinstance(observed, Mapping) else {"": observed}
    rows = {f"observation{key}": part for key, part in parts.items()}
    require_same_length(rows | {"action": action, "reward": reward, "discount": discount})
    arrays = {}
    for key, part in parts.items():
        kind, array = _observation(part, announce, first_rows[0], layout)
        arrays[f"{kind}{key}"] = array
    arrays["action"] = _action(action)
    arrays["reward"], arrays["discount"] = _numbers("reward", reward), _numbers("discount", discount)
    for name in ("action", "reward"):
        reset = arrays[name][:1]
        if reset.any() and np.isfinite(reset).all():
            announce(f"{name} of an episode's first row, the reset, is not 0 and not used: rows hold what led to them")
            reset[:] = 0
    return Episode(where, arrays, first_rows)


def require_same_length(columns: Mapping[str, np.ndarray]) -> None:
    """Raise Unusable, with the lengths, if columns have different ones."""
    lengths = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise Unusable(rows_differ(lengths))


def left_out(names: Iterable[str], known: Iterable[str], announce: Announce) -> None:
    """Announce columns that are not used."""
    if unknown := sorted(set(names) - set(known)):
        announce(f"left out: {', '.join(unknown)}")


def _observation(observed: np.ndarray, announce: Announce, first_row: int, layout: Layout) -> tuple[str, np.ndarray]:
    if 3 <= observed.ndim <= 5:
        return "frame", to_frames(observed, announce, first_row, layout)
    if observed.ndim > 5 or observed.dtype.kind not in "fiub":
        raise Unusable(f"observation is {observed.dtype} {list(observed.shape)}: must be images or vectors of numbers")
    return "observation", _float32(observed.reshape(len(observed), -1))


def _action(action: np.ndarray) -> np.ndarray:
    if action.dtype.kind in "iu":
        return action.astype(np.int64)
    if action.dtype.kind != "f":
        raise Unusable(f"action is {action.dtype}: must be floats in [-1, 1]")
    return _float32(action.reshape(len(action), -1))


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    if column.size != len(column) or column.dtype.kind not in "fiub":
        raise Unusable(f"{name} is {column.dtype} {list(column.shape)}: must be a number a row")
    return _float32(column.reshape(-1, 1))


def _float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # it becomes infinite, which is named
        return array.astype(np.float32)


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
        announce: is told of numbers that are converted.
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
