"""A disk that is full, at every place where a run writes: for a moment, and for good."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import train
from drqv2.launch.command_line import launch
from drqv2.snapshot import file as snapshot
from drqv2.system import files
from tests.faults.harness import json_lines, scalars
from tests.test_train import SHORT, assert_same, run

pytestmark = pytest.mark.slow

# A boundary within each kind of write, and the code with which a run ends that cannot get past it.
SITES = {
    ".pt: begun": 74,
    ".pt: written": 74,
    ".safetensors: begun": 74,
    ".safetensors: written": 74,
    ".csv: begun": 74,
    ".csv: row written": 74,
    ".yaml: begun": 74,
    ".jsonl: row written": 0,  # these two can do without
    ".tfevents: row written": 0,
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("reference") / "run")


def fill(monkeypatch: pytest.MonkeyPatch, site: str, first: int, last: float) -> None:
    """Have a site fail from the `first` time that it is come to until the `last`."""
    count = 0

    def boundary(at: str) -> None:
        nonlocal count
        count += at == site
        if at == site and first <= count <= last:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "crash_point", boundary)
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


@pytest.mark.parametrize("site", SITES)
def test_for_a_moment(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], site: str
) -> None:
    first = 1 if site.startswith(".yaml") else 2
    fill(monkeypatch, site, first, first + 1)
    assert_same(reference, run(tmp_path / "run"), same_files=False)
    assert "cannot be written (No space left on device)" in capsys.readouterr().out
    assert torn(tmp_path / "run") == []


@pytest.mark.parametrize("site", SITES)
def test_for_good(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], site: str
) -> None:
    with monkeypatch.context() as m:
        fill(m, site, 1 if site.startswith(".yaml") else 4, float("inf"))
        code: Any = 0
        try:
            run(tmp_path / "run")
        except SystemExit as leaving:
            code = leaving.code
    assert code == SITES[site]
    said = capsys.readouterr()
    told = said.err if code else said.out
    assert "cannot be written" in told
    assert "No space left on device" in told
    assert "Traceback" not in said.out + said.err
    assert torn(tmp_path / "run") == []
    assert_same(reference, run(tmp_path / "run"), same_files=False)  # room was made
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


# The first has no room for the run's directory, the next for its lock and log, then for a snapshot, the CSV files,
# TensorBoard's events, a video, an episode; the last is full after some hundred frames.
@pytest.mark.parametrize("size", ["4k", "8k", "12k", "16k", "24k", "32k", "48k", "80k", "160k", "400k", "900k"])
def test_on_a_small_disk(
    reference: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], size: str
) -> None:
    monkeypatch.setattr(files, "_PAUSES", (0.01,))
    resize(disk, size)
    with pytest.raises(SystemExit) as leaving:
        launch(train.main, "cfgs", argv=[*SHORT, f"hydra.run.dir={disk / 'run'}"])
    assert leaving.value.code == 74
    err = capsys.readouterr().err
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert torn(disk / "run") == []
    resize(disk, "64m")
    assert_same(reference, run(disk / "run"), same_files=False)
