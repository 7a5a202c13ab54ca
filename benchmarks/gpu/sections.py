"""One section of `make gpu`: `python -m benchmarks.gpu.sections NAME --seconds S` prints its rows as lines of JSON.

A row comes as soon as it is known, since the section may be cut off. Where torch sees no GPU, everything is small. The
functions get the time by the monotonic clock at which they are cut off.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SHARE = 0.85  # of the time that is left: until then a section decides to measure no more
_NEEDED = ("pytest", "pytest_timeout", "hypothesis")  # by the tests
_SMI = ("name", "driver_version", "memory.total", "power.limit", "clocks.max.sm")

Emit = Callable[[Mapping[str, Any]], None]


def facts(emit: Emit, until: float) -> None:
    """Print what the figures depend on, first what is known without torch."""

    def fact(name: str, value: Any) -> None:
        emit({"row": {"fact": name, "value": value}})

    fact("python", f"{platform.python_version()}, {platform.platform()}")
    for line in _nvidia_smi():
        fact("nvidia-smi", line)
    import torch

    found = torch.cuda.is_available()
    fact("gpu", torch.cuda.get_device_name() if found else None)
    fact("cuda", torch.version.cuda)
    if found:
        properties = torch.cuda.get_device_properties(0)
        fact("gpus", torch.cuda.device_count())
        fact("gpu memory", f"{properties.total_memory / 2**30:.1f} GiB")
        fact("compute capability", f"{properties.major}.{properties.minor}")
        fact("cudnn", torch.backends.cudnn.version())
    from benchmarks.common import machine_facts
    from drqv2.logging.provenance import git_commit
    from drqv2.system import machine

    for name, value in machine_facts().items():
        if name not in ("gpu", "python"):
            fact(name, value)
    fact("memory", f"{machine.memory()[0] / 2**30:.1f} GiB")
    commit, dirty = git_commit()
    fact("commit", f"{commit}{' with changes' * bool(dirty)}" if commit else None)


def _nvidia_smi() -> list[str]:
    try:
        command = ["nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else done.stdout.splitlines()


class Reports:
    """A plugin of pytest that prints each test's outcome."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Print a test that has run, and one that could not be set up or torn down."""
        if report.when == "call" or not report.passed:
            name = report.nodeid.removeprefix("tests/")
            row = {"test": name, "outcome": report.outcome, "seconds": round(report.duration, 2)}
            said = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
            self._emit({"row": {**row, "says": said.strip().rpartition("\n")[2][:200]}})


def tests(emit: Emit, until: float) -> None:
    """Run the tests with the marker `gpu`, if pytest is installed; skipped ones are printed, too."""
    missing = [name.replace("_", "-") for name in _NEEDED if find_spec(name) is None]
    if missing:
        emit({"note": f"Left out: there is no {', '.join(missing)} here."})
        return
    import pytest

    emit({"about": "`python -m pytest -m gpu`, the tests that need a GPU"})
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    options = ["-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    # Failed tests are in the rows; other codes are of pytest itself, such as a file that cannot be imported.
    if (code := pytest.main([*options, *map(str, files)], plugins=[Reports(emit)])) > 1:
        sys.exit(int(code))


def benchmark(name: str) -> Callable[[Emit, float], None]:
    """Return the section of the benchmark of this name, whose `measure` takes `within`."""

    def section(emit: Emit, until: float) -> None:
        module = importlib.import_module(f"benchmarks.{name}")
        emit({"about": module.ABOUT})
        _emit_all(emit, module.measure(_small(), within=_SHARE * (until - time.monotonic())))

    return section


def kernels(emit: Emit, until: float) -> None:
    """Print the rows of tools/profile_update.py."""
    emit({"about": "milliseconds of an update and of an action, then the kernels of an update by their time"})
    command = [sys.executable, str(ROOT / "tools" / "profile_update.py"), "--json", *["--quick"] * _small()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _emit_all(emit, map(json.loads, process.stdout))
    if process.returncode:
        sys.exit(process.returncode)


def environment(emit: Emit, until: float) -> None:
    """Print the parts of an environment's step, task by task."""
    from benchmarks import env_parts

    emit({"about": env_parts.ABOUT})
    _emit_all(emit, env_parts.rows(_small()))


def overlap(emit: Emit, until: float) -> None:
    """Print the loop's speed by num_envs and overlap, run by run."""
    from benchmarks import overlap as benchmark

    emit({"about": benchmark.ABOUT})
    _emit_all(emit, benchmark.rows(_small(), _SHARE * (until - time.monotonic())))


def learning(emit: Emit, until: float) -> None:
    """Train until the time is over."""
    from benchmarks.gpu.learning import train

    train(emit, until, _small())


def _small() -> bool:
    import torch

    return not torch.cuda.is_available()


def _emit_all(emit: Emit, rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        emit({"row": row})


SECTIONS: dict[str, Callable[[Emit, float], None]] = {
    "facts": facts,
    "tests": tests,
    **{name: benchmark(name) for name in ("learner", "spq", "replay", "loop")},
    "kernels": kernels,
    "environment": environment,
    "overlap": overlap,
    "learning": learning,
}


def main() -> None:
    """Run one section; whatever else it prints goes to stderr."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(SECTIONS))
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(row: Mapping[str, Any]) -> None:
        print(json.dumps(_finite(row)), file=replies, flush=True)

    from drqv2.system.machine import limit_openmp_spinning

    limit_openmp_spinning()  # before torch is loaded, as in train.py
    SECTIONS[args.name](emit, begin + args.seconds)


def _finite(value: Any) -> Any:
    """Return `value` with None for the numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
