"""Put the episodes of a data set into a run's replay, in this project's format."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save as to_safetensors

from drqv2.datasets.episodes import Episode
from drqv2.datasets.formats import format_of, read
from drqv2.errors import UserError
from drqv2.replay.storage import episode_path
from drqv2.system import files

_SHOWN = 3  # problems in a message
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)  # another file system, or one without them


def fill_replay(data: str, replay_dir: Path, shapes: Mapping[str, tuple[int, ...]], size: int) -> int:
    """Copy all episodes of a data set into an empty replay; return their transitions.

    Episodes of this project's format are linked where the file system can, which takes no space.

    Args:
        data: what `drqv2.datasets.formats.read` takes.
        replay_dir: where to.
        shapes: those of a row of each episode, by the names of its arrays.
        size: transitions that the replay may hold.

    Raises:
        UserError: there is no data set there, or some of it cannot be used; file and row are named; or there are more
            transitions.
        DiskError: the disk is full.
    """
    replay_dir.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    misfits: list[str] = []
    linked = format_of(data) == "this project's"
    number = transitions = 0
    for episode in read(data, wrong.append):
        misfits += _misfits(data, episode, shapes)
        if wrong or misfits:
            continue  # to find the others
        number, transitions = number + 1, transitions + episode.length
        if transitions > size:
            continue  # to count the others
        path = episode_path(replay_dir, number - 1)
        if linked:
            _link(Path(episode.where), path)
        else:
            _write(path, to_safetensors(dict(episode.arrays)))
    if wrong:
        without = f"python -m drqv2.datasets convert {data} NEW skip_bad=true"
        raise _refusal(wrong, f"{without} makes a data set without them.")
    if misfits:
        raise _refusal(misfits, "Set obs_type, image_size, frame_stack or the task as the data has them.")
    if transitions > size:
        raise UserError(
            f"replay_buffer_size={size}: smaller than data={data}; must be at least {transitions} (transitions)"
        )
    if not number:
        raise UserError(f"data={data}: holds no episode")
    return transitions


def _refusal(lines: Sequence[str], advice: str) -> UserError:
    more = f"\nand {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return UserError("\n".join(lines[:_SHOWN]) + f"{more}\n{advice}")


def _misfits(data: str, episode: Episode, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Yield what of an episode's shapes differs from those of the run.

    Raises:
        UserError: it is one of several tasks.
    """
    if "task" in episode.arrays:
        raise UserError(
            f"data={data}: is of a run of several tasks, and this one has one\n"
            f"python -m drqv2.datasets filter {data} NEW task=N makes a data set of the task N, from 0."
        )
    for name, shape in shapes.items():
        if name not in episode.arrays:
            found = ", ".join(sorted(episode.arrays))
            yield f"{episode.where}: has no {name}, and that of the run is such; it has {found}"
        elif episode.arrays[name].shape[1:] != shape:
            found = "x".join(map(str, episode.arrays[name].shape[1:]))
            yield f"{episode.where}: {name} {found}: that of the run is {'x'.join(map(str, shape))}"
    if np.issubdtype(episode.arrays["action"].dtype, np.integer):
        yield f"{episode.where}: its actions are discrete, and those of the run are in [-1, 1]"


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source.resolve(), path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _write(path, source.read_bytes())


def _write(path: Path, content: bytes) -> None:
    files.retry_on_full_disk(lambda: files.write_atomically(path, content), str(path))
