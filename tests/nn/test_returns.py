"""Returns and advantages against loops over single transitions in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drqv2.nn import scan
from drqv2.nn.returns import nstep_returns, puff_advantage, vtrace
from tests.nn.interpreter import interpret

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


DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SIZES = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**32))  # steps, environments, seed


def random_tensors(sizes: tuple[int, int, int], dtype: torch.dtype, number: int) -> list[Any]:
    steps, envs, seed = sizes
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(steps, envs, generator=generator, dtype=torch.float64).to(dtype) for _ in range(number)]


def doubles(arguments: Any) -> Any:
    return [x.double() if isinstance(x, Tensor) else x for x in arguments]


def assert_close(got: Tensor, want: Tensor) -> None:
    """Compare with a result of double precision; half precision carries the rounding of the arguments' products."""
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 0.1}[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("time_first", [True, False])
@given(sizes=SIZES)
def test_scan_is_the_recurrence(time_first, dtype, sizes):
    deltas, decays = random_tensors(sizes, dtype, 2)
    want = torch.zeros(sizes[0] + 1, sizes[1], dtype=torch.float64)
    for t in reversed(range(sizes[0])):
        want[t] = deltas[t].double() + decays[t].double() * want[t + 1]
    if not time_first:
        deltas, decays = deltas.T.contiguous(), decays.T.contiguous()
    got = scan.reverse_scan(deltas, decays, time_first)
    assert got.dtype == dtype
    assert_close(got if time_first else got.T, want[:-1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("time_first", [True, False])
def test_scan_on_a_gpu_is_that_on_a_cpu(time_first, dtype):
    for sizes in ((1, 1, 0), (17, 5, 1), (64, 130, 2)):  # few, since Triton compiles the kernel anew for some sizes
        deltas, decays = (x if time_first else x.T for x in random_tensors(sizes, dtype, 2))
        got = scan.reverse_scan(deltas.cuda(), decays.cuda(), time_first)
        assert (got.device.type, got.dtype) == ("cuda", dtype)
        assert_close(got.cpu(), scan.reverse_scan(deltas.double(), decays.double(), time_first))


def check_scan_kernel() -> None:
    from drqv2.nn import scan_triton

    for steps, envs in ((1, 1), (17, 5), (6, 130)):
        for time_first in (True, False):
            drawn = random_tensors((steps, envs, 1), torch.float32, 2)
            deltas, decays = (x if time_first else x.T.contiguous() for x in drawn)
            out = torch.full_like(deltas, torch.nan)
            scan_triton.scan(deltas, decays, out, envs, steps, *((1, envs) if time_first else (steps, 1)))
            assert_close(out, scan.reverse_scan(deltas.double(), decays.double(), time_first))


@pytest.mark.slow
def test_scan_kernel_in_tritons_interpreter_is_that_on_a_cpu():
    interpret("from tests.nn.test_returns import check_scan_kernel; check_scan_kernel()")


def naive_vtrace(log_rhos, discounts, rewards, values, bootstrap, clip_rho, clip_pg_rho):
    """Return the sums of the paper's equation 1, written out: no recurrence."""
    steps, rhos = len(rewards), log_rhos.exp()
    after = torch.cat([values, bootstrap[None]])
    deltas = rhos.clamp(max=clip_rho) * (rewards + discounts * after[1:] - values)
    vs = values.clone()
    for s in range(steps):
        weight = torch.ones_like(rewards[0])
        for t in range(s, steps):
            vs[s] += weight * deltas[t]
            weight = weight * discounts[t] * rhos[t].clamp(max=1)
    next_vs = torch.cat([vs[1:], bootstrap[None]])
    return vs, rhos.clamp(max=clip_pg_rho) * (rewards + discounts * next_vs - values)


@pytest.mark.parametrize("dtype", DTYPES)
@given(sizes=SIZES, clip_rho=st.floats(0.1, 4), clip_pg_rho=st.floats(0.1, 4))
def test_vtrace_is_the_sum_in_the_paper(dtype, sizes, clip_rho, clip_pg_rho):
    log_rhos, discounts, rewards, values, last = random_tensors(sizes, dtype, 5)
    log_rhos, discounts = 2 * log_rhos - 1, 0.99 * (discounts > 0.1)
    arguments = [log_rhos, discounts.to(dtype), rewards, values, last[0], clip_rho, clip_pg_rho]
    got, want = vtrace(*arguments), naive_vtrace(*doubles(arguments))
    for one, other in zip(got, want, strict=True):
        if dtype is not torch.bfloat16:  # whose log_rhos are too coarse for their exponentials
            assert_close(one, other)
        assert one.dtype == dtype


@given(sizes=SIZES)
def test_vtrace_on_policy_is_the_nstep_bellman_target(sizes):
    rewards, values, last, discounts = random_tensors(sizes, torch.float64, 4)
    vs, advantages = vtrace(torch.zeros_like(rewards), discounts, rewards, values, last[0])
    target = last[0]
    for t in reversed(range(sizes[0])):
        target = rewards[t] + discounts[t] * target
        torch.testing.assert_close(vs[t], target)
    torch.testing.assert_close(advantages, vs - values)


def test_vtrace_without_clips():
    log_rhos, rewards, values, last, discounts = random_tensors((7, 3, 0), torch.float64, 5)
    unclipped = vtrace(log_rhos, discounts, rewards, values, last[0], None, None)
    want = naive_vtrace(log_rhos, discounts, rewards, values, last[0], 1e9, 1e9)
    for one, other in zip(unclipped, want, strict=True):
        torch.testing.assert_close(one, other)


def naive_puff(values, rewards, dones, ratio, gamma, gae_lambda, rho_clip, c_clip):
    advantages = torch.zeros_like(values)
    for i in range(values.shape[0]):
        for t in reversed(range(values.shape[1] - 1)):
            goes_on = 1 - dones[i, t + 1]
            delta = rewards[i, t + 1] + gamma * values[i, t + 1] * goes_on - values[i, t]
            trace = gamma * gae_lambda * min(ratio[i, t], c_clip) * goes_on * advantages[i, t + 1]
            advantages[i, t] = min(ratio[i, t], rho_clip) * delta + trace
    return advantages


@pytest.mark.parametrize("dtype", DTYPES)
@given(sizes=SIZES, gamma=st.floats(0, 1), gae_lambda=st.floats(0, 1), clips=st.tuples(*[st.floats(0.1, 2)] * 2))
def test_puff_advantage_is_the_loop(dtype, sizes, gamma, gae_lambda, clips):
    values, rewards, dones, ratio = random_tensors(sizes, dtype, 4)
    arguments = [values, rewards, (dones < 0.1).to(dtype), 2 * ratio, gamma, gae_lambda, *clips]
    assert_close(puff_advantage(*arguments), naive_puff(*doubles(arguments)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_puff_advantage_by_hand(dtype):
    values, ratio = torch.ones(2, 1, 4, dtype=dtype)
    rewards, dones = (torch.tensor([x], dtype=dtype) for x in ([0, 1, 0, 1], [0, 0, 0, 1]))
    got = puff_advantage(values, rewards, dones, ratio, 0.99, 0.95, 1.0, 1.0)
    assert_close(got, torch.tensor([[0.980595, -0.01, 0, 0]], dtype=torch.float64).to(dtype).double())


def test_with_one_lambda_and_equal_clips_puff_advantage_is_vtrace():
    """Reward and done stand one step later in puff advantage, whose last step has no advantage."""
    log_rhos, rewards, values, dones = random_tensors((9, 4, 1), torch.float64, 4)
    dones = (dones < 0.2).double()
    vs, _ = vtrace(log_rhos[:-1], 0.9 * (1 - dones[1:]), rewards[1:], values[:-1], values[-1])
    got = puff_advantage(values.T, rewards.T, dones.T, log_rhos.exp().T, 0.9, 1.0, 1.0, 1.0)
    torch.testing.assert_close(got.T[:-1], vs - values[:-1])


@pytest.mark.parametrize("flags", [torch.float32, torch.int64])
def test_arguments_of_several_dtypes(flags):
    rewards, values, a = random_tensors((7, 3, 0), torch.float64, 3)
    ended = (a < 0.1).to(flags)
    ones = torch.ones(7, 3, dtype=torch.float32)
    got = puff_advantage(values, rewards, ended.float(), ones, 0.9, 0.8, 1.0, 1.0)
    want = puff_advantage(values, rewards, ended.double(), ones.double(), 0.9, 0.8, 1.0, 1.0)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
