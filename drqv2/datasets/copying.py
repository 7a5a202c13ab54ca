"""Put the episodes of a data set into a run's replay, in this project's format."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from safetensors.numpy import save as to_safetensors

from drqv2.datasets.learnable import Findings, Shapes, learnable
from drqv2.datasets.options import DEFAULTS, ReadOptions
from drqv2.errors import UserError
from drqv2.replay.storage import episode_path
from drqv2.system import files

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)  # another file system, or one without them


def fill_replay(
    data: str, replay_dir: Path, shapes: Shapes, size: int | None = None, options: ReadOptions = DEFAULTS
) -> int:
    """Copy all episodes of a data set into an empty replay; return their transitions.

    Episodes of this project's format are linked where the file system can, which takes no space.

    Args:
        data: what `drqv2.datasets.formats.read` takes.
        replay_dir: where to.
        shapes: those of a row of each episode, by the names of its arrays.
        size: transitions that the replay may hold; None: all of the data's.
        options: how the data are to be read.

    Raises:
        UserError: there is no data set there, or some of it cannot be used; file and row are named; or there are more
            transitions.
        DiskError: the disk is full.
    """
    replay_dir.mkdir(parents=True, exist_ok=True)
    findings = Findings()
    number = transitions = 0
    for episode in learnable(data, findings, shapes, options):
        if findings.lines:
            continue  # to find the others
        number, transitions = number + 1, transitions + episode.length
        if size is not None and transitions > size:
            continue  # to count the others
        path = episode_path(replay_dir, number - 1)
        if episode.as_stored:
            _link(Path(episode.where), path)
        else:
            _write(path, to_safetensors(dict(episode.arrays)))
    findings.raise_if_any(data)
    if size is not None and transitions > size:
        raise UserError(
            f"replay_buffer_size={size}: smaller than data={data}; leave it out, or set at least {transitions} "
            "(transitions)"
        )
    return transitions


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source.resolve(), path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _write(path, source.read_bytes())


def _write(path: Path, content: bytes) -> None:
    files.retry_on_full_disk(lambda: files.write_atomically(path, content), str(path))
