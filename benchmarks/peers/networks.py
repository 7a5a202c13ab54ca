"""The network of this project's policies, for other libraries."""

from __future__ import annotations

import torch
from torch import nn

CONVOLUTIONS = {"small": ((16, 8, 4), (32, 4, 2)), "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1))}


def features(encoder: str, shape: tuple[int, ...], hidden: int) -> nn.Sequential:
    """Return an MLP of two layers, or convolutions and one layer, from observations to features [B, hidden]."""
    if encoder == "mlp":
        return nn.Sequential(nn.Linear(shape[0], hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
    layers: list[nn.Module] = []
    channels = shape[0]
    for width, size, stride in CONVOLUTIONS[encoder]:
        layers += [nn.Conv2d(channels, width, size, stride), nn.ReLU()]
        channels = width
    layers.append(nn.Flatten())
    with torch.no_grad():
        flat = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Linear(flat, hidden), nn.ReLU())
