"""Optimizers of on-policy agents; one optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drqv2.errors import UserError


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
    _spare_an_import()
    made: list[torch.optim.Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=lr, momentum=0.95, weight_decay=0.0))
    if others:
        made.append(torch.optim.Adam(others, lr=lr if adam_lr is None else adam_lr, betas=betas, eps=eps, fused=True))
    return made


def _spare_an_import() -> None:
    """Keep torch from importing torch._dynamo, which takes a second, when optimizers are made, saved and restored.

    It does so at the first call of these methods, only to keep torch.compile out of them, and then remembers with each
    what to call. `step` still imports it, so the second is saved where no step is taken: by PPO's update in C++ and by
    eval.py of such runs.
    """
    for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad"):
        function = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if function is not None and not hasattr(function, "__dynamo_disable"):
            function.__dynamo_disable = function


def minimise(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step on a loss; only the optimizer's parameters get gradients."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=[parameter for group in optimizer.param_groups for parameter in group["params"]])
    optimizer.step()
