"""Random shifts against a crop of the padded image, and against the interpolation that the paper's code does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from drqv2.nn.augmentation import RandomShiftsAug


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def crops(image: np.ndarray, pad: int) -> dict[tuple[int, int], np.ndarray]:
    """Return every shift (down, right) of an image [C, H, W] whose border is repeated outwards, by its offset."""
    _, h, w = image.shape
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="edge")
    offsets = range(2 * pad + 1)
    return {(y, x): padded[:, y : y + h, x : x + w] for y in offsets for x in offsets}


def offsets_of(before: torch.Tensor, after: torch.Tensor, pad: int) -> list[tuple[int, int]]:
    """Return, for each sample, the one offset whose crop the augmented sample is."""
    found = []
    for image, shifted in zip(before.numpy(), after.numpy(), strict=True):
        matches = [offset for offset, crop in crops(image, pad).items() if np.array_equal(crop, shifted)]
        assert len(matches) == 1
        found += matches
    return found


@pytest.mark.parametrize("shape", [(64, 9, 84, 84), (5, 3, 20, 20), (7, 4, 13, 30), (3, 1, 9, 8)])
@pytest.mark.parametrize("pad", [4, 2])
def test_each_sample_is_one_crop_of_its_padded_image(shape: tuple[int, ...], pad: int) -> None:
    x = images(*shape)
    y = RandomShiftsAug(pad)(x)
    assert y.dtype == torch.uint8
    assert y.shape == x.shape
    assert len(set(offsets_of(x, y, pad))) > 1  # samples are shifted one by one
    assert torch.equal(x, images(*shape))


@pytest.mark.parametrize("size", [84, 64, 21])
def test_the_interpolating_formulation_gives_the_same(size: int) -> None:
    pad, x = 4, images(16, 9, size, size)
    y = RandomShiftsAug(pad)(x)
    offsets = torch.tensor(offsets_of(x, y, pad), dtype=torch.float64)  # [B, 2], (down, right)

    side = size + 2 * pad
    padded = F.pad(x.double(), (pad,) * 4, mode="replicate")
    pixel = torch.arange(size, dtype=torch.float64)
    centre = (2.0 * (pixel + offsets[:, :, None]) + 1.0) / side - 1.0  # [B, 2, size], in grid_sample's coordinates
    down, right = centre[:, 0, :, None], centre[:, 1, None, :]
    grid = torch.stack(torch.broadcast_tensors(right, down), dim=-1)  # [B, size, size, 2]
    sampled = F.grid_sample(padded, grid, padding_mode="zeros", align_corners=False)
    torch.testing.assert_close(sampled, y.double(), rtol=0.0, atol=1e-6)


def test_all_shifts_are_equally_likely() -> None:
    torch.manual_seed(0)
    x = images(1, 1, 10, 10).expand(81 * 100, -1, -1, -1)
    offsets = np.array(offsets_of(x[:1000], RandomShiftsAug(4)(x)[:1000], 4))
    assert {tuple(o) for o in offsets} <= {(i, j) for i in range(9) for j in range(9)}
    counts = np.stack([np.bincount(offsets[:, axis], minlength=9) for axis in (0, 1)])
    assert (counts > 0.6 * 1000 / 9).all()
    assert (counts < 1.4 * 1000 / 9).all()
    assert abs(np.corrcoef(offsets.T)[0, 1]) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bfloat16])
def test_the_dtype_changes_nothing(dtype: torch.dtype) -> None:
    aug, x = RandomShiftsAug(pad=4), images(8, 9, 32, 32)
    torch.manual_seed(3)
    expected = aug(x)
    torch.manual_seed(3)
    y = aug(x.to(dtype))
    assert y.dtype == dtype
    assert torch.equal(y, expected.to(dtype))


def test_the_generator_decides() -> None:
    aug, x = RandomShiftsAug(4), images(8, 3, 16, 16)
    aug.generator = torch.Generator().manual_seed(1)
    before = torch.get_rng_state()
    first, second = aug(x), aug(x)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, second)
    aug.generator.manual_seed(1)
    assert torch.equal(aug(x), first)


def test_no_pad_no_shift() -> None:
    x = images(4, 3, 8, 8)
    assert torch.equal(RandomShiftsAug(0)(x), x)


def test_gradients_pass() -> None:
    x = torch.rand(2, 1, 6, 6, requires_grad=True)
    RandomShiftsAug(2)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.sum() == 2 * 36
