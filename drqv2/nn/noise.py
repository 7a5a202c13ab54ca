"""Noise of exploration that lasts for several steps."""

from __future__ import annotations

import torch
from torch import Tensor


class HeldNoise:
    """Random numbers that each environment keeps for n steps, P(n) ~ n^-2, n <= longest.

    Such numbers move a body further than new ones at every step, whose effects cancel (Dabney et al., arXiv 2006.01782,
    hold random actions for such times).

    Args:
        shape: (environments, numbers in an action).
        longest: bound of n; 1 for new numbers at every step.
        device: of the numbers.
    """

    def __init__(self, shape: tuple[int, int], longest: int, device: torch.device) -> None:
        weights = torch.arange(1, longest + 1, device=device).float() ** -2
        self.shares = weights.cumsum(0) / weights.sum()  # of lengths up to 1, 2, ...
        self.shares[-1] = 1.0
        self.uniform = True
        self.numbers = torch.zeros(shape, device=device)
        self.left = torch.zeros(shape[0], dtype=torch.int64, device=device)

    def next(self, uniform: bool, generator: torch.Generator | None) -> Tensor:
        """Return the next numbers of all environments, uniform in [-1, 1] or normal when they are drawn.

        Args:
            uniform: which numbers to draw. Numbers of the other kind are not held any longer.
            generator: draws them.
        """
        if uniform != self.uniform:
            self.uniform = uniform
            self.left.zero_()
        new = torch.empty_like(self.numbers)
        new = new.uniform_(-1, 1, generator=generator) if uniform else new.normal_(generator=generator)
        drawn = torch.rand(len(new), device=new.device, generator=generator)
        lengths = torch.searchsorted(self.shares, drawn) + 1
        over = self.left == 0
        self.numbers = torch.where(over[:, None], new, self.numbers)
        self.left = torch.where(over, lengths, self.left) - 1
        return self.numbers
