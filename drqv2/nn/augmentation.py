"""Image augmentation of DrQ and DrQ-v2 (arXiv 2107.09645, section 3.1): random shifts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn


class RandomShiftsAug(nn.Module):
    """Shift each image of a batch by up to `pad` pixels along each axis, repeating its border.

    The paper's code interpolates at whole-pixel offsets, which selects pixels: here they are selected directly, so
    that uint8 images stay uint8. All channels (the stacked frames) of a sample share one shift. Observations may be
    dicts: each of their images has its own shift, and vectors stay as they are.

    Args:
        pad: greatest shift, pixels; less than the side of the images.

    Attributes:
        generator: draws the shifts; torch's global generator of the images' device when None.
    """

    def __init__(self, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.generator: torch.Generator | None = None

    def draw(self, x: Any) -> Any:
        """Return a random shift for each image of `x`: rows and columns, int64 [2, B]; by name, of a dict's."""
        if isinstance(x, Mapping):
            return {name: self.draw(part) for name, part in x.items() if part.ndim == 4}
        return torch.randint(-self.pad, self.pad + 1, (2, len(x)), device=x.device, generator=self.generator)

    def forward(self, x: Any, shift: Any = None) -> Any:
        """Return shifted copies of `x`, [B, C, H, W] of any dtype, with the same shape and dtype; or of a dict's.

        Without a `shift`, as `draw` returns it, a new one is drawn.
        """
        shift = self.draw(x) if shift is None else shift
        if isinstance(x, Mapping):
            return {name: self(part, shift[name]) if name in shift else part for name, part in x.items()}
        if x.device.type == "cpu" and x.dtype == torch.uint8:
            return _shifted_by_slices(x, shift)
        return _shifted_by_gather(x, shift)


def _shifted_by_gather(x: Tensor, shift: Tensor) -> Tensor:
    """Return each image of `x` with its first pixel at (shift[0], shift[1]) of it, int64 [2, B]."""
    b, c, h, w = x.shape
    rows = (torch.arange(h, device=x.device) + shift[0, :, None]).clamp(0, h - 1)  # [B, H]
    cols = (torch.arange(w, device=x.device) + shift[1, :, None]).clamp(0, w - 1)  # [B, W]
    x = x.gather(2, rows[:, None, :, None].expand(b, c, h, w))
    return x.gather(3, cols[:, None, None, :].expand(b, c, h, w))


def _shifted_by_slices(x: Tensor, shift: Tensor) -> Tensor:
    """Do the same by copying rectangles: on a CPU several times faster than a gather.

    The copies are in channels-last order, which is fastest for convolutions: permuted here, while an image is in cache.
    """
    source = x.numpy()
    b, c, h, w = source.shape
    target = np.empty((b, h, w, c), np.uint8)
    for old, new, dy, dx in zip(source, target, *shift.tolist(), strict=True):
        top, bottom, left, right = max(0, -dy), h - max(0, dy), max(0, -dx), w - max(0, dx)
        cv2.merge(tuple(old[:, top + dy : bottom + dy, left + dx : right + dx]), new[top:bottom, left:right])
        if left:
            new[top:bottom, :left] = new[top:bottom, left : left + 1]
        if right < w:
            new[top:bottom, right:] = new[top:bottom, right - 1 : right]
        if top:
            new[:top] = new[top : top + 1]
        if bottom < h:
            new[bottom:] = new[bottom - 1 : bottom]
    return torch.from_numpy(target).permute(0, 3, 1, 2)
