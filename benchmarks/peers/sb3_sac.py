"""Train Stable-Baselines3's SAC from states, for comparison with preset=sac_state: returns over frames and seconds.

OMP_NUM_THREADS=1 python -m benchmarks.peers.sb3_sac walker_walk --seed 1 --frames 60000 --out sb3_1.csv

The environment is this project's, `drqv2/walker_walk-v0`. Batch size, widths, learning rate and random steps are the
preset's; all else, such as two hidden layers without a trunk and a temperature that starts at 1, is the library's.
`tools/plot.py seeds --peers` draws the curves. The time of an evaluation does not count.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import gymnasium
import stable_baselines3

import drqv2.envs.as_gymnasium  # noqa: F401 (it registers the tasks)

ACTION_REPEAT = 2


def make(task: str) -> gymnasium.Env:
    """Return a task of dm_control from its state."""
    return gymnasium.make(f"drqv2/{task}-v0", obs_type="state", action_repeat=ACTION_REPEAT)


def evaluate(model: stable_baselines3.SAC, env: gymnasium.Env, episodes: int) -> float:
    """Return the mean return of the next episodes of an environment, with the mean of the policy."""
    total = 0.0
    for _ in range(episodes):
        obs, over = env.reset()[0], False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(model.predict(obs, deterministic=True)[0])
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=5_000, help="frames between evaluations")
    parser.add_argument("--episodes", type=int, default=5, help="of an evaluation")
    parser.add_argument("--out", type=Path, required=True, help="a CSV file")
    args = parser.parse_args()
    if args.every <= 0 or args.every % ACTION_REPEAT:
        parser.error(f"--every {args.every}: must be a positive multiple of {ACTION_REPEAT}")
    model = stable_baselines3.SAC(
        "MlpPolicy",
        make(args.task),
        learning_rate=3e-4,
        batch_size=256,
        learning_starts=1000,
        device="cpu",
        seed=args.seed,
    )
    evaluated = make(args.task)
    evaluated.reset(seed=10_000 + args.seed)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    seconds = 0.0
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("frame", "episode_reward", "total_time"))
        for frame in range(0, args.frames + 1, args.every):
            if frame:
                begin = time.perf_counter()
                model.learn(args.every // ACTION_REPEAT, reset_num_timesteps=False)
                seconds += time.perf_counter() - begin
            writer.writerow((frame, evaluate(model, evaluated, args.episodes), round(seconds, 3)))
            file.flush()


if __name__ == "__main__":
    main()
