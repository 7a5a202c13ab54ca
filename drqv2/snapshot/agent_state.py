"""What a snapshot keeps of an agent.

- An object with `state_dict` and `load_state_dict` is asked for its state; so is an agent, as a whole.
- Of any other agent the attributes are walked: modules (with their plain attributes, buffers, frozen parameters and
  training flags), optimizers, tensors, arrays, generators, numbers, strings, containers, and plain objects that hold
  such, at any depth. A memo marks what stands in several places.
- Modules, optimizers, plain objects and tensors of the same shape are restored in place; the rest is replaced.
- Functions, classes, enums and the like are constants of the code. `warn_of_unsaved` names everything else.
- An agent that rebuilds optimizers, parts tied weights or keeps views of one memory writes a `state_dict`.

A captured state is a tree of plain values and nodes: {"kind": ..., "value": ..., "name": ..., "id": number in the memo}.
"""

from __future__ import annotations

import argparse
import copy
import operator
import random
import re
import sys
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import PurePath
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from drqv2.snapshot.generators import RANDOM, random_state, set_random_state

State = Any  # a plain value, or a dict that says its "kind"

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "set": set, "dict": dict}
_DICTS: dict[str, Any] = {"Counter": Counter, "OrderedDict": OrderedDict}
_GRAPH = torch.cuda.CUDAGraph
_CONSTANTS = (type, ModuleType, Enum, re.Pattern, PurePath, slice, range, np.dtype, np.ufunc, random.SystemRandom, _GRAPH)
_CALLABLES = ("builtins", "functools", "operator", "torch.jit", "torch._ops")  # modules of functions and their wrappers
_CONSTANT = {"kind": "constant"}  # stands in a container for what is not saved
_IN_PLACE = {"module": "load_state_dict", "stateful": "load_state_dict", "optimizer": "param_groups", "object": "__dict__"}
_MODULE_INTERNALS = frozenset(vars(nn.Module()))
_DEVICE_SWITCHES = ("foreach", "fused", "capturable")  # of an optimizer; they follow the machine, not the snapshot
_ADVICE = "give the agent a state_dict and a load_state_dict"


def capture(agent: Any) -> State:
    """Return an agent's state in a form that `torch.load(weights_only=True)` reads; its tensors are not copied."""
    return _Capture().walk(agent, "agent", is_root=True)


def unsaved(agent: Any) -> list[str]:
    """Return what `capture` cannot save of an agent: names, each with the reason in brackets."""
    walk = _Capture()
    walk.walk(agent, "agent", is_root=True)
    return walk.unsaved


def warn_of_unsaved(agent: Any) -> None:
    """Warn, once and in one line, of all that `capture` cannot save of an agent."""
    if names := unsaved(agent):
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        warnings.warn(f"snapshots leave out {', '.join(names[:8])}{more}; to save them, {_ADVICE}", stacklevel=2)


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
        lost = _restore_weights(agent, state)
    else:
        restorer = _Restore(getattr(agent, "device", "cuda" if torch.cuda.is_available() else "cpu"))
        restorer.restore(agent, state)
        lost = restorer.lost
    if lost:
        warnings.warn(f"not restored, for the new agent has no place for it: {', '.join(lost)}", stacklevel=2)


def weights(state: State) -> State:
    """Return of a captured state what `restore(..., weights_only=True)` needs: the networks, without the rest."""
    if state["kind"] == "stateful":
        return state
    kept = {name: {"kind": "module", "name": name, "value": node["value"]} for name, node in networks(state)}
    return {"kind": "object", "value": kept}


def parameters(state: State) -> dict[str, Tensor]:
    """Return the parameters and buffers of all networks in a captured state by dotted name, `critics.0.weight`, say."""
    return {_join(name, key): value for name, node in networks(state) for key, value in node["value"].items()}


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
    return state["value"].values() if kind == "object" else state["value"] if kind in _CONTAINERS else ()


