"""Episodes on disk: one safetensors file each, and which of them are sampled.

A file holds the observations (see `drqv2.replay.observations`: of images each frame once, never the stack), `action`,
`reward` and `discount`; row 0 is the reset. Where there are several tasks, it holds `task`, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from drqv2.replay.observations import OBSERVATION, StoredArray, stored_arrays
from drqv2.replay.unfinished import PARTS, UnfinishedEpisode
from drqv2.system.files import digest, retry_on_full_disk, write_atomically

_log = logging.getLogger(__name__)

TASK = "task"
_PATTERN = f"episode_{'[0-9]' * 8}.safetensors"


class Window(NamedTuple):
    """Episodes [first, end) of a storage, by number."""

    first: int
    end: int


def episode_path(replay_dir: Path, episode: int) -> Path:
    """Return where an episode is kept."""
    return replay_dir / f"episode_{episode:08d}.safetensors"


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("episode_"))


class ReplayBufferStorage:
    """Writes episodes to disk and decides which of them are sampled.

    Args:
        data_specs: specs of what is kept of a time step, by name: `observation`, `action`, `reward`, `discount`, and
            `task` where there are several, its index, int64 [1]. The
            observation's may be a dict of specs; of an image, uint8 [frame_stack * C, H, W], the newest frame is
            written, of anything else all. Actions are floats or integers, scalars or vectors.
        replay_dir: where the files go; made if it does not exist. Without `load_state_dict`, episodes that it already
            holds are kept if `existing` is set, and overwritten otherwise.
        max_size: transitions sampled from; older episodes leave the window, whole, oldest first. None keeps all.
        frame_stack: frames in one image.
        existing: start with the newest episodes in `replay_dir`, up to `max_size` (to learn from a finished run's).
            Those left out are not deleted.

    Attributes:
        window: the episodes that are sampled now.
        lengths: transitions of every episode whose file is on disk, by its number.
        tasks: the task of each of these; without one in the specs, 0.

    Raises:
        ValueError: the channels of an image are no multiple of frame_stack.
    """

    def __init__(
        self,
        data_specs: Sequence[Any],
        replay_dir: Path | str,
        max_size: int | None = None,
        frame_stack: int = 3,
        existing: bool = False,
    ) -> None:
        self.replay_dir = Path(replay_dir)
        self.replay_dir.mkdir(parents=True, exist_ok=True)
        self._specs: dict[str, Any] = {}  # of everything but the observation
        self._observed: dict[StoredArray, Any] = {}  # its arrays with their specs
        for spec in data_specs:
            if isinstance(spec, Mapping) or spec.name == OBSERVATION:
                self._observed = stored_arrays(spec, frame_stack)
            else:
                self._specs[spec.name] = spec
        self.max_size = max_size
        self._frame_stack = frame_stack
        self._current: dict[int, UnfinishedEpisode] = {}  # by environment
        self._begun = 0  # episodes begun so far
        self.lengths: dict[int, int] = {}
        self.tasks: dict[int, int] = {}
        self._digests: dict[int, bytes] = {}  # SHA-256 of the files
        self.window = Window(0, 0)
        self._size = 0  # transitions in the window
        self._pins: dict[str, int] = {}
        self._lost: set[int] = set()  # tasks already reported as having no episode left
        if existing:
            self.add_existing()

    def __len__(self) -> int:
        """Return the number of transitions in the window."""
        return self._size

    @property
    def num_episodes(self) -> int:
        """Episodes committed so far, evicted ones included."""
        return self.window.end

    def newest_of_tasks(self) -> dict[int, int]:
        """Return the number of the newest episode in the window of each task that has one there."""
        return {self.tasks[e]: e for e in range(*self.window) if self.lengths[e]}

    def ends(self, window: Window) -> np.ndarray:
        """Return, for each episode of `window`, the number of transitions up to its end, int64 [episodes]."""
        return np.cumsum([self.lengths[e] for e in range(window.first, window.end)], dtype=np.int64)

    def ends_by_task(self, window: Window) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each task with transitions in `window`, its episodes' numbers and their `ends`, int64 each."""
        episodes: dict[int, list[int]] = {}
        for e in range(window.first, window.end):
            if self.lengths[e]:
                episodes.setdefault(self.tasks[e], []).append(e)
        return [(np.array(own), np.cumsum([self.lengths[e] for e in own])) for _, own in sorted(episodes.items())]

    def add(self, time_step: Any, env: int = 0) -> int | None:
        """Add a time step; the last one of an episode commits the episode, whose number is returned.

        Args:
            time_step: dm_env time step with items named as the specs. The first one of an episode
                drops what is left of an unfinished one.
            env: number of its environment.
        """
        if time_step.first() or env not in self._current:
            if env in self._current:
                self._current.pop(env).discard()
            self._current[env] = self._unfinished(self._begun)
            self._begun += 1
        step = {
            array.tensor: array.newest(time_step[OBSERVATION], spec, self._frame_stack)
            for array, spec in self._observed.items()
        }
        for name, spec in self._specs.items():
            step[name] = np.broadcast_to(np.asarray(time_step[name], dtype=spec.dtype), spec.shape).copy()
        self._current[env].add(step)
        return self.end(env) if time_step.last() else None

    def end(self, env: int = 0) -> int | None:
        """Commit the unfinished episode of an environment as it is, and return its number; None if there is none.

        Its last transition keeps its discount: where the episode would have continued, that is 1, as at a time-out.
        """
        return self._commit(self._current.pop(env)) if env in self._current else None

    def _unfinished(self, number: int) -> UnfinishedEpisode:
        names = *(array.tensor for array in self._observed), *self._specs
        return UnfinishedEpisode(self.replay_dir, number, names)

    def _commit(self, unfinished: UnfinishedEpisode) -> int:
        arrays = unfinished.arrays()  # [T + 1, ...] each
        episode = self.window.end
        path, data = episode_path(self.replay_dir, episode), to_safetensors(arrays, unfinished.metadata)
        retry_on_full_disk(lambda: write_atomically(path, data), str(path))
        unfinished.discard()
        self._digests[episode] = sha256(data).digest()
        self.lengths[episode] = len(arrays["reward"]) - 1
        self.tasks[episode] = int(arrays[TASK].flat[0]) if TASK in arrays else 0
        self._size += self.lengths[episode]
        first = self.window.first
        while self.max_size is not None and self._size > self.max_size and first < episode:
            self._size -= self.lengths[first]
            first += 1
        self._warn_of_tasks_lost(Window(first, episode + 1))
        self.window = Window(first, episode + 1)
        self._unlink()
        return episode

    def _warn_of_tasks_lost(self, window: Window) -> None:
        """Warn when a task's last episode leaves the window."""
        for task in {self.tasks[e] for e in range(self.window.first, window.first)} - self._lost:
            if all(self.tasks[e] != task for e in reversed(range(*window))):
                self._lost.add(task)
                why = f"replay_buffer_size={self.max_size} is too small."
                _log.warning("task %d has no episode left to learn from until its next one: %s", task, why)

    def pin(self, holder: str, first: int | None) -> None:
        """Keep the files of episodes from number `first` on for `holder`, in place of its earlier pin; ignore None."""
        if first is not None and self._pins.get(holder) != first:
            self._pins[holder] = first
            self._unlink()

    def _unlink(self) -> None:
        keep_from = min((self.window.first, *self._pins.values()))
        for episode in [e for e in self.lengths if e < keep_from]:
            episode_path(self.replay_dir, episode).unlink(missing_ok=True)
            del self.lengths[episode], self.tasks[episode]
            self._digests.pop(episode, None)

    def delete(self) -> None:
        """Delete all files of episodes."""
        for pattern in (_PATTERN, PARTS):
            for path in self.replay_dir.glob(pattern):
                path.unlink()
        self.lengths, self.tasks, self._digests, self.window, self._size = {}, {}, {}, Window(0, 0), 0

    def nbytes(self) -> int:
        """Return the bytes of the files on disk."""
        return sum(path.stat().st_size for name in (_PATTERN, PARTS) for path in self.replay_dir.glob(name))

    def load_episode(self, episode: int) -> dict[str, np.ndarray]:
        """Return a committed episode's arrays by their names in the file, [T + 1, ...] each."""
        with safe_open(episode_path(self.replay_dir, episode), framework="numpy") as f:
            return {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)

    def load_rewards(self, episode: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rewards and discounts of a committed episode's transitions, float32 [T] each."""
        with safe_open(episode_path(self.replay_dir, episode), framework="numpy") as f:
            return f.get_tensor("reward")[1:, 0], f.get_tensor("discount")[1:, 0]

    @property
    def first_needed(self) -> int:
        """Number of the first episode that the window or a pending batch refers to: a snapshot needs all from there."""
        return min(self.window.first, self._pins.get("batches", self.window.first))

    def state_dict(self) -> dict[str, Any]:
        """Return the window, lengths and checksums of the episodes needed, and the unfinished ones, as tensors."""
        needed = range(self.first_needed, self.window.end)
        digests = [list(self._digests.get(e, bytes(32))) for e in needed]  # zeros: not written by this storage
        return {
            "window": list(self.window),
            "first": needed.start,
            "lengths": torch.tensor([self.lengths[e] for e in needed], dtype=torch.int64),
            "tasks": torch.tensor([self.tasks[e] for e in needed], dtype=torch.int64),
            "digests": torch.tensor(digests, dtype=torch.uint8),  # SHA-256, [episodes, 32]
            "current": {env: episode.state_dict() for env, episode in self._current.items()},
            "begun": self._begun,
        }

    def load_state_dict(self, state: dict[str, Any], keep_from: int | None = None) -> None:
        """Restore a `state_dict`; episodes written after it was taken are deleted.

        An episode whose file does not match its checksum is not sampled. The files from the older episode `keep_from`
        on are kept for another state.

        Raises:
            FileNotFoundError: an episode that the state refers to is not on disk.
        """
        first = state["first"]
        lengths = dict(enumerate(state["lengths"].tolist(), start=first))
        digests = {e: bytes(row) for e, row in enumerate(state["digests"].tolist(), start=first)}
        paths = {e: episode_path(self.replay_dir, e) for e, n in lengths.items() if n}
        with ThreadPoolExecutor(max_workers=4) as readers:
            found = list(readers.map(digest, paths.values()))
        for (e, path), sha in zip(paths.items(), found, strict=True):
            if sha != digests[e] and any(digests[e]):
                _log.warning("%s has a wrong checksum and is no longer sampled.", path)
                lengths[e] = 0
        self.window = Window(*state["window"])
        self._size = sum(lengths[e] for e in range(*self.window))
        self._digests = digests
        self._pins = {} if keep_from is None else {"snapshots": keep_from}
        self._load_unfinished(state)
        older = range(first if keep_from is None else keep_from, first)  # kept, but not sampled
        self.lengths = dict.fromkeys(older, 0) | lengths
        self.tasks = dict.fromkeys(older, 0) | dict(zip(lengths, state["tasks"].tolist(), strict=True))
        for path in self.replay_dir.glob(_PATTERN):
            if _number(path) not in self.lengths:
                path.unlink()

    def _load_unfinished(self, state: dict[str, Any]) -> None:
        """Restore the unfinished episodes of a `state_dict`, and delete the files of others."""
        later = [p for p in sorted(self.replay_dir.glob(_PATTERN)) if _number(p) >= self.window.end]
        self._begun, self._current = state["begun"], {}
        for env, saved in state["current"].items():
            episode = self._unfinished(saved["number"])
            if episode.load_state_dict(saved, later):
                self._current[env] = episode
        kept = {path for episode in self._current.values() for path in episode.paths()}
        for path in set(self.replay_dir.glob(PARTS)) - kept:
            path.unlink()

    def add_existing(self) -> None:
        """Sample from the newest episodes in `replay_dir`, up to `max_size`, with which the storage starts."""
        found: dict[int, int] = {}  # transitions, newest episode first
        tasks: dict[int, int] = {}
        for path in sorted(self.replay_dir.glob(_PATTERN), reverse=True):
            try:
                with safe_open(path, framework="numpy") as f:
                    length = f.get_slice("reward").get_shape()[0] - 1
                    tasks[_number(path)] = int(f.get_tensor(TASK).flat[0]) if TASK in f.keys() else 0  # noqa: SIM118
            except SafetensorError as e:
                _log.warning("%s is damaged and will not be sampled (%s).", path, e)
                length = 0
            if self._size and self.max_size is not None and self._size + length > self.max_size:
                break
            found[_number(path)] = length
            self._size += length
        if found:
            self.window = Window(min(found), max(found) + 1)
            # Numbers that are missing in between count as episodes without a transition.
            self.lengths = {e: found.get(e, 0) for e in range(*self.window)}
            self.tasks = {e: tasks.get(e, 0) for e in self.lengths}
            self._digests = {e: digest(episode_path(self.replay_dir, e)) for e in found}
