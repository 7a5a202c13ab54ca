"""Command line of the doctor: exit code 0 if training would work (perhaps slowly), 1 if it would not."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drqv2.doctor.checks import run_checks
from drqv2.launch.exits import clean_exit
from drqv2.programs import as_here


def main(argv: Sequence[str] | None = None) -> int:
    """Check the machine; return the exit code."""
    description = "Check that this machine can train, and measure how fast."
    parser = argparse.ArgumentParser(prog=as_here("python -m drqv2.doctor"), description=description)
    parser.add_argument("--task", default="cartpole_balance_sparse", help="task to train on (%(default)s)")
    parser.add_argument("--dir", type=Path, default=Path("exp_local"), help="where runs will be stored (%(default)s)")
    words = sys.argv[1:] if argv is None else argv
    failed = False
    cfgs: list[dict[str, Any]] = []
    with clean_exit():
        args = parser.parse_args([f"--{word}" if re.match(r"\w+=", word) else word for word in words])  # task=X, too
        for status, name, text, advice in run_checks(args.task, args.dir, cfgs):
            failed |= status == "fail"
            print(f"{status:<5} {name:<15} {as_here(text)}", flush=True)
            if advice:
                print(f"{'':<21} -> {as_here(advice)}", flush=True)
        ready = f"Ready: python train.py task={args.task} preset={cfgs[-1]['preset']}" if not failed else ""
        print(f"\n{as_here(ready) or 'Not ready: see the failed checks above.'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
