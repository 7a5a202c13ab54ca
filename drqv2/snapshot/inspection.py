"""What the files of a run hold, and whether they are intact."""

from __future__ import annotations

import datetime
import hashlib
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drqv2.config.formatting import counted
from drqv2.errors import UserError
from drqv2.replay.storage import episode_path
from drqv2.snapshot import agent_weights
from drqv2.snapshot import file as snapshot
from drqv2.system import files


def inspect(run_dir: Path) -> None:
    """Print what the snapshots, replay and logs in a run's directory hold; changes nothing there.

    Raises:
        UserError: there is no snapshot.
    """
    if not files.has_snapshot(run_dir):
        raise UserError(f"{run_dir}: contains no snapshot; give the directory of a run")
    newest: dict[str, Any] = {}
    milestones = sorted(run_dir.glob("weights_*.pt"), key=lambda path: (len(path.name), path.name))  # by frame
    for path in [run_dir / name for name in files.SNAPSHOTS] + milestones:
        if not path.exists():
            continue
        try:
            state = snapshot.load(path)
        except UserError as e:
            print(f"{path.name}: DAMAGED, {str(e).partition(': ')[2]}")
            continue
        parameters = agent_weights.weights(state["agent"])
        print(f"{path.name}: intact, frame {state['frame']}, parameters sha256 {fingerprint(parameters)}")
        if progress := state.get("progress"):
            print(
                f"  episode {progress['episode']}, {datetime.timedelta(seconds=round(state['timer']))} of training, "
                f"{_evaluations(progress)}\n"
                f"  agent with optimizers and generators sha256 {fingerprint(state['agent'])}"
            )
            newest = newest or state
    if newest:
        if "replay_storage" in newest:
            _inspect_replay(run_dir / files.REPLAY, newest["replay_storage"])
        _inspect_logs(run_dir, newest["logger"])
    if aside := sorted(path.name for path in run_dir.glob("quarantine/*")):
        print(f"quarantine: {', '.join(aside)}")


def _evaluations(progress: dict[str, Any]) -> str:
    number = progress["evaluations"]
    return f"{counted(number, 'evaluation')}, best return {progress['best_return']:.1f}" if number else "no evaluation"


def _inspect_replay(folder: Path, replay: dict[str, Any]) -> None:
    lengths, digests = replay["lengths"].tolist(), [bytes(digest) for digest in replay["digests"].tolist()]
    whole = hashlib.sha256(b"".join(digests)).hexdigest()
    print(f"replay: {counted(sum(lengths), 'transition')} in {counted(len(lengths), 'episode')}, sha256 {whole}")
    if lost := lengths.count(0):
        print(f"  {lost} of them damaged or lost, and not sampled")
    if not folder.exists():
        print("  deleted")
        return
    for i, (length, digest) in enumerate(zip(lengths, digests, strict=True)):
        path = episode_path(folder, replay["first"] + i)
        if length and not path.exists():
            print(f"  MISSING {path.name}")
        elif length and files.digest(path) != digest:
            print(f"  DAMAGED {path.name}")


def _inspect_logs(run_dir: Path, logs: dict[str, Any]) -> None:
    for ty, text in logs["texts"].items():
        path = run_dir / f"{ty}.csv"
        there = path.read_bytes() if path.exists() else b""
        # Neither rows after the snapshot nor a new column, for which the file is rewritten, count as damage.
        fits = there.startswith(text.encode()) or len(there.splitlines()) > len(text.splitlines())
        rows, damage = counted(logs["rows"][ty], "row"), "" if fits else "; the file is DAMAGED"
        print(f"{path.name}: {rows} in the snapshot{damage}")


def fingerprint(state: Any) -> str:
    """Return the SHA-256 of a captured state: equal exactly if the states are, to the bit."""
    whole = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            whole.update(f"tensor {value.dtype} {list(value.shape)}".encode())
            value = value if value.layout is torch.strided else value.to_dense()
            whole.update(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict | list | tuple):
            whole.update(f"{'dict' if isinstance(value, dict) else 'list'} {len(value)}".encode())
            for item in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
                add(item)
        else:
            whole.update(f"{type(value).__name__} {value!r};".encode())

    add(state)
    return whole.hexdigest()
