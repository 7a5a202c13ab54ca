"""Policies that keep their entropy: normal numbers through tanh, and the temperature that weighs their entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.nn.networks import Actor

LOG_STD = -10.0, 2.0  # bounds of the policy's log standard deviation


class SquashedNormal:
    """The distribution of tanh(u) for u with independent normal components, mean and log standard deviation [B, A]."""

    def __init__(self, loc: Tensor, log_std: Tensor) -> None:
        self.loc, self.log_std = loc, log_std

    @property
    def mean(self) -> Tensor:
        """Return the action of the mean, [B, A]: the policy without its randomness."""
        return self.loc.tanh()

    def at(self, noise: Tensor) -> Tensor:
        """Return the actions [B, A] that standard normal numbers [B, A] choose."""
        return (self.loc + self.log_std.exp() * noise).tanh()

    def sample(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return actions [B, A] and their log densities [B, 1]; gradients flow through both."""
        noise = torch.empty_like(self.loc).normal_(generator=generator)
        u = self.loc + self.log_std.exp() * noise
        normal = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        slope = 2 * (math.log(2) - u - F.softplus(-2 * u))  # log(1 - tanh(u)^2), exact for large u, too
        return u.tanh(), (normal - slope).sum(-1, keepdim=True)


class SquashedActor(Actor):
    """DrQ-v2's trunk and hidden layers; a standard deviation for each number of an action, too."""

    def __init__(self, repr_dim: int, action_shape: Sequence[int], *sizes: Any) -> None:
        super().__init__(repr_dim, (2 * action_shape[0],), *sizes)

    def forward(self, obs: Tensor, std: Any = None) -> SquashedNormal:  # type: ignore[override]
        """Return the distribution of actions for features [B, repr_dim]; it has its own standard deviation."""
        return self.distribution(self.numbers(obs))

    def numbers(self, obs: Tensor) -> Tensor:
        """Return what `distribution` takes, [B, 2 A], for features [B, repr_dim]."""
        out: Tensor = self.policy(self.trunk(obs))
        return out

    @staticmethod
    def distribution(numbers: Tensor) -> SquashedNormal:
        """Return the distribution of actions: its mean and a bounded log standard deviation, [B, A] each."""
        loc, raw = numbers.chunk(2, -1)
        low, high = LOG_STD
        return SquashedNormal(loc, low + 0.5 * (high - low) * (raw.tanh() + 1))


class SquashedMean(nn.Module):
    """The policy without its randomness, for export."""

    def __init__(self, encoder: nn.Module, actor: SquashedActor) -> None:
        super().__init__()
        self.encoder, self.actor = encoder, actor

    def forward(self, obs: Any) -> Tensor:
        """Return actions, float32 [B, A] in (-1, 1), for observations, [B, ...]."""
        dist: SquashedNormal = self.actor(self.encoder(obs))
        return dist.mean


class Temperature(nn.Module):
    """The weight alpha of the entropy, by its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """Return alpha, []."""
        return self.log_alpha.exp()
