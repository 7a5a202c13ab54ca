"""How soon SPQ's encoder tells observations apart: `python -m benchmarks.representation TASK... [--quick]`.

Encoder and model of preset=spq_cpu learn from random actions alone; a minute a task. A row is one update: the share of
predictions, H steps on, that are nearer to their own target than to the batch's others, and the deviation of latents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.common import Row, main_of_tasks
from benchmarks.spq import prepared
from drqv2.envs import make
from drqv2.nn.noise import HeldNoise

STEPS, AT = 1500, (1, 50, 100, 250, 500, 1000)
QUICK_STEPS, QUICK_AT = 60, (1, 3)
NAMES = ("infonce_hits", "latent_std", "dynamics_loss", "reward_error")


def experience(task: str, steps: int) -> tuple[np.ndarray, ...]:
    """Return frames [N, 3, 84, 84], actions [N, A], rewards [N] and where episodes begin [N] of random actions."""
    env = make(task, 3, 2, 1, render="fast")
    size, generator = env.action_spec().shape[0], torch.Generator().manual_seed(0)
    noise = HeldNoise((1, size), 16, torch.device("cpu"))
    rows: list[tuple[Any, ...]] = []
    time_step = env.reset()
    while len(rows) < steps:
        seen = np.array(time_step.observation[-3:]), time_step.first()
        if time_step.last():
            time_step, action, reward = env.reset(), np.zeros(size, np.float32), 0.0
        else:
            action = noise.next(True, generator)[0].numpy()
            time_step = env.step(action)
            reward = float(time_step.reward or 0)
        rows.append((*seen, action, reward))
    frames, first, actions, rewards = zip(*rows, strict=True)
    return np.stack(frames), np.stack(actions), np.array(rewards, np.float32), np.array(first)


def measure(task: str, quick: bool = False) -> list[Row]:
    """Return a row for each of `AT` updates from the experience of a task."""
    frames, actions, rewards, first = experience(task, QUICK_STEPS if quick else STEPS)
    agent, batch = prepared(["preset=spq_cpu"], quick, tuple(actions.shape[1:]))
    size, horizon, stack = len(batch[1]), agent.segment, agent.frame_stack
    within = [i for i in range(stack - 1, len(frames) - horizon) if not first[i - stack + 2 : i + horizon + 1].any()]
    generator, inside, rows = np.random.default_rng(0), torch.ones(size, horizon), []
    at = QUICK_AT if quick else AT
    for update in range(1, at[-1] + 1):
        start = generator.choice(within, size)
        windows = np.stack([frames[i - stack + 1 : i + horizon + 1] for i in start])
        steps = start[:, None] + np.arange(horizon)
        metrics, *_ = agent.update_model(
            torch.from_numpy(windows).flatten(1, 2),
            torch.from_numpy(actions[steps]),
            torch.from_numpy(rewards[steps]),
            inside,
            inside,
        )
        if update in at:
            figures = {name: float(metrics[name].detach().mean()) for name in NAMES}
            rows.append({"task": task, "update": update} | figures)
    return rows


if __name__ == "__main__":
    main_of_tasks("representation", "updates of encoder and model alone", __doc__, measure)
