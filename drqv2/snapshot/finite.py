"""Check an agent's parameters for NaN and infinity."""

from __future__ import annotations

import torch
from torch import Tensor

from drqv2.snapshot.agent_state import State
from drqv2.snapshot.agent_weights import children


def not_finite(state: State, name: str = "", own: bool = False) -> str | None:
    """Return the name of a parameter in a captured state that holds NaN or infinity, or None.

    Checked are networks wherever they are, tensors that require a gradient and, for NaN alone, networks' buffers and
    what a `state_dict` returned (`own`): other tensors may be infinite for good reasons, such as masks.
    """
    if not isinstance(state, dict):
        return None
    kind, value = state["kind"], state.get("value", {})
    if kind == "module":
        for key, tensor in value.items():
            if not _is_finite(tensor, infinite=key in state.get("buffers", ())):
                return f"{name}.{key}".strip(".")
    if kind == "tensor" and (own or state["requires_grad"]) and not _is_finite(value, infinite=own):
        return name
    within = [("", value)] if kind == "stateful" else children(state)
    found = (not_finite(child, f"{name}.{key}".strip("."), own or kind == "stateful") for key, child in within)
    return next(filter(None, found), None)


def _is_finite(tensor: Tensor, infinite: bool = False) -> bool:
    """Whether no value is NaN, nor, unless they may, infinite."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return True
    if infinite:
        return not bool(torch.isnan(tensor).any())
    wide = tensor if tensor.dtype in (torch.float64, torch.complex128) or tensor.is_complex() else tensor.float()
    return bool(torch.isfinite(torch.linalg.vector_norm(wide, float("inf"))))
