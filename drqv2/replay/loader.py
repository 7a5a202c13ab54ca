"""Batches from replay, prepared by background processes."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from drqv2.errors import ProcessError
from drqv2.replay.device import DeviceReplay
from drqv2.replay.gather import Batch, BatchGatherer, Request
from drqv2.replay.ring import Ring
from drqv2.replay.sampler import LOOKAHEAD, ReplaySampler
from drqv2.replay.storage import ReplayBufferStorage
from drqv2.system.signals import ignore_signals, signals_blocked

_log = logging.getLogger(__name__)

_PREFETCH = 2  # batches a worker prepares ahead: with at most 8 workers no more than LOOKAHEAD
# Batches in use at once: the one handed over, the one still held from the last update, the one being requested; with a
# GPU also those that it has yet to copy.
_KEPT, _KEPT_BY_GPU = 3, 6
_ATTEMPTS = 3  # sets of workers that may die over one batch


@dataclass
class _Gathering(Dataset[int | None]):
    """What a worker does: write a batch to its request's slot and return that; None if no slot was free."""

    gatherer: BatchGatherer
    ring: Ring

    def __getitem__(self, request: Request) -> int | None:
        if request.slot is None:
            self.gatherer.forget(request.first)
        else:
            self.gatherer.gather(request, self.ring.arrays(request.slot))
        return request.slot


@dataclass(eq=False)
class _Workers:
    """Batches gathered from files by background processes, or by this one, into the slots of a ring.

    For a learner that keeps more batches than there are slots, further ones are gathered when it asks, which is slower.
    Workers never send a batch through a pipe: one that dies halfway would hang this process.
    """

    _gatherer: BatchGatherer
    _num_workers: int
    _pin_memory: bool
    _device: torch.device | str | None
    _prepared: Any = None

    def start(self, requests: Iterator[Request]) -> Iterator[Batch]:
        """Start the workers and return the batches that are requested."""
        first = next(requests)
        kept = _KEPT_BY_GPU if self._pin_memory else _KEPT
        layout = [(x.shape, x.dtype) for x in self._gatherer.gather(first)]
        ring = Ring(layout, self._num_workers * _PREFETCH + kept)
        without_slot: deque[Request] = deque()
        self._gatherer.close()  # or workers would inherit and keep the mappings

        def placed() -> Iterator[Request]:
            for request in chain([first], requests):
                request = request._replace(slot=ring.take())
                if request.slot is None:
                    without_slot.append(request)
                yield request

        gathering = _Gathering(self._gatherer, ring)
        self._prepared = self._fork(gathering, placed()) if self._num_workers else map(gathering.__getitem__, placed())
        if self._pin_memory:
            ring.page_lock(self._device)
        for slot in self._prepared:
            if slot is not None:
                yield self._gatherer.pack(ring.batch(slot))
            else:
                tensors = [torch.from_numpy(x) for x in self._gatherer.gather(without_slot.popleft())]
                self._gatherer.close()  # files that workers have long unmapped must not stay mapped here
                yield self._gatherer.pack([x.pin_memory() if self._pin_memory else x for x in tensors])

    def _fork(self, gathering: _Gathering, requests: Iterator[Request]) -> Iterator[int | None]:
        before = signal.getsignal(signal.SIGCHLD)
        with warnings.catch_warnings(), signals_blocked():  # a new worker would take the signals for its own
            # torch warns of more workers than cores; that is the user's choice, and the batches are the same.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader = DataLoader(
                gathering,
                batch_size=None,  # a request is a whole batch
                sampler=requests,
                num_workers=self._num_workers,
                prefetch_factor=_PREFETCH,
                # Forked workers start at once, and share the ring; they touch files only, neither GL nor CUDA.
                multiprocessing_context="fork",
                worker_init_fn=lambda _: ignore_signals(),
                generator=torch.Generator(),  # from which the loader draws a seed: not from the run's generators
            )
            prepared: Any = iter(loader)
        # For programs that do not close this: at exit multiprocessing waits for processes that ignore SIGTERM.
        Finalize(self, _kill, (prepared._workers,), exitpriority=10)
        if threading.current_thread() is threading.main_thread():
            # torch's handler raises wherever the main process is when a worker dies. Without it, the next batch reports
            # the death.
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
        return prepared

    def close(self) -> None:
        """Stop the workers. The ring lives as long as its last batch."""
        if self._prepared is not None and self._num_workers:
            self._prepared._shutdown_workers()  # now: an error's traceback would keep them alive
            _kill(self._prepared._workers)  # one that hangs ignores the request to end
        self._prepared = None
        self._gatherer.close()


