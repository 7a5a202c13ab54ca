"""An agent's state, restored; see `drqv2.snapshot.agent_state`."""

from __future__ import annotations

import copy
import operator
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drqv2.snapshot.capturing import ADVICE, CONSTANT, CONTAINERS, State, join, members, storage
from drqv2.snapshot.generators import set_random_state

_DICTS: dict[str, Any] = {"Counter": Counter, "OrderedDict": OrderedDict}
_IN_PLACE = {"module": "modules", "stateful": "load_state_dict", "optimizer": "param_groups", "object": "__dict__"}
_DEVICE_SWITCHES = ("foreach", "fused", "capturable")  # of an optimizer; they follow the machine, not the snapshot


class Restore:
    """One restoration, into an agent, or of what a `state_dict` returned.

    Args:
        device: of new tensors and generators that were not on the CPU.

    Attributes:
        lost: names of what has no place in the agent.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self.lost: list[str] = []
        self._device = device
        self._made: dict[int | None, Any] = {}  # by number
        self._owners: dict[int, tuple[Any, int | None]] = {}  # by id(): what was restored in place, and its number
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

    def _is_free(self, current: Any) -> bool:
        """Whether nothing was restored into it yet: what is one object here may be two in the snapshot."""
        filled = isinstance(current, Tensor) and storage(current) in self._filled
        return not filled and id(current) not in self._owners

    def _claim(self, number: int | None, current: Any, name: str) -> None:
        owner = self._owners.setdefault(id(current), (current, number))[1]
        if owner != number or self._made.setdefault(number, current) is not current:
            raise RuntimeError(f"{name} is shared with another attribute in only one of snapshot and agent; {ADVICE}")

    def _restore_object(self, current: Any, node: State) -> None:
        self._attributes(current, node["value"])

    def _restore_stateful(self, current: Any, node: State) -> None:
        current.load_state_dict(Restore(self._device).restore(None, node["value"]))

    def _restore_module(self, module: nn.Module, node: State) -> None:
        module.load_state_dict(node["value"])
        held = members(module)
        for path, number in node["numbers"].items():
            self._claim(number, held[path], join(node["name"], path))
            if isinstance(held[path], nn.Module):
                held[path].training = path not in node["evaluating"]
            elif isinstance(held[path], nn.Parameter):
                held[path].requires_grad_(path not in node["frozen"])
        self._filled |= {storage(held[path]) for path in node["value"]} - {0}
        for path, nodes in node["attributes"].items():
            self._attributes(held[path], nodes)

    def _restore_optimizer(self, optimizer: torch.optim.Optimizer, node: State) -> None:
        if type(optimizer).__name__ != node["of"]:
            raise RuntimeError(f"{node['name']} is {type(optimizer).__name__}, in the snapshot {node['of']}")
        state = Restore(self._device).restore(None, node["value"])
        for group, saved, held in zip(optimizer.param_groups, state["param_groups"], node["params"], strict=False):
            known = self.restore(group["params"], held)
            if len(known) == len(group["params"]) and any(map(operator.is_not, known, group["params"])):
                raise RuntimeError(f"{node['name']} holds other tensors than in the snapshot; {ADVICE}")
            saved.update({key: group[key] for key in _DEVICE_SWITCHES if key in group})
        try:
            optimizer.load_state_dict(state)
        except (KeyError, ValueError) as e:  # what torch's optimizers raise for other parameters
            raise RuntimeError(f"{node['name']}: {e}") from e

    def _attributes(self, current: Any, nodes: dict[str, State]) -> None:
        for key, node in nodes.items():
            old = getattr(current, key, None)
            new = self.restore(old, node)
            if new is old and node is not None:
                continue
            if isinstance(current, nn.Module):
                setattr(current, key, new)  # which may be a buffer
            else:
                vars(current)[key] = new  # a frozen dataclass refuses setattr

    def _container(self, current: Any, node: State) -> Any:
        kind, nodes = node["kind"], node["value"]
        keys = [self.restore(None, key) for key in node["keys"]]
        if kind == "set":
            return set(keys)
        if kind == "dict":
            known = current if type(current).__name__ == node["of"] else _DICTS.get(node["of"], dict)()
            make = getattr(known, "default_factory", None) or (lambda: None)
            olds = [known[key] if key in known else make() for key in keys]
        else:
            olds = list(current) if isinstance(current, list | tuple | deque) else []
            olds = (olds + [None] * len(nodes))[: len(nodes)]
        items = [self.restore(old, item) for old, item in zip(olds, nodes, strict=True)]
        if any(item is None and item_node == CONSTANT for item, item_node in zip(items, nodes, strict=True)):
            self.lost.append(f"constants in {node['name']}")
        if kind == "deque":
            return deque(items, node["maxlen"])
        if kind != "dict":
            return getattr(current, "_make", CONTAINERS[kind])(items)
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
        if kind == "array":
            fits = type(current) is np.ndarray and current.flags.writeable and current.dtype == value.numpy().dtype
            in_place = fits and all(step >= 0 for step in current.strides)
            tensor = torch.from_numpy(current) if in_place else None
            filled = self._tensor(tensor, node)
            return current if filled is tensor else filled.numpy()
        current = current if self._is_free(current) else None
        if kind == "random":
            current = set_random_state(current, Restore().restore(None, value))
        elif not isinstance(current, torch.Generator):
            current = torch.Generator("cpu" if node["device"] == "cpu" else self._device)
        if kind == "generator" and current.device.type == node["device"]:
            current.set_state(value)
        elif kind == "generator":
            self.lost.append(f"{node['name']} (a generator of {node['device']}: on {current.device} it starts anew)")
        self._owners[id(current)] = (current, node["id"])
        return current

    def _tensor(self, current: Any, node: State) -> Tensor:
        value, there = node["value"], isinstance(current, Tensor) and current.layout is torch.strided
        fits = there and (current.shape, current.dtype) == (value.shape, value.dtype)
        learns = there and current.is_leaf and current.requires_grad
        if learns and not fits:
            got = f"{list(value.shape)} of {value.dtype}"
            raise RuntimeError(f"{node['name']} is {list(current.shape)} of {current.dtype}, in the snapshot {got}")
        fits = fits and (learns or (current.is_leaf and current.stride() == value.stride()))
        if not fits or not self._is_free(current):
            current = torch.empty_like(value, device="cpu" if node["device"] == "cpu" else self._device)
        with torch.no_grad():
            current.copy_(value)
        self._owners[id(current)] = (current, node.get("id"))
        self._filled |= {storage(current)} - {0}
        return current.requires_grad_(node["requires_grad"])
