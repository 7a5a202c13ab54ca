"""An agent restored from a snapshot, as a whole or its weights alone; are they finite?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from drqv2.agents.protocol import Agent, attributes_of
from drqv2.config.formatting import did_you_mean
from drqv2.errors import UserError
from drqv2.snapshot import agent_state, shared_parts
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_state import State

ADVICE = (
    "Give a run's snapshot.pt or weights_FRAME.pt; for the public DrQ-v2's weights see python -m drqv2.snapshot --help."
)
# An agent's attributes that follow the machine of each start, not the snapshot.
_OF_THIS_START = ("device", "precision", "compile")


def restore_agent(agent: Agent, saved: Any, changed: dict[str, Any], run_dir: Path) -> None:
    """Restore an agent from a snapshot, except for what this start has changed.

    Args:
        agent: a new one, of the configuration.
        saved: what the snapshot holds of it.
        changed: what `changed_keys` returned.
        run_dir: the run's directory.

    Raises:
        UserError: the snapshot does not fit the agent.
    """
    fresh = attributes_of(agent)
    try:
        agent_state.restore(agent, saved, agent.device)
    except (RuntimeError, AttributeError, TypeError, ValueError, KeyError) as e:  # also what agents' own code raises
        raise UserError(f"the snapshot in {run_dir} does not fit the agent: {misfit(e)}") from e
    apply(agent, fresh, changed)


def apply(agent: Agent, fresh: dict[str, Any], changed: dict[str, Any]) -> None:
    """Give a restored agent what does not come from its snapshot.

    Args:
        agent: restored.
        fresh: its attributes as they were before that.
        changed: what `changed_keys` returned.
    """
    names = {key.split(".")[1] for key in changed if key.startswith("agent.")}
    for name in sorted(names.union(_OF_THIS_START)):
        if name in fresh and (name not in _OF_THIS_START or isinstance(fresh[name], str | bool | torch.device)):
            setattr(agent, name, fresh[name])
    own = attributes_of(agent)
    for key, opts in agent.learning_rates.items():
        if f"agent.{key}" in changed:
            for optimizer in _optimizers(own if opts is None else [own[name] for name in opts]):
                for group in optimizer.param_groups:
                    group["lr"] = changed[f"agent.{key}"]


def _optimizers(value: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers in nested containers."""
    if isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _optimizers(item)


def init_weights(agent: Agent, path: Path, parts: Sequence[str] | None = None) -> None:
    """Give a new agent the weights in a file, and print that.

    Args:
        agent: a new one.
        path: a snapshot, weights_FRAME.pt, best.pt, or what `python -m drqv2.snapshot export` writes.
        parts: dotted names of the only parts to take, such as `encoder` or `policy.encoder`; None for all.

    Raises:
        UserError: the file is none of these, its weights do not fit, or there is no such part.
    """
    try:
        saved = {"agent": read_export(path)[0]} if path.suffix == ".safetensors" else snapshot.load(path)
    except UserError as e:
        raise UserError(f"init_from={e}\n{ADVICE}") from e
    if "agent" not in saved:
        raise UserError(f"init_from={path}: contains no agent\n{ADVICE}")
    try:
        left = restore_weights(agent, weights(saved["agent"]), parts)
    except RuntimeError as e:
        raise UserError(
            f"init_from={path}: its weights do not fit the agent: {misfit(e)}\n"
            "Use a task with the same action and observation shapes, and the preset and sizes used in training; "
            "init_parts=[NAME] takes parts of the agent alone."
        ) from e
    what = "the agent's weights" if parts is None else f"the weights of {', '.join(parts)}"
    but = f", but not {', '.join(left)}" if left else ""
    print(f"loaded {what} from {path}{but}; everything else starts from scratch")