class _Capture:
    """A walk over an agent; or over what a `state_dict` returned (`own`), of which everything must be saved."""

    def __init__(self, unsaved: list[str] | None = None, own: bool = False) -> None:
        self.unsaved = [] if unsaved is None else unsaved
        self.modules: dict[str, nn.Module] = {}  # by name
        self._own = own
        self._memo: dict[int, tuple[Any, int]] = {}  # by id(); holds the object, so that no other gets its id()
        self._open: set[int] = set()  # containers that are being walked
        self._storages: set[int] = set()

    def walk(self, value: Any, name: str, is_root: bool = False) -> State:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, _CONSTANTS) or (callable(value) and type(value).__module__ in _CALLABLES):
            return self._leave_out(name, type(value).__name__) if self._own else _CONSTANT
        if id(value) in self._open:
            return self._leave_out(name, "a reference cycle")
        if id(value) in self._memo:
            return {"kind": "same", "id": self._number(value)}
        number = {} if isinstance(value, tuple | np.generic) else {"id": self._number(value)}
        node = self._node(value, name, is_root)
        return node if node is _CONSTANT else {**node, **number, "name": name.partition(".")[2]}

    def _number(self, value: Any) -> int:
        return self._memo.setdefault(id(value), (value, len(self._memo)))[1]

    def _leave_out(self, name: str, reason: str) -> State:
        self.unsaved.append(f"{name} ({reason})")
        return _CONSTANT

    def _own_state(self, state: Any, name: str) -> State:
        return _Capture(self.unsaved, own=True).walk(state, name)

    def _node(self, value: Any, name: str, is_root: bool) -> State:
        kind = type(value).__name__
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, name)
        if isinstance(value, torch.Generator):
            return {"kind": "generator", "value": value.get_state(), "device": value.device.type}
        if isinstance(value, RANDOM):
            return {"kind": "random", "value": self._own_state(random_state(value), name)}
        if isinstance(value, dict | tuple) or type(value) in _CONTAINERS.values():
            return self._container(value, name)
        if self._own:
            return self._leave_out(name, kind)
        if isinstance(value, torch.optim.Optimizer):
            held = [self.walk(group["params"], f"{name}.params") for group in value.param_groups]
            return {"kind": "optimizer", "of": kind, "params": held, "value": self._own_state(value.state_dict(), name)}
        if isinstance(value, nn.Module) and any(map(is_lazy, value.parameters())):
            return self._leave_out(name, f"a {kind} whose sizes are not known yet")
        if isinstance(value, nn.Module) and _is_plain_module(value):
            return self._module(value, name)
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return {"kind": "stateful", "value": self._own_state(value.state_dict(), name)}
        if not hasattr(value, "__dict__") or not (is_root or _is_plain_object(value)):
            return self._leave_out(name, kind)
        if not is_root and any(isinstance(item, _GRAPH) for item in vars(value).values()):
            return _CONSTANT  # a graph of computations replays what is captured elsewhere
        return {"kind": "object", "value": self._attributes(vars(value), name)}

    def _tensor(self, value: Tensor, name: str) -> State:
        if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_meta:
            return self._leave_out(name, f"a {type(value).__name__} of layout {value.layout} on {value.device}")
        learns = value.requires_grad and value.is_leaf
        node = {"kind": "tensor", "value": value.detach(), "device": value.device.type, "requires_grad": learns}
        return self._unless_shared(node, _storage(value), name)

    def _array(self, value: Any, name: str) -> State:
        owner = value
        while isinstance(getattr(owner, "base", None), np.ndarray):
            owner = owner.base
        try:
            data = torch.from_numpy(np.array(value, order="K"))
        except (TypeError, ValueError):  # a kind that torch does not know
            data = None
        if data is None or (isinstance(value, np.ndarray) and type(value) is not np.ndarray):
            return self._leave_out(name, f"a {type(value).__name__} of {value.dtype}")
        if isinstance(value, np.generic):
            return {"kind": "scalar", "value": data}
        return self._unless_shared({"kind": "array", "value": data}, owner.ctypes.data if value.size else 0, name)

    def _unless_shared(self, node: State, memory: int, name: str) -> State:
        if memory in self._storages and not self._own:
            return self._leave_out(name, "shares memory with another attribute")
        self._storages |= {memory} - {0}
        return node

    def _container(self, value: Any, name: str) -> State:
        kind = next(kind for kind, known in _CONTAINERS.items() if isinstance(value, known))
        self._open.add(id(value))
        hashed = list(value) if kind == "dict" else sorted(value, key=repr) if kind == "set" else []
        keys = [self.walk(key, f"{name} (a key)") for key in hashed]
        items = value.items() if kind == "dict" else enumerate(value) if kind != "set" else ()
        nodes = [self.walk(item, f"{name}.{key if type(key) in _PLAIN else type(key).__name__}") for key, item in items]
        self._open.remove(id(value))
        if _CONSTANT in keys:
            no_state = all(node is _CONSTANT for node in nodes or keys)
            return _CONSTANT if no_state else self._leave_out(name, "its keys are no plain values")
        of, maxlen = type(value).__name__, getattr(value, "maxlen", None)
        return {"kind": kind, "of": of, "keys": keys, "value": nodes, "maxlen": maxlen}

    def _module(self, module: nn.Module, name: str) -> State:
        self.modules[name.partition(".")[2]] = module
        listed = module.state_dict()
        members = {path: x for path, x in _members(module).items() if isinstance(x, nn.Module) or path in listed}
        numbers = {path: self._number(x) for path, x in members.items()}
        self._storages |= {_storage(x) for x in members.values() if isinstance(x, Tensor)} - {0}
        return {
            "kind": "module",
            "value": {path: x.detach().as_subclass(Tensor) for path, x in listed.items()},
            "buffers": [path for path, _ in module.named_buffers(remove_duplicate=False) if path in listed],
            "frozen": [path for path, x in members.items() if isinstance(x, nn.Parameter) and not x.requires_grad],
            "evaluating": [path for path, x in members.items() if isinstance(x, nn.Module) and not x.training],
            "attributes": {p: self._attributes(_settings(x), _join(name, p)) for p, x in module.named_modules()},
            "numbers": numbers,
        }

    def _attributes(self, attributes: dict[str, Any], name: str) -> dict[str, State]:
        def may_be_held(value: Any) -> bool:  # in place, so that lists and optimizers find it
            return isinstance(value, nn.Module) or (isinstance(value, Tensor) and value.requires_grad)

        keys = sorted(attributes, key=lambda key: not may_be_held(attributes[key]))
        nodes = {key: self.walk(attributes[key], f"{name}.{key}") for key in keys}
        return {key: node for key, node in nodes.items() if node is not _CONSTANT}


