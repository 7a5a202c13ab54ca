"""Networks of a run as safetensors for other programs, and the public implementation's as weights to start from."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from drqv2.config.formatting import counted
from drqv2.errors import UserError
from drqv2.snapshot import agent_weights
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.checkpoints import newest_readable
from drqv2.system import files


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
        raise UserError(f"{path}: the agent has its own state_dict: which of its entries are networks is unknown")
    tensors = {name: value.contiguous() for name, value in weights.items()}
    config = state.get("config", {})
    metadata = {"frame": str(state["frame"]), "task": str(config.get("task_name")), "config": json.dumps(config)}
    try:
        files.write_atomically(target, to_safetensors(tensors, metadata))
    except OSError as e:
        raise UserError(f"{target}: cannot be written ({e.strerror})") from e
    print(f"{counted(len(tensors), 'tensor')} of frame {state['frame']}: {target}")


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
    print(f"{counted(len(agent), 'tensor')}: {target}; train with init_from={target}")
