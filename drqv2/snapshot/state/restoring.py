"""An agent's state, put back.

In place wherever that is possible, for optimizers and an agent's own code hold on to the objects. Where the new agent
has one object and the snapshot two, or two and the snapshot one, it is as in the snapshot afterwards.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from drqv2.snapshot.state.capturing import SEQUENCES, buffers, code_name, extent, in_short, join, tensors
from drqv2.snapshot.state.generators import set_random_state


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
        UserWarning: something that was captured has no place in `current`, or is no longer shared; it is named.
    """
    own_state_dict = isinstance(state, dict) and state["kind"] == "stateful"
    restorer = _Restorer(current, weights_only and not own_state_dict)
    restored = restorer.restore(current, state, name)
    restorer.restore_optimizers()
    if restorer.weights_only and not restorer.networks:
        raise RuntimeError(f"no network of the snapshot is in {name}")
    return restored


# An optimizer's switches that depend on where its parameters are, not on what was learnt.
_OF_THE_DEVICE = ("foreach", "fused", "capturable")
_DICTS: dict[str, Any] = {"Counter": Counter, "OrderedDict": OrderedDict}


class _Restorer:
    """One restoration, into `root` or a part of it."""

    def __init__(self, root: Any, weights_only: bool) -> None:
        self.weights_only = weights_only
        self.networks = 0
        self._root = root
        # Where tensors go that are not there yet, unless they were on the CPU.
        self._device = getattr(root, "device", "cuda" if torch.cuda.is_available() else "cpu")
        self._made: dict[int, Any] = {}  # by the number in the snapshot
        self._number: dict[int, tuple[Any, int | None]] = {}  # by id(): what is restored already, and its number there
        self._filled: list[tuple[int, int]] = []  # where in memory something is restored
        self._memory: dict[int, int] = {}  # where it begins
        self._optimizers: list[tuple[Any, dict[str, Any], str]] = []  # to be restored when all that they hold is

    def restore(self, current: Any, state: Any, name: str) -> Any:
        number = state.get("id") if isinstance(state, dict) and not self.weights_only else None
        if number in self._made:
            return self._made[number]
        restored = self._restore(current, state, name)
        if number is not None:
            self._made[number] = restored
        if isinstance(state, dict) and state["kind"] in ("tensor", "array", "generator", "random", "stateful"):
            self._number[id(restored)] = (restored, number)
        return restored

    def _is_anothers(self, current: Any, number: int | None = None) -> bool:
        """Whether an object of the new agent already stands for another one of the snapshot."""
        return id(current) in self._number and (number is None or self._number[id(current)][1] != number)

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
            return self._restore_module(current, state, name)
        lacking = kind == "stateful" and not hasattr(current, "load_state_dict") and not self.weights_only
        if kind == "module" or lacking:
            return _not_there(current, name)
        if kind == "dict":
            return self._restore_dict(current, state, name)
        if kind in SEQUENCES:
            return self._restore_sequence(current, state, name)
        return current if self.weights_only else self._restore_leaf(current, state, name)

    def _restore_attributes(self, current: Any, states: dict[str, Any], name: str) -> None:
        for key, state in states.items():
            there = hasattr(current, key)
            if not there and (self.weights_only or (isinstance(state, dict) and state["kind"] in ("left_out", "code"))):
                continue
            restored = self.restore(getattr(current, key, None), state, f"{name}.{key}")
            try:
                setattr(current, key, restored)
            except (AttributeError, TypeError) as e:  # a frozen dataclass, a property, a network's place
                warnings.warn(f"{name}.{key} is not restored: {e}", stacklevel=2)

    def _restore_module(self, current: nn.Module, state: dict[str, Any], name: str) -> nn.Module:
        ties = state.get("shared", {})
        if any(self._is_anothers(tensor, ties.get(path, {}).get("id")) for path, tensor in tensors(current)):
            current = copy.deepcopy(current)
        self._fit(current, state)
        extra = {path: self._alone(value, name) for path, value in state.get("extra", {}).items()}
        current.load_state_dict(state["value"] | extra, strict=not any(is_lazy(t) for _, t in tensors(current)))
        self.networks += 1
        if not self.weights_only:
            self._share(current, ties, name)
            for path, parameter in current.named_parameters(remove_duplicate=False):
                if not is_lazy(parameter):
                    parameter.requires_grad_(path not in state["frozen"])
            for path, sub in current.named_modules():
                sub.training = path not in state["evaluating"]
                was, now = state["classes"].get(path), type(sub).__qualname__
                if was != now and not isinstance(sub, LazyModuleMixin):
                    warnings.warn(f"{join(name, path)} was {was} and is {now}", stacklevel=2)
            for path, sub, key in buffers(current):
                saved, there = state["buffers"].get(path), sub._buffers[key]
                if isinstance(saved, Tensor) and there is not None:
                    there.copy_(saved)
        modules = dict(current.named_modules(remove_duplicate=False))
        for path, attributes in state["attributes"].items():
            if (sub := modules.get(path)) is None:
                _not_there(None, join(name, path))
            else:
                self._restore_attributes(sub, attributes, join(name, path))
        return current

    def _fit(self, module: nn.Module, state: dict[str, Any]) -> None:
        """Give a network's tensors kinds, sizes and memory like those in the snapshot, where that is no mistake."""
        known = state.get("buffers", {})
        for path, sub, key in buffers(module):
            saved, there = known.get(path), sub._buffers[key]
            listed = saved is True
            saved = state["value"].get(path) if listed else saved
            if path not in known or (self.weights_only and not listed):
                continue
            if saved is None:
                sub._buffers[key] = None
            elif there is None or (there.shape, there.dtype) != (saved.shape, saved.dtype):
                device = next((t.device for _, t in tensors(module)), self._device) if there is None else there.device
                sub._buffers[key] = torch.empty_like(saved, device=device)
        if self.weights_only:
            return
        met: dict[int, Any] = {}
        for path, tensor in list(tensors(module)):
            saved, tie = state["value"].get(path), state["shared"].get(path, {})
            if is_lazy(tensor) or tie.get("id") in self._made:
                continue
            if id(tensor) in met and met[id(tensor)] != tie.get("id", path):  # it was one in two places
                parted = tensor.detach().clone()
                _set(module, path, nn.Parameter(parted) if isinstance(tensor, nn.Parameter) else parted)
                tensor = module.get_parameter(path) if isinstance(tensor, nn.Parameter) else module.get_buffer(path)
            met[id(tensor)] = tie.get("id", path)
            if isinstance(saved, Tensor) and tensor.dtype != saved.dtype and tensor.shape == saved.shape:
                tensor.data = tensor.data.to(saved.dtype)
            if not self._is_free(tensor, tie):
                tensor.data = tensor.data.clone()
            self._place(tensor, tie)

    def _share(self, module: nn.Module, ties: dict[str, dict[str, Any]], name: str) -> None:
        """Note what a restored network holds; let it hold what is restored elsewhere, where the snapshot's did."""
        for path, tensor in list(tensors(module)):
            number = ties.get(path, {}).get("id")
            made = self._made.setdefault(number, tensor) if number is not None else tensor
            if made is not tensor:
                if isinstance(tensor, nn.Parameter) != isinstance(made, nn.Parameter) or made.shape != tensor.shape:
                    warnings.warn(f"{join(name, path)} is no longer one tensor with its other places", stacklevel=2)
                else:
                    _set(module, path, made)
            self._number[id(made)] = (made, number)

    def _restore_dict(self, current: Any, state: dict[str, Any], name: str) -> Any:
        known = current if isinstance(current, dict) else _DICTS.get(state["of"], dict)()
        restored = {}
        for key_state, value in state["value"]:
            key = self._alone(key_state, name) if self.weights_only else self.restore(None, key_state, name)
            there = known.get(key)
            if there is None and isinstance(known, defaultdict) and known.default_factory:
                there = known.default_factory()
            restored[key] = self.restore(there, value, f"{name}[{in_short(key)}]")
        if self.weights_only:
            return current
        if type(known).__name__ != state["of"]:
            warnings.warn(f"{name} was a {state['of']}, and is a {type(known).__name__} now", stacklevel=2)
        same_kind = copy.copy(known)  # a defaultdict stays one
        same_kind.clear()
        same_kind.update(restored)
        return same_kind

    def _restore_sequence(self, current: Any, state: dict[str, Any], name: str) -> Any:
        known = list(current) if isinstance(current, list | tuple | deque) else []
        known += [None] * len(state["value"])
        items = [self.restore(known[i], s, f"{name}[{i}]") for i, s in enumerate(state["value"])]
        if self.weights_only:
            return current
        return deque(items, state["maxlen"]) if state["kind"] == "deque" else SEQUENCES[state["kind"]](items)

    def _alone(self, state: Any, name: str) -> Any:
        return _Restorer(self._root, False).restore(None, state, name)

    def _restore_leaf(self, current: Any, state: dict[str, Any], name: str) -> Any:
        kind, value = state["kind"], state["value"]
        if kind == "tensor":
            return self._restore_tensor(current, state, name)
        if kind == "array":
            tensor = _as_tensor(current)
            filled = self._fill(tensor, state, name)
            return current if filled is tensor else filled.numpy()
        if kind == "generator":
            there = isinstance(current, torch.Generator) and not self._is_anothers(current)
            generator = current if there else torch.Generator(getattr(current, "device", state["device"]))
            if generator.device.type == state["device"]:
                generator.set_state(value)
            else:
                warnings.warn(f"{name} was on {state['device']}: on {generator.device} it starts anew", stacklevel=2)
            return generator
        if kind == "random":
            known = None if self._is_anothers(current) else current
            return set_random_state(known, self._alone(value, name))
        if kind == "stateful":
            if self._is_anothers(current):
                warnings.warn(f"{name} is not restored: it is also another object of the snapshot", stacklevel=2)
            elif "holds" in state:
                self._optimizers.append((current, state, name))
            else:
                current.load_state_dict(self._alone(value, name))
            return current
        if kind == "code":
            return self._code(current, state, name)
        if kind == "Size":
            return torch.Size(value)
        if kind == "dtype":
            return getattr(torch, value.removeprefix("torch."))
        if kind == "device":
            return current if isinstance(current, torch.device) else torch.device(value)
        return value.numpy()[()]

    def _code(self, current: Any, state: dict[str, Any], name: str) -> Any:
        method = getattr(self._root, state.get("method", ""), None)
        if method is None and code_name(current) != state["value"]:
            was, now = state["value"], "nothing" if current is None else code_name(current)
            warnings.warn(f"{name} was {was} and is {now}: code is not in a snapshot", stacklevel=2)
        return current if method is None else method

    def restore_optimizers(self) -> None:
        """Restore the optimizers, each for the tensors that it held.

        Raises:
            RuntimeError: it is of another kind, or held what cannot be found.
        """
        for optimizer, state, name in self._optimizers:
            if type(optimizer).__name__ != state["of"]:
                raise RuntimeError(f"{name} is {type(optimizer).__name__}, in the snapshot {state['of']}")
            groups = optimizer.param_groups
            held = []
            for i, places in enumerate(state["holds"]):
                there = groups[i]["params"] if i < len(groups) else []
                alike = len(there) == len(places)
                own = [self._orphan(tensor) for tensor in there] if alike else [None] * len(places)
                found = [self._made.get(place.get("id"), own[j]) for j, place in enumerate(places)]
                if any(tensor is None for tensor in found):
                    raise RuntimeError(
                        f"{name}: not all of the {len(places)} tensors in its group {i} are in the agent"
                    )
                held.append(found)
            switches = [{key: groups[0][key] for key in _OF_THE_DEVICE if key in groups[0]}] * len(held)
            switches = [{k: g[k] for k in _OF_THE_DEVICE if k in g} for g in groups] + switches
            groups[:] = [{**(groups[i] if i < len(groups) else groups[0]), "params": held[i]} for i in range(len(held))]
            try:
                optimizer.load_state_dict(self._alone(state["value"], name))
            except (KeyError, ValueError) as e:  # what torch's optimizers raise for other parameters
                raise RuntimeError(f"{name}: {e}") from e
            for group, of_the_device in zip(optimizer.param_groups, switches, strict=False):
                group.update(of_the_device)

    def _orphan(self, tensor: Tensor) -> Tensor:
        """Return what an optimizer holds that is nowhere else: the new one's own, if that is in no network by now."""
        return torch.zeros_like(tensor, requires_grad=True) if self._is_anothers(tensor) else tensor

    def _restore_tensor(self, current: Any, state: dict[str, Any], name: str) -> Tensor:
        value: Tensor = state["value"]
        if isinstance(current, Tensor) and current.requires_grad:
            if current.shape != value.shape:
                raise RuntimeError(f"{name} has shape {list(current.shape)}, the snapshot's {list(value.shape)}")
            if current.dtype != value.dtype:
                raise RuntimeError(f"{name} is {current.dtype}, the snapshot's {value.dtype}")
        filled = self._fill(current if isinstance(current, Tensor) else None, state, name)
        if state["leaf"]:
            learns = state["requires_grad"]
            parted = self._is_anothers(filled) and filled.requires_grad != learns  # a view now, by which one learns
            filled = filled if filled.is_leaf and not parted else filled.detach()
            filled.requires_grad_(learns)
        return filled

    def _fill(self, current: Tensor | None, state: dict[str, Any], name: str) -> Tensor:
        """Return a tensor with the saved value: `current`, unless it does not fit or its memory is another's."""
        value: Tensor = state["value"]
        if current is None or not _alike(current, value) or not self._is_free(current, state):
            if "memory" in state and state["memory"][0] in self._memory:
                warnings.warn(f"{name} no longer shares memory as it did", stacklevel=2)
            current = value.to("cpu" if state.get("device", "cpu") == "cpu" else self._device, copy=True)
        with torch.no_grad():
            current.copy_(value)
        self._place(current, state)
        return current

    def _is_free(self, tensor: Tensor, state: dict[str, Any]) -> bool:
        begin, end, strides = extent(tensor)
        if any(step == 0 and n > 1 for step, n in zip(strides, tensor.shape, strict=False)):  # it overlaps itself
            return False
        which, offset, as_saved = state.get("memory", [None, 0, strides])
        if which in self._memory:
            return (self._memory[which], as_saved) == (begin - offset, strides)
        return strides == as_saved and not any(begin < stop and start < end for start, stop in self._filled)

    def _place(self, tensor: Tensor, ties: dict[str, Any]) -> None:
        begin, end, _ = extent(tensor)
        self._filled.append((begin, end))
        if "memory" in ties:
            self._memory.setdefault(ties["memory"][0], begin - ties["memory"][1])


def _alike(tensor: Tensor, saved: Tensor) -> bool:
    """Whether it can take the saved value, and lies in memory as that did, on which the order of sums depends."""
    if (tensor.dtype, tensor.shape, tensor.layout) != (saved.dtype, saved.shape, saved.layout):
        return False
    begin, end, strides = extent(tensor)
    whole = end - begin == tensor.numel() * tensor.element_size()
    return tensor.requires_grad or not whole or strides == extent(saved)[2]


def _not_there(current: Any, name: str) -> Any:
    warnings.warn(f"{name} is not restored: the snapshot has it, the new agent has not", stacklevel=3)
    return current


def _set(module: nn.Module, path: str, tensor: Tensor) -> None:
    holder, _, key = path.rpartition(".")
    setattr(module.get_submodule(holder), key, tensor)


def _as_tensor(array: Any) -> Tensor | None:
    """Return an array as a tensor in its memory, None where that is not possible."""
    try:
        return torch.from_numpy(array) if type(array) is np.ndarray and array.flags.writeable else None
    except (TypeError, ValueError):
        return None
