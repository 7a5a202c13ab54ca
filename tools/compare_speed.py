"""Compare the speed of two checkouts: python tools/compare_speed.py BEFORE AFTER BENCHMARK [--rounds N].

Each checkout runs in its own process, and the two measure alternately, with the sides of the benchmark of that name:
learner (an update in bf16 with the paper's shapes; --precision fp32), replay (batches of 256; --workers 1), loop
(train.py with the paper's settings); or whole runs of the presets in RUNS, as steps a second. For the older checkout:
git worktree add ../before COMMIT.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNS = {
    "ppo": "regime=ppo preset=cartpole",
    "ppo_gymnasium": "regime=ppo preset=cartpole env_id=gymnasium:CartPole-v1 vector=serial num_envs=8",
    "pong": "regime=ppo preset=pong",
    "impala": "regime=impala preset=impala_cartpole",
    # In one process, where the scheduler adds no noise; all that actors and learner do counts.
    "impala_serial": "regime=impala preset=impala_cartpole num_actors=1 deterministic=true",
}
SPEEDS = ("loop", *RUNS)  # more is better


def side(benchmark: str, precision: str, workers: int, folder: Path) -> Iterator[float]:
    """Return the measurements of this process's checkout: milliseconds, or frames per second for the loop."""
    from benchmarks import learner, loop, replay, runs

    if benchmark in RUNS:
        words = RUNS[benchmark].split()
        return (float(row["SPS"] or 0.0) for row in runs.speeds(words, warm_up=2.0, seconds=8.0))
    if benchmark == "learner":
        return learner.updates_in(learner.PAPER, "cpu", precision, compile=False)
    if benchmark == "replay":
        replay.fill(folder, episodes=10, length=500)
        return replay.batches(folder, workers, 16)
    return loop.own_fps(quick=False)


def serve(benchmark: str, precision: str, workers: int) -> None:
    """Write a measurement to stdout for each line on stdin."""
    sys.path.insert(0, os.getcwd())
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a benchmark prints is no measurement
    with tempfile.TemporaryDirectory() as folder:
        figures: Any = side(benchmark, precision, workers, Path(folder))
        for _ in sys.stdin:
            print(next(figures), file=replies, flush=True)
        figures.close()


def compare(checkouts: list[Path], benchmark: str, options: list[str], rounds: int) -> str:
    """Return a line with both medians and the speed-up from the first checkout to the second."""
    processes = []
    for checkout in checkouts:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", benchmark, *options]
        env = {**os.environ, "PYTHONPATH": str(checkout)}
        processes.append(subprocess.Popen(command, cwd=checkout, env=env, stdin=-1, stdout=-1, text=True))
    values: list[list[float]] = [[], []]
    for turn in range(rounds + 2):  # the first two warm up
        for i in (0, 1) if turn % 2 else (1, 0):
            stdin, stdout = processes[i].stdin, processes[i].stdout
            assert stdin is not None
            assert stdout is not None
            stdin.write("\n")
            stdin.flush()
            values[i].append(float(stdout.readline()))
    for process in processes:
        process.communicate()
    before, after = (values[i][2:] for i in (0, 1))
    ratios = [b / a if benchmark in SPEEDS else a / b for a, b in zip(before, after, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    unit = "frames/s" if benchmark == "loop" else "steps/s" if benchmark in RUNS else "ms"
    return (
        f"{benchmark}: {statistics.median(before):.2f} and {statistics.median(after):.2f} {unit}, "
        f"speed ratio {middle:.3f} (quartiles {low:.3f} and {high:.3f}, {rounds} rounds)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="+", metavar="BEFORE AFTER BENCHMARK")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.arguments[0], args.precision, args.workers)
    else:
        *folders, name = args.arguments
        if len(folders) != 2 or name not in ("learner", "replay", *SPEEDS):
            parser.error(f"needs two checkouts and one of learner, replay, {', '.join(SPEEDS)}")
        options = ["--precision", args.precision, "--workers", str(args.workers)]
        print(compare([Path(folder).resolve() for folder in folders], name, options, args.rounds))
