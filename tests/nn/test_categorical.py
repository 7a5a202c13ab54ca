"""Values as distributions over bins, against numbers written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drqv2.nn.categorical import centers, cross_entropy, expected, hl_gauss, two_hot

BINS = centers(5, 2.0)  # -2, -1, 0, 1, 2


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def test_bins_are_evenly_spaced() -> None:
    assert BINS.tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert BINS.dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "probabilities"),
    [
        (0.0, [0, 0, 1, 0, 0]),
        (0.25, [0, 0, 0.75, 0.25, 0]),
        (-1.5, [0.5, 0.5, 0, 0, 0]),
        (2.0, [0, 0, 0, 0, 1]),
        (7.0, [0, 0, 0, 0, 1]),
        (-2.0, [1, 0, 0, 0, 0]),
        (-99.0, [1, 0, 0, 0, 0]),
    ],
)
def test_two_hot_divides_a_value_between_its_neighbours(value: float, probabilities: list[float]) -> None:
    assert two_hot(column(value), BINS).tolist() == [probabilities]


@given(value=st.floats(-10, 10, width=32), bins=st.integers(3, 101))
def test_the_mean_of_two_hot_is_the_value(value: float, bins: int) -> None:
    grid = centers(bins, 10.0)
    target = two_hot(column(value), grid)
    assert float((target * grid).sum()) == pytest.approx(value, abs=2e-4)
    assert float(target.sum()) == pytest.approx(1.0, abs=1e-5)
    assert int((target > 0).sum()) <= 2


def share_of_bins(value: float, width: float, grid: list[float]) -> list[float]:
    def below(x: float) -> float:
        return 0.5 * (1 + math.erf((x - value) / (0.75 * width) / math.sqrt(2)))

    shares = [below(c + width / 2) - below(c - width / 2) for c in grid]
    return [share / sum(shares) for share in shares]


@pytest.mark.parametrize("value", [0.0, 0.3, -1.0, 1.9, 2.0])
def test_hl_gauss_is_the_share_of_a_gaussian_in_each_bin(value: float) -> None:
    (found,) = hl_gauss(column(value), BINS).tolist()
    assert found == pytest.approx(share_of_bins(value, 1.0, BINS.tolist()), abs=1e-6)


def test_hl_gauss_sums_to_1_and_is_symmetric() -> None:
    values = column(0.0, 0.4, 1.0, 5.0)
    right, left = hl_gauss(values, BINS), hl_gauss(-values, BINS)
    torch.testing.assert_close(right.sum(1), torch.ones(4))
    torch.testing.assert_close(right, left.flip(1))
    torch.testing.assert_close(right[0], right[0].flip(0))


def test_the_mean_of_hl_gauss_is_near_the_value_except_at_the_ends() -> None:
    grid = centers(101, 10.0)
    values = torch.linspace(-9, 9, 37)[:, None]
    means = (hl_gauss(values, grid) * grid).sum(1, keepdim=True)
    torch.testing.assert_close(means, values, atol=1e-3, rtol=0)


@pytest.mark.parametrize("target", [two_hot, hl_gauss])
def test_values_beyond_the_bins_count_as_the_last(target) -> None:
    assert torch.equal(target(column(2.0, -2.0), BINS), target(column(50.0, -1e9), BINS))


def test_the_mean_of_logits() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0], [-100.0, -100.0, -100.0, 0.0, math.log(3.0)]])
    torch.testing.assert_close(expected(logits, BINS), column(0.0, 0.25 * 1 + 0.75 * 2))


def test_cross_entropy_is_the_mean_over_the_batch() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    target = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    first = -(0.5 * math.log(0.25) + 0.5 * math.log(0.75))
    assert float(cross_entropy(logits, target)) == pytest.approx((first + math.log(2.0)) / 2)


@pytest.mark.parametrize("target", [two_hot, hl_gauss])
def test_descent_on_the_cross_entropy_finds_the_value(target) -> None:
    logits = torch.zeros(1, 5, requires_grad=True)
    wanted = target(column(0.75), BINS)
    for _ in range(2000):
        (gradient,) = torch.autograd.grad(cross_entropy(logits, wanted), logits)
        logits = (logits - gradient).detach().requires_grad_()
    assert float(expected(logits.detach(), BINS)) == pytest.approx(float((wanted * BINS).sum()), abs=0.02)
