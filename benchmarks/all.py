"""Run all benchmarks in separate processes: `python -m benchmarks.all [--json]`. Takes twelve minutes on two cores.

With --json the results are one line, for a history that `report.py` plots:

    python -m benchmarks.all --json >> results/history.jsonl
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks import cold, display, env, learner, loop, memory, replay, snapshots
from benchmarks.common import Row, options, show_machine, show_rows
from drqv2.logging.provenance import git_commit

MODULES = (learner, replay, env, loop, snapshots, display, memory, cold)
ALL = {module.__name__.removeprefix("benchmarks."): module.ABOUT for module in MODULES}


def main() -> None:
    """Run the benchmarks one after another and show each result as it arrives."""
    args = options(__doc__)
    commit, dirty = git_commit()  # first, since the code may change while the benchmarks run
    results: dict[str, Any] = {}
    for name, about in ALL.items():
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if args.quick else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
            try:
                output = child.communicate()[0]
            except KeyboardInterrupt:  # not sent to the child's session
                os.killpg(child.pid, signal.SIGTERM)
                sys.exit(130)
        if child.returncode:
            sys.exit(f"benchmarks.{name} exited with status {child.returncode}")
        found = json.loads(output)
        first = not results
        results = found | results  # keeps the machine facts from before the first benchmark
        if not args.json:
            if first:
                show_machine(results["machine"])
            show_rows(name, about, results[name])
    if args.json:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        print(json.dumps({"time": now, "commit": commit, "dirty": dirty, "ratios": ratios(results), **results}))


def ratios(results: dict[str, Sequence[Row]]) -> dict[str, float]:
    """Return the speed-up of each benchmark over its baseline by name."""
    found = {f"learner, {row['side']}": row["ratio"] for row in results["learner"] if row["side"] != "baseline"}
    for row in results["replay"]:
        if row["side"] != "baseline":
            side = {"ours": "", "segments": "segments, "}.get(row["side"])
            found["replay, " + (row["side"] if side is None else f"{side}{row['workers']} workers")] = row["ratio"]
    mean = results["env"][-1]
    found |= {"environment": mean["ratio"], "environment, render=fast": mean["fast_ratio"]}
    return found | {"whole loop": results["loop"][-1]["ratio"]}


if __name__ == "__main__":
    main()
