"""A small run of the replay alone: episodes are added, batches are drawn, and everything is checked as it comes."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from replay_buffer import Batch, ReplayBufferStorage, Window, make_replay_loader
from tests.naive_replay import NaiveReplay, data_specs, endless

FRAME_STACK = 2
LONGEST = 12  # transitions of an episode
# (time steps added, batches drawn): episodes end between draws, and are evicted at 40 transitions.
SCHEDULE = [(15, 1), *[(7, 2), (0, 3), (23, 1), (11, 5)] * 6]


class Run:
    """A storage, its loader, a made-up environment, and the naive replay that sees the same."""

    def __init__(
        self,
        replay_dir: Path,
        num_workers: int = 0,
        seed: int = 1,
        world: int = 0,
        batch_size: int = 8,
        replay_device: str = "disk",
        **layout: str,
    ) -> None:
        self.layout: dict[str, Any] = {"frame_stack": FRAME_STACK, **layout}
        self.storage = ReplayBufferStorage(data_specs(**self.layout), replay_dir, 40, FRAME_STACK)
        self.loader = make_replay_loader(
            replay_dir,
            40,
            batch_size,
            num_workers,
            True,
            3,
            0.99,
            storage=self.storage,
            seed=seed,
            frame_stack=FRAME_STACK,
            pin_memory=torch.cuda.is_available(),
            replay_device=replay_device,
        )
        self.naive = NaiveReplay(3, 0.99, 40)
        self.time_steps = endless(world, LONGEST, **self.layout)
        self.steps = 0
        self.windows: list[Window] = []  # when each batch was drawn

    def add(self, steps: int) -> None:
        for time_step in islice(self.time_steps, steps):
            self.storage.add(time_step)
            self.naive.add(time_step)
        self.steps += steps

    def draw(self, batches: int = 1) -> list[Batch]:
        drawn = []
        for _ in range(batches):
            self.windows.append(self.storage.window)
            drawn.append(next(self.loader))
            self.naive.check(drawn[-1])
        return drawn

    def follow(self, schedule: list[tuple[int, int]]) -> list[Batch]:
        batches = []
        for steps, draws in schedule:
            self.add(steps)
            batches += self.draw(draws)
        return batches

    def state(self) -> dict[str, Any]:
        """As a run saves it: what a snapshot refers to is pinned, and the state is written and read back."""
        self.storage.pin("snapshots", self.storage.first_needed)
        buffer = io.BytesIO()
        torch.save(
            {"storage": self.storage.state_dict(), "loader": self.loader.state_dict(), "steps": self.steps}, buffer
        )
        buffer.seek(0)
        return torch.load(buffer, weights_only=True)

    def load(self, state: dict[str, Any], history: int, world: int) -> None:
        """Continue from a state that was taken in the world `history`; in another world, with a new episode."""
        self.storage.load_state_dict(state["storage"])
        self.loader.load_state_dict(state["loader"])
        self.storage.pin("snapshots", self.storage.first_needed)
        self.naive = NaiveReplay(3, 0.99, 40)
        for time_step in islice(endless(history, LONGEST, **self.layout), state["steps"]):
            self.naive.add(time_step)
        self.time_steps = endless(world, LONGEST, **self.layout)
        if world == history:
            self.time_steps = islice(self.time_steps, state["steps"], None)
        else:
            for _ in self.naive.episodes:
                while not next(self.time_steps).last():
                    pass
