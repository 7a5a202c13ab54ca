"""Columns of numbers, as files of other formats have them, as an episode of this project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from drqv2.datasets.episodes import Episode, FirstRows, Unusable, rows_differ
from drqv2.datasets.images import Announce, Layout, to_frames


class Columns(NamedTuple):
    """An episode's columns, [T + 1, ...] each; row 0 is the reset.

    Attributes:
        where: see `Episode`.
        observed: images in any layout that `images.to_frames` takes, or vectors, or numbers.
        action: of the step that led to the row: floats, or integers, which are discrete. Row 0 is not used.
        reward: of the same step; [T + 1] or [T + 1, 1]. Row 0 is not used.
        discount: as `reward`; 0 after a terminal state.
        first_rows: see `Episode`.
        layout: of a row of `observed`, if these are images.
    """

    where: str
    observed: np.ndarray
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
    require_same_length({"observation": observed, "action": action, "reward": reward, "discount": discount})
    arrays = dict(_observation(observed, announce, first_rows[0], layout))
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


def _observation(
    observed: np.ndarray, announce: Announce, first_row: int, layout: Layout
) -> Iterator[tuple[str, np.ndarray]]:
    if 3 <= observed.ndim <= 5:
        yield "frame", to_frames(observed, announce, first_row, layout)
        return
    if observed.ndim > 5 or observed.dtype.kind not in "fiub":
        raise Unusable(f"observation is {observed.dtype} {list(observed.shape)}: must be images or vectors of numbers")
    yield "observation", _float32(observed.reshape(len(observed), -1))


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
