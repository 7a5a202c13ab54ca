"""Replay on disk: a storage that writes one file an episode, and a loader that samples whole batches in the background.

The storage (drqv2/storage.py) is the only writer and alone decides what is sampled: a *window* is a range of
consecutive episodes, and every batch is drawn uniformly from the transitions of one. Batch k depends on the seed, on k
and on the window at the time batch k - LOOKAHEAD was taken, and on nothing else, so that neither the number of workers
nor their timing moves an index, and the sampler's whole state is k and LOOKAHEAD windows.
"""

from __future__ import annotations

import signal
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch.utils.data import DataLoader, Dataset, Sampler

from drqv2.returns import nstep_returns
from drqv2.storage import ReplayBufferStorage, Window, episode_path

__all__ = [
    "LOOKAHEAD",
    "ReplayBuffer",
    "ReplayBufferStorage",
    "ReplayLoader",
    "ReplaySampler",
    "Request",
    "Window",
    "episode_path",
    "make_replay_loader",
]

LOOKAHEAD = 16  # batches; at least every prefetch depth of the loader
_PREFETCH = 2  # batches a worker prepares ahead: with at most 8 workers no more than LOOKAHEAD
_MAPPED_EPISODES = 4096  # mapped files a process keeps; the kernel allows 65,530 mappings

Batch = tuple[torch.Tensor, ...]


class Request(NamedTuple):
    """A batch to gather: for each sample the number of an episode, and the agent step in it (int64 [B] each)."""

    first: int  # of the window: no later batch refers to an earlier episode
    episode: np.ndarray
    start: np.ndarray


class _Episode(NamedTuple):
    frame: Any  # a safetensors slice: [a:b] reads frames from the mapped file
    action: np.ndarray  # [T + 1, A]
    reward: np.ndarray  # n-step, [T]
    discount: np.ndarray  # n-step, [T]


class ReplayBuffer(Dataset[Batch]):
    """Gathers requested batches from episode files; reads only, and holds nothing but mapped files.

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
        self._episodes: OrderedDict[int, _Episode] = OrderedDict()

    def __getitem__(self, request: Request) -> Batch:
        """Return (obs, action, reward, discount, next_obs), each [B, ...], for a request.

        obs and next_obs are uint8 [B, frame_stack * C, H, W], action float32 [B, A], the n-step reward and discount
        float32 [B, 1].
        """
        # The blocks of a file that was deleted are free again when nobody maps it any more.
        for number in [e for e in self._episodes if e < request.first]:
            del self._episodes[number]
        rows = [(self._episode(e), t) for e, t in zip(request.episode.tolist(), request.start.tolist(), strict=True)]
        _, channels, height, width = rows[0][0].frame.get_shape()
        shape = (len(rows), self._frame_stack * channels, height, width)
        obs, next_obs = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
        for i, (episode, t) in enumerate(rows):
            self._stack(episode, t, out=obs[i])
            self._stack(episode, min(t + self._nstep, len(episode.reward)), out=next_obs[i])
        action = np.stack([episode.action[t + 1] for episode, t in rows])
        reward = np.array([episode.reward[t] for episode, t in rows], np.float32)[:, None]
        discount = np.array([episode.discount[t] for episode, t in rows], np.float32)[:, None]
        return tuple(torch.from_numpy(x) for x in (obs, action, reward, discount, next_obs))

    def close(self) -> None:
        """Let go of all mapped files."""
        self._episodes.clear()

    def _stack(self, episode: _Episode, t: int, out: np.ndarray) -> None:
        """Write the observation of agent step t; before the episode's first frames, that frame is repeated."""
        frames = episode.frame[max(0, t + 1 - self._frame_stack) : t + 1]  # [n, C, H, W]
        missing = self._frame_stack - len(frames)
        out = out.reshape(self._frame_stack, *frames.shape[1:])
        out[missing:] = frames
        out[:missing] = frames[0]

    def _episode(self, number: int) -> _Episode:
        if number in self._episodes:
            self._episodes.move_to_end(number)
            return self._episodes[number]
        f = safe_open(episode_path(self._replay_dir, number), framework="numpy")
        reward, discount = f.get_tensor("reward")[1:, 0], f.get_tensor("discount")[1:, 0]
        returns = nstep_returns(reward, discount, self._nstep, self._discount)
        episode = _Episode(f.get_slice("frame"), f.get_tensor("action"), *returns)
        self._episodes[number] = episode
        if len(self._episodes) > _MAPPED_EPISODES:
            self._episodes.popitem(last=False)
        return episode


