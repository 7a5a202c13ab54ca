"""Replay on the learner's device: it holds the sampled episodes, and a batch is a gather."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drqv2.errors import UserError
from drqv2.replay.gather import Batch, Request, packed, read_episode
from drqv2.replay.observations import StoredArray, stored_arrays
from drqv2.replay.storage import ReplayBufferStorage, episode_path

_SHARE = 0.6  # of the free memory that observations may take; the learner needs the rest
_SLACK = 1.02  # rows for each transition: an episode has an observation more than transitions


def needed_bytes(transitions: int, observation_spec: Any, frame_stack: int) -> int:
    """Return the bytes that observations take on a device or on disk.

    Args:
        transitions: capacity of the replay.
        observation_spec: spec of an observation, one array's or a dict of them.
        frame_stack: frames in one image.
    """
    row = 0
    for array, spec in stored_arrays(observation_spec, frame_stack).items():
        size = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        row += size // frame_stack if array.stacked else size
    return int(_SLACK * transitions) * row


def choose_replay_device(replay_device: str, device: str, free_bytes: float, needed_bytes: float) -> tuple[str, str]:
    """Return where replay is kept, "disk" or a torch device, and the reason, for the user.

    Args:
        replay_device: disk, a torch device, or auto: the learner's GPU, if there is one and observations take at most
            60 % of its free memory.
        device: where the learner is.
        free_bytes: free memory there.
        needed_bytes: what the observations take, see `needed_bytes`.

    Raises:
        UserError: a device is asked for that is not the learner's.
    """
    if replay_device not in ("auto", "disk") and torch.device(replay_device).type != torch.device(device).type:
        raise UserError(f"replay_device={replay_device}: the learner is on {device}; use replay_device=disk or auto")
    if replay_device != "auto":
        return replay_device, f"replay_device={replay_device}"
    if torch.device(device).type != "cuda":
        return "disk", f"the learner is on {device}"
    sizes = f"observations take {needed_bytes / 1e9:.1f} GB of the {free_bytes / 1e9:.1f} GB free on {device}"
    if needed_bytes > _SHARE * free_bytes:
        return "disk", f"{sizes}, more than {_SHARE:.0%}"
    return torch.device(device).type, sizes


class DeviceReplay:
    """Gathers requested batches from rings of observations and transitions on a device.

    An episode is copied there from its file when it first is in a window that is sampled, and overwritten once it is in
    no later window. Requests must come in the order in which the sampler yields them. The arguments are those of
    `make_replay_loader`.
    """

    def __init__(
        self,
        storage: ReplayBufferStorage,
        nstep: int,
        discount: float | Sequence[float],
        frame_stack: int,
        device: torch.device | str,
        segment: int | None = None,
    ) -> None:
        self._storage = storage
        self._segment = segment
        self._nstep = nstep if segment is None else 1
        self._discount = discount
        self._device = torch.device(device)
        self._frame_stack = frame_stack
        self.close()

    def close(self) -> None:
        """Free everything; the next batch reads the files again."""
        self._stored: tuple[StoredArray, ...] = ()
        self._rings: list[Tensor] = []  # of each stored array, then action, reward, discount, task: [capacity, ...]
        self._capacity = 0  # rows
        self._episodes: dict[int, tuple[int, int]] = {}  # first row and number of transitions; oldest first
        self._end = 0  # rows written so far; a row's place in the rings is modulo the capacity
        self._next = 0  # number of the first episode that has not been read

    def start(self, requests: Iterator[Request]) -> Iterator[Batch]:
        """Return the batches that are requested."""
        return map(self.__getitem__, requests)

    def __getitem__(self, request: Request) -> Batch:
        """Return the batch that `BatchGatherer` gathers, on the device.

        Raises:
            FileNotFoundError: an episode is not on disk.
            UserError: the device has too little memory.
        """
        for number in [e for e in self._episodes if e < request.first]:
            del self._episodes[number]
        for number in range(max(self._next, request.first), int(request.episode.max()) + 1):
            if self._storage.lengths[number]:
                self._read(number)
            self._next = number + 1
        first, length = np.array([self._episodes[e] for e in request.episode.tolist()]).T[..., None]  # [B, 1]
        t, back = request.start[:, None], 1 - self._frame_stack
        if self._segment is None:
            stack, end = np.arange(back, 1), np.minimum(t + self._nstep, length)
            steps = [t + stack, end + stack, t]
        else:
            steps = [t + np.arange(back, self._segment + 1), t + np.arange(self._segment)]
        mask = torch.from_numpy((steps[-1] < length).astype(np.float32))
        steps[-1] = np.minimum(steps[-1], length - 1)
        rows = np.concatenate([np.clip(step, 0, length) for step in steps], axis=1)
        index = torch.from_numpy((first + rows) % self._capacity).to(self._device)
        *observed, transition = index.split([step.shape[1] for step in steps], dim=1)
        n = len(self._stored)
        seen = [[self._observed(*of, i) for of in zip(self._rings, self._stored, strict=False)] for i in observed]
        action, reward, discount, *task = self._rings[n:]
        values = [_rows(action, transition), *(_rows(ring, transition)[..., 0] for ring in (reward, discount))]
        tasks = [ring.index_select(0, transition[:, 0]) for ring in task]
        if self._segment is not None:
            return packed(self._stored, [*seen[0], *values, mask.to(self._device), *tasks], segments=True)
        return packed(self._stored, [*seen[0], values[0][:, 0], *values[1:], *seen[1], *tasks])

    def _observed(self, ring: Tensor, array: StoredArray, index: Tensor) -> Tensor:
        if array.stacked:
            return _rows(ring, index).flatten(1, 2)  # [B, frames * C, H, W]
        values = _rows(ring, index[:, self._frame_stack - 1 :])  # [B, H + 1, ...]
        return values[:, 0] if self._segment is None else values

    def _read(self, number: int) -> None:
        path = episode_path(self._storage.replay_dir, number)
        self._stored, observation, *transition, task = read_episode(path, self._nstep, self._discount)
        rows = len(observation[0])
        values = [torch.from_numpy(x) for x in (*observation, *transition, *task)]
        self._make_room(rows, values)
        index = torch.arange(self._end, self._end + rows, device=self._device) % self._capacity
        for ring, x in zip(self._rings, values, strict=True):
            ring.index_copy_(0, index[: len(x)], x.to(self._device))
        self._episodes[number] = self._end, rows - 1
        self._end += rows

    def _make_room(self, rows: int, like: list[Tensor]) -> None:
        """Make room for more rows; at first for as many as the storage will need unless episodes are very short."""
        begin = next((first for first, _ in self._episodes.values()), self._end)
        held = self._end - begin
        if held + rows <= self._capacity:
            return
        usual = self._capacity * 3 // 2 or int(_SLACK * (self._storage.max_size or 0))
        capacity = max(held + rows, usual)
        old, self._rings = self._rings, []
        rings = _empty(capacity, like, self._device)
        if rings is None and old:
            old = []  # freed: both did not fit together; the files are read again
            rings = _empty(capacity, like, self._device)
        if rings is None:
            size = capacity * sum(x[0].nbytes for x in like) / 1e9
            self.close()
            raise UserError(
                f"replay_device={self._device.type}: {size:.1f} GB of replay do not fit; "
                "use replay_device=disk or a smaller replay_buffer_size"
            )
        if old:
            index = torch.arange(begin, self._end, device=self._device) % self._capacity
            for ring, before in zip(rings, old, strict=True):
                torch.index_select(before, 0, index, out=ring[:held])
            self._episodes = {e: (first - begin, n) for e, (first, n) in self._episodes.items()}
            self._end, self._rings, self._capacity = held, rings, capacity
            return
        lost, self._episodes = list(self._episodes), {}
        self._end, self._rings, self._capacity = 0, rings, capacity
        for number in lost:
            self._read(number)


def _empty(rows: int, like: list[Tensor], device: torch.device) -> list[Tensor] | None:
    """Return rings of so many rows; None if they do not fit."""
    try:
        return [torch.empty((rows, *x.shape[1:]), dtype=x.dtype, device=device) for x in like]
    except RuntimeError as error:
        if device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError):
            raise
        return None


def _rows(ring: Tensor, index: Tensor) -> Tensor:
    """Return the rows of a ring at an index of two axes, [B, N, ...]."""
    return ring.index_select(0, index.flatten()).unflatten(0, index.shape)
