"""Inspect the snapshots of a run; export and import weights.

python -m drqv2.snapshot RUN_DIR                          # contents and checksums; is each file intact?
python -m drqv2.snapshot export RUN_DIR out.safetensors   # the newest snapshot's networks (or those of a .pt file)
python -m drqv2.snapshot import weights.pt out.pt         # the public DrQ-v2's networks, for init_from=out.pt

`import` reads a plain state dict: {"encoder": {...}, "actor": {...}, "critic": {...}, "critic_target": {...}}, or flat
with dotted names. A pickled agent is refused: it could run any code. With the public code installed, convert it by
torch.save({name: getattr(agent, name).state_dict() for name in ("encoder", "actor", "critic", "critic_target")}, path).
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from drqv2.errors import UserError
from drqv2.launch.exits import clean_exit
from drqv2.replay.storage import episode_path
from drqv2.snapshot import agent_weights
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.checkpoints import newest_readable
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
                f"{progress['evaluations']} evaluations, best return {progress['best_return']:.1f}\n"
                f"  agent with optimizers and generators sha256 {fingerprint(state['agent'])}"
            )
            newest = newest or state
    if newest:
        _inspect_replay(run_dir / files.REPLAY, newest["replay_storage"])
        _inspect_logs(run_dir, newest["logger"])
    if aside := sorted(path.name for path in run_dir.glob("quarantine/*")):
        print(f"quarantine: {', '.join(aside)}")


def _inspect_replay(folder: Path, replay: dict[str, Any]) -> None:
    lengths, digests = replay["lengths"].tolist(), [bytes(digest) for digest in replay["digests"].tolist()]
    whole = hashlib.sha256(b"".join(digests)).hexdigest()
    print(f"replay: {sum(lengths)} transitions in {len(lengths)} episodes, sha256 {whole}")
    if lost := lengths.count(0):
        print(f"  {lost} of them damaged or lost, and not sampled")
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
        print(f"{path.name}: {logs['rows'][ty]} rows in the snapshot" + ("" if fits else "; the file is DAMAGED"))


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
    found = newest_readable(source) if source.is_dir() else (source, snapshot.load(source))
    if found is None:
        raise UserError(f"{source}: contains no snapshot; give the directory of a run, or a .pt file")
    path, state = found
    weights = agent_weights.weights(state["agent"])
    if weights.get("kind") == "stateful":
        raise UserError(f"{path}: the agent has its own state_dict: its networks cannot be told from the rest")
    tensors = {name: value.contiguous() for name, value in weights.items()}
    config = state.get("config", {})
    metadata = {"frame": str(state["frame"]), "task": str(config.get("task_name")), "config": json.dumps(config)}
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
        parts = {name: part if isinstance(part, dict) else {"": part} for name, part in found.items()}
    except Exception as e:  # a damaged file, or one that holds more than tensors, raises many kinds
        raise UserError(
            f"{source}: cannot be read as a plain state dict of tensors ({type(e).__name__})\n"
            "A pickled agent is refused: it could run any code. To convert it, see python -m drqv2.snapshot --help."
        ) from e
    tensors = {f"{name}.{key}".strip("."): value for name, part in parts.items() for key, value in part.items()}
    networks: dict[str, dict[str, Tensor]] = {"encoder": {}, "actor": {}, "critic": {}, "critic_target": {}}
    for name, value in tensors.items():
        network, _, key = name.partition(".")
        if network in networks and isinstance(value, Tensor):
            networks[network][key] = value
    networks["critic_target"] = networks["critic_target"] or networks["critic"]
    if not all(networks.values()):
        raise UserError(f"{source}: must hold encoder, actor and critic, each a state dict; got {list(parts)[:6]}")
    agent = {f"{name}.{key}": value for name, network in networks.items() for key, value in network.items()}
    try:
        snapshot.save(target, {"frame": 0, "config": {}, "agent": agent})
    except OSError as e:
        raise UserError(f"{target}: cannot be written ({e.strerror})") from e
    print(f"{len(agent)} tensors: {target}; train with init_from={target}")


def main(argv: list[str] | None = None) -> None:
    """Run the command line that is described at the head of this module."""
    parser = argparse.ArgumentParser("python -m drqv2.snapshot", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, function, arguments, about in (
        ("inspect", inspect, ("run_dir",), "print contents and checksums; the default, if you give a directory alone"),
        ("export", export, ("source", "target"), "write the networks of a run or .pt file as safetensors"),
        ("import", import_weights, ("source", "target"), "convert the public DrQ-v2's networks for init_from"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(function=function)
        for argument in arguments:
            command.add_argument(argument, type=Path, nargs="?" if argument == "target" else None)
        if "target" in arguments:
            command.add_argument("--out", type=Path, help="the same as target")
    argv = [f"--{word}" if word.startswith("out=") else word for word in (sys.argv[1:] if argv is None else argv)]
    if argv[:1] not in ([name] for name in (*commands.choices, "-h", "--help")):
        argv = ["inspect", *argv]
    args = vars(parser.parse_args(argv))
    with clean_exit():
        if "target" in args:
            given = [path for path in (args["target"], args.pop("out")) if path]
            if len(given) != 1:
                raise UserError(f"{len(given)} files to write to: give one, as the second argument or as out=FILE")
            args["target"] = given[0]
        args.pop("function")(**args)


if __name__ == "__main__":
    main()
