"""One kernel that prepares images for a GPU, against plain code; the convolution of what it returns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from drqv2.nn import pixels
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.networks import Encoder, centred
from tests.nn.interpreter import interpret

SHAPES = [(5, 9, 20, 17), (2, 3, 84, 84), (3, 20, 9, 64), (2, 36, 5, 7)]


def plain(images: Tensor, shift: Tensor, wide: int) -> Tensor:
    shifted = centred(RandomShiftsAug(4)(images, shift))
    return torch.nn.functional.pad(shifted.float(), (0, 0, 0, 0, 0, wide - images.shape[1]))


def check(device: str) -> None:
    from drqv2.nn import pixels_triton

    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
        shift = torch.randint(-4, 5, (2, shape[0]), generator=generator).to(device)
        got = pixels.shifted_and_centred(images, shift)
        assert got.is_contiguous(memory_format=torch.channels_last)
        assert got.shape[1] == {3: 16, 9: 16, 20: 32, 36: 48}[shape[1]]
        wanted = plain(images.cpu(), shift.cpu(), got.shape[1]).to(device)
        if device == "cuda":
            assert torch.equal(got, wanted.bfloat16())
        else:  # the interpreter cuts bf16 off
            torch.testing.assert_close(got.float(), wanted, rtol=2**-7, atol=0)
        exact = torch.full_like(wanted, torch.nan, memory_format=torch.channels_last)
        pixels_triton.prepare(images, shift, exact)
        assert torch.equal(exact, wanted)


@pytest.mark.gpu
def test_the_kernel_does_what_plain_code_does() -> None:
    check("cuda")


@pytest.mark.slow
def test_the_kernel_in_tritons_interpreter_does_what_plain_code_does() -> None:
    interpret("from tests.nn.test_pixels import check; check('cpu')")


def test_ready_images_give_the_features_of_plain_ones() -> None:
    torch.manual_seed(0)
    encoder = Encoder((9, 40, 40)).double()
    images = torch.randint(0, 256, (3, 9, 40, 40), dtype=torch.uint8)
    ready = torch.nn.functional.pad(images.double() / 255.0 - 0.5, (0, 0, 0, 0, 0, 7))
    gradients = []
    for features in (encoder(images.double()), encoder(ready, ready=True)):
        encoder.zero_grad()
        features.square().sum().backward()
        gradients.append([features, *(parameter.grad for parameter in encoder.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_without_a_gpu_there_is_no_kernel() -> None:
    assert not pixels.has_kernel("cpu")


def test_a_kernel_that_fails_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels.has_kernel.cache_clear()
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self)  # there is no GPU here
    monkeypatch.setattr(pixels, "shifted_and_centred", lambda images, shift: 1 / 0)
    with pytest.warns(UserWarning, match="which fails here: division by zero"):
        assert not pixels.has_kernel("cuda")
    assert not pixels.has_kernel("cuda")
    pixels.has_kernel.cache_clear()
