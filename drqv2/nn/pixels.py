"""Shift, centre and pad a batch's images in one GPU kernel."""

from __future__ import annotations

import functools
import warnings

import torch
from torch import Tensor

from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.conv_relu import conv_relu
from drqv2.nn.networks import centred

_MULTIPLE = 16  # of the channels: fewer are not multiplied by tensor cores


def shifted_and_centred(images: Tensor, shift: Tensor) -> Tensor:
    """Return images as `RandomShiftsAug` shifts them and `centred` centres them, with channels of zeros added.

    Needs a GPU and Triton, see `has_kernel`. The numbers are those of a CPU: on a GPU, torch divides by multiplying
    with the reciprocal, which can differ in the last bit.

    Args:
        images: uint8 [B, C, H, W].
        shift: int64 [2, B], as `RandomShiftsAug.draw` returns it.

    Returns:
        bfloat16 [B, C', H, W] in channels-last order, C' being the next multiple of 16.
    """
    from drqv2.nn import pixels_triton

    batch, channels, height, width = images.shape
    size = (batch, -(-channels // _MULTIPLE) * _MULTIPLE, height, width)
    out = torch.empty(size, dtype=torch.bfloat16, device=images.device, memory_format=torch.channels_last)
    pixels_triton.prepare(images.contiguous(), shift.contiguous(), out)
    return out


@functools.cache
def has_kernel(device: str) -> bool:
    """Return whether the kernel works on a device: a GPU, with Triton and the C compiler that it needs.

    The first call for a GPU tries it, and warns if Triton is there but the kernel fails.
    """
    if torch.device(device).type != "cuda":
        return False
    try:
        images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
        shift = torch.tensor([[3], [-2]])
        found = shifted_and_centred(images.to(device), shift.to(device))[:, :1].cpu()
        if torch.equal(found, centred(RandomShiftsAug(4)(images, shift)).bfloat16()):
            # What comes next must work, too. Weights that are not initialized draw no random numbers.
            layer = torch.nn.utils.skip_init(torch.nn.Conv2d, 16, 32, 3, device=device)
            with torch.enable_grad():
                conv_relu(shifted_and_centred(images.to(device), shift.to(device)), layer).sum().backward()
            return True
        why = "it gives other numbers"
    except ModuleNotFoundError:
        return False
    except Exception as error:  # of the compiler, the driver or Triton itself: there is other code for this
        why = " ".join(str(error).split())[:200]
    warnings.warn(f"images are prepared without the Triton kernel, which fails here: {why}", stacklevel=2)
    return False