def _restore_weights(agent: Any, state: State) -> list[str]:
    walk = _Capture()
    walk.walk(agent, "agent", is_root=True)
    given = dict(networks(state))
    for name in given.keys() & walk.modules.keys():
        walk.modules[name].load_state_dict(given[name]["value"])
    if not given.keys() & walk.modules.keys():
        raise RuntimeError("no network of the snapshot is in the agent")
    return sorted(given.keys() - walk.modules.keys())


class _Restore:
    """Restores nodes; `lost` names those that have no place in the agent."""

    def __init__(self, device: Any = "cpu") -> None:
        self.lost: list[str] = []
        self._device = device  # of new tensors that were not on the CPU
        self._made: dict[int, Any] = {}  # by number
        self._owners: dict[int, tuple[Any, int | None]] = {}  # by id(): what is restored in place, and its number
        self._filled: set[int] = set()  # storages

    def restore(self, current: Any, node: State) -> Any:
        """Restore a node into `current` where that is possible, and return what is to stand in its place."""
        if not isinstance(node, dict):
            follows_the_machine = isinstance(node, torch.device) and isinstance(current, torch.device)
            return current if follows_the_machine else node
        kind, number = node["kind"], node.get("id")
        if number in self._made or kind in ("same", "constant"):
            return self._made.get(number, current)
        if kind in _IN_PLACE and not hasattr(current, _IN_PLACE[kind]):
            self.lost.append(node["name"])
        elif kind in _IN_PLACE:
            self._claim(number, current, node["name"])
            getattr(self, f"_restore_{kind}")(current, node)
        else:
            current = self._container(current, node) if "keys" in node else self._leaf(current, node)
            self._made |= {} if number is None else {number: current}
        return current

    def _claim(self, number: int, current: Any, name: str) -> None:
        owner = self._owners.setdefault(id(current), (current, number))[1]
        if owner != number or self._made.setdefault(number, current) is not current:
            raise RuntimeError(f"{name} is shared with another attribute in only one of snapshot and agent; {_ADVICE}")

    def _restore_object(self, current: Any, node: State) -> None:
        self._attributes(current, node["value"])

    def _restore_stateful(self, current: Any, node: State) -> None:
        current.load_state_dict(_Restore().restore(None, node["value"]))

    def _restore_module(self, module: nn.Module, node: State) -> None:
        module.load_state_dict(node["value"])
        members = _members(module)
        for path, number in node["numbers"].items():
            self._claim(number, members[path], _join(node["name"], path))
            if isinstance(members[path], nn.Module):
                members[path].training = path not in node["evaluating"]
            elif isinstance(members[path], nn.Parameter):
                members[path].requires_grad_(path not in node["frozen"])
        self._filled |= {_storage(members[path]) for path in node["value"]} - {0}
        for path, nodes in node["attributes"].items():
            self._attributes(members[path], nodes)

    def _restore_optimizer(self, optimizer: torch.optim.Optimizer, node: State) -> None:
        if type(optimizer).__name__ != node["of"]:
            raise RuntimeError(f"{node['name']} is {type(optimizer).__name__}, in the snapshot {node['of']}")
        state = _Restore().restore(None, node["value"])
        for group, saved, held in zip(optimizer.param_groups, state["param_groups"], node["params"], strict=False):
            known = self.restore(group["params"], held)
            if len(known) == len(group["params"]) and any(map(operator.is_not, known, group["params"])):
                raise RuntimeError(f"{node['name']} holds other tensors than in the snapshot; {_ADVICE}")
            saved.update({key: group[key] for key in _DEVICE_SWITCHES if key in group})
        try:
            optimizer.load_state_dict(state)
        except (KeyError, ValueError) as e:  # what torch's optimizers raise for other parameters
            raise RuntimeError(f"{node['name']}: {e}") from e

    def _attributes(self, current: Any, nodes: dict[str, State]) -> None:
        for key, node in nodes.items():
            old = getattr(current, key, None)
            new = self.restore(old, node)
            if new is not old or node is None:  # not setattr, but for buffers: a frozen dataclass refuses
                setattr(current, key, new) if isinstance(current, nn.Module) else vars(current).update({key: new})

    def _container(self, current: Any, node: State) -> Any:
        kind, saved = node["kind"], node["value"]
        keys = [self.restore(None, key) for key in node["keys"]]
        if kind == "set":
            return set(keys)
        if kind == "dict":
            known = current if type(current).__name__ == node["of"] else _DICTS.get(node["of"], dict)()
            make = getattr(known, "default_factory", None) or (lambda: None)
            olds = [known[key] if key in known else make() for key in keys]
        else:
            olds = list(current) if isinstance(current, list | tuple | deque) else []
            olds = (olds + [None] * len(saved))[: len(saved)]
        items = [self.restore(old, item) for old, item in zip(olds, saved, strict=True)]
        if any(old is None and item == _CONSTANT for old, item in zip(olds, saved, strict=True)):
            self.lost.append(f"constants in {node['name']}")
        if kind == "deque":
            return deque(items, node["maxlen"])
        if kind != "dict":
            return getattr(current, "_make", _CONTAINERS[kind])(items)
        same_kind = copy.copy(known)  # with the defaults of a defaultdict
        same_kind.clear()
        for key, item in zip(keys, items, strict=True):
            same_kind[key] = item
        return same_kind

    def _leaf(self, current: Any, node: State) -> Any:
        kind, value = node["kind"], node["value"]
        if kind == "scalar":
            return value.numpy()[()]
        if kind == "tensor":
            return self._tensor(current, node)
        free = id(current) not in self._owners  # or else it is one object that was two
        self._owners.setdefault(id(current), (current, node["id"]))
        if kind == "random":
            return set_random_state(current if free else None, _Restore().restore(None, value))
        if kind == "array":
            array = value.numpy()
            layout = (array.dtype, array.shape, array.strides)
            fits = type(current) is np.ndarray and (current.dtype, current.shape, current.strides) == layout
            if not (fits and free and current.flags.writeable):
                return array.copy(order="K")
            current[...] = array
            return current
        if not isinstance(current, torch.Generator) or not free:
            current = torch.Generator("cpu" if node["device"] == "cpu" else self._device)
        if current.device.type == node["device"]:
            current.set_state(value)
        else:
            self.lost.append(f"{node['name']} (a generator of {node['device']}: on {current.device} it starts anew)")
        return current

    def _tensor(self, current: Any, node: State) -> Tensor:
        value, there = node["value"], isinstance(current, Tensor)
        same_kind = there and (current.shape, current.dtype) == (value.shape, value.dtype)
        learns = there and current.is_leaf and current.requires_grad
        if learns and not same_kind:
            got = f"{list(value.shape)} of {value.dtype}"
            raise RuntimeError(f"{node['name']} is {list(current.shape)} of {current.dtype}, in the snapshot {got}")
        free = same_kind and id(current) not in self._owners and _storage(current) not in self._filled
        if not (free and (learns or (current.is_leaf and current.stride() == value.stride()))):
            current = torch.empty_like(value, device="cpu" if node["device"] == "cpu" else self._device)
        with torch.no_grad():
            current.copy_(value)
        self._owners[id(current)] = (current, node.get("id"))
        self._filled |= {_storage(current)} - {0}
        return current.requires_grad_(node["requires_grad"])


