"""A disk that is full wherever a run writes: for a moment, and for good."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from drqv2.snapshot import file as snapshot
from drqv2.system import files
from tests.faults.harness import json_lines, scalars
from tests.short_run import FULL, assert_same, run

pytestmark = pytest.mark.slow

# Where a file of each kind is written: a crash point, and how a run says that it failed there.
MOMENTS = {
    ".pt: written": "snapshot",
    ".safetensors: written": "episode",
    ".csv: begun": "csv",
    ".csv: row written": "csv",
    ".yaml: begun": "config.yaml",
    ".jsonl: row written": "metrics.jsonl",
    ".tfevents: row written": "TensorBoard",
}


def fill(monkeypatch: pytest.MonkeyPatch, sites: Sequence[str], first: int, last: float) -> None:
    """Have each of the sites fail from the `first` time that it is reached until the `last`."""
    count: Counter[str] = Counter()

    def fail(at: str) -> None:
        count[at] += 1
        if at in sites and first <= count[at] <= last:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "crash_point", fail)
    monkeypatch.setattr(time, "sleep", lambda _: None)


def torn(run_dir: Path) -> list[Path]:
    """Return files under a final name that are not whole, and such as are left under a temporary one."""
    found = [*run_dir.rglob("*.tmp"), *run_dir.rglob(".tmp-*")]
    for path in run_dir.glob("buffer/*.safetensors"):
        load_file(path)
    for path in run_dir.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line)
    for path in run_dir.glob("*.csv"):
        text = path.read_text()
        if not text.endswith("\n") or len({line.count(",") for line in text.splitlines()}) > 1:
            found.append(path)
    for name in files.SNAPSHOTS:
        if (run_dir / name).exists():
            snapshot.load(run_dir / name)
    return found


def test_a_disk_that_is_full_for_a_moment_costs_nothing(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(monkeypatch, list(MOMENTS), 1, 2)
    assert_same(reference, run(tmp_path / "run", *FULL))
    told = [line for line in capsys.readouterr().out.splitlines() if "No space left on device" in line]
    for site, name in MOMENTS.items():
        assert any(name in line for line in told), site
    assert torn(tmp_path / "run") == []
    assert scalars(reference) == scalars(tmp_path / "run")
    assert json_lines(reference) == json_lines(tmp_path / "run")


@pytest.mark.parametrize(
    ("sites", "code"),
    [
        ([".pt: written"], 74),
        ([".safetensors: written"], 74),
        ([".csv: row written"], 74),
        ([".yaml: begun"], 74),
        ([".jsonl: row written", ".tfevents: row written"], 0),  # the run can do without these
    ],
)
def test_a_disk_that_stays_full_ends_the_run_which_can_be_resumed(
    reference: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sites: list[str],
    code: int,
) -> None:
    found: Any = 0
    with monkeypatch.context() as m:
        fill(m, sites, 1 if ".yaml: begun" in sites else 4, float("inf"))
        try:
            run(tmp_path / "run", *FULL)
        except SystemExit as leaving:
            found = leaving.code
    assert found == code
    said = capsys.readouterr()
    assert "No space left on device" in (said.err if code else said.out)
    assert "Traceback" not in said.out + said.err
    assert torn(tmp_path / "run") == []
    assert_same(reference, run(tmp_path / "run", *FULL))  # there is room again
    assert scalars(reference) == scalars(tmp_path / "run")
    assert json_lines(reference) == json_lines(tmp_path / "run")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 64 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64m", "tmpfs"]
    if subprocess.run(["mount", *options, str(mount)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def resize(disk: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


# No room for the run's directory; for its lock and log; for a snapshot; for a video; full after some hundred frames.
@pytest.mark.parametrize("size", ["4k", "12k", "32k", "160k", "900k"])
def test_on_a_small_disk(
    reference: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: str
) -> None:
    monkeypatch.setattr(files, "_PAUSES", (0.01,))
    resize(disk, size)
    with pytest.raises(SystemExit) as leaving:
        run(disk / "run", *FULL)
    assert leaving.value.code == 74
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert torn(disk / "run") == []
    resize(disk, "64m")
    assert_same(reference, run(disk / "run", *FULL))
