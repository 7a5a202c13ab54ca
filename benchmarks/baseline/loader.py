"""The replay: episodes of stacked images in memory, sampled one transition at a time, batched by torch's collate."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Episode = dict[str, np.ndarray]
Sample = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
FETCH_EVERY = 1000  # samples between two scans of the directory


def save_episode(path: Path, episode: Episode) -> None:
    """Write observation [T + 1, C, H, W], action, reward and discount, [T + 1, ...] each; row 0 is the reset."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as f:
        np.savez(f, **episode)  # type: ignore[arg-type]
    unfinished.rename(path)


class EpisodeStream(IterableDataset[Sample]):
    """Infinite stream of samples from the episodes in a directory, which are divided among the workers.

    Args:
        replay_dir: directory of `*.npz` files, at least one for each worker.
        nstep: agent steps per return.
        gamma: discount factor per agent step.
    """

    def __init__(self, replay_dir: Path, nstep: int = 3, gamma: float = 0.99) -> None:
        self.replay_dir, self.nstep, self.gamma = replay_dir, nstep, gamma
        self.episodes: dict[Path, Episode] = {}

    def __iter__(self) -> Iterator[Sample]:
        """Yield samples, each from a random step of a random episode."""
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        rng = np.random.default_rng(number)
        for n in count():
            if n % FETCH_EVERY == 0:
                self.load(number, workers)
            episode = list(self.episodes.values())[rng.integers(len(self.episodes))]
            yield self.sample(episode, int(rng.integers(len(episode["reward"]) - self.nstep)))

    def load(self, number: int, workers: int) -> None:
        """Load the new episodes of worker `number` of `workers`."""
        for path in sorted(self.replay_dir.glob("*.npz"))[number::workers]:
            if path not in self.episodes:
                with np.load(path) as arrays:
                    self.episodes[path] = dict(arrays)

    def sample(self, episode: Episode, t: int) -> Sample:
        """Return (obs, action, n-step reward, n-step discount, next obs) of agent step t."""
        reward, discount = np.zeros(1, np.float32), np.ones(1, np.float32)
        for i in range(t + 1, t + self.nstep + 1):
            reward += discount * episode["reward"][i]
            discount *= episode["discount"][i] * self.gamma
        obs = episode["observation"]
        return obs[t], episode["action"][t + 1], reward, discount, obs[t + self.nstep]


def plain_loader(replay_dir: Path, batch_size: int, workers: int) -> DataLoader[Sample]:
    """Return the DataLoader over an EpisodeStream."""
    return DataLoader(EpisodeStream(replay_dir), batch_size=batch_size, num_workers=workers, pin_memory=False)
