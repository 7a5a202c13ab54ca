"""What a snapshot keeps of an agent and of the global generators, as tensors, numbers, strings and containers of them.

An agent with `state_dict` and `load_state_dict` of its own is asked for it. Any other is saved by walking its
attributes, so that an agent file written without a thought of resuming resumes all the same.
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
    return _capture(value, name, ())


def _capture(value: Any, name: str, above: tuple[int, ...]) -> Any:
    if type(value) in _PLAIN:  # not a subclass: np.float64 is a float, and would not load
        return value
    if isinstance(value, _STATELESS):
        return _LEFT_OUT
    if id(value) in above:
        return _left_out(name, "it refers back to what holds it")
    inside = (*above, id(value))
    if isinstance(value, Tensor):
        of = {"device": value.device.type, "requires_grad": value.requires_grad}
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
        return {"kind": "random", "value": _capture(_random_state(value), name, inside)}
    if isinstance(value, nn.Module):
        owns = {path: _capture_attributes(own, _join(name, path), inside) for path, own in _own_attributes(value)}
        buffers = {path: buffer.detach() for path, buffer in _unlisted_buffers(value)}
        return {"kind": "module", "value": dict(value.state_dict()), "buffers": buffers, "attributes": owns}
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return {"kind": "stateful", "value": _capture(value.state_dict(), f"{name}.state_dict()", inside)}
    kind = type(value).__name__
    if type(value) is _SEQUENCES.get(kind):
        items: list[Any] = sorted(value, key=repr) if kind == "set" else list(value)
        states = [_capture(item, f"{name}[{i}]", inside) for i, item in enumerate(items)]
        if kind == "set" and any(state is _LEFT_OUT for state in states):
            return _LEFT_OUT
        return {"kind": kind, "value": states, "maxlen": getattr(value, "maxlen", None)}
    if isinstance(value, dict):
        keys = [_capture(key, f"{name}'s key {key!r}", inside) for key in value]
        if any(key is _LEFT_OUT for key in keys):
            return _left_out(name, "its keys cannot be saved")
        values = [_capture(item, f"{name}[{key!r}]", inside) for key, item in value.items()]
        return {"kind": "dict", "value": [list(pair) for pair in zip(keys, values, strict=True)]}
    if not above and hasattr(value, "__dict__"):
        return {"kind": "object", "value": _capture_attributes(vars(value), name, inside)}
    return _left_out(name, f"a {type(value).__name__}")


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


def _capture_attributes(attributes: dict[str, Any], name: str, above: tuple[int, ...]) -> dict[str, Any]:
    states = {key: _capture(value, f"{name}.{key}", above) for key, value in attributes.items()}
    return {key: state for key, state in states.items() if state is not _LEFT_OUT}


def _own_attributes(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the attributes that each submodule keeps beside its parameters; torch's own modules keep no state there."""
    for path, sub in module.named_modules():
        if not type(sub).__module__.startswith("torch."):
            yield path, {k: v for k, v in vars(sub).items() if k not in _MODULE_INTERNALS}


def weights(state: Any) -> Any:
    """Return of an agent's captured state what `restore(..., weights_only=True)` needs: networks, without the rest.

    An agent with a `state_dict` of its own, which no one can take apart, is kept whole.
    """
    if state["kind"] != "object":
        return state
    networks = {
        key: {**value, "attributes": {}, "buffers": {}} for key, value in state["value"].items() if _is_network(value)
    }
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
        UserWarning: something that was captured has no place in `current`; it is named.
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
        self._filled: list[Tensor] = []

    def restore(self, current: Any, state: Any, name: str) -> Any:
        if not isinstance(state, dict):
            return current if self.weights_only else state
        kind, value = state["kind"], state.get("value", {})
        if kind == "left_out":
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
            for path, buffer in _unlisted_buffers(current):
                if path in state["buffers"] and state["buffers"][path].shape == buffer.shape:
                    buffer.copy_(state["buffers"][path])
            for path, attributes in state["attributes"].items():
                self._restore_attributes(current.get_submodule(path), attributes, _join(name, path))

    def _restore_dict(self, current: Any, pairs: list[list[Any]], name: str) -> Any:
        known = current if isinstance(current, dict) else {}
        restored = {}
        for key_state, state in pairs:
            key = _Restorer(False, self._device).restore(None, key_state, name)
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

    def _restore_leaf(self, current: Any, state: dict[str, Any], name: str) -> Any:
        kind, value = state["kind"], state["value"]
        if kind == "tensor":
            return self._restore_tensor(current, state, name)
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
                current.load_state_dict(self.restore(None, value, name))
            except (KeyError, ValueError) as e:  # what torch's optimizers raise for other parameters
                raise RuntimeError(f"{name}: {e}") from e
            for group, switches in zip(getattr(current, "param_groups", []), own, strict=True):
                group.update(switches)
            return current
        if kind == "random":
            return _set_random_state(current, self.restore(None, value, name))
        array = value.numpy().copy()
        return array if kind == "array" else array[()]

    def _restore_tensor(self, current: Any, state: dict[str, Any], name: str) -> Tensor:
        value: Tensor = state["value"]
        if isinstance(current, Tensor) and current.requires_grad and current.shape != value.shape:
            raise RuntimeError(f"{name} has shape {list(current.shape)}, the snapshot's {list(value.shape)}")
        # A new agent may hold one tensor in several places, [zeros] * 3, which have parted since.
        again = any(current is tensor for tensor in self._filled)
        if isinstance(current, Tensor) and current.shape == value.shape and not again:
            self._filled.append(current)
            with torch.no_grad():
                current.copy_(value)
            return current
        return value.clone() if state["device"] == "cpu" else value.to(self._device)


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
