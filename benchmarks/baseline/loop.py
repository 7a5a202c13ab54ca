"""The training loop: environment, replay and learner in sequence, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baseline.learner import PlainDrQV2
from benchmarks.baseline.loader import plain_loader, save_episode
from benchmarks.baseline.pixels import FrameStack

UPDATE_EVERY = 2  # agent steps


def train(
    env: FrameStack, agent: PlainDrQV2, replay_dir: Path, batch_size: int, workers: int, seed_steps: int
) -> Iterator[int]:
    """Train forever; yield the number of agent steps after each one, once updates have begun.

    Args:
        env: the environment.
        agent: the agent.
        replay_dir: directory for episodes.
        batch_size: transitions per update.
        workers: loader workers.
        seed_steps: agent steps before the first update; at least one episode for each worker.
    """
    zero = np.zeros(env.action_spec().shape, np.float32)
    time_step = env.reset()
    episode = [(time_step.observation, zero, 0.0, 1.0)]
    batches: Any = None
    step = 0
    while True:
        if time_step.last():
            names = ("observation", "action", "reward", "discount")
            kept = dict(zip(names, map(np.array, zip(*episode, strict=True)), strict=True))
            save_episode(replay_dir / f"{step:08d}.npz", kept)
            time_step = env.reset()
            episode = [(time_step.observation, zero, 0.0, 1.0)]
        action = agent.act(time_step.observation, step)
        if step >= seed_steps:
            if batches is None:
                batches = iter(plain_loader(replay_dir, batch_size, workers))
            if step % UPDATE_EVERY == 0:
                agent.update(batches, step)
        time_step = env.step(action)
        episode.append((time_step.observation, action, time_step.reward, time_step.discount))
        step += 1
        if step > seed_steps:
            yield step
