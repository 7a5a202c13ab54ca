"""A convolution with its bias and its ReLU, in fewer passes over the maps than torch's own on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_Gradients = tuple[Tensor | None, Tensor, Tensor, None]


def conv_relu(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """Return relu(conv(x)) in the precision of `x`, the layer's parameters being rounded to it.

    Gradients are those that autocast gives, but the bias's is summed in float32.

    Args:
        x: bfloat16 [B, C', H, W] in channels-last order; channels above those of the layer are zeros.
        conv: a layer without padding, dilation or groups.

    Returns:
        bfloat16 [B, C, h, w] in channels-last order.
    """
    out: Tensor = _ConvReLU.apply(x, conv.weight, conv.bias, conv.stride)
    return out


class _ConvReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]) -> Tensor:
        added = x.shape[1] - weight.shape[1]
        rounded = F.pad(weight.to(x.dtype), (0, 0, 0, 0, 0, added)) if added else weight.to(x.dtype)
        rounded = rounded.contiguous(memory_format=torch.channels_last)
        if x.is_cuda:
            out = torch.cudnn_convolution_relu(x, rounded, bias.to(x.dtype), stride, (0, 0), (1, 1), 1)
        else:
            out = F.conv2d(x, rounded, bias.to(x.dtype), stride).relu_()
        ctx.save_for_backward(x, rounded, out)
        ctx.stride, ctx.channels, ctx.parameters_dtype = stride, weight.shape[1], weight.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> _Gradients:
        x, weight, out = ctx.saved_tensors
        passed, bias = gradient_before_relu(gradients[0], out)
        asked = [ctx.needs_input_grad[0], True, False]
        where = (None, ctx.stride, (0, 0), (1, 1), False, (0, 0), 1, asked)  # no padding, dilation 1, one group
        of_x, of_weight, _ = torch.ops.aten.convolution_backward(passed, x, weight, *where)
        return of_x, of_weight[:, : ctx.channels].to(ctx.parameters_dtype), bias.to(ctx.parameters_dtype), None


def gradient_before_relu(gradient: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient where a ReLU's output is positive, else 0, and its sums over images and places.

    Args:
        gradient: of the loss by `out`.
        out: what the ReLU returned, [B, C, H, W] in channels-last order.

    Returns:
        As `out`, and float32 (float64 stays) [C].
    """
    if out.is_cuda:
        from drqv2.nn import conv_relu_triton

        return conv_relu_triton.gradient_before_relu(gradient.contiguous(memory_format=torch.channels_last), out)
    passed = torch.where(out > 0, gradient, 0)
    return passed, passed.sum((0, 2, 3), dtype=torch.promote_types(out.dtype, torch.float32))
