"""Directories of .npz episodes, a file each: the public DrQ-v2's and V-D4RL's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from drqv2.datasets.columns import Announce, Columns, Layout, left_out, require_same_length
from drqv2.datasets.episodes import Episode, Unusable
from drqv2.datasets.options import ReadOptions
from drqv2.datasets.storable import observed, require_readable
from drqv2.system import files

# The rows of an episode in which each flag must be False.
_FLAGS = {"is_first": slice(1, None), "is_last": slice(None, -1), "is_terminal": slice(None, -1)}


def episode_of(
    path: Path, options: ReadOptions, report: Callable[[str], None], announce: Announce
) -> Iterator[Columns]:
    """Yield the episode of a file.

    It is the public DrQ-v2's, with stacked images in `observation`; or V-D4RL's, with single ones in `image`. A dict of
    observations is in `observation.NAME`, with single images in `image.NAME`.

    Args:
        path: the file.
        options: not used; see `formats.read`.
        report: not used; see `formats.read`.
        announce: called with lines on what is left out.

    Raises:
        Unusable: columns are missing or differ in length, or the file holds several episodes.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise ValueError("no .npz file, or one of pickled objects, which could run code and are not read") from error
    parts = {name.partition(".")[2]: name for name in arrays if name.startswith(("image.", "observation."))}
    image = "image" if "image" in arrays else "observation"
    seen = list(parts.values()) if parts and image not in arrays else [image]
    ends = [name for name in ("discount", "is_terminal") if name in arrays]
    needed = (*seen, "action", "reward", ends[0] if ends else "discount")
    if missing := [name for name in needed if name not in arrays]:
        raise Unusable(f"{' and '.join(missing)} missing; it has {', '.join(sorted(arrays))}")
    used = {name: arrays[name] for name in (*needed, *_FLAGS) if name in arrays}
    require_same_length(used)
    left_out(arrays, used, announce)
    for name, inner in _FLAGS.items():
        if name in used and len(rows := np.flatnonzero(used[name][inner])):
            raise Unusable(f"row {rows[0] + (inner.start or 0)}: {name} within the episode; a file must hold one")
    terminal = used.get("is_terminal", np.zeros(1))
    discount = used["discount"] if "discount" in used else 1.0 - terminal.astype(np.float32)
    if terminal[-1:].any() and discount[-1:].any():
        raise Unusable(f"row {len(discount) - 1}: is_terminal, and discount {discount[-1]} instead of 0")
    observed: Any = used[image] if image in used else {key: used[name] for key, name in parts.items()}
    single = any(name.startswith("image") for name in seen)
    yield Columns(str(path), observed, used["action"], used["reward"], discount, layout=_layout(single))


def _layout(single: bool) -> Layout:
    """Return the layout of single images, or of stacks."""
    return Layout(unclear="last" if single else "first", stacked=True)


def write_npz(episodes: Iterable[Episode], folder: Path, frame_stack: int | None) -> None:
    """Write episodes to a new directory, a file each; the names keep their order and say their lengths.

    Args:
        episodes: of images and vectors.
        folder: is made.
        frame_stack: images in a row of the public DrQ-v2's layout; None writes V-D4RL's, with one. A vector is stored
            alike in both.

    Raises:
        UserError: an episode does not fit the format.
    """
    folder.mkdir()
    for number, episode in enumerate(episodes):
        seen = observed(episode, "npz:DIR")
        parts = {f".{key}": part for key, part in seen.items()} if isinstance(seen, dict) else {"": seen}
        single = frame_stack is None and any(part.ndim == 4 for part in parts.values())
        columns: dict[str, Any] = {}
        for key, rows in parts.items():
            name = "image" if single and rows.ndim == 4 else "observation"
            columns[f"{name}{key}"] = laid_out = _laid_out(rows, frame_stack)
            require_readable(episode, rows, laid_out, _layout(single))
        columns["action"] = episode.arrays["action"]
        if single:
            columns |= {key: episode.arrays[key][:, 0] for key in ("reward", "discount")} | _flags(episode)
        else:
            columns |= {key: episode.arrays[key] for key in ("reward", "discount")}
        # The public DrQ-v2 takes number and length from between underscores, V-D4RL the length from after a hyphen.
        between = "-" if single else "_"
        with files.replacing(folder / between.join(("episode", f"{number:08d}", f"{episode.length}.npz"))) as file:
            np.savez_compressed(file, **columns)


def _laid_out(rows: np.ndarray, frame_stack: int | None) -> np.ndarray:
    """Return images channels last, or stacks of them; vectors as they are."""
    if rows.ndim != 4:
        return rows
    return rows.transpose(0, 2, 3, 1) if frame_stack is None else _stacks(rows, frame_stack)


def _stacks(frames: np.ndarray, number: int) -> np.ndarray:
    """Return each image with those before it along the channels, oldest first; the first one several times at first."""
    rows = np.maximum(np.arange(len(frames))[:, None] + np.arange(1 - number, 1), 0)
    return frames[rows].reshape(len(frames), -1, *frames.shape[2:])


def _flags(episode: Episode) -> dict[str, np.ndarray]:
    """Return where an episode begins, ends and reaches a terminal state, bool [T + 1] each."""
    row, last = np.arange(episode.length + 1), episode.length
    return {
        "is_first": row == 0,
        "is_last": row == last,
        "is_terminal": (row == last) & (episode.arrays["discount"][:, 0] == 0),
    }
