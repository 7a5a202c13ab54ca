"""Image augmentation of DrQ and DrQ-v2 (arXiv 2107.09645, section 3.1): random shifts."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RandomShiftsAug(nn.Module):
    """Shift each image of a batch by up to `pad` pixels along each axis, its border repeated outwards.

    The paper's code interpolates at whole-pixel offsets, which picks pixels: here they are picked directly, so that
    uint8 images stay uint8. All channels (the stacked frames) of a sample share one shift.

    Args:
        pad: greatest shift, pixels.

    Attributes:
        generator: where the shifts are drawn from; torch's global generator of the images' device when None.
    """

    def __init__(self, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return shifted copies of `x`, [B, C, H, W] of any dtype, with the same shape and dtype."""
        b, c, h, w = x.shape
        shift = torch.randint(-self.pad, self.pad + 1, (2, b, 1), device=x.device, generator=self.generator)
        rows = (torch.arange(h, device=x.device) + shift[0]).clamp(0, h - 1)  # [B, H]
        cols = (torch.arange(w, device=x.device) + shift[1]).clamp(0, w - 1)  # [B, W]
        x = x.gather(2, rows[:, None, :, None].expand(b, c, h, w))
        return x.gather(3, cols[:, None, None, :].expand(b, c, h, w))
