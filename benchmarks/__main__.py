"""Run all benchmarks, each in a process of its own: `python -m benchmarks [--json]`. Twelve minutes on two cores."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks import cold, env, learner, loop, memory, replay, snapshots
from benchmarks.common import options, show_machine, show_rows

MODULES = (learner, replay, env, loop, snapshots, memory, cold)
ALL = {module.__name__.removeprefix("benchmarks."): module.ABOUT for module in MODULES}


def main() -> None:
    """Run them one after another and show each as it comes; the machine's facts once."""
    args = options(__doc__)
    results: dict[str, Any] = {}
    for name, about in ALL.items():
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if args.quick else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"benchmarks.{name} ended with status {done.returncode}")
        found = json.loads(done.stdout)
        first = not results
        results = found | results  # the machine's facts are those from before the first benchmark
        if not args.json:
            if first:
                show_machine(results["machine"])
            show_rows(name, about, results[name])
    if args.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
