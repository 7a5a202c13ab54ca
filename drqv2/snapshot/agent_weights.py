"""An agent restored from a snapshot, as a whole or its weights alone."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drqv2.errors import UserError
from drqv2.snapshot import agent_state
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_state import CONTAINERS, State

ADVICE = (
    "Give a run's snapshot.pt or weights_FRAME.pt; for the public DrQ-v2's weights see python -m drqv2.snapshot --help."
)
# An agent's attributes that follow the machine of each start, not the snapshot.
_OF_THIS_START = ("device", "precision", "compile")


def restore_agent(agent: Any, saved: Any, changed: dict[str, Any], run_dir: Path) -> None:
    """Restore an agent from a snapshot, except for what this start has changed.

    Args:
        agent: a new one, of the configuration.
        saved: what the snapshot holds of it.
        changed: what `changed_keys` returned.
        run_dir: the run's directory.

    Raises:
        UserError: the snapshot does not fit the agent.
    """
    fresh = dict(getattr(agent, "__dict__", {}))
    try:
        agent_state.restore(agent, saved)
    except (RuntimeError, AttributeError, TypeError, ValueError, KeyError) as e:  # also what agents' own code raises
        raise UserError(f"the snapshot in {run_dir} does not fit the agent: {misfit(e)}") from e
    apply(agent, fresh, changed)


def apply(agent: Any, fresh: dict[str, Any], changed: dict[str, Any]) -> None:
    """Give a restored agent what does not come from its snapshot.

    Args:
        agent: restored.
        fresh: its attributes as they were before that.
        changed: what `changed_keys` returned.
    """
    names = {key.removeprefix("agent.") for key in changed if key.startswith("agent.")}
    for name in sorted(names.union(_OF_THIS_START)):
        if name in fresh and (name not in _OF_THIS_START or isinstance(fresh[name], str | bool | torch.device)):
            setattr(agent, name, fresh[name])
    if "agent.lr" in changed:
        for optimizer in _optimizers(vars(agent)):
            for group in optimizer.param_groups:
                group["lr"] = changed["agent.lr"]


def _optimizers(value: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers in nested containers."""
    if isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _optimizers(item)


def init_weights(agent: Any, path: Path) -> None:
    """Give a new agent the weights in a snapshot, and say so.

    Raises:
        UserError: the file is not a snapshot, or its weights do not fit.
    """
    try:
        saved = snapshot.load(path)
    except UserError as e:
        raise UserError(f"init_from={e}\n{ADVICE}") from e
    if "agent" not in saved:
        raise UserError(f"init_from={path}: contains no agent\n{ADVICE}")
    try:
        restore_weights(agent, saved["agent"])
    except RuntimeError as e:
        raise UserError(
            f"init_from={path}: its weights do not fit the agent: {misfit(e)}\n"
            "Use a task with the same action and observation shapes, and the preset and sizes used in training."
        ) from e
    print(f"loaded the agent's weights from {path}; counters and replay start from scratch")


def restore_weights(agent: Any, state: State) -> None:
    """Restore the parameters and buffers of an agent's modules alone.

    An agent with its own `state_dict`, in which they cannot be told from the rest, is restored as a whole.

    Args:
        agent: any agent.
        state: what `agent_state.capture` or `weights` returned.

    Raises:
        RuntimeError: they do not fit.
    """
    if state["kind"] == "stateful":
        return agent_state.restore(agent, state)
    walk, saved = agent_state.Capture(), dict(networks(state))
    walk.walk(agent, "agent")
    for name in [name for name in saved if name in walk.modules]:
        walk.modules[name].load_state_dict(saved[name]["value"])
    if not saved.keys() & walk.modules.keys():
        raise RuntimeError("no network of the snapshot is in the agent")
    if lost := saved.keys() - walk.modules.keys():
        warnings.warn(
            f"not restored, because the new agent has no counterpart: {', '.join(sorted(lost))}", stacklevel=2
        )
    return None


def weights(state: State) -> State:
    """Return of a captured state what `restore_weights` needs: the networks, without the rest."""
    if state["kind"] == "stateful":
        return state
    kept = {name: {"kind": "module", "value": node["value"]} for name, node in networks(state)}
    return {"kind": "object", "value": kept}


def parameters(state: State) -> dict[str, Tensor]:
    """Return the parameters and buffers of all networks in a captured state by dotted name, as `critics.0.weight`."""
    return {f"{name}.{key}".strip("."): value for name, node in networks(state) for key, value in node["value"].items()}


def networks(state: State, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dotted name and the node of each network in a captured state."""
    if isinstance(state, dict) and state["kind"] == "module":
        yield name, state
    for key, child in children(state):
        yield from networks(child, f"{name}.{key}".strip("."))


def children(state: State) -> Iterator[tuple[str, State]]:
    """Yield the names and the nodes of what an object, a module or a container in a captured state holds."""
    kind = state["kind"] if isinstance(state, dict) else None
    if kind == "object":
        yield from state["value"].items()
    elif kind == "module":
        for path, attributes in state.get("attributes", {}).items():
            yield from ((f"{path}.{key}".strip("."), child) for key, child in attributes.items())
    elif kind in CONTAINERS:
        yield from zip(map(str, state["keys"]), state["value"], strict=True)


def misfit(error: Exception) -> str:
    """Return in one line the error of torch, or of an agent's own code, about a state that does not fit."""
    size = r"size mismatch for (\S+): copying a param with shape torch.Size\((.*?)\) from checkpoint, "
    size += r"the shape in current model is torch.Size\((.*?)\)"
    said = " ".join(str(error).split())
    if found := re.search(size, said):
        return f"{found[1]} has shape {found[2]} in the file and {found[3]} in the agent"
    return said if len(said) <= 200 else said[:200].rpartition(" ")[0] + " ..."
