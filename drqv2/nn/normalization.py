"""Running statistics for normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class RunningMeanStd(nn.Module):
    """Running mean and variance of the samples seen, by the parallel formula of Chan, Golub and LeVeque (1983).

    Args:
        shape: of one sample.

    Attributes:
        count: samples so far, float64 [].
        mean: float64 [*shape]; 0 before the first sample.
        var: float64 [*shape]; 1 before the first sample.
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        zeros = torch.zeros(tuple(shape), dtype=torch.float64)
        for name, value in (("count", zeros.new_zeros(())), ("mean", zeros), ("var", torch.ones_like(zeros))):
            self.register_buffer(name, value)

    @torch.no_grad()
    def update(self, samples: Tensor) -> None:
        """Add samples, [..., *shape]."""
        flat = samples.reshape(-1, *self.mean.shape).double()
        number, mean, var = len(flat), flat.mean(0), flat.var(0, correction=0)
        total = self.count + number
        delta = mean - self.mean
        spread = self.var * self.count + var * number + delta.square() * self.count * number / total
        self.mean += delta * number / total
        self.var.copy_(spread / total)
        self.count.copy_(total)

    def normalize(self, x: Tensor, clip: float = 10.0) -> Tensor:
        """Return x, [..., *shape], with the mean taken off, over the standard deviation, clipped; in x's dtype."""
        std = (self.var + 1e-8).sqrt()
        return ((x - self.mean) / std).clamp(-clip, clip).to(x.dtype)

    def scale(self, x: Tensor, clip: float = 10.0) -> Tensor:
        """Return x over the standard deviation, clipped; its sign stays."""
        return (x / (self.var + 1e-8).sqrt()).clamp(-clip, clip).to(x.dtype)


class PartsMeanStd(nn.Module):
    """Running statistics of each vector of observations that are dicts; their images stay as they are.

    Args:
        shapes: of the parts; at least one is a vector.

    Attributes:
        vectors: names of the vectors.
        of_vector: `RunningMeanStd` of each.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.vectors = [name for name, shape in shapes.items() if len(shape) == 1]
        self.of_vector: Any = nn.ModuleList(RunningMeanStd(shapes[name]) for name in self.vectors)

    @property
    def count(self) -> Tensor:
        """Observations so far, float64 []."""
        count: Tensor = self.of_vector[0].count
        return count

    def update(self, obs: Mapping[str, Tensor]) -> None:
        """Add observations, [..., *shape] of each part."""
        for name, stats in zip(self.vectors, self.of_vector, strict=True):
            stats.update(obs[name])

    def normalize(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return observations, [..., *shape] of each part, with their vectors normalised."""
        named = zip(self.vectors, self.of_vector, strict=True)
        return {**obs, **{name: stats.normalize(obs[name]) for name, stats in named}}
