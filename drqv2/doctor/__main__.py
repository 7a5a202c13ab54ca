"""Command line of the doctor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from drqv2.doctor.checks import Report, run_checks
from drqv2.launch.exits import plain_ends


def main(argv: Sequence[str] | None = None) -> int:
    """Check the machine; return the exit code."""
    description = "Check that this machine can train, and measure how fast."
    parser = argparse.ArgumentParser(prog="python -m drqv2.doctor", description=description)
    parser.add_argument("--task", default="cartpole_balance_sparse", help="task to train on (%(default)s)")
    parser.add_argument("--dir", type=Path, default=Path("exp_local"), help="where runs will be stored (%(default)s)")
    args = parser.parse_args(argv)
    report = Report()
    with plain_ends():
        command = run_checks(report, args.task, args.dir)
        print(f"\n{'Not ready: see the failed checks above.' if report.failed else f'Ready: {command}'}", flush=True)
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
