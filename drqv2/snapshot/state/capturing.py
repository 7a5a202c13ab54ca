"""An agent's state, taken.

What stands in several places is saved in the first and is "same" in the others; each of them, networks' and
optimizers' tensors too, bears its `id`. Tensors and arrays whose memory overlaps say how they lie in it: `memory`,
[which, offset, strides].
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from drqv2.snapshot.state.generators import Generator, random_state

_PLAIN = (bool, int, float, str, type(None))
_BITS = 2000  # of the largest integer that torch's restricted unpickler reads back
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "set": set}
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_MODULE_INTERNALS = frozenset(vars(nn.Module()))
_LEFT_OUT = {"kind": "left_out"}  # stands in a container for an item that is not saved


def capture(value: Any, name: str = "agent") -> Any:
    """Return the state of `value` in a form that `torch.load(weights_only=True)` reads back.

    Args:
        value: an agent, or any attribute of one.
        name: how warnings name it.

    Warns:
        UserWarning: an attribute is of a kind that cannot be saved; it is named and left out.
    """
    return _Capture(value).run(value, name, ())


class _Capture:
    """One capture of a root's state, or a part of it; remembers what it has met and all the places where it has."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._met: dict[int, tuple[Any, list[dict[str, Any]]]] = {}  # by id(), which is an object's while it lives
        self._saved: set[int] = set()  # those whose state is in one of the places

    def run(self, value: Any, name: str, above: tuple[int, ...]) -> Any:
        state = self._capture(value, name, above)
        laid, overlapping, end = [], list[list[Any]](), 0
        for i, (met, places) in enumerate(self._met.values()):
            laid.append((*extent(met), i, places))
            for place in places if len(places) > 1 else ():
                place["id"] = i
        for begin, stop, strides, i, places in sorted(laid):
            overlapping += [[]] if begin >= end else []
            overlapping[-1].append((begin, strides, i, places))
            end = max(end, stop)
        for group in overlapping:
            which = min(i for _, _, i, _ in group)  # not by its address, which is another in each process
            for begin, strides, _, places in group if len(group) > 1 else ():
                for place in places:
                    place["memory"] = [which, begin - group[0][0], strides]
        return state

    def _capture(self, value: Any, name: str, above: tuple[int, ...]) -> Any:
        if type(value) in _PLAIN:  # not a subclass: np.float64 is a float, and would not load
            return _left_out(name, "a huge int") if type(value) is int and value.bit_length() > _BITS else value
        if isinstance(value, torch.Size | torch.dtype | torch.device):
            return {"kind": type(value).__name__, "value": list(value) if isinstance(value, tuple) else str(value)}
        if isinstance(value, _CODE):
            method = {"method": value.__name__} if getattr(value, "__self__", None) is self._root else {}
            return {"kind": "code", "value": code_name(value), **method}
        if id(value) in above:
            return _left_out(name, "it refers back to what holds it")
        inside = (*above, id(value))
        if isinstance(value, nn.Module) and not _has_own_state(value):
            state = self._module(value, name, inside)  # whole in each of its places, for those who look for networks
        else:
            state = {"kind": "same"} if id(value) in self._saved else self._state(value, name, inside, bool(above))
        if state is not _LEFT_OUT and not isinstance(value, tuple | np.generic):
            self._saved.add(id(value))
            self._places(value).append(state)
        return state

    def _places(self, value: Any) -> list[dict[str, Any]]:
        return self._met.setdefault(id(value), (value, []))[1]

    def _place(self, tensor: Tensor) -> dict[str, Any]:
        """Return a place for `id` and `memory` of a tensor whose value is elsewhere."""
        place: dict[str, Any] = {}
        self._places(tensor).append(place)
        return place

    def _state(self, value: Any, name: str, inside: tuple[int, ...], within: bool) -> Any:
        kind = type(value).__name__
        if isinstance(value, Tensor | np.ndarray | np.generic | torch.Generator | Generator):
            try:
                return self._leaf(value, name, inside)
            except (TypeError, ValueError, RuntimeError) as e:  # kinds of which there are ever more
                what = f"numpy's {value.dtype}" if isinstance(value, np.ndarray | np.generic) else f"a {kind} ({e})"
                return _left_out(name, what)
        if type(value) is SEQUENCES.get(kind):
            if kind == "set" and not all(self._can_be_saved(item, name, inside) for item in value):
                return _left_out(name, "a set of what cannot be saved")
            items: list[Any] = sorted(value, key=repr) if kind == "set" else list(value)
            states = [self._capture(item, f"{name}[{i}]", inside) for i, item in enumerate(items)]
            return {"kind": kind, "value": states, "maxlen": getattr(value, "maxlen", None)}
        if isinstance(value, dict):
            if not all(self._can_be_saved(key, f"a key of {name}", inside) for key in value):
                return _left_out(name, "its keys cannot be saved")
            keys = [self._capture(key, f"a key of {name}", inside) for key in value]
            values = [self._capture(item, f"{name}[{in_short(key)}]", inside) for key, item in value.items()]
            return {"kind": "dict", "of": kind, "value": [list(pair) for pair in zip(keys, values, strict=True)]}
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            own = _Capture(self._root).run(value.state_dict(), f"{name}.state_dict()", inside)
            if not isinstance(value, torch.optim.Optimizer):
                return {"kind": "stateful", "value": own}
            holds = [[self._place(tensor) for tensor in group["params"]] for group in value.param_groups]
            return {"kind": "stateful", "value": own, "of": kind, "holds": holds}
        if not within and hasattr(value, "__dict__"):
            return {"kind": "object", "value": self._attributes(vars(value), name, inside)}
        return _left_out(name, f"a {kind}")

    def _leaf(self, value: Any, name: str, inside: tuple[int, ...]) -> Any:
        if isinstance(value, Tensor):
            if value.is_meta or is_lazy(value) or (value.is_nested and value.layout is torch.strided):
                return _left_out(name, "a tensor without values" if not value.is_nested else "a nested tensor")
            of = {"device": value.device.type, "requires_grad": value.requires_grad, "leaf": value.is_leaf}
            return {"kind": "tensor", "value": _bare(value), **of}
        if isinstance(value, np.ndarray | np.generic):
            if isinstance(value, np.ma.MaskedArray | np.matrix):
                return _left_out(name, f"a {type(value).__name__}")
            order = np.argsort([-abs(step) for step in value.strides], kind="stable").tolist()  # as in memory
            in_order = np.require(value.transpose(order), requirements=["C", "W"])
            data = torch.from_numpy(in_order).permute(np.argsort(order).tolist())
            return {"kind": "array" if isinstance(value, np.ndarray) else "scalar", "value": data}
        if isinstance(value, torch.Generator):
            return {"kind": "generator", "value": value.get_state(), "device": value.device.type}
        return {"kind": "random", "value": _Capture(self._root).run(random_state(value), name, inside)}

    def _can_be_saved(self, value: Any, name: str, inside: tuple[int, ...]) -> bool:
        state = _Capture(self._root).run(value, name, inside)
        return not (isinstance(state, dict) and state["kind"] in ("left_out", "code"))

    def _module(self, module: nn.Module, name: str, inside: tuple[int, ...]) -> dict[str, Any]:
        shared = {path: self._place(tensor) for path, tensor in tensors(module)}
        self._saved.update(id(tensor) for _, tensor in tensors(module))
        listed = module.state_dict()
        extra = {path: value for path, value in listed.items() if not isinstance(value, Tensor)}
        return {
            "kind": "module",
            "value": {path: _bare(value) for path, value in listed.items() if path not in extra and not is_lazy(value)},
            "extra": {path: self._capture(value, join(name, path), inside) for path, value in extra.items()},
            "buffers": {
                path: None if (buffer := sub._buffers[key]) is None else (path in listed) or _bare(buffer)
                for path, sub, key in buffers(module)
            },
            "attributes": {path: self._attributes(own, join(name, path), inside) for path, own in _settings(module)},
            "shared": shared,
            "frozen": [path for path, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad],
            "evaluating": [path for path, sub in module.named_modules() if not sub.training],
            "classes": {path: type(sub).__qualname__ for path, sub in module.named_modules()},
        }

    def _attributes(self, attributes: dict[str, Any], name: str, above: tuple[int, ...]) -> dict[str, Any]:
        # What optimizers hold first: it has to stay in place, and what else refers to it, a list or a view, follows.
        networks = [key for key, value in attributes.items() if isinstance(value, nn.Module)]
        learnable = [key for key, value in attributes.items() if isinstance(value, Tensor) and value.requires_grad]
        keys = dict.fromkeys([*networks, *learnable, *attributes])
        states = {key: self._capture(attributes[key], f"{name}.{key}", above) for key in keys}
        return {key: state for key, state in states.items() if state is not _LEFT_OUT}


