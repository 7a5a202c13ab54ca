"""Inspect the snapshots of a run; export and import weights. The command line is in `__main__`."""

from __future__ import annotations

import csv
import datetime
import hashlib
import io
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors.torch import save as to_safetensors
from torch import Tensor
from yaml import YAMLError

from drqv2.config.checks import leaves
from drqv2.config.formatting import show
from drqv2.errors import UserError
from drqv2.replay.storage import episode_path
from drqv2.snapshot import agent_weights
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.checkpoints import newest_readable
from drqv2.system import files

_OF_THE_CLOCK = ("fps", "total_time")  # columns of logs that differ from one run to the next
_NETWORKS = ("encoder", "actor", "critic", "critic_target")


def describe(run_dir: Path) -> Iterator[str]:
    """Yield lines about the snapshots, replay and logs in a run's directory; changes nothing there.

    Raises:
        UserError: there is no snapshot.
    """
    if not files.has_snapshot(run_dir):
        raise UserError(f"{run_dir}: contains no snapshot; give the directory of a run")
    newest: dict[str, Any] | None = None
    for path in [run_dir / name for name in files.SNAPSHOTS] + sorted(run_dir.glob("weights_*.pt")):
        if not path.exists():
            continue
        try:
            state = snapshot.load(path)
        except UserError as e:
            yield f"{path.name}: DAMAGED, {str(e).partition(': ')[2]}"
            continue
        # Of an agent with a state_dict of its own, the whole state stands for the parameters.
        of = agent_weights.weights(state["agent"])
        yield f"{path.name}: intact, frame {state['frame']}, parameters sha256 {fingerprint(of)}"
        if progress := state.get("progress"):
            yield (
                f"  episode {progress['episode']}, {datetime.timedelta(seconds=round(state['timer']))} of training, "
                f"{progress['evaluations']} evaluations, best return {progress['best_return']:.1f}"
            )
            yield f"  agent with optimizers and generators sha256 {fingerprint(state['agent'])}"
            newest = newest or state
    if newest is not None:
        yield from _config(run_dir, newest)
        yield from _replay(run_dir, newest)
        yield from _logs(run_dir, newest)
    aside = sorted(path.name for path in run_dir.glob("quarantine/*"))
    if aside:
        yield f"quarantine: {', '.join(aside)}"


def _config(run_dir: Path, state: dict[str, Any]) -> Iterator[str]:
    try:
        stored: Any = OmegaConf.to_container(OmegaConf.load(run_dir / "config.yaml"), resolve=True)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as e:
        yield f"config.yaml: cannot be read ({' '.join(str(e).split())[:100]})"
        return
    old, new = leaves(state["config"]), leaves(stored)
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    words = [f"{name} {show(old.get(name))} -> {show(new.get(name))}" for name in names if name != "resume_force"]
    yield "config.yaml: " + (f"differs from the snapshot's: {', '.join(words)}" if words else "as in the snapshot")


def _replay(run_dir: Path, state: dict[str, Any]) -> Iterator[str]:
    replay = state["replay_storage"]
    lengths, digests = replay["lengths"].tolist(), [bytes(digest) for digest in replay["digests"].tolist()]
    whole = hashlib.sha256(b"".join(digests)).hexdigest()
    yield f"replay: {sum(lengths)} transitions in {len(lengths)} episodes, sha256 {whole}"
    for i, (length, digest) in enumerate(zip(lengths, digests, strict=True)):
        path = episode_path(run_dir / "buffer", replay["first"] + i)
        if length and not path.exists():
            yield f"  MISSING {path.name}"
        elif length and files.digest(path) != digest:
            yield f"  DAMAGED {path.name}"


