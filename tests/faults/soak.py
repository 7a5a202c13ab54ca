"""The long form of the fault tests, as tables: python -m tests.faults.soak [--only kills|files|memory|actors].

`make soak` does all of them.

kills: each mode's run is killed until it has come to its end, half of the times at random instants, half at the
boundaries between two writes, and is then compared with a run of that mode that was never killed.
files: a file of a run that has ended is cut short or gets a bit turned over, and the run is resumed.
memory: a run of half an hour is watched from outside.
actors: the same for a run of regime=impala, whose actors are killed now and then.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.harness import BOUNDARIES, MODES, ROOT, differences, finish, forked, kill_at_boundary, kill_at_random

SEED = 1
COMPILED = 4  # kills of the compiled mode: each start of it takes a minute


def kills(folder: Path, number: int, modes: Sequence[str]) -> int:
    """Print a row for each of `modes`, which do their share of `number` kills; return how many runs differ."""
    share = {mode: (number - COMPILED) // (len(MODES) - 1) for mode in MODES} | {"compile": COMPILED}
    share["plain"] += number - sum(share.values())
    print("| mode | kills at random | at boundaries | runs | runs that differ |\n|---|---|---|---|---|", flush=True)
    differing = 0
    for mode in modes:
        rng, wanted = random.Random(f"{SEED} {mode}"), share[mode]
        boundaries = itertools.cycle(rng.sample(BOUNDARIES, len(BOUNDARIES)))
        reference = folder / mode / "reference"
        finish(reference, mode)
        done: Counter[str] = Counter()
        wrong = []
        while done["random"] + done["boundary"] < wanted:
            done["runs"] += 1
            victim = folder / mode / f"victim_{done['runs']}"
            alive = True
            while alive and done["random"] + done["boundary"] < wanted:
                if rng.random() < 0.5:
                    alive = kill_at_random(victim, mode, rng)
                    done["random"] += alive
                else:
                    alive = kill_at_boundary(victim, mode, next(boundaries), rng.randint(1, 4))
                    done["boundary"] += alive
            if alive:
                finish(victim, mode)
            if found := differences(reference, victim):
                wrong.append(f"{victim.name}: {', '.join(found)}")
        differing += len(wrong)
        row = (mode, done["random"], done["boundary"], done["runs"], "; ".join(wrong) or "none")
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
    return differing


def damaged(folder: Path, number: int) -> int:
    """Print what became of each kind of file; return how many trials went wrong."""
    from tests.faults.bad_files import resume, trial

    whole, longer = folder / "whole", folder / "longer"
    finish(whole, "plain", shorter=True)
    shutil.copytree(whole, longer)
    code, said = resume(longer)
    assert code == 0, said
    count: Counter[tuple[str, str]] = Counter()
    wrong = []
    for seed in range(number):
        done, became = trial(whole, longer, folder / "trial", random.Random(seed))
        shutil.rmtree(folder / "trial")
        count[done.split("_0")[0].split(" ")[0], became if became in ("told", "harmless") else "wrong"] += 1
        if became not in ("told", "harmless"):
            wrong.append(f"{done}: {became}")
    print("| file | told | harmless | wrong |\n|---|---|---|---|")
    for kind in sorted({kind for kind, _ in count}):
        print(f"| {kind} | {count[kind, 'told']} | {count[kind, 'harmless']} | {count[kind, 'wrong']} |", flush=True)
    print("\n".join(wrong))
    return len(wrong)


def memory(folder: Path, seconds: float) -> int:
    """Print what a run of DrQ-v2 holds; return 1 if that grows."""
    overrides = "preset=debug num_train_frames=1e9 eval_every_frames=20000 snapshot_every_seconds=5"
    return watched(folder / "run", overrides.split(), seconds, lambda pid, pause: time.sleep(pause))


def actors(folder: Path, seconds: float) -> int:
    """Print what a run of IMPALA holds whose actors are killed; return 1 if that grows."""
    rng = random.Random(SEED)
    overrides = (
        "regime=impala env_id=envpool:CartPole-v1 num_actors=4 num_envs=16 batch_size=16 unroll_length=20 "
        "total_timesteps=1e9 eval_every_frames=200000 snapshot_every_seconds=5 save_video=false"
    )

    def kill(pid: int, pause: float) -> None:
        number = max(1, round(pause / 30))
        for _ in range(number):  # one in 20 seconds; then all have time to start again
            time.sleep(pause * 2 / 3 / number)
            if running := forked(pid):  # none in the first seconds
                rng.choice(running).kill()
        time.sleep(pause / 3)

    grown = watched(folder / "run", overrides.split(), seconds, kill)
    with open(folder / "run" / "train.csv", newline="") as f:
        *_, last = csv.DictReader(f)
    print(f"{float(last['actors_restarted']):.0f} actors were replaced in {float(last['frame']):.0f} frames")
    return grown


def watched(run_dir: Path, overrides: Sequence[str], seconds: float, pass_time: Callable[[int, float], None]) -> int:
    """Print what a run and its processes hold, at ten times; return 1 if that grows.

    Args:
        run_dir: of the run.
        overrides: of the run.
        seconds: after which it is stopped.
        pass_time: called with the run's process and the seconds until the next time.
    """
    command = [sys.executable, "train.py", *overrides, f"hydra.run.dir={run_dir}"]
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    rows = []
    print("| minutes | RssAnon, MB | RssShmem, MB | open files | threads | processes |\n|---|---|---|---|---|---|")
    try:
        for _ in range(10):
            pass_time(process.pid, seconds / 10)
            assert process.poll() is None, "the run has ended"
            rows.append(held_by(process.pid))
            print(f"| {(time.monotonic() - begin) / 60:.1f} | " + " | ".join(map(str, rows[-1])) + " |", flush=True)
    finally:
        process.terminate()
        process.wait()
    # The replay is full and everything has happened once by the third look; an encoder of videos comes and goes.
    early, late = ([min(column) for column in zip(*some, strict=True)] for some in (rows[2:5], rows[-3:]))
    return int(any(b > a + more for a, b, more in zip(early, late, (30, 30, 0, 0, 0), strict=True)))


def held_by(pid: int) -> tuple[int, int, int, int, int]:
    """Return what a process and its descendants hold together.

    Returns:
        Anonymous and shared resident megabytes (what several share counts for each), open files, threads, and
        their number.
    """
    anonymous = shared = files = threads = 0
    pids = [pid]
    for p in pids:
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{p}/status").read_text().splitlines())
            children = [c for t in Path(f"/proc/{p}/task").iterdir() for c in (t / "children").read_text().split()]
            anonymous += int(status["RssAnon"].split()[0])
            shared += int(status["RssShmem"].split()[0])
            files += len(list(Path(f"/proc/{p}/fd").iterdir()))
            threads += int(status["Threads"])
        except FileNotFoundError:  # it has ended meanwhile
            continue
        pids += map(int, children)
    return anonymous // 1000, shared // 1000, files, threads, len(pids)


def main() -> int:
    """Do what the command line asks for; return how much went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("kills", "files", "memory", "actors"))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="that are killed; all of them")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30.0)
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        if args.only in (None, "kills"):
            wrong += kills(Path(folder) / "kills", args.kills, args.modes)
        if args.only in (None, "files"):
            wrong += damaged(Path(folder) / "files", args.files)
        if args.only in (None, "memory"):
            wrong += memory(Path(folder) / "memory", 60 * args.minutes)
        if args.only in (None, "actors"):
            wrong += actors(Path(folder) / "actors", 60 * args.minutes)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
