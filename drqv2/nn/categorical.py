"""Values as distributions over bins: pure functions (arXiv 2403.03950, sections 3.1 and 4)."""

from __future__ import annotations

import torch
from torch import Tensor

_SMOOTHING = 0.75  # HL-Gauss: standard deviation over the width of a bin, as in the paper


def centers(bins: int, value_max: float) -> Tensor:
    """Return the values of the bins, evenly spaced from -value_max to value_max, float32 [bins]."""
    return torch.linspace(-value_max, value_max, bins)


def two_hot(values: Tensor, centers: Tensor) -> Tensor:
    """Return the distribution over the two neighbouring bins whose mean is the value.

    Args:
        values: [..., 1]; those outside the bins count as the nearest bin.
        centers: values of the bins, [bins].

    Returns:
        Probabilities [..., bins].
    """
    width = centers[1] - centers[0]
    place = ((values.clamp(centers[0], centers[-1]) - centers[0]) / width).clamp(0, len(centers) - 1)  # [B, 1]
    return (1 - (torch.arange(len(centers), device=values.device) - place).abs()).clamp(min=0)


def hl_gauss(values: Tensor, centers: Tensor) -> Tensor:
    """Return the share that each bin has of a Gaussian around the value; arguments and result as of `two_hot`."""
    width = centers[1] - centers[0]
    edges = torch.cat([centers - width / 2, centers[-1:] + width / 2])
    mean = values.clamp(centers[0], centers[-1])
    below = torch.special.ndtr((edges - mean) / (_SMOOTHING * width))  # [B, bins + 1]
    share = below[:, 1:] - below[:, :-1]
    return share / share.sum(1, keepdim=True)  # what lies outside the bins is left out


def expected(logits: Tensor, centers: Tensor) -> Tensor:
    """Return the mean value [B, 1] of distributions given as logits [B, bins]."""
    return (logits.softmax(1) * centers).sum(1, keepdim=True)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the batch of the cross-entropy of logits [B, bins] from probabilities [B, bins]."""
    return -(target * logits.log_softmax(1)).sum(1).mean()


def symlog(x: Tensor) -> Tensor:
    """Return sign(x) log(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def symexp(x: Tensor) -> Tensor:
    """Return the inverse of `symlog`."""
    return x.sign() * x.abs().expm1()
