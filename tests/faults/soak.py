"""The long form of the fault tests, as tables: python -m tests.faults.soak [--only kills|files|memory] (make soak).

kills: each mode's run is killed until it has come to its end, half of the times at random instants, half at the
boundaries between two writes, and is then compared with a run of that mode that was never killed.
files: a file of a run that has ended is cut short or gets a bit turned over, and the run is resumed.
memory: a run of half an hour is watched from outside.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.harness import BOUNDARIES, MODES, ROOT, differences, finish, kill_at_boundary, kill_at_random

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
    finish(whole, "plain")
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
    """Print what a run and its processes hold, at ten times; return 1 if that grows."""
    command = [sys.executable, "train.py", "preset=debug", f"hydra.run.dir={folder / 'run'}", "num_train_frames=1e9"]
    command += ["eval_every_frames=20000", "snapshot_every_seconds=5"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    begin = time.monotonic()
    rows = []
    print("| minutes | RssAnon, MB | open files | threads | processes |\n|---|---|---|---|---|")
    while time.monotonic() - begin < seconds:
        time.sleep(seconds / 10)
        assert process.poll() is None, "the run has ended"
        rows.append(held_by(process.pid))
        print(f"| {(time.monotonic() - begin) / 60:.0f} | " + " | ".join(map(str, rows[-1])) + " |", flush=True)
    process.terminate()
    process.wait()
    # The replay is full and everything has happened once by the third look; an encoder of videos comes and goes.
    early, late = ([min(column) for column in zip(*some, strict=True)] for some in (rows[2:5], rows[-3:]))
    return int(late[0] > early[0] + 30 or any(b > a for a, b in zip(early[1:], late[1:], strict=True)))


def held_by(pid: int) -> tuple[int, int, int, int]:
    """Return anonymous resident megabytes, open files, threads and number of a process and its descendants."""
    total = [0, 0, 0]
    pids = [pid]
    for p in pids:
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{p}/status").read_text().splitlines())
            children = [c for t in Path(f"/proc/{p}/task").iterdir() for c in (t / "children").read_text().split()]
            total[0] += int(status["RssAnon"].split()[0])
            total[1] += len(list(Path(f"/proc/{p}/fd").iterdir()))
            total[2] += int(status["Threads"])
        except FileNotFoundError:  # it has ended meanwhile
            continue
        pids += map(int, children)
    return total[0] // 1000, total[1], total[2], len(pids)


def main() -> int:
    """Do what the command line asks for; return how much went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("kills", "files", "memory"))
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
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
