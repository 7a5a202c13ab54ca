"""Processes, memory and speed of PPO with many environments of Gymnasium: `python -m benchmarks.processes [--json]`.

Whole runs of train.py in turn, some five minutes. DRQV2_BEFORE=DIRECTORY adds runs of another checkout.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from benchmarks.common import Row, main
from benchmarks.runs import ROOT, LooseRow, speed

ABOUT = (
    "32 CartPoles of Gymnasium, learning included: processes of the run and their memory (PSS); environment steps a "
    "second; medians"
)
# One step of the optimizer for each batch: most of the time goes into the environments.
WORDS = (
    "regime=ppo env_id=gymnasium:CartPole-v1 num_envs=32 device=cpu horizon=64 minibatch_size=2048 "
    "repeat_per_collect=1.0 agent.optimizer=muon agent.advantage=full_batch agent.prio_alpha=0.8 "
    "agent.normalize_observations=false agent.normalize_rewards=false"
).split()


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each way to place the environments."""
    before = os.environ.get("DRQV2_BEFORE")
    sides: dict[str, tuple[Path, list[str]]] = {"before": (Path(before), [])} if before else {}
    sides |= {"envs_per_process=null": (ROOT, []), "envs_per_process=1": (ROOT, ["envs_per_process=1"])}
    runs: dict[str, list[LooseRow]] = {name: [] for name in sides}
    for _ in range(1 if quick else 5):
        for name, (checkout, words) in sides.items():
            runs[name].append(speed([*WORDS, *words], *((0.5, 0.5) if quick else (3.0, 12.0)), checkout, used_by))
    columns = "processes", "pss_mb", "SPS"
    return [
        {"side": name, **{key: statistics.median(float(row[key] or 0) for row in rows) for key in columns}}
        for name, rows in runs.items()
    ]


def used_by(pid: int) -> LooseRow:
    """Return how many processes a process and its descendants are, and their memory, MB.

    Pages that n processes share count once, a part of n for each (PSS, from /proc/PID/smaps_rollup).
    """
    family = [pid]
    for parent in family:  # it grows meanwhile
        for task in Path(f"/proc/{parent}/task").iterdir():
            family += map(int, (task / "children").read_text().split())
    rows = [line.split() for one in family for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()]
    return {"processes": len(family), "pss_mb": sum(1.024e-3 * int(row[1]) for row in rows if row[0] == "Pss:")}


if __name__ == "__main__":
    main("processes", ABOUT, measure)
