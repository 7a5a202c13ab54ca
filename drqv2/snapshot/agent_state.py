"""What a snapshot keeps of an agent.

docs/porting.md ("What a snapshot keeps") is the contract: `state_dict` where an object has it, else its attributes, at
any depth.

A state is a tree of plain values and nodes {"kind": ..., "id": its number in a memo of what occurs twice, ...}.
"""

from __future__ import annotations

import copy
import functools
import inspect
import random
import re
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum
from pathlib import PurePath
from types import ModuleType
from typing import Any

import numpy as np
import torch
from omegaconf import Container, OmegaConf
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

State = Any  # a plain value or a node

_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "set": set, "dict": dict}
_CONTAINER_TYPES = (*_CONTAINERS.values(), OrderedDict, defaultdict, Counter)  # and namedtuples
_GENERATORS: dict[type, tuple[Any, Any]] = {  # kind -> how to get and to set its state
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    np.random.Generator: (lambda g: g.bit_generator.state, lambda g, state: setattr(g.bit_generator, "state", state)),
    np.random.RandomState: (lambda g: g.get_state(legacy=False), np.random.RandomState.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
}
_IN_PLACE = {"module": "modules", "object": "__dict__", "stateful": "load_state_dict"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_CONSTANTS: tuple[Any, ...] = (
    *(type, ModuleType, Enum, re.Pattern, PurePath, slice, range, np.dtype, np.ufunc, functools.partial),
    *(type(functools.cache(len)), torch.jit.ScriptFunction, torch.cuda.CUDAGraph, RemovableHandle),
)
_CONSTANT = {"kind": "constant"}
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy"} - {"abc", "argparse", "types", "typing"}
_MODULE_INTERNALS = vars(nn.Module()).keys() - {"training"}
_ADVICE = "give the agent state_dict and load_state_dict"


def capture(agent: Any, warn: bool = False) -> State:
    """Return an agent's state for `torch.load(weights_only=True)`, tensors not copied; `warn` about what it omits."""
    walk = _Capture()
    state = walk.walk(agent, "agent")
    if warn and walk.unsaved:
        warnings.warn(f"snapshots leave out {', '.join(walk.unsaved)}; to save them, {_ADVICE}", stacklevel=2)
    return state


def restore(agent: Any, state: State, device: torch.device | str = "cpu") -> None:
    """Restore a captured state into an agent built like the captured one; warn of what it has no counterpart for.

    Tensors that it lacks, and that were not on the CPU, are made on `device`.

    Raises:
        RuntimeError: something does not fit, or is one object in the agent and two in the snapshot.
    """
    walk = _Restore(device)
    walk.restore(agent, state, "agent")
    warn_of_lost(walk.lost)


def warn_of_lost(names: list[str]) -> None:
    """Warn of what a snapshot has and the agent lacks."""
    if names:
        warnings.warn(f"not restored, because the new agent has no counterpart: {', '.join(names)}", stacklevel=3)


class _Capture:
    """A walk over an agent; or, with `own`, over what a `state_dict` returned, whose tensors may share memory."""

    def __init__(self, own: bool = False) -> None:
        self.unsaved: list[str] = []  # names of what is left out, each with the reason
        self._own = own
        self._memo: dict[int, tuple[Any, int]] = {}  # by id(): the object, kept alive for its id, and its number
        self._storages: dict[int, set[int]] = {}  # address -> id() of the tensors that were met there

    def walk(self, value: Any, name: str) -> State:
        """Return the state of `value`, which messages call `name`."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, _CONSTANTS) or inspect.isroutine(value):
            return _CONSTANT
        if id(value) in self._memo:
            return {"kind": "same", "id": self._memo[id(value)][1]}
        number = len(self._memo)
        self._memo[id(value)] = value, number
        node = self._node(value, name)
        return node if node is _CONSTANT else {**node, "id": number}

    def _leave_out(self, name: str, reason: str) -> State:
        self.unsaved.append(f"{name} ({reason})")
        return _CONSTANT

    def _node(self, value: Any, name: str) -> State:
        of = type(value).__name__
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if (type(value) is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in "biufc":
            array = np.array(value, value.dtype.newbyteorder("="), order="K")
            return {"kind": "array", "value": torch.from_numpy(array), "of": of}
        if isinstance(value, tuple(_GENERATORS)):
            get_state, _ = next(access for kind, access in _GENERATORS.items() if isinstance(value, kind))
            state = self._plain(get_state(value), name)
            return {"kind": "generator", "value": state, "of": str(getattr(value, "device", ""))}
        if isinstance(value, tuple) or type(value) in _CONTAINER_TYPES:
            return self._container(value, name)
        if isinstance(value, Container):
            return self._config(value, name)
        if isinstance(value, nn.Module) and any(map(is_lazy, value.parameters())):
            return self._leave_out(name, "not initialised yet")
        if isinstance(value, nn.Module) and all(isinstance(x, Tensor) for x in value.state_dict().values()):
            return self._module(value, name)
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            return {"kind": "stateful", "value": self._plain(value.state_dict(), name), "of": of}
        if _is_plain_object(value):
            return {"kind": "object", "children": self._attributes(vars(value), name)}
        return self._leave_out(name, f"a {of}")

    def _plain(self, state: Any, name: str) -> State:
        walk = _Capture(own=True)
        node = walk.walk(state, f"{name}.state_dict()")
        self.unsaved += walk.unsaved
        return node

    def _tensor(self, value: Tensor, name: str) -> State:
        if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_meta:
            return self._leave_out(name, f"a {type(value).__name__} of layout {value.layout} on {value.device}")
        here = self._storages.setdefault(value.untyped_storage().data_ptr(), set())
        if here and id(value) not in here and value.numel() and not self._own:
            return self._leave_out(name, "shares memory with another tensor")
        here.add(id(value))
        learns = value.requires_grad and value.is_leaf
        return {"kind": "tensor", "value": value.detach(), "device": value.device.type, "requires_grad": learns}

    def _container(self, value: Any, name: str) -> State:
        kind = next(kind for kind, known in _CONTAINERS.items() if isinstance(value, known))
        items = value if kind == "dict" else dict(enumerate(sorted(value, key=repr) if kind == "set" else value))
        if any(isinstance(item, torch.cuda.CUDAGraph) for item in items.values()):
            return _CONSTANT  # a graph with its tensors, which are its own
        children = {key: self.walk(item, f"{name}.{key}") for key, item in items.items()}
        if children and all(node is _CONSTANT for node in children.values()):
            return _CONSTANT
        if not all(map(_is_plain, items.values() if kind == "set" else items)):
            return self._leave_out(name, f"a {kind} whose keys are not plain values")
        return {"kind": kind, "children": children, "maxlen": getattr(value, "maxlen", None)}

    def _config(self, value: Any, name: str) -> State:
        content = OmegaConf.to_container(value)
        node = self._container(content, name) if isinstance(content, dict | list) else _CONSTANT
        return node if node is _CONSTANT else {**node, "kind": "config", "of": node["kind"]}

    def _module(self, module: nn.Module, name: str) -> State:
        tensors = module.state_dict(keep_vars=True)
        for tensor in tensors.values():
            self._storages.setdefault(tensor.untyped_storage().data_ptr(), set()).add(id(tensor))
        numbers = {path: self._memo.setdefault(id(x), (x, len(self._memo)))[1] for path, x in tensors.items()}
        modules = module.named_modules()
        beside = {f"{path}.{key}".lstrip("."): x for path, sub in modules for key, x in _beside(sub).items()}
        return {
            "kind": "module",
            "numbers": numbers,
            "value": {path: x.detach().as_subclass(Tensor) for path, x in tensors.items()},
            "learnt": [path for path, x in tensors.items() if x.requires_grad],
            "children": self._attributes(beside, name),
        }

    def _attributes(self, attributes: dict[str, Any], name: str) -> dict[str, State]:
        # Modules and tensors first: other attributes may hold the same tensors.
        keys = sorted(attributes, key=lambda key: not isinstance(attributes[key], nn.Module | Tensor))
        nodes = {key: self.walk(attributes[key], f"{name}.{key}") for key in keys}
        return {key: node for key, node in nodes.items() if node is not _CONSTANT}


def _is_plain(key: Any) -> bool:
    return type(key) in _PLAIN or (type(key) is tuple and all(map(_is_plain, key)))


def _is_plain_object(value: Any) -> bool:
    """Return whether an object consists of its attributes alone, and its class is not from a library."""
    kinds = type(value).__mro__[:-1]
    by_slots = not hasattr(value, "__dict__") or any(vars(kind).get("__slots__") for kind in kinds)
    return not by_slots and not {kind.__module__.partition(".")[0] for kind in kinds} & _LIBRARIES


def _beside(module: nn.Module) -> dict[str, Any]:
    """Return what a module holds besides its state_dict; of torch's own modules, public data and helpers only."""
    own = {key: x for key, x in module._buffers.items() if key in module._non_persistent_buffers_set}
    own |= {key: x for key, x in vars(module).items() if key not in _MODULE_INTERNALS}
    data = (*_PLAIN, Tensor, np.ndarray, *_CONTAINER_TYPES)
    own_class = not type(module).__module__.startswith("torch.")
    return {k: x for k, x in own.items() if own_class or (k[0] != "_" and (isinstance(x, data) or _is_plain_object(x)))}


class _Restore:
    """One restoration. New tensors that were not on the CPU are made on `device`."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.lost: list[str] = []  # names of what has no counterpart in the agent
        self._device = device
        self._made: dict[int, Any] = {}  # by number
        self._owners: dict[int, tuple[Any, int]] = {}  # by id(): what was restored in place, and its number

    def restore(self, current: Any, node: State, name: str) -> Any:
        """Restore a node, into `current` where it fits; return what takes its place."""
        if not isinstance(node, dict):  # a device follows the machine
            return current if isinstance(node, torch.device) and isinstance(current, torch.device) else node
        kind = node["kind"]
        if kind in ("same", "constant"):
            self.lost += [name] if kind == "constant" and current is None else []
            return self._made.get(node.get("id", -1), current)
        if kind not in _IN_PLACE:
            restore = self._container if kind in _CONTAINERS else getattr(self, f"_{kind}")
            self._made[node["id"]] = restore(current, node, name)
        elif hasattr(current, _IN_PLACE[kind]):
            self._made[node["id"]] = current
            if not self._is_free(current, node):
                raise RuntimeError(f"{name} and another attribute are one object now, two in the snapshot; {_ADVICE}")
            getattr(self, f"_{kind}")(current, node, name)
        else:
            self.lost.append(name)
        return self._made.get(node["id"], current)

    def _is_free(self, current: Any, node: State) -> bool:
        return self._owners.setdefault(id(current), (current, node["id"]))[1] == node["id"]

    def _object(self, current: Any, node: State, name: str) -> None:
        for key, child in node["children"].items():
            vars(current)[key] = self.restore(vars(current).get(key), child, f"{name}.{key}")

    def _generator(self, current: Any, node: State, name: str) -> Any:
        setters = [set_state for kind, (_, set_state) in _GENERATORS.items() if isinstance(current, kind)]
        kinds = [device.partition(":")[0] for device in (str(getattr(current, "device", "")), node["of"])]
        if setters and kinds[0] == kinds[1]:  # the number of the GPU makes no difference
            setters[0](current, _Restore().restore(None, node["value"], name))
        else:
            self.lost.append(f"{name} (a generator of {node['of'] or 'another kind'})")
        return current

    def _stateful(self, current: Any, node: State, name: str) -> None:
        if type(current).__name__ != node["of"]:
            raise RuntimeError(f"{name} is {type(current).__name__}, in the snapshot {node['of']}")
        state = _Restore().restore(None, node["value"], name)
        if isinstance(current, torch.optim.Optimizer):
            for group, saved in zip(current.param_groups, state["param_groups"], strict=False):
                # These follow the machine, not the snapshot.
                saved.update({key: group[key] for key in ("foreach", "fused", "capturable") if key in group})
        current.load_state_dict(state)

    def _module(self, module: nn.Module, node: State, name: str) -> None:
        module.load_state_dict(node["value"])
        tensors = module.state_dict(keep_vars=True)
        if len({*map(id, tensors.values())}) != len({*node["numbers"].values()}):
            raise RuntimeError(f"{name} ties its weights in only one of snapshot and agent; {_ADVICE}")
        self._made |= {node["numbers"][path]: x for path, x in tensors.items()}
        for path, parameter in module.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(path in node["learnt"])
        modules = dict(module.named_modules())
        for path, child in node["children"].items():
            owner, _, key = path.rpartition(".")
            if owner in modules:
                old = getattr(modules[owner], key, None)
                new = self.restore(old, child, f"{name}.{path}")
                if new is not old:
                    setattr(modules[owner], key, new)  # not by vars(): it may be a buffer

    def _container(self, current: Any, node: State, name: str) -> Any:
        kind = node["kind"]
        ordered = isinstance(current, list | tuple | deque)
        known = current if isinstance(current, dict) else dict(enumerate(current)) if ordered else {}
        new = getattr(current, "default_factory", None) or (lambda: None)
        items = {
            key: self.restore(known[key] if key in known else new(), child, f"{name}.{key}")
            for key, child in node["children"].items()
        }
        if kind == "dict":
            same_kind = copy.copy(known)  # an OrderedDict or a defaultdict stays one
            same_kind.clear()
            for key, item in items.items():  # Counter.update would add
                same_kind[key] = item
            return same_kind
        if kind == "deque":
            return deque(items.values(), node["maxlen"])
        return getattr(current, "_make", _CONTAINERS[kind])(items.values())  # a namedtuple stays one

    def _config(self, current: Any, node: State, name: str) -> Any:
        content: Any = OmegaConf.to_container(current) if isinstance(current, Container) else None
        content = self._container(content, node | {"kind": node["of"]}, name)
        return OmegaConf.create(content, flags={"allow_objects": True})

    def _array(self, current: Any, node: State, name: str) -> Any:
        array = node["value"].numpy()
        return array.copy(order="K") if node["of"] == "ndarray" else array[()]

    def _tensor(self, current: Any, node: State, name: str) -> Tensor:
        value = node["value"]
        fits = isinstance(current, Tensor) and (current.shape, current.dtype) == (value.shape, value.dtype)
        if not fits and isinstance(current, Tensor) and current.requires_grad and current.is_leaf:
            raise RuntimeError(f"{name} has shape {list(current.shape)}, in the snapshot {list(value.shape)}")
        if not fits or not current.is_leaf or 0 in current.stride() or not self._is_free(current, node):
            current = torch.empty_like(value, device="cpu" if node["device"] == "cpu" else self._device)
        with torch.no_grad():
            current.copy_(value)
        return current.requires_grad_(node["requires_grad"])