def _has_own_state(module: nn.Module) -> bool:
    """Whether it is to be asked for its `state_dict` as a whole, which may hold more than tensors by their names."""
    if isinstance(module, torch.jit.ScriptModule):  # its parts cannot be looked into
        return True
    if type(module).state_dict is nn.Module.state_dict:
        return False
    return not all(isinstance(value, Tensor) for value in module.state_dict().values())


def _bare(tensor: Tensor) -> Tensor:
    """Return its values without a gradient or somebody's subclass, which the restricted unpickler refuses."""
    bare = tensor.detach()
    return bare if type(bare).__module__.startswith("torch") else bare.as_subclass(Tensor)


def code_name(value: Any) -> str:
    """Return what a function, method, class or module is called, wherever it is imported from."""
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__name__))


def in_short(key: Any) -> str:
    """Return a dictionary's key for a message."""
    return repr(key) if type(key) in _PLAIN else f"a {type(key).__name__}"


def extent(value: Any) -> tuple[int, int, list[int]]:
    """Return where a tensor or an array begins and ends in memory, and its strides in bytes, 0 where they are moot."""
    if isinstance(value, np.ndarray) and value.size:
        (begin, end), steps = np.lib.array_utils.byte_bounds(value), value.strides
    elif isinstance(value, Tensor) and _is_laid_out(value) and value.numel():
        begin, steps = value.data_ptr(), tuple(step * value.element_size() for step in value.stride())
        end = begin + sum((n - 1) * step for n, step in zip(value.shape, steps, strict=True)) + value.element_size()
    else:
        return 0, 0, []
    return begin, end, [step if n > 1 else 0 for n, step in zip(value.shape, steps, strict=True)]


