"""Batches gathered from episode files: each file is mapped once, and frames are copied from there into the batch."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch.utils.data import Dataset

from drqv2.nn.returns import nstep_returns
from drqv2.replay.observations import StoredArray, stored_in
from drqv2.replay.storage import TASK, episode_path
from drqv2.system.machine import memory

_CACHED = 0.5  # share of memory: of more mapped files than that, the page cache will not hold all
_MAPPED_EPISODES = 4096  # mapped files a process keeps; the kernel allows 65,530 mappings

Batch = tuple[Any, ...]
"""(obs, action, reward, discount, next_obs), or of segments (obs, action, reward, discount, mask), see `BatchGatherer`;
and the task if there are several: tensors, or dicts of observations."""


Pieces = tuple[list[np.ndarray], tuple[int, ...]]
"""Slices of arrays that, one after another, are an array of a batch, and the shape of a sample in it."""


class Request(NamedTuple):
    """A batch to gather: for each sample the number of an episode, and the agent step in it (int64 [B] each)."""

    first: int  # of the window: no later batch refers to an earlier episode
    episode: np.ndarray
    start: np.ndarray
    slot: int | None = None  # of a ring, for the batch to be written to


class Episode(NamedTuple):
    """What batches are made of. Observations and actions are views of the mapped file, unmapped when they are gone."""

    stored: tuple[StoredArray, ...]
    observation: list[np.ndarray]  # of each stored array [T + 1, ...], frames [T + 1, C, H, W]
    action: np.ndarray  # of each transition, [T, ...]
    reward: np.ndarray  # n-step, float32 [T, 1]
    discount: np.ndarray  # n-step, float32 [T, 1]
    task: list[np.ndarray]  # index of the task, int64 [T], where the file has one

    @property
    def nbytes(self) -> int:
        """Bytes of the observations."""
        return sum(array.nbytes for array in self.observation)


def read_episode(path: Path, nstep: int, discount: float | Sequence[float]) -> Episode:
    """Map a file that `ReplayBufferStorage` wrote and compute the n-step returns of its transitions.

    Args:
        path: the file.
        nstep: agent steps in a return.
        discount: gamma of an agent step, one for all tasks or one for each.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: it is damaged.
    """
    # Torch's tensors are views of a private mapping that keeps no file open; those of safetensors.numpy are copies.
    with safe_open(path, framework="pt") as f:
        stored = stored_in(f.keys())
        observation = [f.get_tensor(array.tensor).numpy() for array in stored]
        action, rewards, discounts = (f.get_tensor(name).numpy() for name in ("action", "reward", "discount"))
        task = [f.get_tensor(TASK).numpy()[1:, 0]] if TASK in f.keys() else []  # noqa: SIM118 (not a mapping)
    gamma = discount if isinstance(discount, float | int) else discount[int(task[0][0])]
    reward, factor = nstep_returns(rewards[1:, 0], discounts[1:, 0], nstep, gamma)
    return Episode(stored, observation, action[1:], reward[:, None], factor[:, None], task)


def packed(stored: Sequence[StoredArray], values: Sequence[torch.Tensor], segments: bool = False) -> Batch:
    """Return a batch of its tensors, those of a dict one after another."""
    n, keys = len(stored), [array.key for array in stored]
    if keys == [None]:
        return tuple(values)
    if segments:
        return dict(zip(keys, values[:n], strict=True)), *values[n:]
    later = slice(n + 3, 2 * n + 3)
    observed = (dict(zip(keys, values[part], strict=True)) for part in (slice(n), later))
    return next(observed), *values[n : n + 3], next(observed), *values[2 * n + 3 :]


class BatchGatherer(Dataset[Batch]):
    """Gathers requested batches from episode files; it only reads, and keeps only mapped files and returns.

    Args:
        replay_dir: where the episodes are.
        nstep: agent steps in a return.
        discount: gamma of an agent step, one for all tasks or one for each.
        frame_stack: frames in one image.
        segment: transitions in each sample, in place of one with an n-step return.

    Attributes:
        stored: the arrays of an observation, once an episode has been read.
    """

    def __init__(
        self,
        replay_dir: Path | str,
        nstep: int,
        discount: float | Sequence[float],
        frame_stack: int = 3,
        segment: int | None = None,
    ) -> None:
        self.stored: tuple[StoredArray, ...] = ()
        self.segment = segment
        self._replay_dir = Path(replay_dir)
        self._nstep = nstep if segment is None else 1
        self._discount = discount
        self._frame_stack = frame_stack
        self._episodes: dict[int, Episode] = {}
        self._cached = _CACHED * memory()[0]  # bytes of mapped files up to which the kernel may read ahead
        self._mapped = 0

    def __getitem__(self, request: Request) -> Batch:
        """Return (obs, action, reward, discount, next_obs), each [B, ...], and the task, for a request.

        obs and next_obs are images uint8 [B, frame_stack * C, H, W], other arrays as they are stored, or dicts of both.
        The action has the dtype and shape of the environment's, float32 [B, A] for DrQ-v2. The n-step reward and
        discount are float32 [B, 1], the task's index, where episodes have one, is int64 [B].

        With segments of H transitions, return (obs, action, reward, discount, mask) instead. An image holds
        frame_stack + H frames, uint8 [B, (frame_stack + H) * C, H, W], so that channels i * C to (i + frame_stack) * C
        are what the agent saw i steps after the first observation; other arrays are [B, H + 1, ...]. Actions are
        [B, H, ...], rewards and discounts, those of single steps with gamma, and the mask are float32 [B, H]. The mask
        is 1 for the episode's transitions; where it is 0, after its end, its last frame and transition are repeated.
        """
        return self.pack([torch.from_numpy(x) for x in self.gather(request)])

    def pack(self, values: Sequence[torch.Tensor]) -> Batch:
        """Return a batch of the tensors of the arrays that `gather` returns."""
        return packed(self.stored, values, self.segment is not None)

    def gather(self, request: Request, out: list[np.ndarray] | None = None) -> list[np.ndarray]:
        """Return the arrays of a batch, those of a dict one after another; written to contiguous ones if given."""
        self.forget(request.first)
        episodes = [self._episode(number) for number in request.episode.tolist()]
        pieces = self._pieces(episodes, request.start)
        # One concatenation of slices for each array: a copy of memory and little else for each sample.
        if out is None:
            return [np.concatenate(rows).reshape(len(episodes), *shape) for rows, shape in pieces]
        for place, (rows, _) in zip(out, pieces, strict=True):
            np.concatenate(rows, out=place.reshape(-1, *rows[0].shape[1:]))
        return out

    def _pieces(self, episodes: Sequence[Episode], start: np.ndarray) -> list[Pieces]:
        starts, length = start.tolist(), self.segment or 1
        pieces = self._observed(episodes, starts, self.segment or 0)
        several = () if self.segment is None else (length,)
        for name in ("action", "reward", "discount"):
            rows, shape = _pieces([getattr(episode, name) for episode in episodes], starts, after=length - 1)
            pieces.append((rows, (*several, *shape) if name == "action" or not several else several))
        if self.segment is None:
            ends = [min(t + self._nstep, len(episode.reward)) for episode, t in zip(episodes, starts, strict=True)]
            pieces += self._observed(episodes, ends, 0)
        else:
            steps = start[:, None] + np.arange(length)  # [B, H]
            pieces.append((list((steps < [[len(e.reward)] for e in episodes]).astype(np.float32)), several))
        tasks = zip(*(episode.task for episode in episodes), strict=True)
        return pieces + [_pieces(arrays, starts) for arrays in tasks]

    def _observed(self, episodes: Sequence[Episode], steps: Sequence[int], after: int) -> list[Pieces]:
        """Return the observations of a step and of those `after` it."""
        pieces = []
        for i, array in enumerate(self.stored):
            arrays = [episode.observation[i] for episode in episodes]
            rows, shape = _pieces(arrays, steps, self._frame_stack - 1 if array.stacked else 0, after)
            several = () if not after else (after + 1,)
            pieces.append((rows, (-1, *shape[1:]) if array.stacked else (*several, *shape)))
        return pieces

    def forget(self, before: int) -> None:
        """Unmap the files of earlier episodes: the blocks of a deleted file are free once no process maps it."""
        for number in [e for e in self._episodes if e < before]:
            self._mapped -= self._episodes.pop(number).nbytes

    def close(self) -> None:
        """Unmap all files."""
        self._episodes.clear()
        self._mapped = 0

    def _episode(self, number: int) -> Episode:
        if number in self._episodes:
            return self._episodes[number]
        episode = read_episode(episode_path(self._replay_dir, number), self._nstep, self._discount)
        self.stored = episode.stored
        before, self._mapped = self._mapped, self._mapped + episode.nbytes
        if self._mapped > self._cached:
            for mapped in (episode,) if before > self._cached else (episode, *self._episodes.values()):
                for array in mapped.observation:
                    _disable_read_ahead(array)
        self._episodes[number] = episode
        if len(self._episodes) > _MAPPED_EPISODES:
            self._mapped -= self._episodes.pop(next(iter(self._episodes))).nbytes
        return episode


def _pieces(arrays: Sequence[np.ndarray], steps: Sequence[int], before: int = 0, after: int = 0) -> Pieces:
    """Return, as slices, the rows around a step of each array, and the shape of a row.

    The first row of an array stands for those before it, the last one for those after it.
    """
    slices = []
    for array, t in zip(arrays, steps, strict=True):
        first, stop, rows = t - before, t + after + 1, len(array)
        if first < 0:
            slices += [array[:1]] * -first
        slices.append(array[max(first, 0) : stop])
        if stop > rows:
            slices += [array[-1:]] * (stop - rows)
    return slices, arrays[0].shape[1:]


def _disable_read_ahead(mapped: np.ndarray) -> None:
    """Have the kernel read single pages of a mapped file: what it reads ahead would evict pages that are needed."""
    begin = mapped.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    length = mapped.ctypes.data + mapped.nbytes - begin
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_RANDOM)
