"""Networks of SPQ: an encoder whose latents are centred and normalised, and a model of what follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.nn.convolutions import pixel_convolutions
from drqv2.nn.networks import Float32Sequential
from drqv2.nn.observations import PartsEncoder, Shapes
from drqv2.parts import each


def normalised(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Return a layer, its normalisation and its nonlinearity."""
    return nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ELU()


class LatentEncoder(nn.Module):
    """Images (C, H, W), vectors (N,) or dicts to latents [D], f: features, then z = ELU(LN(h - mean)) of a linear h.

    The mean is a running one, except where encoder and model learn: there it is the batch's own, so that no gradient
    moves all latents together.
    """

    mean: Tensor
    rate: Tensor

    def __init__(self, obs_shape: Shapes, dim: int, convolutions: str, frames: int) -> None:
        super().__init__()

        def of_image(shape: Sequence[int]) -> nn.Module:
            return pixel_convolutions(shape, convolutions, frames, "agent.convolutions")

        def of_vector(size: int) -> nn.Module:
            return Float32Sequential(*normalised(size, dim))

        if isinstance(obs_shape, Mapping):
            self.body: nn.Module = PartsEncoder(obs_shape, of_image, of_vector)
        else:
            self.body = of_image(obs_shape) if len(obs_shape) == 3 else of_vector(obs_shape[0])
        features = self.body(each(lambda shape: torch.zeros(1, *shape), obs_shape)).numel()
        self.linear, self.norm = nn.Linear(features, dim), nn.LayerNorm(dim)
        self.register_buffer("mean", torch.zeros(dim))  # of h: that of the first batch, then 0.1 of the way to others'
        self.register_buffer("rate", torch.ones(()))

    def forward(self, obs: Any) -> Tensor:
        """Return latents [B, D] of observations [B, ...]."""
        return self._latents(self._linear(obs), self.mean)

    def both(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return latents centred by their own mean, [B, D], which the running mean follows; and by that, detached."""
        h = self._linear(obs)
        mean = h.mean(0)
        self.mean.lerp_(mean.detach(), self.rate)
        self.rate.fill_(0.1)
        return self._latents(h, mean), self._latents(h.detach(), self.mean).detach()

    def _linear(self, obs: Any) -> Tensor:
        h: Tensor = self.linear(self.body(each(_channels_last, obs)).flatten(1))
        return h.to(self.mean.dtype)

    def _latents(self, h: Tensor, mean: Tensor) -> Tensor:
        return F.elu(self.norm(h - mean))


def _channels_last(obs: Tensor) -> Tensor:
    return obs.contiguous(memory_format=torch.channels_last) if obs.ndim == 4 else obs


class LatentModel(nn.Module):
    """Latent [D] and action [A] to the next latent and the reward, m; its last layer starts at zero."""

    def __init__(self, dim: int, action_dim: int, embed_dim: int, bins: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(action_dim, embed_dim), nn.ELU())
        self.net = nn.Sequential(*normalised(dim + embed_dim, dim), *normalised(dim, dim), nn.Linear(dim, dim + bins))
        for parameter in self.net[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return next latents [B, D] and logits of the rewards [B, bins], for latents [B, D] and actions [B, A]."""
        out, dim = self.net(torch.cat([latent, self.embed(action)], -1)), latent.shape[1]
        return out[:, :dim], out[:, dim:]
