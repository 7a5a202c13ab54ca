"""Replay on the learner's device: the sampled episodes lie there, and a batch is a gather."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from drqv2.errors import UserError
from drqv2.replay.gather import Batch, Request, read_episode
from drqv2.replay.storage import ReplayBufferStorage, episode_path

_SHARE = 0.6  # of the free memory that frames may take; the learner needs the rest
_SLACK = 1.02  # room for each transition: an episode has a frame more than transitions


def needed_bytes(transitions: int, obs_shape: Sequence[int], frame_stack: int) -> int:
    """Return the bytes that frames take on a device.

    Args:
        transitions: capacity of the replay.
        obs_shape: (frame_stack * C, H, W), uint8.
        frame_stack: frames in one observation.
    """
    return int(_SLACK * transitions) * math.prod(obs_shape) // frame_stack


def choose_replay_device(replay_device: str, device: str, free_bytes: float, needed_bytes: float) -> tuple[str, str]:
    """Return where replay is kept, "disk" or a torch device, and why, in words.

    Args:
        replay_device: auto (the learner's GPU, if there is one and the frames take at most 60 % of what is free),
            disk, or a torch device.
        device: where the learner is.
        free_bytes: free memory there.
        needed_bytes: what the frames take, see `needed_bytes`.

    Raises:
        UserError: a device is asked for on which the learner is not.
    """
    if replay_device not in ("auto", "disk") and torch.device(replay_device).type != torch.device(device).type:
        raise UserError(f"replay_device={replay_device}: the learner is on {device}; take replay_device=disk, or auto")
    if replay_device != "auto":
        return replay_device, "as asked for"
    if torch.device(device).type != "cuda":
        return "disk", f"the learner is on {device}"
    frames = f"frames take {needed_bytes / 1e9:.1f} GB of {free_bytes / 1e9:.1f} GB that are free on {device}"
    if needed_bytes > _SHARE * free_bytes:
        return "disk", f"{frames}, more than {_SHARE:.0%}"
    return torch.device(device).type, frames


class DeviceReplay:
    """Gathers requested batches from a ring of frames and transitions on a device.

    An episode is copied there from its file when a window that is sampled first holds it, and its place is free again
    when no later window does. Requests must come in the order in which the sampler yields them.

    Args:
        storage: says which episodes there are.
        nstep: agent steps in a return.
        discount: gamma of an agent step.
        frame_stack: frames in one observation.
        device: any torch device.
    """

    def __init__(
        self,
        storage: ReplayBufferStorage,
        nstep: int,
        discount: float,
        frame_stack: int,
        device: torch.device | str,
    ) -> None:
        self._storage = storage
        self._nstep = nstep
        self._discount = discount
        self._device = torch.device(device)
        self._back = np.arange(1 - frame_stack, 1)
        self.close()

    def close(self, kill: bool = False) -> None:
        """Let go of everything; what is asked for next is read from the files again. There is no worker to kill."""
        self._rings: list[Tensor] = []  # frame, action, reward, discount: [capacity, ...]
        self._capacity = 0  # rows
        # Rows are counted from the first that was ever written; in the ring they lie modulo the capacity.
        self._begin = self._end = 0
        self._episodes: dict[int, tuple[int, int]] = {}  # first row and number of transitions; oldest first
        self._next = 0  # number of the first episode that has not been looked at

    def start(self, requests: Iterator[Request]) -> Iterator[Batch]:
        """Return the batches that are requested."""
        return map(self.__getitem__, requests)

    def __getitem__(self, request: Request) -> Batch:
        """Return the batch (obs, action, reward, discount, next_obs) that `ReplayBuffer` gathers, on the device.

        Raises:
            FileNotFoundError: an episode is not on disk.
            UserError: the device has no room for the frames.
        """
        self._let_go(request.first)
        for number in range(max(self._next, request.first), int(request.episode.max()) + 1):
            if self._storage.length(number):
                self._take_up(number)
            self._next = number + 1
        first, length = np.array([self._episodes[e] for e in request.episode.tolist()]).T[..., None]  # [B, 1]
        t = request.start[:, None]
        after = np.minimum(t + self._nstep, length)
        rows = [np.maximum(t + self._back, 0), np.maximum(after + self._back, 0), t]  # [B, S], [B, S], [B, 1]
        index = torch.from_numpy((first + np.concatenate(rows, axis=1)) % self._capacity).to(self._device)
        frame, *transition = self._rings
        stack = len(self._back)
        obs, next_obs = (self._stacks(frame, i) for i in (index[:, :stack], index[:, stack:-1]))
        action, reward, discount = (ring.index_select(0, index[:, -1]) for ring in transition)
        return obs, action, reward, discount, next_obs

    def _stacks(self, frame: Tensor, index: Tensor) -> Tensor:
        frames = frame.index_select(0, index.flatten())  # [B * S, C, H, W]
        return frames.view(len(index), -1, *frames.shape[2:])  # [B, S * C, H, W]

    def _let_go(self, first: int) -> None:
        for number in [e for e in self._episodes if e < first]:
            begin, length = self._episodes.pop(number)
            self._begin = begin + length + 1

    def _take_up(self, number: int) -> None:
        path = episode_path(self._storage.replay_dir, number)
        episode = read_episode(path, self._nstep, self._discount)
        rows = len(episode.frame)
        values = [torch.from_numpy(x) for x in episode]
        self._make_room(rows, values)
        index = torch.arange(self._end, self._end + rows, device=self._device) % self._capacity
        for ring, x in zip(self._rings, values, strict=True):
            ring.index_copy_(0, index[: len(x)], x.to(self._device))
        self._episodes[number] = self._end, len(episode.reward)
        self._end += rows

    def _make_room(self, rows: int, like: list[Tensor]) -> None:
        """Have `rows` more; the first time as many as the storage will ever need if episodes are not very short."""
        held = self._end - self._begin
        if held + rows <= self._capacity:
            return
        usual = self._capacity * 3 // 2 or int(_SLACK * (self._storage.max_size or 0))
        capacity = max(held + rows, usual)
        try:
            rings = [torch.empty((capacity, *x.shape[1:]), dtype=x.dtype, device=self._device) for x in like]
        except RuntimeError as e:
            size = capacity * like[0][0].numel() / 1e9
            raise UserError(
                f"replay_device={self._device.type}: {size:.1f} GB of frames do not fit; "
                "take replay_device=disk, or a smaller replay_buffer_size"
            ) from e
        if held:
            index = torch.arange(self._begin, self._end, device=self._device) % self._capacity
            for ring, old in zip(rings, self._rings, strict=True):
                torch.index_select(old, 0, index, out=ring[:held])
        self._episodes = {e: (first - self._begin, n) for e, (first, n) in self._episodes.items()}
        self._begin, self._end = 0, held
        self._rings, self._capacity = rings, capacity
