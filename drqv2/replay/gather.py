"""Batches gathered from episode files: each file is mapped once, and frames are copied from there to their place."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch.utils.data import Dataset

from drqv2.nn.returns import nstep_returns
from drqv2.replay.storage import episode_path
from drqv2.system.machine import memory

_SCARCE = 0.5  # of memory: where mapped files are more than that, the page cache will not hold all of them
_MAPPED_EPISODES = 4096  # mapped files a process keeps; the kernel allows 65,530 mappings

Batch = tuple[torch.Tensor, ...]
Layout = list[tuple[tuple[int, ...], np.dtype]]  # of the arrays in a batch


class Request(NamedTuple):
    """A batch to gather: for each sample the number of an episode, and the agent step in it (int64 [B] each)."""

    first: int  # of the window: no later batch refers to an earlier episode
    episode: np.ndarray
    start: np.ndarray
    slot: int | None = None  # of a ring, for the batch to be written to


class Episode(NamedTuple):
    """What batches are made of. Frames and actions are views of the mapped file, and unmapped when they are gone."""

    frame: np.ndarray  # uint8 [T + 1, C, H, W]
    action: np.ndarray  # of each transition, [T, A]
    reward: np.ndarray  # n-step, float32 [T, 1]
    discount: np.ndarray  # n-step, float32 [T, 1]


def read_episode(path: Path, nstep: int, discount: float) -> Episode:
    """Map an episode file and compute the n-step returns of its transitions.

    Args:
        path: a file that `ReplayBufferStorage` wrote.
        nstep: agent steps in a return.
        discount: gamma of an agent step.

    Raises:
        FileNotFoundError: there is no such file.
        SafetensorError: it is damaged.
    """
    # Torch's tensors are views of a private mapping that keeps no file open; those of safetensors.numpy are copies.
    with safe_open(path, framework="pt") as f:
        frame, action, rewards, discounts = (
            f.get_tensor(name).numpy() for name in ("frame", "action", "reward", "discount")
        )
    returns = nstep_returns(rewards[1:, 0], discounts[1:, 0], nstep, discount)
    return Episode(frame, action[1:], *(x[:, None] for x in returns))


class ReplayBuffer(Dataset[Batch]):
    """Gathers requested batches from episode files; reads only, and holds nothing but mapped files and returns.

    Args:
        replay_dir: where the episodes are.
        nstep: agent steps in a return.
        discount: gamma of an agent step.
        frame_stack: frames in one observation.
    """

    def __init__(self, replay_dir: Path | str, nstep: int, discount: float, frame_stack: int = 3) -> None:
        self._replay_dir = Path(replay_dir)
        self._nstep = nstep
        self._discount = discount
        self._frame_stack = frame_stack
        self._episodes: OrderedDict[int, Episode] = OrderedDict()
        self._room = _SCARCE * memory()[0]  # bytes of mapped frames up to which the kernel may read ahead
        self._mapped = 0

    def __getitem__(self, request: Request) -> Batch:
        """Return (obs, action, reward, discount, next_obs), each [B, ...], for a request.

        obs and next_obs are uint8 [B, frame_stack * C, H, W], action float32 [B, A], the n-step reward and discount
        float32 [B, 1].
        """
        out = [np.empty(shape, dtype) for shape, dtype in self.layout(request)]
        self.gather(request, out)
        return tuple(map(torch.from_numpy, out))

    def layout(self, request: Request) -> Layout:
        """Return the shape and dtype of each array of the batch that is requested."""
        episode = self._episode(int(request.episode[0]))
        n, (channels, *size) = len(request.episode), episode.frame.shape[1:]
        obs = (n, self._frame_stack * channels, *size), episode.frame.dtype
        return [obs, *(((n, x.shape[1]), x.dtype) for x in episode[1:]), obs]

    def gather(self, request: Request, out: Sequence[np.ndarray]) -> None:
        """Write a batch into contiguous arrays of its `layout`."""
        self.forget(request.first)
        # One concatenation of slices for each array: a copy of memory and little else for each sample.
        pieces: list[list[np.ndarray]] = [[] for _ in out]
        obs, action, reward, discount, next_obs = pieces
        for number, t in zip(request.episode.tolist(), request.start.tolist(), strict=True):
            episode = self._episode(number)
            after = min(t + self._nstep, len(episode.reward))
            self._stack(episode.frame, t, obs)
            self._stack(episode.frame, after, next_obs)
            action.append(episode.action[t : t + 1])
            reward.append(episode.reward[t : t + 1])
            discount.append(episode.discount[t : t + 1])
        for place, rows in zip(out, pieces, strict=True):
            np.concatenate(rows, out=place.reshape(-1, *rows[0].shape[1:]))  # [B * frame_stack, C, H, W] or [B, ...]

    def forget(self, before: int) -> None:
        """Let go of the mapped files of earlier episodes: the blocks of a deleted one are free when nobody maps it."""
        for number in [e for e in self._episodes if e < before]:
            self._mapped -= self._episodes.pop(number).frame.nbytes

    def close(self) -> None:
        """Let go of all mapped files."""
        self._episodes.clear()
        self._mapped = 0

    def _stack(self, frame: np.ndarray, t: int, pieces: list[np.ndarray]) -> None:
        """Append the frames of the observation of agent step t; the episode's first stands for those before it."""
        first = t + 1 - self._frame_stack
        if first < 0:
            pieces += [frame[:1]] * -first
            first = 0
        pieces.append(frame[first : t + 1])

    def _episode(self, number: int) -> Episode:
        if number in self._episodes:
            self._episodes.move_to_end(number)
            return self._episodes[number]
        episode = read_episode(episode_path(self._replay_dir, number), self._nstep, self._discount)
        before, self._mapped = self._mapped, self._mapped + episode.frame.nbytes
        if self._mapped > self._room:
            for mapped in (episode,) if before > self._room else (episode, *self._episodes.values()):
                _read_no_more_than_asked(mapped.frame)
        self._episodes[number] = episode
        if len(self._episodes) > _MAPPED_EPISODES:
            self._mapped -= self._episodes.popitem(last=False)[1].frame.nbytes
        return episode


def _read_no_more_than_asked(mapped: np.ndarray) -> None:
    """Have the kernel read single pages of a mapped file: what it reads ahead would push out what is wanted."""
    begin = mapped.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    length = mapped.ctypes.data + mapped.nbytes - begin
    with contextlib.suppress(OSError, AttributeError):  # another libc: slower, no more
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_RANDOM)
