"""Files of .hdf5 in which the rows of many episodes follow one another: reads V-D4RL's and D4RL's, writes D4RL's."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from drqv2.datasets.columns import Announce, Columns, Layout, left_out, require_same_length
from drqv2.datasets.episodes import Episode, Unusable, rows_with
from drqv2.datasets.options import ReadOptions
from drqv2.datasets.storable import ends, nbytes, observed, require_readable
from drqv2.parts import each

_OBSERVED = ("observation", "observations", "next_observations")  # what may be a group with the parts of a dict
_STEP_TYPES = {0: "first", 1: "mid", 2: "last"}
_SPARE = 2**24  # bytes: what the library may hold back
_IMAGES = {"chunks": 16, "compression": "gzip", "compression_opts": 1}  # rows of images that are compressed together


def episodes_of(
    path: Path, options: ReadOptions, report: Callable[[str], None], announce: Announce
) -> Iterator[Columns]:
    """Yield the episodes of a file of V-D4RL's (it has `step_type`) or D4RL's (`terminals`).

    Args:
        path: the file.
        options: see `formats.read`.
        report: called with a line about each episode that cannot be used.
        announce: called with lines on what is left out.

    Raises:
        Unusable: it has neither, or columns are missing, are groups or differ in length.
    """
    import h5py

    with h5py.File(path, "r") as file:
        if "step_type" in file:
            yield from _vd4rl(path, file, report, announce)
        elif "terminals" in file:
            yield from _d4rl(path, file, Layout(options.channels), report, announce)
        else:
            raise Unusable(f"has neither step_type (V-D4RL) nor terminals (D4RL), but {', '.join(file) or 'nothing'}")


def _columns(file: Any, names: tuple[str, ...], optional: str = "", advice: str = "") -> dict[str, Any]:
    """Return the columns of a file, not read yet; all of one length."""
    import h5py

    columns = {name: file[name] for name in (*names, optional) if name in file}
    flat = dict(columns)
    for name, column in columns.items():
        if isinstance(column, h5py.Dataset):
            continue
        if name not in _OBSERVED or not (parts := _parts("", column)):
            raise Unusable(f"{name} is a group ({', '.join(column) or 'empty'}): must be one array")
        del flat[name]
        flat |= {f"{name}/{key}": part for key, part in parts.items()}
        columns[name] = parts
    if missing := [name for name in names if name not in columns]:
        raise Unusable(f"{' and '.join(missing)} missing; it has {', '.join(file)}{advice}")
    require_same_length(flat)
    return columns


def _names(column: Any) -> str:
    """Return the names of the parts of observations."""
    return ", ".join(column) if isinstance(column, dict) else "none"


def _parts(name: str, group: Any) -> dict[str, Any]:
    """Return the arrays in a group and in those within it, by their paths."""
    found: dict[str, Any] = {}
    for key, item in group.items():
        path = f"{name}/{key}" if name else key
        found |= {path: item} if hasattr(item, "dtype") else _parts(path, item)
    return found


def _vd4rl(path: Path, file: Any, report: Callable[[str], None], announce: Announce) -> Iterator[Columns]:
    """`step_type` says where each episode begins and ends; a row holds the action that led to it."""
    names = ("observation", "action", "reward", "discount")
    columns = _columns(file, ("step_type", *names))
    left_out(file, columns, announce)
    kinds = columns["step_type"][:].astype(int)
    if odd := set(kinds.tolist()) - set(_STEP_TYPES):
        raise Unusable(f"row {int(np.flatnonzero(np.isin(kinds, list(odd)))[0])}: step_type {odd.pop()}")
    starts = [*np.flatnonzero(kinds == 0).tolist(), len(kinds)]
    if starts[0]:
        report(f"{path}, rows 0 to {starts[0] - 1}: an episode without its beginning (step_type 0)")
    for start, end in itertools.pairwise(starts):
        where = f"{path}, rows {start} to {end - 1}"
        if len(last := np.flatnonzero(kinds[start : end - 1] == 2)):
            report(f"{where}: row {start + last[0]}: step_type 2 (last) within the episode")
            continue
        observed = each(lambda column, rows=slice(start, end): column[rows], columns["observation"])
        action, reward, discount = (columns[name][start:end] for name in names[1:])
        yield Columns(where, observed, action, reward, discount, (start, start), Layout(unclear="first", stacked=True))


def _d4rl(
    path: Path, file: Any, layout: Layout, report: Callable[[str], None], announce: Announce
) -> Iterator[Columns]:
    """A row holds an observation, and the action taken there with its reward.

    An episode ends at a terminal state (a row in `terminals`), or is cut (one in `timeouts`, or the last of the file).
    The observation after its last action is in `next_observations`. Without these, the last observation is repeated
    where it is followed by a terminal state, which has no value; elsewhere the last action is left out.
    """
    needed, more = ("observations", "actions", "rewards", "terminals", "timeouts"), "next_observations"
    advice = "; without timeouts (0 where there is none) it is unknown where a time limit ended an episode"
    columns = _columns(file, needed, more, advice if "timeouts" not in file else "")
    left_out(file, columns, announce)
    observations, later = columns["observations"], columns.get(more)
    if later is not None and _names(later) != _names(observations):
        raise Unusable(f"observations have the parts {_names(observations)}, {more} {_names(later)}: must be the same")
    terminal = np.zeros(len(columns["terminals"]), bool)
    terminal[rows_with(columns["terminals"][:].astype(bool))] = True
    ends = {0, *(np.flatnonzero(terminal) + 1), *(rows_with(columns["timeouts"][:].astype(bool)) + 1), len(terminal)}
    for start, end in itertools.pairwise(sorted(ends)):
        where = f"{path}, rows {start} to {end - 1}"
        observed = each(lambda column, rows=slice(start, end): column[rows], observations)
        steps = slice(start, end)
        if later is not None:
            following = each(lambda column, rows=steps: column[rows], later)
            gaps = each(_gaps, observed, following)
            if len(gaps := np.sort(np.concatenate(list(gaps.values()))) if isinstance(gaps, dict) else gaps):
                report(f"{where}: row {start + gaps[0]}: next_observations is not the observation of the next row")
                continue
            observed = each(lambda before, after: np.concatenate([before, after[-1:]]), observed, following)
        elif terminal[end - 1]:
            observed = each(lambda column: np.concatenate([column, column[-1:]]), observed)
        else:
            announce(f"has no {more}: the last action before a timeout or the end of a file is left out")
            steps = slice(start, end - 1)
        if steps.stop == start:
            continue  # its only action is left out
        taken, rewards = columns["actions"][steps], columns["rewards"][steps].reshape(steps.stop - start, -1)
        yield Columns(
            where,
            observed,
            np.concatenate([np.zeros_like(taken[:1]), taken]),
            np.concatenate([np.zeros_like(rewards[:1]), rewards]),
            np.concatenate([[1.0], 1.0 - terminal[steps]]),
            first_rows=(start, start - 1),
            layout=layout,
        )


def _gaps(observed: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Return the rows, but for the last, whose following observation is not that of the next row."""
    before, after = observed[1:], following[:-1]
    if np.issubdtype(observed.dtype, np.floating):
        same = np.isclose(before, after, rtol=1e-4, atol=1e-5, equal_nan=True)
    else:
        same = before == after
    return rows_with(~same)


