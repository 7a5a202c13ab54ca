"""The walk over an agent that takes its state; see `drqv2.snapshot.agent_state`."""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import deque
from enum import Enum
from pathlib import PurePath
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from drqv2.snapshot.generators import RANDOM, random_state

State = Any  # a plain value, or a dict that says its "kind"

CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "set": set, "dict": dict}
ADVICE = "give the agent a state_dict and a load_state_dict"
CONSTANT = {"kind": "constant"}  # stands in a container for what is not saved
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_GRAPH = torch.cuda.CUDAGraph
_CONSTANTS = (
    type,
    ModuleType,
    Enum,
    re.Pattern,
    PurePath,
    slice,
    range,
    np.dtype,
    np.ufunc,
    _GRAPH,
    random.SystemRandom,
)
_CALLABLES = ("builtins", "functools", "operator", "torch.jit", "torch._ops")  # modules of functions and wrappers
_MODULE_INTERNALS = frozenset(vars(nn.Module()))


class Capture:
    """A walk over an agent, or over what a `state_dict` returned (`own`), which must be saved to the last item.

    Attributes:
        unsaved: names of what cannot be saved, each with the reason.
        modules: those that were met, by name.
    """

    def __init__(self, unsaved: list[str] | None = None, own: bool = False) -> None:
        self.unsaved = [] if unsaved is None else unsaved
        self.modules: dict[str, nn.Module] = {}
        self._own = own
        self._memo: dict[int, tuple[Any, int]] = {}  # by id(); holds the object, so that no other gets its id()
        self._open: set[int] = set()  # containers that are being walked
        self._storages: set[int] = set()

    def walk(self, value: Any, name: str, is_root: bool = False) -> State:
        """Return the state of `value`, which messages call `name`."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, _CONSTANTS) or (callable(value) and type(value).__module__ in _CALLABLES):
            return self._leave_out(name, type(value).__name__) if self._own else CONSTANT
        if id(value) in self._open:
            return self._leave_out(name, "a reference cycle")
        if id(value) in self._memo:
            return {"kind": "same", "id": self._number(value)}
        number = {} if isinstance(value, tuple | np.generic) else {"id": self._number(value)}
        node = self._node(value, name, is_root)
        return node if node is CONSTANT else {**node, **number, "name": name.partition(".")[2]}

    def _number(self, value: Any) -> int:
        return self._memo.setdefault(id(value), (value, len(self._memo)))[1]

    def _leave_out(self, name: str, reason: str) -> State:
        self.unsaved.append(f"{name} ({reason})")
        return CONSTANT

    def _own_state(self, state: Any, name: str) -> State:
        return Capture(self.unsaved, own=True).walk(state, name)

    def _node(self, value: Any, name: str, is_root: bool) -> State:
        kind = type(value).__name__
        if isinstance(value, Tensor | np.ndarray | np.generic):
            return self._tensor(value, name) if isinstance(value, Tensor) else self._array(value, name)
        if isinstance(value, torch.Generator):
            return {"kind": "generator", "value": value.get_state(), "device": value.device.type}
        if isinstance(value, RANDOM):
            return {"kind": "random", "value": self._own_state(random_state(value), name)}
        if isinstance(value, dict | tuple) or type(value) in CONTAINERS.values():
            return self._container(value, name)
        if self._own or (isinstance(value, nn.Module) and any(map(is_lazy, value.parameters()))):
            return self._leave_out(name, kind)
        if isinstance(value, torch.optim.Optimizer):
            held = [self.walk(group["params"], f"{name}.params") for group in value.param_groups]
            return {"kind": "optimizer", "of": kind, "params": held, "value": self._own_state(value.state_dict(), name)}
        if isinstance(value, nn.Module) and _is_tensors(value):
            return self._module(value, name)
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return {"kind": "stateful", "value": self._own_state(value.state_dict(), name)}
        if not hasattr(value, "__dict__") or not (is_root or _is_plain_object(value)):
            return self._leave_out(name, kind)
        if not is_root and any(isinstance(item, _GRAPH) for item in vars(value).values()):
            return CONSTANT  # a graph of computations replays what is captured elsewhere
        return {"kind": "object", "value": self._attributes(vars(value), name)}

    def _tensor(self, value: Tensor, name: str) -> State:
        if type(value) not in (Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_meta:
            return self._leave_out(name, f"a {type(value).__name__} of layout {value.layout} on {value.device}")
        learns = value.requires_grad and value.is_leaf
        node = {"kind": "tensor", "value": value.detach(), "device": value.device.type, "requires_grad": learns}
        return self._unless_shared(node, storage(value), name)

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
        node = {"kind": "array", "value": data, "device": "cpu", "requires_grad": False}
        return self._unless_shared(node, owner.ctypes.data if value.size else 0, name)

    def _unless_shared(self, node: State, memory: int, name: str) -> State:
        if memory in self._storages and not self._own:
            return self._leave_out(name, "shares memory with another attribute")
        self._storages |= {memory} - {0}
        return node

    def _container(self, value: Any, name: str) -> State:
        kind = next(kind for kind, known in CONTAINERS.items() if isinstance(value, known))
        self._open.add(id(value))
        hashed = list(value) if kind == "dict" else sorted(value, key=repr) if kind == "set" else []
        keys = [self.walk(key, f"{name} (a key)") for key in hashed]
        items = value.items() if kind == "dict" else enumerate(value) if kind != "set" else ()
        nodes = [self.walk(item, f"{name}.{key if type(key) in _PLAIN else type(key).__name__}") for key, item in items]
        self._open.remove(id(value))
        if CONSTANT in keys:
            no_state = all(node is CONSTANT for node in nodes or keys)
            return CONSTANT if no_state else self._leave_out(name, "its keys are no plain values")
        of, maxlen = type(value).__name__, getattr(value, "maxlen", None)
        return {"kind": kind, "of": of, "keys": keys, "value": nodes, "maxlen": maxlen}

    def _module(self, module: nn.Module, name: str) -> State:
        self.modules[name.partition(".")[2]] = module
        listed = module.state_dict()
        held = {path: x for path, x in members(module).items() if isinstance(x, nn.Module) or path in listed}
        numbers = {path: self._number(x) for path, x in held.items()}
        self._storages |= {storage(x) for x in held.values() if isinstance(x, Tensor)} - {0}
        return {
            "kind": "module",
            "value": {path: x.detach().as_subclass(Tensor) for path, x in listed.items()},
            "buffers": [path for path, _ in module.named_buffers(remove_duplicate=False) if path in listed],
            "frozen": [path for path, x in held.items() if isinstance(x, nn.Parameter) and not x.requires_grad],
            "evaluating": [path for path, x in held.items() if isinstance(x, nn.Module) and not x.training],
            "attributes": {path: self._attributes(_beside(x), join(name, path)) for path, x in module.named_modules()},
            "numbers": numbers,
        }

    def _attributes(self, attributes: dict[str, Any], name: str) -> dict[str, State]:
        def may_be_held(value: Any) -> bool:  # restored first and in place, so that lists and optimizers find it
            return isinstance(value, nn.Module) or (isinstance(value, Tensor) and value.requires_grad)

        keys = sorted(attributes, key=lambda key: not may_be_held(attributes[key]))
        nodes = {key: self.walk(attributes[key], f"{name}.{key}") for key in keys}
        return {key: node for key, node in nodes.items() if node is not CONSTANT}


def _is_tensors(module: nn.Module) -> bool:
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
        recipe: Any = (*object.__reduce_ex__(value, 2), None)  # a class may leave out all but the first two
    except Exception:  # whatever a class raises to say that it cannot be pickled
        return False
    made_of, state, *items = recipe[1:]
    return made_of == (type(value),) and isinstance(state, dict | None) and not any(items)


def _beside(module: nn.Module) -> dict[str, Any]:
    """Return what a module holds beside its state_dict: buffers and attributes; of torch's own, data that is public."""
    own = {key: x for key, x in module._buffers.items() if key in module._non_persistent_buffers_set}
    own |= {key: x for key, x in vars(module).items() if key not in _MODULE_INTERNALS}
    data = (*_PLAIN, Tensor, np.ndarray, *CONTAINERS.values())
    foreign = type(module).__module__.startswith("torch.")
    return {key: x for key, x in own.items() if not foreign or (isinstance(x, data) and not key.startswith("_"))}


def members(module: nn.Module) -> dict[str, Any]:
    """Return submodules, parameters and buffers by dotted name, shared ones under each of their names."""
    named = (module.named_modules, module.named_parameters, module.named_buffers)
    return {path: x for each in named for path, x in each(remove_duplicate=False)}


def storage(tensor: Tensor) -> int:
    """Return where the tensor's memory begins, 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def join(name: str, path: str) -> str:
    """Return a dotted name of two, each of which may be empty."""
    return f"{name}.{path}" if name and path else name or path
