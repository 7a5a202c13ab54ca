"""Encoders of policies: for images the convolutions of three papers, for vectors two layers, for dicts both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from drqv2.errors import UserError
from drqv2.nn.convolutions import PixelConv2d, check_side
from drqv2.nn.networks import Float32Sequential
from drqv2.nn.observations import PartsEncoder, Shapes, has_images
from drqv2.parts import each

# (channels, kernel size, stride) of each convolution.
CONVOLUTIONS = {
    "small": ((16, 8, 4), (32, 4, 2)),  # Mnih et al., arXiv 1312.5602
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),  # Mnih et al., Nature 518 (2015)
}
IMPALA_CHANNELS = (16, 32, 32)  # of the residual network in arXiv 1802.01561, figure 3
ENCODERS = ("auto", "mlp", *CONVOLUTIONS, "impala")


def orthogonal(layer: Any, gain: float = math.sqrt(2)) -> Any:
    """Return a layer, with orthogonal weights times `gain` and a bias of 0."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
            *(nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


def make_encoder(name: str, obs_shape: Shapes, hidden_dim: int) -> nn.Module:
    """Return a network from observations to features [B, hidden_dim].

    Args:
        name: mlp for vectors; small, nature or impala for images; auto: mlp or nature. Of a dict with images, it is
            theirs; the vectors beside them, joined, get an mlp.
        obs_shape: (N,), (C, H, W), or a dict of these.
        hidden_dim: features.

    Raises:
        UserError: the encoder is not for such observations.
    """
    images = has_images(obs_shape)
    if name == "auto":
        name = "nature" if images else "mlp"
    if (name == "mlp") == images:
        kind, allowed = ("vectors", ", ".join(ENCODERS[2:])) if images else ("images", "mlp")
        shown = f"observations have shape {each(tuple, obs_shape)}"
        raise UserError(f"agent.encoder={name} applies only to {kind}; {shown}: use {allowed}")
    if isinstance(obs_shape, Mapping):
        of_image = partial(_convolutions, name)
        parts = PartsEncoder(obs_shape, of_image, lambda size: Float32Sequential(*_mlp(size, hidden_dim)))
        return nn.Sequential(parts, *_last(parts.repr_dim, hidden_dim)) if images else parts
    if not images:
        return nn.Sequential(*_mlp(obs_shape[0], hidden_dim))
    convnet = _convolutions(name, obs_shape)
    with torch.no_grad():
        features = convnet(torch.zeros(1, *obs_shape)).shape[1]
    return nn.Sequential(convnet, *_last(features, hidden_dim))


def _mlp(size: int, hidden_dim: int) -> Iterable[nn.Module]:
    # Bounded units: with ReLU the value of a rare observation grows with its norm, in the direction of the common
    # ones. Where every reward is negative, as in Acrobot, the policy then shuns what it has not seen.
    first, second = nn.Linear(size, hidden_dim), nn.Linear(hidden_dim, hidden_dim)
    return orthogonal(first), nn.Tanh(), orthogonal(second), nn.Tanh()


def _last(features: int, hidden_dim: int) -> Iterable[nn.Module]:
    return orthogonal(nn.Linear(features, hidden_dim)), nn.ReLU()


def _convolutions(name: str, shape: Sequence[int]) -> nn.Sequential:
    """Return a network from images [B, C, H, W] to features [B, N]."""
    modules: list[nn.Module] = []
    channels = shape[0]
    if name == "impala":
        for width in IMPALA_CHANNELS:
            conv = nn.Conv2d if modules else PixelConv2d
            modules += [conv(channels, width, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            modules += [_Residual(width), _Residual(width)]
            channels = width
        modules.append(nn.ReLU())
    else:
        layers = [(size, stride) for _, size, stride in CONVOLUTIONS[name]]
        check_side(shape, layers, f"agent.encoder={name}", ", or agent.encoder=impala")
        for width, size, stride in CONVOLUTIONS[name]:
            conv = nn.Conv2d if modules else PixelConv2d
            modules += [orthogonal(conv(channels, width, size, stride)), nn.ReLU()]
            channels = width
    return nn.Sequential(*modules, nn.Flatten())