def _is_laid_out(tensor: Tensor) -> bool:
    return not is_lazy(tensor) and tensor.layout is torch.strided and not tensor.is_nested


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by dotted name, those in several places under each of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def buffers(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield each buffer's dotted name, the submodule that it is in and its name there, also of those that are None."""
    for path, sub in module.named_modules():
        yield from ((join(path, key), sub, key) for key in sub._buffers)


def join(name: str, path: str) -> str:
    """Return a dotted name of two parts, each of which may be empty."""
    return f"{name}.{path}" if name and path else name or path


def _left_out(name: str, reason: str) -> dict[str, str]:
    warnings.warn(f"{name} is not saved in the snapshot: {reason}", stacklevel=2)
    return _LEFT_OUT


def _settings(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each submodule keeps beside its tensors; of torch's own, values and what holds such."""
    kinds = (*_PLAIN, Tensor, np.ndarray, *SEQUENCES.values(), dict)
    for path, sub in module.named_modules():
        own = {key: value for key, value in vars(sub).items() if key not in _MODULE_INTERNALS}
        if type(sub).__module__.startswith("torch."):
            own = {key: value for key, value in own.items() if isinstance(value, kinds) and not key.startswith("_")}
        yield path, own


def weights(state: Any) -> Any:
    """Return of an agent's captured state what `restore(..., weights_only=True)` needs: networks, without the rest.

    An agent with a `state_dict` of its own, which no one can take apart, is kept whole.
    """
    return state if state["kind"] not in ("object", "module") else _weights(state)


def _weights(state: Any) -> Any:
    kind = state.get("kind") if isinstance(state, dict) else None
    if kind == "module":
        kept = {path: _weights_of_all(attributes) for path, attributes in state["attributes"].items()}
        return {**state, "attributes": {path: own for path, own in kept.items() if own}, "shared": {}, "extra": {}}
    if kind == "object":
        return {**state, "value": _weights_of_all(state["value"])}
    if kind == "dict":
        return {**state, "value": [[key, _weights(value)] for key, value in state["value"]]}
    if kind in ("list", "tuple", "deque"):
        return {**state, "value": [_weights(value) for value in state["value"]]}
    return _LEFT_OUT


def _weights_of_all(states: dict[str, Any]) -> dict[str, Any]:
    return {key: _weights(state) for key, state in states.items() if any(True for _ in networks(state))}


def parameters(state: Any) -> dict[str, Tensor]:
    """Return the parameters and buffers of all networks in a captured state by dotted name, `critics.0.weight`, say."""
    return {join(name, key): value for name, network in networks(state) for key, value in network["value"].items()}


def networks(state: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the captured networks wherever they are in a captured state, by dotted names: of attributes and items."""
    kind = state.get("kind") if isinstance(state, dict) else None
    pairs: list[tuple[str, Any]] = []
    if kind == "module":
        yield name, state
        pairs = [
            (join(path, key), value)
            for path, attributes in state["attributes"].items()
            for key, value in attributes.items()
        ]
    elif kind == "object":
        pairs = list(state["value"].items())
    elif kind == "dict":
        pairs = [(in_short(key).strip("'"), value) for key, value in state["value"]]
    elif kind in ("list", "tuple", "deque"):
        pairs = [(str(i), value) for i, value in enumerate(state["value"])]
    for key, value in pairs:
        yield from networks(value, join(name, key))
