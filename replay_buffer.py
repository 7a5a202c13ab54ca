"""Replay on disk: a storage that writes one file an episode, and a loader that samples whole batches in the background.

The storage is the only writer and alone decides what is sampled: a *window* is a range of consecutive episodes, and
every batch is drawn uniformly from the transitions of one. Batch k depends on the seed, on k and on the window at the
time batch k - LOOKAHEAD was taken, and on nothing else, so that neither the number of workers nor their timing moves
an index, and the sampler's whole state is k and LOOKAHEAD windows.

An episode's file is a safetensors file with `frame` (each frame once, never the stack), `action`, `reward` and
`discount`, row 0 being the reset.
"""

from __future__ import annotations

import signal
import warnings
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors
from torch.utils.data import DataLoader, Dataset, Sampler

from drqv2.returns import nstep_returns
from drqv2.snapshot import write_atomically

LOOKAHEAD = 16  # batches; at least every prefetch depth of the loader
_PREFETCH = 2  # batches a worker prepares ahead: with at most 8 workers no more than LOOKAHEAD
_PATTERN = "episode_*.safetensors"
_UNFINISHED = f".{_PATTERN}.*.tmp"  # left by a process that was killed while it wrote
_MAPPED_EPISODES = 4096  # mapped files a process keeps; the kernel allows 65,530 mappings

Batch = tuple[torch.Tensor, ...]


class Window(NamedTuple):
    """Episodes [first, end) of a storage, by number."""

    first: int
    end: int


class Request(NamedTuple):
    """A batch to gather: for each sample the number of an episode, and the agent step in it (int64 [B] each)."""

    first: int  # of the window: no later batch refers to an earlier episode
    episode: np.ndarray
    start: np.ndarray


def episode_path(replay_dir: Path, episode: int) -> Path:
    """Return where an episode is kept."""
    return replay_dir / f"episode_{episode:08d}.safetensors"


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("episode_"))


def _length(path: Path) -> int:
    """Return the transitions in an episode file, 0 for one that is cut short or not there."""
    try:
        with safe_open(path, framework="numpy") as f:
            return f.get_slice("reward").get_shape()[0] - 1
    except FileNotFoundError:
        return 0
    except SafetensorError as e:
        warnings.warn(f"{path} is damaged and will not be sampled ({e})", stacklevel=3)
        return 0


