"""Train another library's PPO with the settings of a preset: returns over steps and over seconds of training.

python -m benchmarks.learning cartpole --side sb3 --seed 1 --out results/ppo/cartpole/sb3_1.csv

Beside the curves of `train.py` these are drawn by `tools/plot.py seeds --peers`. Each evaluation is of one episode of
each of some environments, with the most probable actions; its time does not count.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.ppo import Setting

# Sizes, epochs and learning rates as in the presets of these names, the libraries' own values otherwise; steps between
# evaluations; episodes of each.
TASKS: dict[str, tuple[Setting, int, int]] = {
    "cartpole": (
        Setting("CartPole-v1", "mlp", 64, 32, 64, epochs=6, lr=2e-3, total=100_000, scale_rewards=True),
        10_000,
        10,
    ),
    "pong": (Setting("Pong-v5", "small", 256, 16, 128, epochs=3, lr=5e-4, total=10_000_000), 250_000, 5),
}


def evaluate(env: str, act: Callable[[np.ndarray], np.ndarray], episodes: int) -> float:
    """Return the mean return of the first episode of each of `episodes` environments."""
    import envpool

    pool: Any = envpool.make(env, env_type="gymnasium", num_envs=episodes, seed=10_000)
    observations, _ = pool.reset()
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        observations, rewards, terminated, truncated, _ = pool.step(act(observations))
        returns += rewards * running
        running &= ~(terminated | truncated)
    pool.close()
    return float(returns.mean())


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--side", choices=("sb3", "tianshou"), required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="until it ends; default: all of the preset")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    args = parser.parse_args()
    setting, every, episodes = TASKS[args.task]
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    update, act = importlib.import_module(f"benchmarks.peers.{args.side}").learner(setting, args.seed)
    steps, seconds, due = 0, 0.0, 0
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("frame", "episode_reward", "total_time"))
        while True:
            if steps >= due:
                due += every
                writer.writerow((steps, evaluate(setting.env, act, episodes), round(seconds, 3)))
                file.flush()
            if steps >= (args.steps or setting.total or 0):
                return
            begin = time.perf_counter()
            update()
            seconds += time.perf_counter() - begin
            steps += setting.batch


if __name__ == "__main__":
    main()
