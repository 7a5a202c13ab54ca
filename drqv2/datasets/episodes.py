"""An episode as it is stored here, what can be wrong with one, and the numbers of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from drqv2.config.formatting import counted

Arrays = Mapping[str, np.ndarray]
FirstRows = tuple[int, int]
_BARS, _BINS = 40, 10  # of a histogram
_OBSERVED = ("frame", "observation")  # the first part of the names of what is observed, see drqv2.replay.observations


class Unusable(ValueError):
    """Why an episode or a file cannot be used, without its name."""


class Episode(NamedTuple):
    """One episode of a data set.

    Attributes:
        where: its file, and its rows there if the file holds several episodes.
        arrays: as in an episode file of this project, [T + 1, ...] each: `frame` uint8 [C, H, W] or `observation`, or
            several of `frame.NAME` and `observation.NAME` where the observation is a dict; `action`
            in [-1, 1], `reward` and `discount` [1] of the step that led to the row; row 0 is the reset.
        first_rows: numbers in the file of the first observation, and of the action, reward and discount beside it.
        as_stored: whether these are the arrays of a file in this project's format, unchanged.
    """

    where: str
    arrays: Arrays
    first_rows: FirstRows = (0, 0)
    as_stored: bool = False

    @property
    def length(self) -> int:
        """Transitions."""
        return len(self.arrays["reward"]) - 1

    @property
    def total(self) -> float:
        """Undiscounted return."""
        return float(self.arrays["reward"][1:].sum(dtype=np.float64))


def is_observed(name: str) -> bool:
    """Return whether an array of this name is an observation or a part of one."""
    return name.partition(".")[0] in _OBSERVED


def problems(arrays: Arrays, first_rows: FirstRows = (0, 0)) -> Iterator[str]:
    """Yield what is wrong with an episode's arrays, with the row's number in its file."""
    missing = [name for name in ("action", "reward", "discount") if name not in arrays]
    if not any(is_observed(name) for name in arrays):
        missing.append("observation")
    if missing:
        yield f"{' and '.join(missing)} missing; it has {', '.join(sorted(arrays)) or 'nothing'}"
        return
    if odd := [_odd_form(name, array) for name, array in sorted(arrays.items()) if _odd_form(name, array)]:
        yield from odd
        return
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        yield rows_differ(lengths)
        return
    if lengths["reward"] < 2:
        yield f"has {counted(lengths['reward'], 'row')}: at least a reset and a step are needed"
        return
    for name, array in arrays.items():
        if line := not_finite(name, array, first_rows[not is_observed(name)]):
            yield line
    for name, low, advice in (
        ("action", -1.0, "; scale them, or clip them with clip_actions=true"),
        ("discount", 0.0, ""),
    ):
        if np.issubdtype(arrays[name].dtype, np.floating) and (
            line := _out_of_range(name, arrays[name], low, first_rows[1])
        ):
            yield line + advice


def rows_differ(lengths: Mapping[str, int]) -> str:
    """Return the message for arrays of different lengths."""
    return "rows differ in number: " + ", ".join(f"{name} {n}" for name, n in sorted(lengths.items()))


def not_finite(name: str, array: np.ndarray, first_row: int = 0) -> str:
    """Return the first row in which a number of an array is NaN or infinite; empty if there is none."""
    if not np.issubdtype(array.dtype, np.floating) or not len(bad := rows_with(~np.isfinite(array))):
        return ""
    row = array[bad[0]].ravel()
    return f"row {first_row + bad[0]}: {name} is {row[~np.isfinite(row)][0]}"


def _out_of_range(name: str, array: np.ndarray, low: float, first_row: int) -> str:
    """Return the first number of an array that is not within [low, 1]; empty if there is none."""
    outside = (array < low) | (array > 1.0)
    if not outside.any():
        return ""
    row, *place = np.argwhere(outside)[0].tolist()
    number = array[(row, *place)]
    index = "" if array[0].size == 1 else f"[{', '.join(map(str, place))}]"
    excess = np.maximum(low - array[outside].astype(np.float64), array[outside].astype(np.float64) - 1.0).max()
    total = int(outside.sum())
    numbers = "the only one" if total == 1 else f"one of {total:,} such numbers"
    # str() gives the shortest text of its dtype that reads back as the number: 1.0000001 is not 1.0.
    return f"row {first_row + row}: {name}{index} {number!s} is not within [{low:g}, 1] ({numbers}, by {excess:.2g})"


def _odd_form(name: str, array: np.ndarray) -> str:
    """Return what is wrong with the dtype or the shape of an array; empty if nothing is."""
    found = f"{name} is {array.dtype} {list(array.shape)}"
    if array.ndim == 0:
        return f"{found}: must have a row for each step"
    if name in ("reward", "discount") and (array.dtype != np.float32 or array.shape[1:] != (1,)):
        return f"{found}: must be float32 [rows, 1]"
    if name.partition(".")[0] == "frame" and (array.dtype != np.uint8 or array.ndim != 4):
        return f"{found}: must be uint8 [rows, channels, height, width]"
    if name.partition(".")[0] in ("action", "observation") and array.dtype == np.float64:
        return f"{found}: must be float32"
    return ""


def rows_with(wrong: np.ndarray) -> np.ndarray:
    """Return the numbers of the rows in which anything is true."""
    return np.flatnonzero(wrong.any(axis=tuple(range(1, wrong.ndim))))


@dataclass
class Summary:
    """Numbers of a data set.

    Attributes:
        returns: of each episode.
        lengths: transitions of each.
        shapes: dtype and shape of a row of each array, by name.
        terminated: episodes that end in a terminal state.
        nbytes: of the arrays in memory.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    shapes: dict[str, str] = field(default_factory=dict)
    terminated: int = 0
    nbytes: int = 0

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        self.returns.append(episode.total)
        self.lengths.append(episode.length)
        self.shapes |= {name: f"{array.dtype} {list(array.shape[1:])}" for name, array in episode.arrays.items()}
        self.terminated += bool(episode.arrays["discount"][-1] == 0)
        self.nbytes += sum(array.nbytes for array in episode.arrays.values())

    def line(self) -> str:
        """Return the most important of them in a line."""
        if not self.returns:
            return "no episode"
        returns = np.array(self.returns)
        parts = [name.partition(".")[2] for name in sorted(self.shapes) if is_observed(name) and "." in name]
        of_parts = f" of {' + '.join(parts)}" if parts else ""
        return (
            f"{counted(len(returns), 'episode')}, {counted(sum(self.lengths), 'transition')}{of_parts}, "
            f"return {returns.mean():.1f} ({returns.min():.1f} to {returns.max():.1f}), "
            f"{self.nbytes / 1e6:,.1f} MB in memory"
        )

    def card(self) -> list[str]:
        """Return all of them as lines, with a histogram of the returns."""
        if not self.returns:
            return ["no episode"]
        lengths = np.array(self.lengths)
        lines = [self.line(), f"transitions of an episode: {lengths.min():,} to {lengths.max():,}"]
        lines.append(f"episodes that end in a terminal state: {self.terminated:,}")
        lines += [f"{name}: {shape}" for name, shape in sorted(self.shapes.items())]
        counts, edges = np.histogram(self.returns, bins=min(_BINS, len(set(self.returns))))
        lines.append("returns:")
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
            bar = "█" * round(_BARS * count / counts.max())
            lines.append(f"{low:>10.1f} to {high:>8.1f} {count:>7,} {bar}")
        return lines


def summarize(episodes: Iterable[Episode]) -> Summary:
    """Return the numbers of all episodes."""
    summary = Summary()
    for episode in episodes:
        summary.add(episode)
    return summary
