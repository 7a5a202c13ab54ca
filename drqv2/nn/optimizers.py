"""torch's optimizers without an import that takes a second; those of PPO; one optimizer step."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from drqv2.errors import UserError

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def _without_dynamo(kind: type[_Optimizer]) -> type[_Optimizer]:
    """Return a class of optimizers like `kind`, whose steps do not import torch._dynamo, which takes a second.

    Its methods are those within torch's wrappers, which keep torch.compile out of optimizers and make steps
    differentiable. So `differentiable=True` has no effect.
    """
    names = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


Adam, AdamW = _without_dynamo(torch.optim.Adam), _without_dynamo(torch.optim.AdamW)
Muon, RMSprop = _without_dynamo(torch.optim.Muon), _without_dynamo(torch.optim.RMSprop)


def make_optimizers(
    policy: nn.Module, name: str, lr: float, adam_lr: float | None, betas: tuple[float, float], eps: float
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a policy: Muon (Jordan et al., 2024) takes matrices alone, Adam the rest or all.

    Raises:
        UserError: a learning rate for Adam beside Muon, without Muon.
    """
    if name != "muon" and adam_lr is not None:
        raise UserError(f"agent.adam_lr={adam_lr}: applies only to agent.optimizer=muon; set agent.lr instead")
    parameters = list(policy.parameters())
    matrices = [p for p in parameters if p.ndim == 2] if name == "muon" else []
    others = [p for p in parameters if name != "muon" or p.ndim != 2]
    made: list[torch.optim.Optimizer] = []
    if matrices:
        made.append(Muon(matrices, lr=lr, momentum=0.95, weight_decay=0.0))
    if others:
        made.append(Adam(others, lr=lr if adam_lr is None else adam_lr, betas=betas, eps=eps, fused=True))
    return made


def minimise(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step on a loss; only the optimizer's parameters get gradients."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=[parameter for group in optimizer.param_groups for parameter in group["params"]])
    optimizer.step()