def _logs(run_dir: Path, state: dict[str, Any]) -> Iterator[str]:
    for ty, text in state["logger"]["texts"].items():
        path = run_dir / f"{ty}.csv"
        there = path.read_bytes() if path.exists() else b""
        # Neither rows after the snapshot nor a new column, for which the file is rewritten, count as damage.
        fits = there.startswith(text.encode()) or len(there.splitlines()) > len(text.splitlines())
        yield (
            f"{path.name}: {state['logger']['rows'][ty]} rows in the snapshot, without times sha256 "
            f"{hashlib.sha256(without_times(text).encode()).hexdigest()}" + ("" if fits else "; the file is DAMAGED")
        )


def without_times(text: str) -> str:
    """Return a log's CSV text without the columns that depend on the clock."""
    rows = list(csv.reader(io.StringIO(text)))
    kept = [i for i, name in enumerate(rows[0]) if name not in _OF_THE_CLOCK] if rows else []
    return "\n".join(",".join(row[i] for i in kept) for row in rows)


def parameters(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the parameters and buffers of the networks in a loaded snapshot, by dotted name.

    Raises:
        UserError: the agent has a `state_dict` of its own, in which networks cannot be told from the rest.
    """
    tensors = agent_weights.weights(state["agent"])
    if tensors.get("kind") == "stateful":
        raise UserError("the agent has its own state_dict: its networks cannot be told from the rest")
    return tensors


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


def export(source: Path, target: Path) -> None:
    """Write a snapshot's networks as safetensors, with frame, task and configuration as metadata.

    Args:
        source: a run's directory, or a snapshot file.
        target: the file to write.

    Raises:
        UserError: there is no intact snapshot, or `target` cannot be written.
    """
    newest = newest_readable(source) if source.is_dir() else (source, snapshot.load(source), None)
    if newest is None:
        raise UserError(f"{source}: contains no snapshot; give the directory of a run, or a .pt file")
    state = newest[1]
    config = state.get("config", {})
    metadata = {"frame": str(state["frame"]), "task": str(config.get("task_name")), "config": json.dumps(config)}
    tensors = {name: value.contiguous() for name, value in parameters(state).items()}
    try:
        files.write_atomically(target, to_safetensors(tensors, metadata))
    except OSError as e:
        raise UserError(f"{target}: cannot be written ({e.strerror})") from e
    print(f"{len(tensors)} tensors of frame {state['frame']}: {target}")


def import_weights(source: Path, target: Path) -> None:
    """Convert the public implementation's networks, a plain state dict, to a file for `init_from`.

    Args:
        source: file with {"encoder": state dict, "actor": ..., "critic": ...}, or flat with dotted names.
        target: the file to write.

    Raises:
        UserError: the file is anything else, or `target` cannot be written.
    """
    try:
        found = torch.load(source, map_location="cpu", weights_only=True)
    except OSError as e:
        raise UserError(f"{source}: cannot be read ({e.strerror})") from e
    except Exception as e:  # a damaged file, or one that holds more than tensors, raises many kinds
        raise UserError(
            f"{source}: not a plain state dict of tensors\n"
            "A pickled agent is refused: it could run any code. To convert it, see python -m drqv2.snapshot --help."
        ) from e
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in found.items() if isinstance(found, dict) else ():
        head, _, rest = str(name).partition(".")
        parts.setdefault(head, {}).update({rest: value} if rest else value if isinstance(value, dict) else {})
    networks = {name: parts[name] for name in _NETWORKS if name in parts}
    networks.setdefault("critic_target", parts.get("critic", {}))
    plain = all(isinstance(v, Tensor) for network in networks.values() for v in network.values())
    if not plain or {"encoder", "actor", "critic"} - networks.keys():
        raise UserError(f"{source}: must hold encoder, actor and critic, each a state dict; got {list(parts)[:6]}")
    agent = {f"{name}.{key}": tensor for name, network in networks.items() for key, tensor in network.items()}
    try:
        snapshot.save(target, {"frame": 0, "config": {}, "agent": agent})
    except OSError as e:
        raise UserError(f"{target}: cannot be written ({e.strerror})") from e
    print(f"{sum(map(len, networks.values()))} tensors: {target}; train with init_from={target}")
