"""Observations as networks get them: one tensor, or a dict of tensors by the names of their parts; their encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drqv2.errors import UserError
from drqv2.parts import each, parts

Observation = Tensor | dict[str, Tensor]
Shapes = Sequence[int] | Mapping[str, Sequence[int]]
"""(C, H, W) of images, (N,) of vectors; of a dict, those of its parts."""


def to_device(obs: Any, device: torch.device | str) -> Any:
    """Return an observation of arrays as tensors on a device."""
    return each(lambda part: torch.as_tensor(part, device=device), obs)


def has_images(shapes: Shapes) -> bool:
    """Return whether an observation is an image or has one among its parts."""
    return any(len(shape) == 3 for shape in parts(shapes))


class PartsEncoder(nn.Module):
    """Encodes a dict of observations: each image by its own network, all vectors, joined, by one; features are joined.

    What follows sums over thousands of an image's features and a few hundred of the vectors'. These are scaled such
    that both have the same share in an orthogonal layer's first outputs.

    Args:
        shapes: of the parts, images (C, H, W) and vectors (N,).
        image: makes the network of an image from its shape.
        vector: makes that of the joined vectors, [B, N], from their number N. It computes in fp32 under autocast, too.

    Attributes:
        images, vectors: names of the parts.
        repr_dim: features of an observation.
    """

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        image: Callable[[Sequence[int]], nn.Module],
        vector: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        self.images = sorted(name for name, shape in shapes.items() if len(shape) == 3)  # stored data have no order
        self.vectors = sorted(name for name, shape in shapes.items() if len(shape) == 1)
        if len(set(map(_attribute, self.images))) < len(self.images):
            raise UserError(f"images {', '.join(self.images)}: their names must also differ with _ in place of dots")
        self.of_image = nn.ModuleDict({_attribute(name): image(shapes[name]) for name in self.images})
        size = sum(shapes[name][0] for name in self.vectors)
        self.of_vectors = vector(size) if self.vectors else None
        with torch.no_grad():
            seen = [self.of_image[_attribute(name)](torch.zeros(1, *shapes[name])).numel() for name in self.images]
            felt = 0 if self.of_vectors is None else self.of_vectors(torch.zeros(1, size)).numel()
        self.repr_dim = sum(seen) + felt
        self.gain = math.sqrt(sum(seen) / felt) if seen and felt else 1.0

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return features [B, repr_dim] of images [B, C, H, W] and vectors [B, N]."""
        features = [self.of_image[_attribute(name)](obs[name]).flatten(1) for name in self.images]
        if self.of_vectors is not None:
            joined = torch.cat([obs[name] for name in self.vectors], 1)
            felt = self.gain * self.of_vectors(joined).flatten(1)
            features.append(felt.to(features[0].dtype) if features else felt)
        return torch.cat(features, 1)


def _attribute(name: str) -> str:
    """Return the name of a part as that of a module, in which there are no dots and nothing that a ModuleDict has."""
    name = name.replace(".", "_")
    return name + "_" if hasattr(nn.ModuleDict(), name) else name
