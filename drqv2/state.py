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
_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "deque": deque, "set": set}
# Configuration and code, not state: nothing is lost when they are not saved.
_STATELESS = (torch.device, torch.dtype, torch.Size, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_MODULE_INTERNALS = frozenset(vars(nn.Module()))


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
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if id(value) in above:
        return _left_out(name, "it refers back to what holds it")
    inside = (*above, id(value))
    if isinstance(value, Tensor):
        return {"kind": "tensor", "value": value.detach()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return _left_out(name, f"an array of {value.dtype}")
        return {"kind": "array", "value": torch.from_numpy(np.ascontiguousarray(value))}
    if isinstance(value, torch.Generator):
        return {"kind": "generator", "value": value.get_state()}
    if isinstance(value, nn.Module):
        attributes = {
            key: _capture_attributes(own, f"{name}.{key}" if key else name, inside) for key, own in _own_attributes(value)
        }
        return {"kind": "module", "value": dict(value.state_dict()), "attributes": attributes}
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return {"kind": "stateful", "value": _capture(value.state_dict(), f"{name}.state_dict()", inside)}
    for kind, sequence in _SEQUENCES.items():
        if type(value) is sequence:
            items = sorted(value, key=repr) if kind == "set" else value
            return {"kind": kind, "value": [_capture(v, f"{name}[{i}]", inside) for i, v in enumerate(items)]}
    if isinstance(value, dict):
        pairs = [[_capture(k, name, inside), _capture(v, f"{name}[{k!r}]", inside)] for k, v in value.items()]
        return {"kind": "dict", "value": pairs}
    if not above and hasattr(value, "__dict__"):
        return {"kind": "object", "value": _capture_attributes(vars(value), name, inside)}
    return _left_out(name, f"a {type(value).__name__}")


def _left_out(name: str, reason: str) -> None:
    warnings.warn(f"{name} is not saved in the snapshot: {reason}", stacklevel=2)


def _capture_attributes(attributes: dict[str, Any], name: str, above: tuple[int, ...]) -> dict[str, Any]:
    return {k: _capture(v, f"{name}.{k}", above) for k, v in attributes.items() if not isinstance(v, _STATELESS)}


def _own_attributes(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the attributes that each submodule keeps beside its parameters; torch's own layers keep no state there."""
    for name, sub in module.named_modules():
        if not type(sub).__module__.startswith("torch.nn."):
            yield name, {k: v for k, v in vars(sub).items() if k not in _MODULE_INTERNALS}


def restore(current: Any, state: Any, weights_only: bool = False) -> Any:
    """Put a captured state back into `current`, in place wherever that is possible (optimizers hold the tensors).

    Args:
        current: an agent built like the one that was captured.
        state: what `capture` returned.
        weights_only: restore networks' parameters and buffers alone; leave optimizers, generators, counters.

    Returns:
        What should stand in the place of `current`: itself, unless it is a plain value.

    Raises:
        RuntimeError: a network's parameters do not fit.
    """
    if not isinstance(state, dict):
        return current if weights_only else state
    kind, value = state["kind"], state["value"]
    if kind == "object":
        for key, attribute in value.items():
            setattr(current, key, restore(getattr(current, key, None), attribute, weights_only))
        return current
    if kind == "module" and isinstance(current, nn.Module):
        current.load_state_dict(value)
        if not weights_only:
            for name, attributes in state["attributes"].items():
                module = current.get_submodule(name)
                for key, attribute in attributes.items():
                    setattr(module, key, restore(getattr(module, key, None), attribute))
        return current
    if weights_only and kind not in ("list", "tuple", "dict"):
        return current
    return _restore_value(current, kind, value, weights_only)


def _restore_value(current: Any, kind: str, value: Any, weights_only: bool) -> Any:
    if kind == "tensor":
        if isinstance(current, Tensor) and current.shape == value.shape:
            with torch.no_grad():
                current.copy_(value)
            return current
        return value.clone()
    if kind == "array":
        return value.numpy().copy()
    if kind == "generator":
        generator = current if isinstance(current, torch.Generator) else torch.Generator()
        generator.set_state(value)
        return generator
    if kind == "stateful":
        if current is not None:
            current.load_state_dict(restore(None, value))
        return current
    if kind == "dict":
        known = current if isinstance(current, dict) else {}
        restored = {}
        for key_state, item in value:
            key = restore(None, key_state)
            restored[key] = restore(known.get(key), item, weights_only)
        if isinstance(current, dict):
            current.clear()
            current.update(restored)
            return current
        return restored
    if kind in _SEQUENCES:
        known_items = list(current) if type(current) in (list, tuple) else []
        known_items += [None] * (len(value) - len(known_items))
        items = [restore(have, item, weights_only) for have, item in zip(known_items, value, strict=False)]
        if isinstance(current, deque):
            return deque(items, current.maxlen)
        return _SEQUENCES[kind](items)
    return current


def rng_state() -> dict[str, Any]:
    """Return the state of the global generators of torch (CPU and CUDA), numpy and Python."""
    algorithm, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # type: ignore[misc]
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
