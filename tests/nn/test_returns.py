"""n-step returns against a loop over single transitions in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drqv2.nn.returns import nstep_returns

FLOATS = st.floats(-10, 10, width=32)
STEPS = st.lists(st.tuples(FLOATS, st.floats(0, 1, width=32)), min_size=1, max_size=20)


def naive(rewards: list[float], discounts: list[float], t: int, nstep: int, gamma: float) -> tuple[float, float]:
    total, factor = 0.0, 1.0
    for reward, discount in list(zip(rewards, discounts, strict=True))[t : t + nstep]:
        total += factor * reward
        factor *= discount * gamma
    return total, factor


@given(steps=STEPS, nstep=st.integers(1, 30), gamma=st.floats(0, 1))
def test_equal_to_a_loop(steps, nstep, gamma):
    rewards, discounts = map(list, zip(*steps, strict=True))
    reward, discount = np.array(rewards, np.float32), np.array(discounts, np.float32)
    kept = reward.copy(), discount.copy()
    returns = nstep_returns(reward, discount, nstep, gamma)
    expected = np.array([naive(rewards, discounts, t, nstep, gamma) for t in range(len(steps))]).T
    for got, want in zip(returns, expected, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal((reward, discount), kept)  # the arguments are left as they were


@pytest.mark.parametrize(
    ("last", "nstep", "rewards", "discounts"),
    [
        (0.0, 3, [1 + 2 / 2 + 3 / 4, 2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4], [1 / 8, 0, 0, 0]),  # a true end
        (1.0, 3, [1 + 2 / 2 + 3 / 4, 2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4], [1 / 8, 1 / 8, 1 / 4, 1 / 2]),  # a time-out
        (1.0, 1, [1, 2, 3, 4], [1 / 2, 1 / 2, 1 / 2, 1 / 2]),
        (1.0, 9, [1 + 1 + 3 / 4 + 1 / 2, 2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4], [1 / 16, 1 / 8, 1 / 4, 1 / 2]),
    ],
)
def test_by_hand(last, nstep, rewards, discounts):
    got = nstep_returns(np.array([1, 2, 3, 4], np.float32), np.array([1, 1, 1, last], np.float32), nstep, 0.5)
    np.testing.assert_array_equal(got, (rewards, discounts))


@pytest.mark.parametrize(("last", "discount"), [(0.0, 0.0), (1.0, 0.99)])
def test_one_transition(last, discount):
    got = nstep_returns(np.array([2.5], np.float32), np.array([last], np.float32), 3, 0.99)
    np.testing.assert_array_equal(got, np.array([[2.5], [discount]], np.float32))


def test_nothing_is_gained_after_a_true_end():
    """A discount of 0 within a sequence cuts off what comes after it."""
    reward, discount = nstep_returns(np.ones(4, np.float32), np.array([1, 0, 1, 1], np.float32), 3, 1.0)
    assert reward.tolist() == [2, 1, 2, 1]
    assert discount.tolist() == [0, 0, 1, 1]