def write_d4rl(episodes: Iterable[Episode], path: Path, about: Mapping[str, Any]) -> None:
    """Write episodes to a file of D4RL's layout, one after another.

    `next_observations` hold the observation after each action, so that no step is lost; of images, this doubles the
    file. Images are compressed.

    Args:
        episodes: of images and vectors.
        path: of the new file.
        about: numbers and texts, which become attributes of the file.

    Raises:
        UserError: an episode does not fit the format.
        OSError: the disk is full.
    """
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs.update(about)
        for episode in episodes:
            rows = observed(episode, "D4RL's .hdf5")
            require_room(path.parent, 2 * nbytes(rows))
            each(lambda part, of=episode: require_readable(of, part, part, Layout()), rows)
            terminal, cut = ends(episode, "D4RL's .hdf5")
            parts = {f"/{key}": part for key, part in rows.items()} if isinstance(rows, dict) else {"": rows}
            columns = {f"observations{key}": part[:-1] for key, part in parts.items()}
            columns |= {f"next_observations{key}": part[1:] for key, part in parts.items()}
            columns |= {"actions": episode.arrays["action"][1:], "rewards": episode.arrays["reward"][1:, 0]}
            for name, column in (columns | {"terminals": terminal, "timeouts": cut}).items():
                _append(file, name, column)


def require_room(folder: Path, nbytes: int) -> None:
    """Raise an OSError unless there is room for the bytes that are to be written next.

    The library keeps writes back until its objects are deleted, where Python can only print an error and go on.
    """
    if shutil.disk_usage(folder).free < 2 * nbytes + _SPARE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _append(file: Any, name: str, rows: np.ndarray) -> None:
    """Append rows to a column of a file, which is made with the first ones."""
    if name not in file:
        stored: dict[str, Any] = {"chunks": True}
        if rows.ndim == 4:
            stored = {**_IMAGES, "chunks": (_IMAGES["chunks"], *rows.shape[1:])}
        file.create_dataset(name, data=rows, maxshape=(None, *rows.shape[1:]), **stored)
        return
    column = file[name]
    column.resize(len(column) + len(rows), axis=0)
    column[-len(rows) :] = rows


def attributes(path: Path) -> dict[str, Any]:
    """Return the attributes of a file that are numbers or texts; none if it is damaged, which `episodes_of` reports.

    Raises:
        ModuleNotFoundError: h5py is not installed.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            found = {str(name): value for name, value in file.attrs.items()}
    except OSError:
        return {}
    return {name: np.asarray(value).item() for name, value in found.items() if np.ndim(value) == 0}
