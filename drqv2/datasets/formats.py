"""Read data sets: this project's episodes, the public DrQ-v2's .npz, V-D4RL's .npz and .hdf5, Minari's.

Whatever the format, episodes come out as this project stores them. Images of other sizes and stacked images stay what
they are, but for their order: one image a row, channels first.
"""

from __future__ import annotations

import itertools
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from drqv2.datasets.episodes import Arrays, Episode, problems
from drqv2.errors import UserError, not_installed

MINARI = "minari:"
_STEP_TYPES = {0: "first", 1: "mid", 2: "last"}
Report = Callable[[str], None]  # is told of an episode that cannot be used: file, row, reason
_DAMAGE = (  # what the readers raise for a file that is damaged, or something else than its name says
    *(OSError, ValueError, KeyError, IndexError, TypeError, EOFError),
    *(SafetensorError, zipfile.BadZipFile, zlib.error),
)


def read(place: str, report: Report) -> Iterator[Episode]:
    """Yield the episodes of a data set, oldest first; what cannot be used is reported, and left out.

    Args:
        place: a run's directory, a directory of episode files, or minari:NAME.
        report: called with a line about each episode that is left out.

    Raises:
        UserError: there is no data set there, or a package that reads it is missing.
    """
    if place.startswith(MINARI):
        found = _minari(place.removeprefix(MINARI))
    else:
        found = _files(Path(place), report)
    for episode in found:
        wrong = list(problems(episode.arrays))
        for line in wrong:
            report(f"{episode.where}: {line}")
        if not wrong:
            yield episode


def first_episode(place: str) -> Episode:
    """Return the first usable episode of a data set.

    Raises:
        UserError: there is none.
    """
    wrong: list[str] = []
    episode = next(read(place, wrong.append), None)
    if episode is None:
        raise UserError(f"{place}: holds no episode that can be used; {wrong[0] if wrong else 'it is empty'}")
    return episode


def format_of(place: str) -> str:
    """Return the name of a data set's format.

    Raises:
        UserError: there is none.
    """
    if place.startswith(MINARI):
        return "Minari"
    _, pattern = _found(Path(place))
    return _FORMATS[pattern][0]


def _found(folder: Path) -> tuple[list[Path], str]:
    """Return a directory's data files, oldest first, and the pattern that they match."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such directory; give a run's, one of episode files, or minari:NAME")
    for inner in (folder / "buffer", folder):
        found = {pattern: paths for pattern in _FORMATS if (paths := sorted(inner.glob(pattern)))}
        if len(found) > 1:
            names = " and ".join(found)
            raise UserError(f"{inner}: holds {names}; give the files of each format a directory of their own")
        for pattern, paths in found.items():
            return paths, pattern
    raise UserError(f"{folder}: holds no episodes; looked for {', '.join(_FORMATS)}, also in buffer/")


def _files(folder: Path, report: Report) -> Iterator[Episode]:
    paths, pattern = _found(folder)
    for path in paths:
        try:
            yield from _FORMATS[pattern][1](path, report)
        except ModuleNotFoundError as error:
            raise UserError(not_installed(str(error.name), "offline")) from error
        except _DAMAGE as error:
            report(f"{path}: damaged or of another format ({' '.join(str(error).split())[:150]})")


def disk_bytes(place: str) -> int | None:
    """Return how much space the files of a data set take; None for Minari's."""
    return None if place.startswith(MINARI) else sum(path.stat().st_size for path in _found(Path(place))[0])


def _own(path: Path, report: Report) -> Iterator[Episode]:
    with safe_open(path, framework="numpy") as f:
        yield Episode(str(path), {name: f.get_tensor(name) for name in f.keys()})  # noqa: SIM118 (not a mapping)


