"""Write data sets: this project's episodes, .npz of the public DrQ-v2 and of V-D4RL, .hdf5 of D4RL, Minari's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.numpy import save as to_safetensors

from drqv2.datasets import hdf5, minari, npz
from drqv2.datasets.episodes import Episode, Summary
from drqv2.datasets.origin import ABOUT, common_origin, env_spec
from drqv2.errors import UserError, not_installed
from drqv2.replay.storage import episode_path
from drqv2.system import files

NPZ = "npz:"
_HDF5 = ".hdf5"
Store = Callable[[Iterator[Episode], Path], None]  # writes all episodes to a path


def write(
    episodes: Iterable[Episode],
    target: str,
    sources: Sequence[str],
    frame_stack: int | None = None,
    task: int | None = None,
) -> tuple[str, Summary]:
    """Write episodes to a new data set, which appears when it holds all of them.

    Args:
        episodes: all with arrays of the same shapes.
        target: a directory, for this project's format; npz:DIR, FILE.hdf5 or minari:NAME.
        sources: where the episodes are from.
        frame_stack: of npz:DIR: how many images are stacked in a row, as the public DrQ-v2 does; None stores single
            ones, as V-D4RL does.
        task: to which of the tasks of a run of several all episodes belong.

    Returns:
        The place from which the data set is read, and its numbers.

    Raises:
        UserError: the target exists or cannot be written, an episode does not fit its format or has other shapes than
            those before it, or there is no episode.
        DiskError: the disk is full.
    """
    told = common_origin(sources, task)
    place, unfinished, store = _destination(target, sources, told, frame_stack)
    of_minari = target.startswith(minari.MINARI)
    _require_free(target, place, sources)
    summary = Summary()
    with _removed_at_the_end(unfinished):
        try:
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            store(_counted(episodes, target, summary), unfinished)
            if unfinished.is_dir() and not of_minari:
                about = {"sources": list(sources), "episodes": len(summary.returns)}
                about |= {"transitions": sum(summary.lengths)} | told
                files.write_atomically(unfinished / ABOUT, json.dumps(about, indent=1).encode())
            _sync(unfinished)
            if of_minari:
                minari.enter_namespace(target.removeprefix(minari.MINARI))
            unfinished.rename(place)
        except ModuleNotFoundError as error:
            raise UserError(not_installed(str(error.name), "offline")) from error
        except OSError as error:
            raise files.cannot_write(place, error, "choose a place elsewhere") from error
    return target if of_minari else str(place), summary


def _destination(
    target: str, sources: Sequence[str], told: Mapping[str, Any], frame_stack: int | None
) -> tuple[Path, Path, Store]:
    """Return where a target on the command line is, where it is written before, and what writes it there.

    Raises:
        UserError: it means nothing, or `frame_stack` does not apply to it.
    """
    if frame_stack is not None and not target.startswith(NPZ):
        raise UserError(f"frame_stack={frame_stack}: applies only to npz:DIR, got {target}")
    if target.startswith(minari.MINARI):
        folder, name = minari.folder_of(target), target.removeprefix(minari.MINARI)
        store = partial(minari.write_minari, place=target, about=told, env_spec_of=partial(env_spec, sources, told))
        # Beside the namespaces, which Minari makes: those of a data set that is not finished would stay behind.
        return folder, folder.parents[name.count("/")] / f".{name.replace('/', '.')}.unfinished", store
    path = Path(target.removeprefix(NPZ))
    unfinished = path.with_name(f".{path.name}.unfinished") if path.name else path
    if target.startswith(NPZ):
        if not path.name:
            raise UserError(f"{target}: must be npz:DIR, with the name of a new directory")
        return path, unfinished, partial(npz.write_npz, frame_stack=frame_stack)
    if path.suffix == _HDF5:
        return path, unfinished, partial(hdf5.write_d4rl, about=told)
    if path.suffix in (".npz", ".h5", ".safetensors"):
        raise UserError(
            f"{target}: must be a directory, for this project's format, npz:DIR, FILE.hdf5 or minari:NAME-vN"
        )
    return path, unfinished, _write_own


def _write_own(episodes: Iterable[Episode], folder: Path) -> None:
    folder.mkdir()
    for number, episode in enumerate(episodes):
        files.write_atomically(episode_path(folder, number), to_safetensors(dict(episode.arrays)))


def _require_free(target: str, place: Path, sources: Sequence[str]) -> None:
    if place.exists():
        raise UserError(f"{target}: exists; give another directory, file or name")
    for source in sources:
        if Path(source).resolve() in place.resolve().parents:
            raise UserError(f"{target}: is inside {source}, which would change; give a place elsewhere")


def _counted(episodes: Iterable[Episode], target: str, summary: Summary) -> Iterator[Episode]:
    """Yield episodes, count them, and raise UserError if they differ in their shapes or there is none."""
    for episode in episodes:
        _require_same(summary.shapes, episode)
        summary.add(episode)
        yield episode
    if not summary.returns:
        raise UserError(f"{target}: there is no episode to write")


def _require_same(shapes: dict[str, str], episode: Episode) -> None:
    own = {name: f"{array.dtype} {list(array.shape[1:])}" for name, array in episode.arrays.items()}
    if shapes and own != shapes:
        odd = next(name for name in sorted(own.keys() | shapes.keys()) if own.get(name) != shapes.get(name))
        wanted = shapes.get(odd, "none before")
        raise UserError(f"{episode.where}: {odd} is {own.get(odd, 'missing')}, and {wanted} in the episodes before it")


def _sync(written: Path) -> None:
    """Flush a file, or all files of a directory, to disk: a power cut must not leave a part under the final name."""
    for path in [path for path in (written, *written.rglob("*")) if path.is_file()]:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


@contextmanager
def _removed_at_the_end(unfinished: Path) -> Iterator[None]:
    """Context that removes what was being written, before and after; also if the process is asked to stop meanwhile."""

    def leave(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    main = threading.current_thread() is threading.main_thread()  # only there can signals be handled
    usual = signal.signal(signal.SIGTERM, leave) if main else None
    try:
        _remove(unfinished)
        yield
    finally:
        _remove(unfinished)
        if main:
            signal.signal(signal.SIGTERM, usual)


def _remove(unfinished: Path) -> None:
    if unfinished.is_dir():
        shutil.rmtree(unfinished, ignore_errors=True)
    else:
        unfinished.unlink(missing_ok=True)