def _kill(processes: Iterable[Any]) -> None:
    for process in processes:
        process.kill()


class ReplayLoader:
    """Endless batches from replay; see `make_replay_loader`."""

    def __init__(self, sampler: ReplaySampler, source: _Workers | DeviceReplay) -> None:
        self._sampler = sampler
        self._source = source
        self._batches: Iterator[Batch] | None = None

    def __iter__(self) -> ReplayLoader:
        return self

    def __next__(self) -> Batch:
        """Return the next batch: (obs, action, reward, discount, next_obs) as `BatchGatherer` describes them.

        Workers that die are replaced: the batches are the same.

        Raises:
            ProcessError: they do so again and again.
        """
        with self._sampler.taking():
            for _ in range(_ATTEMPTS):
                try:
                    if self._batches is None:
                        self._batches = self._source.start(iter(self._sampler))
                    return next(self._batches)
                except BaseException as error:  # whatever it is, the next attempt starts anew at this batch
                    self.close()
                    if "exited unexpectedly" not in str(error):  # torch's words when a worker is dead
                        raise
                    _log.warning("Replay workers are replaced: %s.", error)
            raise ProcessError(
                "the replay workers keep dying, often for lack of memory\n"
                "Resume with resume=RUN_DIR; replay_buffer_num_workers=0 loads in the main process"
            )

    def close(self) -> None:
        """Stop the workers and unmap the files; the loader can be used again and continues with the next batch."""
        self._batches = None
        self._source.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state, plain numbers only."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`: the next batch is the one that would have come next then."""
        self.close()
        self._sampler.load_state_dict(state)


def make_replay_loader(
    replay_dir: Path | str,
    max_size: int | None,
    batch_size: int,
    num_workers: int,
    save_snapshot: bool,
    nstep: int,
    discount: float | Sequence[float],
    *,
    storage: ReplayBufferStorage | None = None,
    seed: int = 0,
    frame_stack: int = 3,
    pin_memory: bool = False,
    replay_device: torch.device | str = "disk",
    device: torch.device | str | None = None,
    balanced: bool = False,
    segment: int | None = None,
    fading: float | None = None,
    by_reward: float = 0.0,
) -> ReplayLoader:
    """Return an endless iterator over batches of n-step transitions, or of segments.

    Args:
        replay_dir: where the episodes are.
        max_size: transitions sampled from at most; older episodes are evicted.
        batch_size: samples in a batch.
        num_workers: background processes that gather batches, 0 to 8; 0 gathers in this process. The batches are the
            same for any number.
        save_snapshot: ignored, for callers of the public implementation: `ReplayBufferStorage.pin` keeps the files that
            a snapshot needs.
        nstep: agent steps in a return.
        discount: gamma of an agent step, one for all tasks or one for each.
        storage: the writer of `replay_dir` in this process. Without one, the episodes that are there now are read.
        seed: of the indices.
        frame_stack: frames in one image.
        pin_memory: hand over batches in page-locked memory, for copies to a GPU.
        replay_device: "disk", or the torch device on which a copy of the sampled episodes is kept and batches are
            made, without workers; the batches are the same. `choose_replay_device` resolves "auto".
        device: the learner's; by default torch's current one of the kind needed.
        balanced: divide each batch equally among the tasks that have episodes.
        segment: transitions in each sample, in place of one with an n-step return; see `BatchGatherer`.
        fading: factor on a transition's probability for each newer one, see `ReplaySampler`.
        by_reward: share of a batch that is drawn by reward, see `ReplaySampler`.

    Raises:
        ValueError: `num_workers` is out of range.
    """
    if not 0 <= num_workers * _PREFETCH <= LOOKAHEAD:
        raise ValueError(f"num_workers={num_workers}: must be between 0 and {LOOKAHEAD // _PREFETCH}")
    if storage is None:
        storage = ReplayBufferStorage((), replay_dir, max_size, frame_stack, existing=True)
    storage.max_size = max_size
    source: _Workers | DeviceReplay
    if replay_device == "disk":
        source = _Workers(
            BatchGatherer(replay_dir, nstep, discount, frame_stack, segment), num_workers, pin_memory, device
        )
    else:
        if device is not None and str(replay_device) == torch.device(device).type:
            replay_device = device
        source = DeviceReplay(storage, nstep, discount, frame_stack, replay_device, segment)
    sampler = ReplaySampler(storage, batch_size, seed, balanced, fading, by_reward, segment or nstep)
    return ReplayLoader(sampler, source)