def _is_plain_module(module: nn.Module) -> bool:
    """Whether its state is tensors by their names; a scripted module does not show what is in it."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return not scripted and all(isinstance(value, Tensor) for value in module.state_dict().values())


def _is_plain_object(value: Any) -> bool:
    """Whether its attributes are all that it is: pickle would ask for nothing else."""
    if isinstance(value, SimpleNamespace | argparse.Namespace):
        return True
    if type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
        return False
    try:
        _, made_of, state, *items = object.__reduce_ex__(value, 2)
    except Exception:  # whatever a class raises to say that it cannot be pickled
        return False
    return made_of == (type(value),) and isinstance(state, dict | None) and items == [None, None]


def _members(module: nn.Module) -> dict[str, Any]:
    """Return submodules, parameters and buffers by dotted name, shared ones under each of their names."""
    named = (module.named_modules, module.named_parameters, module.named_buffers)
    return {path: x for each in named for path, x in each(remove_duplicate=False)}


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return what its state_dict leaves out: attributes and buffers; of torch's own modules, data that is public."""
    own = {key: x for key, x in module._buffers.items() if key in module._non_persistent_buffers_set}
    own |= {key: x for key, x in vars(module).items() if key not in _MODULE_INTERNALS}
    data = (*_PLAIN, Tensor, np.ndarray, *_CONTAINERS.values())
    foreign = type(module).__module__.startswith("torch.")
    return {key: x for key, x in own.items() if not foreign or (isinstance(x, data) and not key.startswith("_"))}


def _storage(tensor: Tensor) -> int:
    """Return where the tensor's memory begins, 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _join(name: str, path: str) -> str:
    return f"{name}.{path}" if name and path else name or path
