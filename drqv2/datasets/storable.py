"""Which episodes other formats can hold without loss: images, vectors of floats, or dicts of both; ordinary ends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from drqv2.datasets.columns import Layout, to_frames
from drqv2.datasets.episodes import Episode, Unusable, is_observed
from drqv2.errors import UserError


def observed(episode: Episode, target: str) -> np.ndarray | dict[str, np.ndarray]:
    """Return what is observed in an episode: images uint8 [T + 1, C, H, W], vectors float32 [T + 1, N], or a dict.

    Args:
        episode: of a data set.
        target: the format, for messages.

    Raises:
        UserError: it is something else, or the episode belongs to one of several tasks.
    """
    if "task" in episode.arrays:
        raise UserError(
            f"{episode.where}: comes from a multi-task run, and {target} holds one task; filter with task=N takes the "
            "task N, from 0"
        )
    names = sorted(filter(is_observed, episode.arrays))
    parts = {name.partition(".")[2]: episode.arrays[name] for name in names}
    if ("" in parts and len(names) > 1) or len(parts) < len(names) or not all(_plain(episode, name) for name in names):
        held = ", ".join(
            f"{name} {episode.arrays[name].dtype} {list(episode.arrays[name].shape[1:])}" for name in names
        )
        raise UserError(
            f"{episode.where}: its observations are {held}: {target} holds images and vectors of float32; convert "
            "to a directory, which holds all of this"
        )
    return parts.get("", parts)


def _plain(episode: Episode, name: str) -> bool:
    array = episode.arrays[name]
    return name.startswith("frame") or (array.dtype == np.float32 and array.ndim == 2)


def nbytes(rows: np.ndarray | Mapping[str, np.ndarray]) -> int:
    """Return the bytes of what `observed` returns."""
    return sum(part.nbytes for part in rows.values()) if isinstance(rows, Mapping) else rows.nbytes


def require_readable(episode: Episode, frames: np.ndarray, images: np.ndarray, layout: Layout) -> None:
    """Check that images in a format's layout are read back as they were.

    Args:
        episode: which one it is, for the message.
        frames: uint8 [T + 1, C, H, W]; of vectors nothing is checked.
        images: the same as the format has them, a row each.
        layout: as its reader takes it.

    Raises:
        UserError: they are read as other images, since their shape or contents do not tell the layout.
    """
    if frames.ndim != 4:
        return
    try:
        if np.array_equal(to_frames(images, lambda line: None, 0, layout), frames):
            return
    except Unusable:  # it is not clear which axis holds the channels
        pass
    raise UserError(
        f"{episode.where}: images {list(images.shape[1:])} would be read as others, since it is not clear which axes "
        "are channels and stacks; convert to a directory, where this is known"
    )


def ends(episode: Episode, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Return at which steps an episode reaches a terminal state, and at which it is cut; bool [T] each.

    Args:
        episode: of a data set.
        target: the format, for messages.

    Raises:
        UserError: its discounts are others than 1, and 0 at a terminal state, its last.
    """
    discount = episode.arrays["discount"][1:, 0]  # that of the reset is never used
    odd = np.flatnonzero((discount != 1) & ((discount != 0) | (np.arange(len(discount)) < len(discount) - 1)))
    if len(odd):
        raise UserError(
            f"{episode.where}: row {odd[0] + 1}: discount {discount[odd[0]]}: {target} holds terminal states alone, a "
            "discount of 0 in the last row; npz:DIR and directories hold others"
        )
    terminal = discount == 0
    cut = np.zeros_like(terminal)
    cut[-1] = not terminal[-1]
    return terminal, cut
