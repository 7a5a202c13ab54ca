"""What a snapshot keeps of an agent and of the global generators, as tensors, numbers, strings and containers of them.

An agent with `state_dict` and `load_state_dict` of its own is asked for it. Any other is saved by walking its
attributes, so that an agent file written without a thought of resuming resumes all the same.

What stands in several places is saved in the first and is "same" in the others; each of them, networks' tensors too,
bears its `id`. Tensors and arrays whose memory overlaps say how they lie in it: `memory`, [which, offset, strides].
"""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_PLAIN = (bool, int, float, str, type(None))
_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "deque": deque, "set": set}
# Configuration and code, not state: nothing is lost when they are not saved.
_STATELESS = (torch.device, torch.dtype, torch.Size, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
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
    return _Capture().run(value, name, ())


class _Capture:
    """One capture, which remembers what it has met and all the places where it has."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[Any, list[dict[str, Any]]]] = {}  # by id(), which is an object's while it lives

    def run(self, value: Any, name: str, above: tuple[int, ...]) -> Any:
        state = self._capture(value, name, above)
        laid, overlapping, end = [], list[list[Any]](), 0
        for i, (met, places) in enumerate(self._met.values()):
            laid.append((*_extent(met), i, places))
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
            return value
        if isinstance(value, _STATELESS):
            return _LEFT_OUT
        if id(value) in above:
            return _left_out(name, "it refers back to what holds it")
        if isinstance(value, nn.Module):  # whole in each of its places, for those who look for networks
            return self._module(value, name, (*above, id(value)))
        state = {"kind": "same"} if id(value) in self._met else self._state(value, name, above)
        if state is not _LEFT_OUT and not isinstance(value, tuple | np.generic):
            self._met.setdefault(id(value), (value, []))[1].append(state)
        return state

    def _state(self, value: Any, name: str, above: tuple[int, ...]) -> Any:
        inside = (*above, id(value))
        if isinstance(value, Tensor):
            of = {"device": value.device.type, "requires_grad": value.requires_grad, "leaf": value.is_leaf}
            return {"kind": "tensor", "value": value.detach(), **of}
        if isinstance(value, np.ndarray | np.generic):
            try:
                data = torch.from_numpy(np.require(value, requirements=["C", "W"]))
            except TypeError:
                return _left_out(name, f"numpy's {value.dtype}")
            return {"kind": "array" if isinstance(value, np.ndarray) else "scalar", "value": data}
        if isinstance(value, torch.Generator):
            return {"kind": "generator", "value": value.get_state(), "device": value.device.type}
        if isinstance(value, np.random.Generator | np.random.RandomState | random.Random):
            return {"kind": "random", "value": _Capture().run(_random_state(value), name, inside)}
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            own = _Capture().run(value.state_dict(), f"{name}.state_dict()", inside)
            return {"kind": "stateful", "value": own}
        kind = type(value).__name__
        if type(value) is _SEQUENCES.get(kind):
            items: list[Any] = sorted(value, key=repr) if kind == "set" else list(value)
            states = [self._capture(item, f"{name}[{i}]", inside) for i, item in enumerate(items)]
            if kind == "set" and any(state is _LEFT_OUT for state in states):
                return _LEFT_OUT
            return {"kind": kind, "value": states, "maxlen": getattr(value, "maxlen", None)}
        if isinstance(value, dict):
            keys = [_Capture().run(key, f"{name}'s key {key!r}", inside) for key in value]
            if any(key is _LEFT_OUT for key in keys):
                return _left_out(name, "its keys cannot be saved")
            values = [self._capture(item, f"{name}[{key!r}]", inside) for key, item in value.items()]
            return {"kind": "dict", "value": [list(pair) for pair in zip(keys, values, strict=True)]}
        if not above and hasattr(value, "__dict__"):
            return {"kind": "object", "value": self._attributes(vars(value), name, inside)}
        return _left_out(name, f"a {type(value).__name__}")

    def _module(self, module: nn.Module, name: str, inside: tuple[int, ...]) -> dict[str, Any]:
        shared: dict[str, dict[str, Any]] = {path: {} for path, _ in _tensors(module)}
        for path, tensor in _tensors(module):
            self._met.setdefault(id(tensor), (tensor, []))[1].append(shared[path])
        return {
            "kind": "module",
            "value": dict(module.state_dict()),
            "buffers": {path: buffer.detach() for path, buffer in _unlisted_buffers(module)},
            "attributes": {path: self._attributes(own, _join(name, path), inside) for path, own in _settings(module)},
            "shared": shared,
            "frozen": [path for path, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad],
            "evaluating": [path for path, sub in module.named_modules() if not sub.training],
        }

    def _attributes(self, attributes: dict[str, Any], name: str, above: tuple[int, ...]) -> dict[str, Any]:
        # What optimizers hold first: it has to stay in place, and what else refers to it, a list or a view, follows.
        networks = [key for key, value in attributes.items() if isinstance(value, nn.Module)]
        learnable = [key for key, value in attributes.items() if isinstance(value, Tensor) and value.requires_grad]
        keys = dict.fromkeys([*networks, *learnable, *attributes])
        states = {key: self._capture(attributes[key], f"{name}.{key}", above) for key in keys}
        return {key: state for key, state in states.items() if state is not _LEFT_OUT}


def _extent(value: Any) -> tuple[int, int, list[int]]:
    """Return where a tensor or an array begins and ends in memory, and its strides in bytes, 0 where they are moot."""
    if isinstance(value, np.ndarray) and value.size:
        (begin, end), steps = np.lib.array_utils.byte_bounds(value), value.strides
    elif isinstance(value, Tensor) and not is_lazy(value) and value.layout is torch.strided and value.numel():
        begin, steps = value.data_ptr(), tuple(step * value.element_size() for step in value.stride())
        end = begin + sum((n - 1) * step for n, step in zip(value.shape, steps, strict=True)) + value.element_size()
    else:
        return 0, 0, []
    return begin, end, [step if n > 1 else 0 for n, step in zip(value.shape, steps, strict=True)]


def _random_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def _set_random_state(generator: Any, state: Any) -> Any:
    """Return the generator with that state: a new one, where there is none of its kind."""
    if isinstance(state, tuple):
        generator = generator if isinstance(generator, random.Random) else random.Random()
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        if not isinstance(generator, np.random.Generator):
            generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
        generator.bit_generator.state = state
    return generator


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _unlisted_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that a `state_dict` leaves out (persistent=False), by their dotted names."""
    for path, sub in module.named_modules():
        for name in sorted(sub._non_persistent_buffers_set):
            buffer = sub._buffers[name]
            if buffer is not None:
                yield _join(path, name), buffer


def _join(name: str, path: str) -> str:
    return f"{name}.{path}" if path else name


def _left_out(name: str, reason: str) -> dict[str, str]:
    warnings.warn(f"{name} is not saved in the snapshot: {reason}", stacklevel=2)
    return _LEFT_OUT


def _settings(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each submodule keeps beside its tensors; of torch's own the plain values alone, Dropout.p and such."""
    for path, sub in module.named_modules():
        own = {key: value for key, value in vars(sub).items() if key not in _MODULE_INTERNALS}
        if type(sub).__module__.startswith("torch."):
            own = {key: value for key, value in own.items() if type(value) in _PLAIN and not key.startswith("_")}
        yield path, own


def weights(state: Any) -> Any:
    """Return of an agent's captured state what `restore(..., weights_only=True)` needs: networks, without the rest.

    An agent with a `state_dict` of its own, which no one can take apart, is kept whole.
    """
    if state["kind"] != "object":
        return state
    stripped: dict[str, Any] = {"attributes": {}, "buffers": {}, "shared": {}}
    networks = {key: {**value, **stripped} for key, value in state["value"].items() if _is_network(value)}
    return {"kind": "object", "value": networks}


def _is_network(state: Any) -> bool:
    return isinstance(state, dict) and state["kind"] == "module"


def restore(current: Any, state: Any, weights_only: bool = False, name: str = "agent") -> Any:
    """Put a captured state back into `current`, in place wherever that is possible (optimizers hold the tensors).

    Args:
        current: an agent built like the one that was captured.
        state: what `capture` returned.
        weights_only: restore networks' parameters and buffers alone; leave optimizers, generators, counters. An agent
            with a `state_dict` of its own, which no one can take apart, is restored whole.
        name: how warnings and errors name it.

    Returns:
        What should stand in the place of `current`: itself, unless it is a plain value.

    Raises:
        RuntimeError: a tensor, a network or an optimizer does not fit, or no network that was captured is in `current`.

    Warns:
        UserWarning: something that was captured has no place in `current`, or no longer shares memory; it is named.
    """
    own_state_dict = isinstance(state, dict) and state["kind"] == "stateful"
    restorer = _Restorer(weights_only and not own_state_dict, getattr(current, "device", "cpu"))
    restored = restorer.restore(current, state, name)
    if restorer.weights_only and not restorer.networks:
        raise RuntimeError(f"no network of the snapshot is in {name}")
    return restored


# An optimizer's switches that depend on where its parameters are, not on what was learnt.
_OF_THE_DEVICE = ("foreach", "fused", "capturable")


class _Restorer:
    """One restoration. `device` is where tensors go that are not there yet, unless they were on the CPU."""

    def __init__(self, weights_only: bool, device: torch.device | str) -> None:
        self.weights_only = weights_only
        self.networks = 0
        self._device = device
        self._made: dict[int, Any] = {}  # by id
        self._filled: list[tuple[int, int]] = []  # where in memory something is restored
        self._memory: dict[int, int] = {}  # where it begins

    def restore(self, current: Any, state: Any, name: str) -> Any:
        number = state.get("id") if isinstance(state, dict) and not self.weights_only else None
        if number in self._made:
            return self._made[number]
        restored = self._restore(current, state, name)
        if number is not None:
            self._made[number] = restored
        return restored

    def _restore(self, current: Any, state: Any, name: str) -> Any:
        if not isinstance(state, dict):
            return current if self.weights_only else state
        kind, value = state["kind"], state.get("value", {})
        if kind in ("left_out", "same"):
            return current
        if kind == "object":
            self._restore_attributes(current, value, name)
            return current
        if kind == "module" and isinstance(current, nn.Module):
            self._restore_module(current, state, name)
            return current
        if kind == "module" or (kind == "stateful" and current is None and not self.weights_only):
            warnings.warn(f"{name} is not restored: the snapshot has it, the new agent has not", stacklevel=2)
            return current
        if kind == "dict":
            return self._restore_dict(current, value, name)
        if kind in _SEQUENCES:
            return self._restore_sequence(current, state, name)
        return current if self.weights_only else self._restore_leaf(current, state, name)

    def _restore_attributes(self, current: Any, states: dict[str, Any], name: str) -> None:
        for key, state in states.items():
            if not self.weights_only or hasattr(current, key):
                setattr(current, key, self.restore(getattr(current, key, None), state, f"{name}.{key}"))

    def _restore_module(self, current: nn.Module, state: dict[str, Any], name: str) -> None:
        current.load_state_dict(state["value"])
        self.networks += 1
        if not self.weights_only:
            for path, tensor in _tensors(current):
                ties = state.get("shared", {}).get(path, {})
                self._place(tensor, ties)
                if "id" in ties and self._made.setdefault(ties["id"], tensor) is not tensor:
                    warnings.warn(f"{_join(name, path)} is no longer one tensor with its other places", stacklevel=2)
            if "frozen" in state:  # not in what other versions wrote
                for path, parameter in current.named_parameters(remove_duplicate=False):
                    parameter.requires_grad_(path not in state["frozen"])
                for path, sub in current.named_modules():
                    sub.training = path not in state["evaluating"]
            for path, buffer in _unlisted_buffers(current):
                if path in state["buffers"] and state["buffers"][path].shape == buffer.shape:
                    buffer.copy_(state["buffers"][path])
            for path, attributes in state["attributes"].items():
                self._restore_attributes(current.get_submodule(path), attributes, _join(name, path))

    def _restore_dict(self, current: Any, pairs: list[list[Any]], name: str) -> Any:
        known = current if isinstance(current, dict) else {}
        restored = {}
        for key_state, state in pairs:
            key = self._alone(key_state, name)
            restored[key] = self.restore(known.get(key), state, f"{name}[{key!r}]")
        if self.weights_only:
            return current
        same_kind = known.copy()  # a defaultdict stays one
        same_kind.clear()
        same_kind.update(restored)
        return same_kind

    def _restore_sequence(self, current: Any, state: dict[str, Any], name: str) -> Any:
        known = list(current) if isinstance(current, list | tuple | deque) else []
        known += [None] * len(state["value"])
        items = [self.restore(known[i], s, f"{name}[{i}]") for i, s in enumerate(state["value"])]
        if self.weights_only:
            return current
        return deque(items, state["maxlen"]) if state["kind"] == "deque" else _SEQUENCES[state["kind"]](items)

    def _alone(self, state: Any, name: str) -> Any:
        return _Restorer(False, self._device).restore(None, state, name)

    def _restore_leaf(self, current: Any, state: dict[str, Any], name: str) -> Any:
        kind, value = state["kind"], state["value"]
        if kind == "tensor":
            return self._restore_tensor(current, state, name)
        if kind == "array":
            there = _as_tensor(current)
            filled = self._fill(there, state, name)
            return current if filled is there else filled.numpy()
        if kind == "generator":
            generator = current if isinstance(current, torch.Generator) else torch.Generator(state["device"])
            if generator.device.type == state["device"]:
                generator.set_state(value)
            else:
                warnings.warn(f"{name} was on {state['device']}: on {generator.device} it starts anew", stacklevel=2)
            return generator
        if kind == "stateful":
            own = [{k: g[k] for k in _OF_THE_DEVICE if k in g} for g in getattr(current, "param_groups", [])]
            try:
                current.load_state_dict(self._alone(value, name))
            except (KeyError, ValueError) as e:  # what torch's optimizers raise for other parameters
                raise RuntimeError(f"{name}: {e}") from e
            for group, switches in zip(getattr(current, "param_groups", []), own, strict=True):
                group.update(switches)
            return current
        return _set_random_state(current, self._alone(value, name)) if kind == "random" else value.numpy()[()]

    def _restore_tensor(self, current: Any, state: dict[str, Any], name: str) -> Tensor:
        value: Tensor = state["value"]
        if isinstance(current, Tensor) and current.requires_grad:
            if current.shape != value.shape:
                raise RuntimeError(f"{name} has shape {list(current.shape)}, the snapshot's {list(value.shape)}")
            if current.dtype != value.dtype:
                raise RuntimeError(f"{name} is {current.dtype}, the snapshot's {value.dtype}")
        filled = self._fill(current if isinstance(current, Tensor) else None, state, name)
        if state.get("leaf"):
            filled = filled if filled.is_leaf else filled.detach()
            filled.requires_grad_(state["requires_grad"])
        return filled

    def _fill(self, current: Tensor | None, state: dict[str, Any], name: str) -> Tensor:
        """Return a tensor with the saved value: `current`, unless it does not fit or its memory is another's."""
        value: Tensor = state["value"]
        fits = current is not None and (current.dtype, current.shape) == (value.dtype, value.shape)
        if current is None or not fits or not self._free(current, state):
            if "memory" in state and state["memory"][0] in self._memory:
                warnings.warn(f"{name} no longer shares memory as it did", stacklevel=2)
            current = value.to("cpu" if state.get("device", "cpu") == "cpu" else self._device, copy=True)
        with torch.no_grad():
            current.copy_(value)
        self._place(current, state)
        return current

    def _free(self, tensor: Tensor, state: dict[str, Any]) -> bool:
        begin, end, strides = _extent(tensor)
        if any(step == 0 and n > 1 for step, n in zip(strides, tensor.shape, strict=False)):  # it overlaps itself
            return False
        which, offset, as_saved = state.get("memory", [None, 0, strides])
        if which in self._memory:
            return (self._memory[which], as_saved) == (begin - offset, strides)
        return strides == as_saved and not any(begin < stop and start < end for start, stop in self._filled)

    def _place(self, tensor: Tensor, ties: dict[str, Any]) -> None:
        begin, end, _ = _extent(tensor)
        self._filled.append((begin, end))
        if "memory" in ties:
            self._memory.setdefault(ties["memory"][0], begin - ties["memory"][1])


def _as_tensor(array: Any) -> Tensor | None:
    """Return an array as a tensor in its memory, None where that is not possible."""
    try:
        return torch.from_numpy(array) if type(array) is np.ndarray and array.flags.writeable else None
    except (TypeError, ValueError):
        return None


def rng_state() -> dict[str, Any]:
    """Return the state of the global generators of torch (CPU and CUDA), numpy and Python."""
    legacy: Any = np.random.get_state()
    algorithm, keys, position, has_gauss, cached = legacy
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [algorithm, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned; CUDA generators only where as many devices are there."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    algorithm, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
