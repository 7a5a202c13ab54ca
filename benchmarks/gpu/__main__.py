"""Measure a machine with a GPU, within a number of minutes: `make gpu`, or `python -m benchmarks.gpu`.

In this order: facts, the tests that need a GPU, the benchmarks of learner, SPQ, replay and loop, the kernels of an
update, an environment's step in parts, the loop by num_envs and overlap, and learning runs for the minutes that are
left. Results are written as they come, so a stop loses nothing. A section that takes more than its share of the time is
cut off. Without a GPU, the same runs on the CPU with small sizes.

    MINUTES=8 make gpu                                # all of it; results in build/gpu
    MINUTES=30 OUT=results_here make gpu ARGS="--only facts,learning"
    WHEELS=.whl MINUTES=8 make gpu                    # without a network, see docs/deployment.md

RUNS is the folder of the learning runs, exp_local/gpu by default, which the next call resumes; LEARN has their command
lines, separated by semicolons. Nothing but Python itself is needed until the first section.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import run
from benchmarks.gpu.results import Results

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "gpu_site"  # where wheels are installed
# Title, share of the time that is left for a section and the later ones, seconds that it may take to stop.
SECTIONS: dict[str, tuple[str, float, float]] = {
    "facts": ("Machine", 3, 2),
    "tests": ("Tests that need a GPU", 5, 2),
    "learner": ("Updates", 6, 2),
    "spq": ("Updates of SPQ", 5, 2),
    "replay": ("Batches", 5, 2),
    "loop": ("The whole loop", 4, 2),
    "kernels": ("Kernels of an update", 3, 2),
    "environment": ("An environment's step in parts", 3, 2),
    "overlap": ("The loop by num_envs and overlap", 9, 2),
    "learning": ("Learning", 9, 10),
}
INSTALL = "wheels"


def main() -> int:
    """Run the sections; return 1 if one of them or a test has failed, 128 + N if signal N has stopped this."""
    args = _arguments()
    end, signals = time.monotonic() + 60 * args.minutes, Signals()
    names = [name for name in SECTIONS if not args.only or name in args.only]
    titles = ({INSTALL: "Wheels"} if args.wheels else {}) | {name: SECTIONS[name][0] for name in names}
    results = Results(args.out, titles, args.minutes)
    env = {**os.environ, "PYTHONPATH": _path(ROOT, os.environ.get("PYTHONPATH")), "PYTHONUNBUFFERED": "1"}
    if env.get("RUNS"):
        env["RUNS"] = str(Path(env["RUNS"]).resolve())  # sections have another working directory
    if args.wheels:
        if section(INSTALL, _install(args.wheels), env, 60 * args.minutes, 2.0, results, signals) != "done":
            names = []
        env["PYTHONPATH"] = _path(SITE, env["PYTHONPATH"])
    for i, name in enumerate(names):
        _, share, longest_grace = SECTIONS[name]
        slot = (end - time.monotonic()) * share / sum(SECTIONS[later][1] for later in names[i:])
        grace = min(longest_grace, slot / 4)
        seconds = slot - grace
        if signals.received:
            break
        if seconds <= 0:
            results.leave_out(name, "The minutes were over.")
            continue
        command = [sys.executable, "-m", "benchmarks.gpu.sections", name, "--seconds", f"{seconds:.1f}"]
        section(name, command, env, seconds, grace, results, signals)
    failed = results.failed()
    results.finish("stopped" if signals.received else f"failed: {', '.join(failed)}" if failed else "complete")
    print(f"results: {args.out / 'summary.md'}", flush=True)
    return 128 + signals.received if signals.received else 1 if failed else 0


def section(
    name: str,
    command: Sequence[str],
    env: Mapping[str, str],
    seconds: float,
    grace: float,
    results: Results,
    signals: Signals,
) -> str:
    """Run a section's command, write its results, and return how it ended, see `Outcome`."""
    print(f"{name}: up to {seconds:.0f} s", flush=True)
    results.begin(name, seconds)
    # Its temporary files go with it: a program that is killed leaves them behind.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        its = {**env, "TMPDIR": scratch}
        outcome = run(
            command, its, ROOT, seconds, grace, results.add, results.log, stopped=lambda: bool(signals.received)
        )
    results.end(outcome)
    print(f"{name}: {outcome.status} after {outcome.seconds:.0f} s", flush=True)
    return outcome.status


class Signals:
    """Notes the signals that ask this to stop, for which the sections look.

    Attributes:
        received: the number of the first; 0 until then.
    """

    def __init__(self) -> None:
        self.received = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.received = self.received or number


def _install(wheels: Path) -> list[str]:
    shutil.rmtree(SITE, ignore_errors=True)
    files = sorted(map(str, wheels.glob("*.whl")))
    options = (
        "-q --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check "
        "--root-user-action=ignore --target"
    ).split()
    return [sys.executable, "-m", "pip", "install", *options, str(SITE), *files]


def _path(first: Path, rest: str | None) -> str:
    return os.pathsep.join([str(first), *([rest] if rest else [])])


def _arguments() -> argparse.Namespace:
    given: Mapping[str, str] = {name: value for name, value in os.environ.items() if value}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=_minutes, default=given.get("MINUTES", "8"), help="for everything; default: $MINUTES, or 8")
    out = given.get("OUT", ROOT / "build" / "gpu")
    add("--out", type=Path, default=out, help="folder of the results; default: $OUT, or build/gpu")
    add(
        "--wheels", type=_wheels, default=given.get("WHEELS"), help="folder of wheels to use; default: $WHEELS, or none"
    )
    add("--only", type=_names, default=(), help=f"some of {', '.join(SECTIONS)}, separated by commas")
    args = parser.parse_args()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {args.out}: {error.strerror}")
    return args


def _minutes(text: str) -> float:
    if not text.replace(".", "", 1).isdigit() or not 0 < float(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of minutes, such as 8 or 0.5")
    return float(text)


def _wheels(text: str) -> Path:
    if not any(Path(text).glob("*.whl")):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a folder with *.whl files in it")
    return Path(text).resolve()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be some of {', '.join(SECTIONS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
