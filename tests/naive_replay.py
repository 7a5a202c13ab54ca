"""What the replay is compared with: whole episodes with whole stacks in memory, one transition at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from dm_env import StepType, specs

from drqv2.envs.wrappers import ExtendedTimeStep
from replay_buffer import Batch

HEIGHT, WIDTH = 4, 5


@contextmanager
def memory_dir() -> Iterator[Path]:
    """A folder in memory where there is such a thing: hypothesis writes many files and each is fsynced."""
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


OBSERVATIONS = ("pixels", "vector", "dict")
ACTIONS = {"box": specs.Array((2,), np.float32), "discrete": specs.DiscreteArray(9999, np.int64)}
ACTIONS["buttons"] = specs.BoundedArray((2,), np.int64, 0, 9999)


def data_specs(
    frame_stack: int = 3, channels: int = 3, observation: str = "pixels", action: str = "box"
) -> tuple[Any, ...]:
    image = specs.Array((frame_stack * channels, HEIGHT, WIDTH), np.uint8, "observation")
    vector, numbers = specs.Array((3,), np.float64, "observation"), specs.Array((), np.int16)
    both = {"pixels": image, "arm.pos": vector, "map": specs.Array((6, 2, 2), np.float32), "n": numbers}
    return (
        {"pixels": image, "vector": vector, "dict": both}[observation],
        ACTIONS[action].replace(name="action"),
        specs.Array((1,), np.float32, "reward"),
        specs.Array((1,), np.float32, "discount"),
    )


def make_episode(
    number: int,
    length: int,
    *,
    frame_stack: int = 3,
    channels: int = 3,
    observation: str = "pixels",
    action: str = "box",
    terminal: bool = False,
    seed: int = 0,
) -> list[ExtendedTimeStep]:
    """An episode of `length` transitions. The action before time step t is (number, t): a sample says what it is."""
    rng = np.random.default_rng([seed, number, length])
    frames = rng.integers(0, 256, (length + 1, channels, HEIGHT, WIDTH), dtype=np.uint8)
    history = deque([frames[0]] * frame_stack, maxlen=frame_stack)
    time_steps = []
    for t in range(length + 1):
        history.append(frames[t])
        image, vector = np.concatenate(history), np.array([number, t, frames[t, 0, 0, 0]], np.float64)
        both = {"pixels": image, "arm.pos": vector, "map": np.full((6, 2, 2), 0.1 + t, np.float32), "n": np.int16(-t)}
        taken = np.array(1000 * number + t) if action == "discrete" else np.array([number, t], ACTIONS[action].dtype)
        step_type, reward, discount = StepType.FIRST, 0.0, 1.0
        if t > 0:
            step_type, discount = StepType.MID, float(rng.uniform(0.5, 1.0))
            if t == length:
                step_type, discount = StepType.LAST, 0.0 if terminal else 1.0
            reward = float(rng.normal())
        seen = {"pixels": image, "vector": vector, "dict": both}[observation]
        time_steps.append(ExtendedTimeStep(step_type, reward, discount, seen, taken))
    return time_steps


def endless(seed: int, longest: int = 12, **kwargs: Any) -> Iterator[ExtendedTimeStep]:
    """Episodes one after another, of 1 to `longest` transitions."""
    for number in count():
        length = int(np.random.default_rng([seed, number]).integers(1, longest + 1))
        yield from make_episode(number, length, terminal=bool(number % 2), seed=seed, **kwargs)


class NaiveReplay:
    """The replay's rules, written down as plainly as possible."""

    def __init__(self, nstep: int = 3, gamma: float = 0.99, max_size: int | None = None) -> None:
        self.nstep, self.gamma, self.max_size = nstep, gamma, max_size
        self.episodes: list[list[ExtendedTimeStep]] = []
        self.current: list[ExtendedTimeStep] = []  # unfinished
        self.first = 0

    def add(self, time_step: ExtendedTimeStep) -> None:
        if time_step.first():
            self.current = []
        self.current.append(time_step)
        if time_step.last():
            self.episodes.append(self.current)
            self.current = []
            while self.max_size is not None and len(self.transitions()) > self.max_size:
                if self.first == len(self.episodes) - 1:
                    break
                self.first += 1

    @property
    def window(self) -> tuple[int, int]:
        return self.first, len(self.episodes)

    def transitions(self, window: tuple[int, int] | None = None) -> list[tuple[int, int]]:
        """All (episode, agent step) of a window, by default the current one."""
        return [(e, t) for e in range(*(window or self.window)) for t in range(len(self.episodes[e]) - 1)]

    def transition(self, number: int, t: int) -> tuple[Any, np.ndarray, float, float, Any]:
        episode = self.episodes[number]
        reward, discount = 0.0, 1.0
        after = t
        for _ in range(self.nstep):
            if episode[after].last():
                break
            after += 1
            reward += discount * episode[after].reward
            discount *= episode[after].discount * self.gamma
        return episode[t].observation, episode[t + 1].action, reward, discount, episode[after].observation

    def check(self, batch: Batch) -> None:
        """Compare every sample of a batch, on any device, with the transition that its action names."""
        batch = on_cpu(batch)
        expected = [self.transition(number, t) for number, t in samples(batch)]
        obs, action, reward, discount, next_obs = zip(*expected, strict=True)
        np.testing.assert_equal(as_numpy(batch[0]), stacked(obs))
        np.testing.assert_array_equal(batch[1].numpy(), np.stack(action))
        np.testing.assert_allclose(batch[2][:, 0].numpy(), reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch[3][:, 0].numpy(), discount, rtol=1e-5, atol=1e-7)
        np.testing.assert_equal(as_numpy(batch[4]), stacked(next_obs))


def on_cpu(batch: Batch) -> Batch:
    return tuple({k: x.cpu() for k, x in part.items()} if isinstance(part, dict) else part.cpu() for part in batch)


def as_numpy(obs: Any) -> Any:
    return {key: x.numpy() for key, x in obs.items()} if isinstance(obs, dict) else obs.numpy()


def stacked(observations: Sequence[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)


def samples(batch: Batch) -> list[tuple[int, int]]:
    """The (episode, agent step) of each sample."""
    pairs = [divmod(int(x), 1000) if x.ndim == 0 else x.tolist() for x in batch[1]]
    return [(int(number), int(t) - 1) for number, t in pairs]


def flat(batch: Batch) -> list[torch.Tensor]:
    """All tensors of a batch."""
    return [x for part in batch for x in (part.values() if isinstance(part, dict) else [part])]


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(x, y) for a, b in zip(first, second, strict=True) for x, y in zip(flat(a), flat(b), strict=True)
    )