def _npz(path: Path, report: Report) -> Iterator[Episode]:
    """The public DrQ-v2's, with stacked images in `observation`; or V-D4RL's, with single ones in `image`."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    observed = arrays.get("image", arrays.get("observation"))
    if observed is None:
        raise ValueError(f"has neither observation nor image, but {', '.join(arrays)}")
    discount = arrays.get("discount")
    if discount is None:
        discount = 1.0 - arrays["is_terminal"].astype(np.float32)
    for name, inner in (("is_first", slice(1, None)), ("is_last", slice(None, -1))):
        if name in arrays and len(rows := np.flatnonzero(arrays[name][inner])):
            raise ValueError(f"row {rows[0] + (inner.start or 0)}: {name} within the episode; a file must hold one")
    yield Episode(str(path), _episode(observed, arrays["action"], arrays["reward"], discount))


def _hdf5(path: Path, report: Report) -> Iterator[Episode]:
    """V-D4RL's: rows of many episodes, one after another; `step_type` says where each begins and ends."""
    import h5py

    with h5py.File(path, "r") as file:
        kinds = file["step_type"][:].astype(int)
        if odd := set(kinds.tolist()) - set(_STEP_TYPES):
            raise ValueError(f"row {int(np.flatnonzero(np.isin(kinds, list(odd)))[0])}: step_type {odd.pop()}")
        starts = [*np.flatnonzero(kinds == 0).tolist(), len(kinds)]
        if starts[0]:
            report(f"{path}, rows 0 to {starts[0] - 1}: an episode without its beginning (step_type 0)")
        for start, end in itertools.pairwise(starts):
            where = f"{path}, rows {start} to {end - 1}"
            if len(last := np.flatnonzero(kinds[start : end - 1] == 2)):
                report(f"{where}: row {last[0]}: step_type 2 (last) within the episode")
                continue
            columns = (file[name][start:end] for name in ("observation", "action", "reward", "discount"))
            yield Episode(where, _episode(*columns))


def _minari(name: str) -> Iterator[Episode]:
    try:
        import minari
    except ModuleNotFoundError as error:
        raise UserError(not_installed("minari", "offline")) from error
    try:
        dataset = minari.load_dataset(name)
    except Exception as error:  # minari's own, of many kinds
        reason = " ".join(str(error).split())[:150]
        raise UserError(f"{MINARI}{name}: cannot be loaded ({reason}); see `minari list local`") from error
    space: Any = dataset.action_space
    for episode in dataset.iterate_episodes():
        observed: Any = episode.observations
        if isinstance(observed, dict):
            observed = np.concatenate([np.asarray(part).reshape(len(part), -1) for part in observed.values()], axis=1)
        observed = observed[: len(episode.rewards) + 1]
        action = np.concatenate([np.zeros((1, *space.shape)), _to_unit(np.asarray(episode.actions), space)])
        reward = np.concatenate([[0.0], episode.rewards])
        discount = np.concatenate([[1.0], 1.0 - np.asarray(episode.terminations, np.float32)])
        yield Episode(f"{MINARI}{name}, episode {episode.id}", _episode(observed, action, reward, discount))


def _to_unit(action: np.ndarray, space: Any) -> np.ndarray:
    """Return actions of a Box in [-1, 1], as agents here act."""
    if not hasattr(space, "low") or not np.all(np.isfinite(space.low) & np.isfinite(space.high)):
        raise UserError(f"actions {space}: must be a Box with finite bounds")
    return np.clip(2 * (action - space.low) / (space.high - space.low) - 1, -1, 1)


def _episode(observed: np.ndarray, action: np.ndarray, reward: np.ndarray, discount: np.ndarray) -> Arrays:
    """Return arrays as an episode file of this project has them; the action of the reset is 0, and its reward."""
    arrays = dict(_observed(observed))
    arrays["action"] = action.astype(np.float32, copy=True)
    arrays["reward"] = reward.astype(np.float32).reshape(-1, 1)
    arrays["discount"] = discount.astype(np.float32).reshape(-1, 1)
    for name in ("action", "reward"):
        arrays[name][:1] = 0.0
    return arrays


def _observed(observed: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if observed.dtype != np.uint8 or observed.ndim != 4:
        yield "observation", observed.astype(np.float32)
        return
    first, second, last = observed.shape[1:]
    if first == second != last or (last in (1, 3) and first not in (1, 3)):  # [T, H, W, C]
        observed = observed.transpose(0, 3, 1, 2)
    channels = 3 if observed.shape[1] % 3 == 0 else 1  # of stacked images the newest, which is the last
    yield "frame", np.ascontiguousarray(observed[:, -channels:])


_FORMATS: dict[str, tuple[str, Callable[[Path, Report], Iterator[Episode]]]] = {
    "episode_*.safetensors": ("this project's", _own),
    "*.npz": ("npz", _npz),
    "*.hdf5": ("hdf5", _hdf5),
}
