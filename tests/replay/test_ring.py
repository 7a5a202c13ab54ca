"""Batches in slots that are used again: never while anything refers to them."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from drqv2.replay.ring import Layout, Ring
from replay_buffer import Batch, episode_path, make_replay_loader
from tests.naive_replay import memory_dir, same
from tests.replay_run import SCHEDULE, Run

LAYOUT: Layout = [((4, 6, 3, 5), np.dtype(np.uint8)), ((4, 2), np.dtype(np.float32)), ((4, 1), np.dtype(np.float64))]


@pytest.fixture
def replay_dir() -> Iterator[Path]:
    with memory_dir() as folder:
        yield folder


def clone(batch: Batch) -> Batch:
    return tuple(x.clone() for x in batch)


def shared_mappings() -> int:
    """Memory of rings, this process's and no file's."""
    gc.collect()
    return sum("/dev/zero" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_what_is_written_to_a_slot_is_its_batch():
    ring = Ring(LAYOUT, 3)
    slots = [slot for _ in range(3) if (slot := ring.take()) is not None]
    assert sorted(slots) == [0, 1, 2]
    rng = np.random.default_rng(0)
    written = []
    for slot in slots:
        arrays = ring.arrays(slot)
        assert [(x.shape, x.dtype) for x in arrays] == LAYOUT
        for x in arrays:
            x[...] = rng.integers(0, 256, x.shape)
        written.append([x.copy() for x in arrays])
    for slot, arrays in zip(slots, written, strict=True):
        for tensor, array in zip(ring.batch(slot), arrays, strict=True):
            assert tensor.numpy().dtype == array.dtype
            np.testing.assert_array_equal(tensor.numpy(), array)


VIEWS: dict[str, Callable[[Batch], Any]] = {
    **{f"tensor {i}": itemgetter(i) for i in range(3)},
    "a row": lambda batch: batch[0][2],
    "another dtype": lambda batch: batch[1].view(torch.int32)[1:],
    "detached": lambda batch: batch[1].detach().T,
    "storage": lambda batch: batch[0].untyped_storage(),
    "numpy": lambda batch: batch[0].numpy(),
    "part of numpy": lambda batch: batch[1].numpy()[1:][:, 0],
    "of a graph": lambda batch: (torch.ones(4, 2, requires_grad=True) * batch[1]).sum(),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_slot_is_kept_by_any_view_of_its_batch(view):
    ring = Ring(LAYOUT, 1)
    assert ring.take() == 0
    assert ring.take() is None
    kept = VIEWS[view](ring.batch(0))
    assert ring.take() is None
    del kept
    assert ring.take() == 0


@pytest.mark.slow
def test_memory_goes_with_the_last_batch():
    before = shared_mappings()
    ring = Ring(LAYOUT, 2)
    assert shared_mappings() == before + 1
    batch = ring.batch(0)
    del ring
    batch[0].fill_(7)
    assert shared_mappings() == before + 1
    del batch
    assert shared_mappings() == before


# Through the loader


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_places_are_used_again(replay_dir, num_workers):
    run = Run(replay_dir, num_workers)
    run.add(60)
    places = set()
    batch = None
    for _ in range(60):  # the last batch is held while the next is drawn, as loops do
        batch = next(run.loader)
        run.naive.check(batch)
        places.add(batch[0].data_ptr())
    kept = 6 if torch.cuda.is_available() else 3  # a GPU may still have to copy some
    assert len(places) <= 2 * num_workers + kept
    assert not any(place % mmap.PAGESIZE for place in places)  # of the ring; not merely what was freed and got again
    run.loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("keep", [2, 5, 9, 1000])
def test_a_batch_never_changes_under_its_holder(replay_dir, num_workers, keep):
    """Whether it is held for a while or for good, over restarts too."""
    run = Run(replay_dir, num_workers)
    held: list[Batch] = []
    copies: list[Batch] = []
    for i, (steps, draws) in enumerate(SCHEDULE):
        run.add(steps)
        for _ in range(draws):
            held.append(next(run.loader))
            copies.append(clone(held[-1]))
            run.naive.check(copies[-1])
            assert same(held[-keep:], copies[-keep:])
            del held[:-keep], copies[:-keep]
        if i == 11:
            run.loader.close()
    run.loader.close()
    assert same(held, copies)


def test_a_batch_outlives_its_loader(replay_dir):
    before = shared_mappings()
    run = Run(replay_dir, 1)
    run.add(60)
    (batch,) = run.draw()
    copy = clone(batch)
    run.loader.close()
    run.draw(20)
    run.loader.close()
    assert same([batch], [copy])
    assert shared_mappings() == before + 1
    del batch
    assert shared_mappings() == before


def anonymous_bytes() -> int:
    """RssAnon of this process and its workers."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    status = "".join(Path(f"/proc/{pid}/status").read_text() for pid in pids)
    return 1024 * sum(map(int, re.findall(r"RssAnon:\s+(\d+) kB", status)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_frames_take_no_anonymous_memory(replay_dir, num_workers):
    """Neither those that are mapped, 62 MB, nor those of the batches, 9 MB each."""
    frame = np.zeros((63, 3, 128, 128), np.uint8)
    scalars = {name: np.zeros((63, 1), np.float32) for name in ("action", "reward", "discount")}
    for number in range(20):
        save_file({"frame": frame + np.uint8(number), **scalars}, episode_path(replay_dir, number))
    loader = make_replay_loader(replay_dir, None, 32, num_workers, False, 3, 0.99)
    next(loader)
    before = anonymous_bytes()
    for _ in range(60):
        batch = next(loader)
    assert len(batch[0][:, 0, 0, 0].unique()) > 10
    assert anonymous_bytes() - before < 4e6
    loader.close()


# Page-locked memory


class GPU:
    """Stands in for torch.cuda: copies what it is given to copy when it comes to it."""

    def __init__(self, error: int = 0) -> None:
        self.locked: list[tuple[int, int]] = []
        self.calls = 0  # events recorded
        self.reached = 0  # events that it has come to
        self.cudart = SimpleNamespace(cudaHostRegister=self.register, cudaHostUnregister=self.unregister)
        self.error = error

    def register(self, address: int, nbytes: int, flags: int) -> int:
        self.locked.append((address, nbytes))
        return self.error

    def unregister(self, address: int) -> int:
        (found,) = (x for x in self.locked if x[0] == address)
        self.locked.remove(found)
        return 0

    def record_event(self) -> Any:
        self.calls += 1
        number = self.calls
        return SimpleNamespace(query=lambda: self.reached >= number)


def with_gpu(monkeypatch: pytest.MonkeyPatch, error: int = 0) -> GPU:
    gpu = GPU(error)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: gpu.cudart)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return gpu


def test_a_slot_is_not_free_before_the_gpu_has_copied_it(monkeypatch):
    gpu = with_gpu(monkeypatch)
    ring = Ring(LAYOUT, 3)
    ring.page_lock()
    batches = [ring.batch(slot) for _ in range(3) if (slot := ring.take()) is not None]
    assert ring.take() is None
    del batches[0]
    assert ring.take() is None  # event 1
    batches.clear()
    assert ring.take() is None  # event 2
    gpu.reached = 1
    assert ring.take() == 0
    assert ring.take() is None
    gpu.reached = 2
    assert {ring.take(), ring.take()} == {1, 2}
    assert gpu.calls == 2


def test_locked_for_as_long_as_a_batch_is_there(monkeypatch):
    gpu = with_gpu(monkeypatch)
    ring = Ring(LAYOUT, 2)
    ring.page_lock()
    ((address, nbytes),) = gpu.locked
    batch = ring.batch(1)
    del ring
    gc.collect()
    assert address <= batch[0].data_ptr() < address + nbytes
    assert gpu.locked
    del batch
    assert not gpu.locked


def test_where_memory_cannot_be_locked_batches_come_all_the_same(monkeypatch):
    gpu = with_gpu(monkeypatch, error=2)
    ring = Ring(LAYOUT, 1)
    with pytest.warns(UserWarning, match="batches are not page-locked, .* CUDA error 2"):
        ring.page_lock()
    assert ring.take() == 0
    batch = ring.batch(0)
    del batch
    assert ring.take() == 0
    assert gpu.calls == 0


@pytest.mark.gpu
@pytest.mark.parametrize("num_workers", [0, 2])
def test_copies_to_a_gpu_that_is_behind(replay_dir, num_workers):
    """Copies are only queued when their batches are dropped; what arrives is what was drawn."""
    run, expected = Run(replay_dir / "gpu", num_workers), Run(replay_dir / "cpu")
    for some in (run, expected):
        some.add(60)
    next(run.loader)
    copies = []
    torch.cuda._sleep(2_000_000_000)  # about a second
    for _ in range(60):
        batch = next(run.loader)
        assert all(x.is_pinned() for x in batch)
        copies.append([x.to("cuda", non_blocking=True) for x in batch])
        del batch
    torch.cuda.synchronize()
    next(expected.loader)
    assert same([tuple(x.cpu() for x in batch) for batch in copies], expected.draw(60))
    run.loader.close()
