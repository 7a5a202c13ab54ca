"""Losses of on-policy learning, with their derivatives, and how well values explain returns: pure functions."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_policy_loss(ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the clipped loss of each step and its derivative by the log probability of the action.

    The loss is -min(A r, A clip(r, 1 - c, 1 + c)) (arXiv 1707.06347, equation 7).

    Args:
        ratio: r, probability of the action over that when it was taken.
        advantages: A.
        clip: c.
    """
    gain, clipped = advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(gain, clipped), (-gain).masked_fill(clipped < gain, 0.0)


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the clipped loss of each step and its derivative by the value V.

    The loss is max((V - R)^2, (V' - R)^2) / 2, where V' is V, but no further than `clip` from the old value.
    """
    moved, error = values - old, values - returns
    near = old + moved.clamp(-clip, clip) - returns
    flat = (moved.abs() > clip) & (near.abs() > error.abs())
    return 0.5 * torch.maximum(error.square(), near.square()), error.masked_fill(flat, 0.0)


def explained_variance(values: Tensor, returns: Tensor, live: Tensor) -> float | None:
    """Return 1 - var(returns - values) / var(returns) where `live` is 1; None without two different ones."""
    chosen = live.bool()
    if chosen.sum() < 2:
        return None
    residual, spread = (returns - values)[chosen].var(), returns[chosen].var()
    return None if spread == 0 else float(1 - residual / spread)