class ReplayBufferStorage:
    """Writes episodes to disk and decides which of them are sampled.

    Args:
        data_specs: specs of what is kept of a time step, by name: `observation` (uint8 [frame_stack * C, H, W], of
            which the newest frame is written), `action`, `reward`, `discount`.
        replay_dir: where the files go; made if it is not there. Without `load_state_dict`, episodes that lie there
            already are taken up when `existing` says so, and overwritten otherwise.
        max_size: transitions sampled from; older episodes leave the window, whole, oldest first. None keeps all.
        frame_stack: frames in one observation.
        existing: take up the newest episodes found in `replay_dir`, up to `max_size` (a finished run's, to learn from).
            Those left out are not deleted.
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
        self._specs = tuple(data_specs)
        self.max_size = max_size
        self._frame_stack = frame_stack
        self._current: dict[str, list[np.ndarray]] = {spec.name: [] for spec in self._specs}
        self._lengths: dict[int, int] = {}  # transitions of every episode whose file is on disk
        self._window = Window(0, 0)
        self._size = 0  # transitions in the window
        self._pins: dict[str, int] = {}
        if existing:
            self._take_up()

    def __len__(self) -> int:
        """Return the number of transitions in the window."""
        return self._size

    @property
    def window(self) -> Window:
        """The episodes that are sampled now."""
        return self._window

    @property
    def num_episodes(self) -> int:
        """Episodes committed so far, evicted ones included."""
        return self._window.end

    def ends(self, window: Window) -> np.ndarray:
        """Return, for each episode of `window`, the number of transitions up to its end, int64 [episodes]."""
        return np.cumsum([self._lengths[e] for e in range(window.first, window.end)], dtype=np.int64)

    def add(self, time_step: Any) -> None:
        """Add a time step; the last one of an episode commits the episode.

        Args:
            time_step: dm_env time step with items named as the specs. The one of a reset starts an episode and drops
                whatever was left of an unfinished one.
        """
        if time_step.first():
            self._current = {spec.name: [] for spec in self._specs}
        for spec in self._specs:
            value = np.asarray(time_step[spec.name], dtype=spec.dtype)
            if spec.name == "observation":
                channels = value.shape[0] // self._frame_stack
                value = value[-channels:].copy()  # [C, H, W], the newest frame
            else:
                value = np.broadcast_to(value, spec.shape).copy()
            self._current[spec.name].append(value)
        if time_step.last():
            self._commit()

    def _commit(self) -> None:
        arrays = {name: np.stack(values) for name, values in self._current.items()}
        arrays["frame"] = arrays.pop("observation")  # [T + 1, C, H, W]
        self._current = {spec.name: [] for spec in self._specs}
        episode = self._window.end
        write_atomically(episode_path(self.replay_dir, episode), to_safetensors(arrays))
        self._lengths[episode] = len(arrays["reward"]) - 1
        self._window = Window(self._window.first, episode + 1)
        self._size += self._lengths[episode]
        self._evict()

    def _evict(self) -> None:
        first, end = self._window
        while self.max_size is not None and self._size > self.max_size and first < end - 1:
            self._size -= self._lengths[first]
            first += 1
        self._window = Window(first, end)
        self._unlink()

    def pin(self, holder: str, first: int) -> None:
        """Keep the files of episodes from number `first` on for `holder`, whose earlier pin is let go."""
        if self._pins.get(holder) != first:
            self._pins[holder] = first
            self._unlink()

    def _unlink(self) -> None:
        keep_from = min((self._window.first, *self._pins.values()))
        for episode in [e for e in self._lengths if e < keep_from]:
            episode_path(self.replay_dir, episode).unlink(missing_ok=True)
            del self._lengths[episode]

    def delete(self) -> None:
        """Delete all episode files: the run has ended for good and is not to keep its replay."""
        for path in [*self.replay_dir.glob(_PATTERN), *self.replay_dir.glob(_UNFINISHED)]:
            path.unlink(missing_ok=True)
        if not any(self.replay_dir.iterdir()):
            self.replay_dir.rmdir()
        self._lengths, self._window, self._size = {}, Window(0, 0), 0

    def nbytes(self) -> int:
        """Return the bytes of the episode files on disk."""
        return sum(path.stat().st_size for path in self.replay_dir.glob(_PATTERN))

    def load_episode(self, episode: int) -> dict[str, np.ndarray]:
        """Return a committed episode's arrays: frame uint8 [T + 1, C, H, W], action, reward, discount."""
        with safe_open(episode_path(self.replay_dir, episode), framework="numpy") as f:
            return {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)

    @property
    def first_needed(self) -> int:
        """Number of the first episode that the window or a batch under way refers to: all that a snapshot needs."""
        return min(self._window.first, self._pins.get("batches", self._window.first))

    def state_dict(self) -> dict[str, Any]:
        """Return the window, the lengths of the episodes needed and the unfinished episode, as tensors and numbers."""
        first = self.first_needed
        return {
            "window": list(self._window),
            "first": first,
            "lengths": torch.tensor([self._lengths[e] for e in range(first, self._window.end)], dtype=torch.int64),
            "current": {n: torch.from_numpy(np.stack(v)) for n, v in self._current.items() if v},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`; episodes written after it was taken are deleted.

        Raises:
            FileNotFoundError: an episode that the state refers to is not on disk.

        Warns:
            UserWarning: an episode's file is cut short; it is not sampled.
        """
        lengths = dict(enumerate(state["lengths"].tolist(), start=state["first"]))
        missing = [e for e, n in lengths.items() if n and not episode_path(self.replay_dir, e).exists()]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} of {len(lengths)} episodes of the snapshot are not in {self.replay_dir}, "
                f"the first being {episode_path(self.replay_dir, missing[0]).name}"
            )
        self._lengths = {e: _length(episode_path(self.replay_dir, e)) for e in lengths}
        self._window = Window(*state["window"])
        self._size = sum(self._lengths[e] for e in range(*self._window))
        self._pins = {}
        self._current = {s.name: list(state["current"].get(s.name, torch.empty(0)).numpy()) for s in self._specs}
        unknown = [path for path in self.replay_dir.glob(_PATTERN) if _number(path) not in lengths]
        for path in [*unknown, *self.replay_dir.glob(_UNFINISHED)]:
            path.unlink()

    def _take_up(self) -> None:
        numbers = sorted(map(_number, self.replay_dir.glob(_PATTERN)), reverse=True)
        for number in numbers:
            length = _length(episode_path(self.replay_dir, number))
            if self._size and self.max_size is not None and self._size + length > self.max_size:
                break
            self._lengths[number] = length
            self._size += length
        if numbers:
            self._window = Window(min(self._lengths), numbers[0] + 1)
            # Numbers that are missing in between count as episodes without a transition.
            self._lengths = {e: self._lengths.get(e, 0) for e in range(*self._window)}


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
        with warnings.catch_warnings():
            # More workers than cores is the user's choice; the batches are the same.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
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