class ReplaySampler(Sampler[Request]):
    """Yields the requests of successive batches: transitions drawn uniformly from each batch's window.

    Args:
        storage: says which episodes there are.
        batch_size: samples in a batch.
        seed: of the indices. Batch k draws from a counter-based generator keyed by (seed, k).
    """

    def __init__(self, storage: ReplayBufferStorage, batch_size: int, seed: int) -> None:
        self._storage = storage
        self._batch_size = batch_size
        self._seed = seed
        self._taken = 0  # batches that the learner has had
        self._windows: deque[Window] = deque()  # of batches taken, taken + 1, ..., taken + LOOKAHEAD - 1
        self._ends = lru_cache(maxsize=2 * LOOKAHEAD)(storage.ends)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Context in which the learner takes the next batch: fixes the window of the one LOOKAHEAD after it.

        Raises:
            RuntimeError: no episode has been committed.
        """
        window = self._storage.window
        if not len(self._storage):
            raise RuntimeError("the replay holds no finished episode yet: there is nothing to sample from")
        if not self._windows:
            self._windows.extend([window] * LOOKAHEAD)
        if len(self._windows) == LOOKAHEAD:  # or else the last attempt to take this batch failed
            self._windows.append(window)
        yield
        self._windows.popleft()
        self._taken += 1
        self._storage.pin("batches", min(w.first for w in self._windows))

    def __iter__(self) -> Iterator[Request]:
        """Yield requests from the first batch not taken yet."""
        for k in count(self._taken):
            window = self._windows[k - self._taken]
            ends = self._ends(window)
            rng = np.random.Generator(np.random.Philox(key=np.array([self._seed, k], np.uint64)))
            index = rng.integers(0, ends[-1], self._batch_size)
            row = np.searchsorted(ends, index, side="right")
            yield Request(window.first, window.first + row, index - np.concatenate([[0], ends])[row])

    def state_dict(self) -> dict[str, Any]:
        """Return the number of batches taken and the windows of those that follow."""
        return {"taken": self._taken, "windows": [list(w) for w in self._windows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._ends.cache_clear()
        self._taken = state["taken"]
        self._windows = deque(Window(*w) for w in state["windows"])
        if self._windows:
            self._storage.pin("batches", min(w.first for w in self._windows))


class ReplayLoader:
    """Endless batches from replay, gathered by background workers; see `make_replay_loader`."""

    def __init__(
        self,
        storage: ReplayBufferStorage,
        buffer: ReplayBuffer,
        batch_size: int,
        num_workers: int,
        seed: int,
        pin_memory: bool,
    ) -> None:
        self._sampler = ReplaySampler(storage, batch_size, seed)
        self._buffer = buffer
        with _any_number_of_workers():
            self._loader = DataLoader(
                buffer,
                batch_size=None,  # a request is a whole batch
                sampler=self._sampler,
                num_workers=num_workers,
                prefetch_factor=_PREFETCH if num_workers else None,
                # Forked workers start at once; they touch files only, neither GL nor CUDA.
                multiprocessing_context="fork" if num_workers else None,
                worker_init_fn=_ignore_interrupts,
                pin_memory=pin_memory,
                generator=torch.Generator(),  # the loader draws a seed at each start: not from the run's generators
            )
        self._batches: Any = None

    def __iter__(self) -> ReplayLoader:
        return self

    def __next__(self) -> Batch:
        """Return the next batch: (obs, action, reward, discount, next_obs) as `ReplayBuffer` describes them."""
        with self._sampler.taking():
            if self._batches is None:
                with _any_number_of_workers():
                    self._batches = iter(self._loader)
            try:
                return next(self._batches)
            except BaseException:  # an interrupt, too: what is gone on with is a new start at this very batch
                self.close()
                raise

    def close(self) -> None:
        """Stop the workers; batches that they have prepared are prepared again when the loader goes on."""
        if self._batches is not None and self._loader.num_workers:
            self._batches._shutdown_workers()  # now: the traceback of an error would keep the iterator, and them, alive
        self._batches = None
        self._buffer.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, plain numbers only."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`: the next batch is the one that would have come next then."""
        self.close()
        self._sampler.load_state_dict(state)


@contextmanager
def _any_number_of_workers() -> Iterator[None]:
    # torch warns of more workers than cores; that is the user's choice, and the batches are the same.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _ignore_interrupts(_: int) -> None:
    # Ctrl-C reaches every process of the terminal; the main process decides when the workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def make_replay_loader(
    replay_dir: Path | str,
    max_size: int | None,
    batch_size: int,
    num_workers: int,
    save_snapshot: bool,
    nstep: int,
    discount: float,
    *,
    storage: ReplayBufferStorage | None = None,
    seed: int = 0,
    frame_stack: int = 3,
    pin_memory: bool = False,
) -> ReplayLoader:
    """Return an endless iterator over batches of n-step transitions.

    Args:
        replay_dir: where the episodes are.
        max_size: transitions sampled from at most; older episodes are evicted.
        batch_size: samples in a batch.
        num_workers: background processes that gather batches, 0 to 8; 0 gathers in this process. The batches are the
            same for any number.
        save_snapshot: kept for callers of the public implementation. Files that a snapshot needs are kept by
            `ReplayBufferStorage.pin`, whatever this says.
        nstep: agent steps in a return.
        discount: gamma of an agent step.
        storage: the writer of `replay_dir` in this process. Without one, the episodes that lie there now are read.
        seed: of the indices.
        frame_stack: frames in one observation.
        pin_memory: hand over batches in page-locked memory, for copies to a GPU.

    Raises:
        ValueError: `num_workers` is out of range.
    """
    if not 0 <= num_workers * _PREFETCH <= LOOKAHEAD:
        raise ValueError(f"num_workers={num_workers}: must be between 0 and {LOOKAHEAD // _PREFETCH}")
    if storage is None:
        storage = ReplayBufferStorage((), replay_dir, max_size, frame_stack, existing=True)
    storage.max_size = max_size
    buffer = ReplayBuffer(replay_dir, nstep, discount, frame_stack)
    return ReplayLoader(storage, buffer, batch_size, num_workers, seed, pin_memory)
