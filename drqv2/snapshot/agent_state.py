"""What a snapshot keeps of an agent.

- An object with `state_dict` and `load_state_dict` is asked for its state; so is an agent, as a whole.
- Of any other agent the attributes are walked: modules (with their plain attributes, buffers, frozen parameters and
  training flags), optimizers, tensors, arrays, generators, numbers, strings, containers, and plain objects that hold
  such, at any depth. A memo marks what stands in several places.
- Modules, optimizers, plain objects and tensors of the same shape are restored in place; the rest is replaced.
- Functions, classes, enums and the like are constants of the code. `warn_of_unsaved` names everything else.
- An agent that rebuilds optimizers, parts tied weights or keeps views of one memory writes a `state_dict`.

A captured state is a tree of plain values and nodes: {"kind": ..., "value": ..., "name": ..., "id": in the memo}.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from drqv2.snapshot.capturing import ADVICE, CONTAINERS, Capture, State, join
from drqv2.snapshot.restoring import Restore


def capture(agent: Any) -> State:
    """Return an agent's state in a form that `torch.load(weights_only=True)` reads; its tensors are not copied."""
    return Capture().walk(agent, "agent", is_root=True)


def unsaved(agent: Any) -> list[str]:
    """Return what `capture` cannot save of an agent: names, each with the reason in brackets."""
    walk = Capture()
    walk.walk(agent, "agent", is_root=True)
    return walk.unsaved


def warn_of_unsaved(agent: Any) -> None:
    """Warn, once and in one line, of all that `capture` cannot save of an agent."""
    if names := unsaved(agent):
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        warnings.warn(f"snapshots leave out {', '.join(names[:8])}{more}; to save them, {ADVICE}", stacklevel=2)


def restore(agent: Any, state: State, weights_only: bool = False) -> None:
    """Restore a captured state.

    Args:
        agent: made as the captured one was.
        state: what `capture` returned, or `weights`.
        weights_only: restore the parameters and buffers of modules alone. An agent with a `state_dict` of its own, in
            which they cannot be told from the rest, is restored whole.

    Raises:
        RuntimeError: something does not fit, or is one object in the snapshot and two in the agent.

    Warns:
        UserWarning: once, naming what has no place in the agent.
    """
    if weights_only and state["kind"] != "stateful":
        lost = _restore_weights(agent, dict(networks(state)))
    else:
        restoring = Restore(getattr(agent, "device", "cuda" if torch.cuda.is_available() else "cpu"))
        restoring.restore(agent, state)
        lost = restoring.lost
    if lost:
        warnings.warn(f"not restored, for the new agent has no place for it: {', '.join(lost)}", stacklevel=2)


def _restore_weights(agent: Any, saved: dict[str, dict[str, Any]]) -> list[str]:
    walk = Capture()
    walk.walk(agent, "agent", is_root=True)
    for name in saved.keys() & walk.modules.keys():
        walk.modules[name].load_state_dict(saved[name]["value"])
    if not saved.keys() & walk.modules.keys():
        raise RuntimeError("no network of the snapshot is in the agent")
    return sorted(saved.keys() - walk.modules.keys())


def weights(state: State) -> State:
    """Return of a captured state what `restore(..., weights_only=True)` needs: the networks, without the rest."""
    if state["kind"] == "stateful":
        return state
    kept = {name: {"kind": "module", "name": name, "value": node["value"]} for name, node in networks(state)}
    return {"kind": "object", "value": kept}


def parameters(state: State) -> dict[str, Tensor]:
    """Return the parameters and buffers of all networks in a captured state by dotted name, `critics.0.weight`, say."""
    return {join(name, key): value for name, node in networks(state) for key, value in node["value"].items()}


def networks(state: State) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the captured networks with their names in the agent, `critics.0`, say."""
    if isinstance(state, dict) and state["kind"] == "module":
        yield state["name"], state
    for child in children(state):
        yield from networks(child)


def children(state: State) -> Iterable[State]:
    """Return the nodes in a node that is a module, a plain object or a container; without the keys of a dict."""
    kind = state["kind"] if isinstance(state, dict) else None
    if kind == "module":
        return [child for attributes in state.get("attributes", {}).values() for child in attributes.values()]
    return state["value"].values() if kind == "object" else state["value"] if kind in CONTAINERS else ()