def read_export(path: Path) -> tuple[State, dict[str, str]]:
    """Return the weights in a safetensors file, as a captured state, and its metadata.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as f:
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)
            return {"kind": "module", "value": tensors}, f.metadata() or {}
    except (SafetensorError, OSError) as e:
        raise UserError(f"{path}: cannot be read as safetensors ({' '.join(str(e).split())[:100]})") from e


def weights(state: State) -> dict[str, Any]:
    """Return the tensors of all networks in a captured state by dotted name, such as `critics.0.weight`.

    For an agent with its own `state_dict`, in which networks cannot be identified, return the state.
    """
    if state.get("kind") in (None, "stateful"):  # None: of what this function returned
        return state
    tensors = dict(state["value"]) if state["kind"] == "module" else {}
    for name, child in state.get("children", {}).items():
        if isinstance(child, dict) and child["kind"] != "stateful":
            tensors |= {f"{name}.{key}": x for key, x in weights(child).items()}
    return tensors


def restore_weights(agent: Agent, saved: dict[str, Any], parts: Sequence[str] | None = None) -> list[str]:
    """Restore what `weights` returned, and nothing else; warn of what the agent has no counterpart for.

    Of encoders of dicts, the networks are taken that fit, see `drqv2.snapshot.shared_parts`.

    Args:
        agent: the agent.
        saved: what `weights` returned.
        parts: dotted names of the only parts to restore; None for all.

    Returns:
        what is left out of encoders of dicts, each with the reason.

    Raises:
        RuntimeError: it does not fit, or part of a network is missing.
        UserError: there is no such part, or the agent has no networks.
    """
    own = weights(agent_state.capture(agent))  # its tensors are the agent's
    if not own:
        raise UserError(
            f"{type(agent).__name__} has no networks to restore: it must keep what it learns in torch modules "
            "(nn.Module),\nor define state_dict and load_state_dict; see docs/porting.md#weights"
        )
    if parts is not None:
        if "stateful" in (saved.get("kind"), own.get("kind")):
            raise UserError(
                "init_parts: the agent has its own state_dict, whose parts are unknown; leave init_parts out"
            )
        own, saved = (_of_parts(own, parts, "the agent"), _of_parts(saved, parts, "the file"))
    if saved.get("kind") == "stateful":
        agent_state.restore(agent, saved, agent.device)
        return []
    left = [network for part in parts or () for network in shared_parts.take(part, own, saved)]
    if parts and not own:
        return left
    shared = sorted(own.keys() & saved.keys())
    if not shared:
        raise RuntimeError("no network of the snapshot is in the agent")
    given = {name.partition(".")[0] for name in saved}
    if missing := sorted(name for name in own.keys() - saved.keys() if name.partition(".")[0] in given):
        raise RuntimeError(f"{missing[0]} is not in the file")
    for name in shared:
        shapes = list(saved[name].shape), list(own[name].shape)
        if shapes[0] != shapes[1]:
            raise RuntimeError(f"{name} has shape {shapes[0]} in the file and {shapes[1]} in the agent")
        own[name].copy_(saved[name])
    agent_state.warn_of_lost(sorted(saved.keys() - own.keys()))
    return left


def _of_parts(tensors: dict[str, Any], parts: Sequence[str], where: str) -> dict[str, Any]:
    """Return the tensors of some parts; raise UserError if there is none of a part."""
    if not parts:
        raise UserError("init_parts=[]: names no part; leave it out to take all")
    chosen: dict[str, Any] = {}
    for part in parts:
        found = {name: tensor for name, tensor in tensors.items() if f"{name}.".startswith(f"{part}.")}
        if not found:
            names = dict.fromkeys(name[: dot.start()] for name in sorted(tensors) for dot in re.finditer(r"\.", name))
            top = [name for name in names if "." not in name]
            near = did_you_mean(part, [name for name in names if name not in top])
            raise UserError(f"init_parts: {where} has no {part}; its parts are {', '.join(top)}{near}")
        chosen |= found
    return chosen


def not_finite(state: State, name: str = "", own: bool = False) -> str | None:
    """Return the name of a parameter in a captured state that holds NaN or infinity, or None.

    Checked are parameters, tensors that require a gradient and, for NaN alone, buffers, frozen parameters and what a
    `state_dict` returned (`own`): other tensors may be infinite for good reasons, such as masks.
    """
    if not isinstance(state, dict):
        return None
    kind, value = state["kind"], state.get("value", {})
    if kind == "module":
        for key, tensor in value.items():
            if not _is_finite(tensor, infinite=key not in state["learnt"]):
                return f"{name}.{key}".strip(".")
    if kind == "tensor" and (own or state["requires_grad"]) and not _is_finite(value, infinite=own):
        return name
    within = [("", value)] if kind == "stateful" else state.get("children", {}).items()
    found = (not_finite(child, f"{name}.{key}".strip("."), own or kind == "stateful") for key, child in within)
    return next(filter(None, found), None)


def _is_finite(tensor: torch.Tensor, infinite: bool) -> bool:
    return not torch.isnan(tensor).any() if infinite else bool(torch.isfinite(tensor).all())


def misfit(error: Exception) -> str:
    """Return in one line the error of torch, or of an agent's own code, about a state that does not fit."""
    size = r"size mismatch for (\S+): copying a param with shape torch.Size\((.*?)\) from checkpoint, "
    size += r"the shape in current model is torch.Size\((.*?)\)"
    said = " ".join(str(error).split())
    if found := re.search(size, said):
        return f"{found[1]} has shape {found[2]} in the file and {found[3]} in the agent"
    return said if len(said) <= 200 else said[:200].rpartition(" ")[0] + " ..."
