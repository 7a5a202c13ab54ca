"""How often random actions reach a reward: `python -m benchmarks.random_actions TASK... [--quick]`.

Forty episodes of each kind of action, the same starts for all, on a task with an action repeat of 2; a minute a task.
A normal number goes through tanh after it is multiplied by a deviation, as in SPQ's policy. The rewards counted are
those above the least that any kind met.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Row, main_of_tasks
from drqv2.envs import make
from drqv2.nn.noise import HeldNoise

EPISODES, QUICK_EPISODES = 40, 2


def _tanh(noise: Tensor, deviation: float) -> Tensor:
    return (deviation * noise).tanh()


KINDS: dict[str, tuple[bool, int, Callable[[Tensor], Tensor]]] = {  # uniform numbers or not, longest hold, to actions
    "uniform": (True, 1, torch.clone),
    "uniform, held": (True, 16, torch.clone),
    "normal 0.4, held": (False, 16, partial(_tanh, deviation=0.4)),
    "normal 1, held": (False, 16, partial(_tanh, deviation=1.0)),
    "normal 2, held": (False, 16, partial(_tanh, deviation=2.0)),
    "bang-bang, held": (True, 16, torch.sign),
    "bang-bang, held up to 64 steps": (True, 64, torch.sign),
}


def episodes(task: str, kind: str, number: int) -> list[np.ndarray]:
    """Return the rewards of each step of so many episodes with one kind of actions."""
    env = make(task, 1, 2, 1, obs_type="state")
    uniform, longest, to_action = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(number):
        noise = HeldNoise((1, env.action_spec().shape[0]), longest, torch.device("cpu"))
        rewards, time_step = [], env.reset()
        while not time_step.last():
            time_step = env.step(to_action(noise.next(uniform, generator))[0].numpy())
            rewards.append(float(time_step.reward or 0))
        found.append(np.array(rewards))
    return found


def measure(task: str, quick: bool = False) -> list[Row]:
    """Return a row for each kind of actions: the share of episodes with a reward, and their mean and best return."""
    found = {kind: episodes(task, kind, QUICK_EPISODES if quick else EPISODES) for kind in KINDS}
    least = min(rewards.min() for kinds in found.values() for rewards in kinds)
    rows: list[Row] = []
    for kind, all_rewards in found.items():
        returns = [float(rewards.sum()) for rewards in all_rewards]
        share = float(np.mean([rewards.max() > least for rewards in all_rewards]))
        rows.append(
            {"task": task, "actions": kind, "percent": 100 * share, "mean": np.mean(returns), "best": max(returns)}
        )
    return rows


if __name__ == "__main__":
    main_of_tasks("random_actions", "percent of episodes with a reward, and their returns", __doc__, measure)
