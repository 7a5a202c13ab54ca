"""Read data sets: this project's episodes, the public DrQ-v2's .npz, V-D4RL's .npz and .hdf5, D4RL's .hdf5, Minari's.

Whatever the format, episodes come out as this project stores them, see `columns.to_episode`.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from drqv2.datasets import hdf5, npz
from drqv2.datasets.columns import Announce, Columns, to_episode
from drqv2.datasets.episodes import Episode, Unusable, problems
from drqv2.datasets.minari import MINARI, minari_episodes
from drqv2.datasets.options import DEFAULTS, ReadOptions
from drqv2.datasets.parts import of_file
from drqv2.errors import UserError, not_installed

Report = Callable[[str], None]  # called with a line about an episode that cannot be used: file, row, reason
_DAMAGE = (  # what the readers raise for a file that is damaged, or not what its name says
    *(OSError, ValueError, KeyError, IndexError, TypeError, EOFError),
    *(SafetensorError, zipfile.BadZipFile, zlib.error),
    *(RuntimeError, AttributeError),  # of h5py and zipfile
)


def read(place: str, report: Report, options: ReadOptions = DEFAULTS, announce: Announce = print) -> Iterator[Episode]:
    """Yield the episodes of a data set, oldest first; what cannot be used is reported, and left out.

    Args:
        place: a run's directory, a directory of episode files, a single such file, or minari:NAME.
        report: called with a line about each episode that is left out.
        options: what is to be known about the data.
        announce: called once with each line on how data are read: what is converted, clipped or not used.

    Raises:
        UserError: there is no data set there, or a package that reads it is missing.
    """
    announce = once(announce)

    def say(line: str) -> None:
        announce(f"{place}: {line}")

    of_minari = place.startswith(MINARI)
    if of_minari:
        found = _each(place, minari_episodes(place, options, say), report)
    else:
        found = _files(Path(place), options, report, say)
    for raw in found:
        try:
            episode = raw if isinstance(raw, Episode) else to_episode(raw, say)
        except Unusable as error:
            report(f"{raw.where}: {error}")
            continue
        if not of_minari:
            episode = of_file(episode, place, options, say)
        if options.clip_actions:
            episode = _clipped(episode, say)
        wrong = list(problems(episode.arrays, episode.first_rows))
        for line in wrong:
            report(f"{episode.where}: {line}")
        if not wrong:
            yield episode


def once(announce: Announce) -> Announce:
    """Return a function that passes on each line only the first time."""
    said: set[str] = set()

    def say(line: str) -> None:
        if line not in said:
            said.add(line)
            announce(line)

    return say


def format_of(place: str) -> str:
    """Return the name of a data set's format.

    Raises:
        UserError: there is none.
    """
    if place.startswith(MINARI):
        return "Minari"
    _, pattern = files_of(Path(place))
    return _FORMATS[pattern][0]


def files_of(place: Path) -> tuple[list[Path], str]:
    """Return the data files of a directory, oldest first, or a file itself; and the pattern that they match.

    Raises:
        UserError: there is no data set.
    """
    if place.is_file():
        pattern = next((pattern for pattern in _FORMATS if place.match(pattern)), None)
        if pattern is None:
            raise UserError(f"{place}: a file of episodes must be named {' or '.join(_FORMATS)}")
        return [place], pattern
    if not place.is_dir():
        raise UserError(f"{place}: there is no such directory; give a run's, one of episode files, or minari:NAME")
    for inner in (place / "buffer", place):
        found = {pattern: paths for pattern in _FORMATS if (paths := sorted(inner.glob(pattern)))}
        if len(found) > 1:
            names = " and ".join(found)
            raise UserError(f"{inner}: holds {names}; give the files of each format a directory of their own")
        for pattern, paths in found.items():
            return paths, pattern
    raise UserError(f"{place}: holds no episodes; looked for {', '.join(_FORMATS)}, also in buffer/")


def _files(place: Path, options: ReadOptions, report: Report, announce: Announce) -> Iterator[Episode | Columns]:
    paths, pattern = files_of(place)
    for path in paths:
        yield from _each(str(path), _FORMATS[pattern][1](path, options, report, announce), report)


def _each(where: str, found: Iterator[Episode | Columns], report: Report) -> Iterator[Episode | Columns]:
    """Yield what a reader finds; report what it raises."""
    try:
        yield from found
    except ModuleNotFoundError as error:
        raise UserError(not_installed(str(error.name), "offline")) from error
    except Unusable as error:
        report(f"{where}: {error}")
    except _DAMAGE as error:
        report(f"{where}: damaged or of another format ({' '.join(str(error).split())[:150]})")


def _clipped(episode: Episode, announce: Announce) -> Episode:
    """Return an episode with its actions in [-1, 1]; those that are not finite or not floats stay what they are."""
    action = episode.arrays.get("action", np.array(0))
    outside = np.isfinite(action) & (np.abs(action) > 1) if action.dtype.kind == "f" else np.array(False)
    if not outside.any():
        return episode
    announce("actions outside [-1, 1] are clipped")
    clipped = np.where(outside, np.sign(action), action)
    return episode._replace(arrays={**episode.arrays, "action": clipped}, as_stored=False)


def disk_bytes(place: str) -> int | None:
    """Return how much space the files of a data set take; None for Minari's."""
    return None if place.startswith(MINARI) else sum(path.stat().st_size for path in files_of(Path(place))[0])


def _own(path: Path, options: ReadOptions, report: Report, announce: Announce) -> Iterator[Episode]:
    with safe_open(path, framework="numpy") as f:
        arrays = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)
    yield Episode(str(path), arrays, as_stored=True)


_FORMATS: dict[str, tuple[str, Callable[[Path, ReadOptions, Report, Announce], Iterator[Episode | Columns]]]] = {
    "episode_*.safetensors": ("this project's", _own),
    "*.npz": ("npz", npz.episode_of),
    "*.hdf5": ("hdf5", hdf5.episodes_of),
}
