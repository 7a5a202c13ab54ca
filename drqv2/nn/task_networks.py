"""Actor and critic that know the task: DrQ-v2's, with an embedding of the task in their trunks and layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.nn.networks import Float32LayerNorm, Float32Linear, MapsLinear, mlp, scale_trunk
from drqv2.utils import TruncatedNormal, weight_init


class TaskEmbedding(nn.Module):
    """A learnt vector of length 1 for each task.

    Args:
        num_tasks: how many.
        dim: size of a vector; 0: there is none, and the networks do not see the task.
    """

    def __init__(self, num_tasks: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        if dim:
            self.vectors = nn.Parameter(torch.randn(num_tasks, dim))

    def forward(self, task: Tensor) -> Tensor | None:
        """Return the vectors [B, dim] of tasks, int64 [B]; None where there are none."""
        return F.normalize(self.vectors, dim=1)[task] if self.dim else None


class TaskTrunk(nn.Module):
    """DrQ-v2's trunk of features and a task: a layer on both, layer normalisation, tanh; the task is appended again.

    Args:
        repr_dim: the encoder's features.
        feature_dim: units.
        task_dim: size of a task's embedding.
    """

    def __init__(self, repr_dim: int, feature_dim: int, task_dim: int) -> None:
        super().__init__()
        self.features = MapsLinear(repr_dim, feature_dim)
        self.norm = Float32LayerNorm(feature_dim)
        self.task = nn.Linear(task_dim, feature_dim, bias=False) if task_dim else None
        self.out_dim = feature_dim + task_dim

    def forward(self, obs: Tensor, embedded: Tensor | None) -> Tensor:
        """Return [B, feature_dim + task_dim] for features [B, repr_dim] or maps and embeddings [B, task_dim]."""
        h = self.features(obs)
        if self.task is None or embedded is None:
            return torch.tanh(self.norm(h))
        return torch.cat([torch.tanh(self.norm(h + self.task(embedded))), embedded], dim=-1)


class TaskActor(nn.Module):
    """Policy of all tasks; its arguments are those of `drqv2.nn.networks.Actor`, and the size of an embedding."""

    def __init__(
        self,
        repr_dim: int,
        action_shape: Sequence[int],
        feature_dim: int,
        hidden_dim: int,
        trunk_gain: float = 1.0,
        task_dim: int = 0,
    ) -> None:
        super().__init__()
        self.trunk = TaskTrunk(repr_dim, feature_dim, task_dim)
        self.policy = mlp(self.trunk.out_dim, hidden_dim, action_shape[0])
        self.apply(weight_init)
        scale_trunk(self.trunk, trunk_gain)

    def forward(
        self, obs: Tensor, std: float | Tensor, embedded: Tensor | None = None, mask: Tensor | None = None
    ) -> TruncatedNormal:
        """Return the distribution over actions [B, A]; where `mask` [B, A] is 0, its mean is 0."""
        mu = torch.tanh(self.policy(self.trunk(obs, embedded)))  # [B, A]
        mu = mu if mask is None else mu * mask
        return TruncatedNormal(mu, torch.ones_like(mu) * std)


class _ResidualBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(dim, dim), Float32LayerNorm(dim), nn.ReLU(), nn.Linear(dim, dim), Float32LayerNorm(dim)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def residual_mlp(in_dim: int, dim: int, blocks: int, out_dim: int) -> nn.Sequential:
    """Return a layer, residual blocks with layer normalisation, and an output (BroNet of arXiv 2405.16158)."""
    first = [nn.Linear(in_dim, dim), Float32LayerNorm(dim), nn.ReLU()]
    return nn.Sequential(*first, *[_ResidualBlock(dim) for _ in range(blocks)], Float32Linear(dim, out_dim))


class TaskCritic(nn.Module):
    """Two values, or distributions over bins, of an action in a task.

    Args:
        repr_dim: the encoder's features.
        action_shape: (A,).
        feature_dim: width of the trunk's output.
        hidden_dim: width of the two hidden layers, where there are no residual blocks.
        trunk_gain: scale of the trunk's initial weights.
        layer_norm: normalise these hidden layers.
        task_dim: size of a task's embedding.
        residual: None, or width and number of residual blocks in place of the hidden layers.
        bins: outputs of a value; 1 for a number.
        heads: output layers, 1 or one for each task.
    """

    def __init__(
        self,
        repr_dim: int,
        action_shape: Sequence[int],
        feature_dim: int,
        hidden_dim: int,
        trunk_gain: float = 1.0,
        layer_norm: bool = False,
        task_dim: int = 0,
        residual: tuple[int, int] | None = None,
        bins: int = 1,
        heads: int = 1,
    ) -> None:
        super().__init__()
        self.trunk = TaskTrunk(repr_dim, feature_dim, task_dim)
        self.heads = heads
        in_dim, out_dim = self.trunk.out_dim + action_shape[0], bins * heads
        self.Q1, self.Q2 = (
            residual_mlp(in_dim, *residual, out_dim) if residual else mlp(in_dim, hidden_dim, out_dim, layer_norm)
            for _ in range(2)
        )
        self.apply(weight_init)
        scale_trunk(self.trunk, trunk_gain)

    def forward(
        self, obs: Tensor, action: Tensor, embedded: Tensor | None = None, task: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return both values, or their logits, float32 [B, bins], of actions [B, A]; task is int64 [B]."""
        h_action = torch.cat([self.trunk(obs, embedded), action], dim=-1)
        return self._own(self.Q1(h_action), task), self._own(self.Q2(h_action), task)

    def _own(self, out: Tensor, task: Tensor | None) -> Tensor:
        """Return the output of the task's head, from the outputs of all heads."""
        if self.heads == 1 or task is None:
            return out
        return out.unflatten(1, (self.heads, -1))[torch.arange(len(out), device=out.device), task]
