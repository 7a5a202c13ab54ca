"""Returns, lengths and discounted sums of episodes against a loop over steps."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drqv2.rollout.totals import EpisodeTotals

ENVS = 3


@given(seed=st.integers(0, 10_000), batches=st.lists(st.integers(1, 20), min_size=1, max_size=4))
def test_equal_to_a_loop(seed: int, batches: list[int]) -> None:
    rng, totals = np.random.default_rng(seed), EpisodeTotals(ENVS, 0.9)
    returns, lengths, sums, over = [0.0] * ENVS, [-1] * ENVS, [0.0] * ENVS, [True] * ENVS
    expected: list[tuple[float, int]] = []
    for size in batches:
        index, ended = rng.integers(0, ENVS, size), rng.random(size) < 0.3
        reward, first, wanted = rng.integers(-4, 5, size).astype(np.float32) / 4, np.zeros(size, bool), []
        for k, i in enumerate(index):
            if over[i]:  # of the episode before
                first[k], ended[k], reward[k] = True, False, 0.0
            returns[i], lengths[i] = returns[i] + float(reward[k]), lengths[i] + 1
            sums[i] = 0.0 if first[k] else 0.9 * sums[i] + float(reward[k])
            wanted.append(sums[i])
            if ended[k]:
                expected.append((returns[i], lengths[i]))
                returns[i], lengths[i] = 0.0, -1
            over[i] = bool(ended[k])
        np.testing.assert_allclose(totals.add(reward, ended, first, index), wanted, rtol=1e-6, atol=1e-6)
    assert Counter(totals.episodes) == Counter(expected)


def test_a_restored_one_goes_on() -> None:
    reward, none = np.ones(4, np.float32), np.zeros(4, bool)
    index, first = np.array([0, 0, 1, 1]), np.array([True, False, True, False])
    totals, other = EpisodeTotals(2, 0.5), EpisodeTotals(2, 0.5)
    totals.add(reward * ~first, none, first, index)
    other.load_state_dict(totals.state_dict())
    ended = np.array([False, True, True, False])
    sums = [x.add(reward, ended, none, index).tolist() for x in (totals, other)]
    assert sums[0] == sums[1] == pytest.approx([1.5, 1.75, 1.5, 1.75])
    assert other.episodes == totals.episodes == [(3.0, 3), (2.0, 2)]


def test_without_a_discount_there_are_no_sums() -> None:
    ones, none = np.ones(4, np.float32), np.zeros(4, bool)
    totals = EpisodeTotals(1, None)
    assert not totals.add(ones, np.array([False, False, False, True]), none, np.zeros(4, np.int64)).any()
    assert totals.episodes == [(4.0, 3)]
