"""Utilities: predicates, timer, seeds, schedules, the truncated normal, modes and targets."""

from __future__ import annotations

import inspect
import random
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from drqv2 import utils
from drqv2.errors import UserError, nearest
from drqv2.run.updates import updates_due
from drqv2.utils import Every, Timer, TruncatedNormal, Until, schedule, spawn_seed

# Until and Every


@given(until=st.integers(0, 100), repeat=st.integers(1, 5), step=st.integers(0, 120))
def test_until_counts_frames(until, repeat, step):
    assert Until(until, repeat)(step) == ((step + 1) * repeat <= until)


def test_none_is_never():
    assert Until(None, 2)(10**12)
    assert not any(Every(None, 2)(step) for step in range(100))
    assert not Until(0)(0)
    assert Until(1e6, 2).until == 500_000  # type: ignore[arg-type]  # num_train_frames=1e6 on a command line


@given(every=st.integers(1, 40), repeat=st.integers(1, 4), steps=st.integers(1, 100))
def test_every_at_the_multiples(every, repeat, steps):
    if every < repeat:
        return
    predicate = Every(every, repeat)
    assert [step for step in range(steps) if predicate(step)] == list(range(0, steps, every // repeat))


@given(every=st.integers(1, 20), jumps=st.lists(st.integers(1, 30), max_size=30), start=st.integers(0, 50))
def test_every_with_a_jumping_counter(every, jumps, start):
    """Between two calls a multiple was passed or reached, or not: that is what a call says."""
    predicate, step = Every(every), start
    assert predicate(step) == (start % every == 0)
    for jump in jumps:
        passed = any(s % every == 0 for s in range(step + 1, step + jump + 1))
        step += jump
        assert predicate(step) == passed
        assert predicate.last_step == step


def test_every_resumes_from_its_last_step():
    first, second = Every(10), Every(10)
    for step in (0, 4, 8):
        first(step)
    second.last_step = first.last_step
    assert second(13)
    assert not second(17)


# Timer


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(utils, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_timer(clock):
    timer = Timer()
    clock.now += 3
    assert timer.total_time() == 3
    clock.now += 2
    assert timer.reset() == (5, 5)
    clock.now += 4
    assert timer.reset() == (4, 9)
    assert timer.reset() == (0, 9)


def test_timer_paused(clock):
    timer = Timer()
    clock.now += 3
    with timer.paused():
        clock.now += 1000
    clock.now += 2
    assert timer.total_time() == 5

    def fail() -> None:
        clock.now += 1000
        raise KeyError

    with pytest.raises(KeyError), timer.paused():
        fail()
    clock.now += 1
    assert timer.reset() == (6, 6)


def test_timer_resumes_from_an_earlier_process(clock):
    timer = Timer(500.0)
    clock.now += 3
    assert timer.reset() == (3, 503)


# Seeds


def test_spawn_seed_children_differ():
    streams = (utils.TRAIN_ENV, utils.EVAL_ENV, utils.REPLAY, utils.AGENT)
    keys: list[tuple[int, ...]] = [(stream, i, e) for stream in streams for i in range(4) for e in range(20)]
    keys += [(stream,) for stream in streams] + [(stream, 1) for stream in streams]
    seeds = [spawn_seed(seed, *key) for seed in range(5) for key in keys]
    assert len(set(seeds)) == len(seeds)


def test_spawn_seed_is_stable():
    """Stored runs are resumed by it: (seed, key) never gives another number."""
    assert (spawn_seed(1, 0, 0, 0), spawn_seed(1, 2), spawn_seed(0)) == (1_682_583_155, 2_749_604_155, 2_968_811_710)
    assert (utils.TRAIN_ENV, utils.EVAL_ENV, utils.REPLAY, utils.AGENT) == (0, 1, 2, 3)


def draw() -> tuple[float, float, float]:
    return torch.rand(()).item(), float(np.random.rand()), random.random()


@pytest.mark.parametrize("seed", [7, np.int64(7)])
def test_set_seed_everywhere(seed):
    utils.set_seed_everywhere(seed)
    first = draw()
    utils.set_seed_everywhere(7)
    assert draw() == first
    utils.set_seed_everywhere(8)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


# Schedules


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (0.2, {0: 0.2, 10**9: 0.2}),
        ("0.2", {0: 0.2, 10**9: 0.2}),
        ("1e-1", {5: 0.1}),
        (1, {0: 1.0}),
        ("linear(1.0,0.1,100)", {0: 1.0, 50: 0.55, 100: 0.1, 101: 0.1, 10**9: 0.1}),
        (" linear( 1 , .1,\t1e2 ) ", {0: 1.0, 50: 0.55, 100: 0.1}),
        ("linear(-1,+1,4)", {0: -1.0, 1: -0.5, 2: 0.0, 4: 1.0}),
        ("linear(0.1,1.0,100000)", {50_000: 0.55}),
        ("step_linear(1.0,0.5,10,0.1,20)", {0: 1.0, 5: 0.75, 10: 0.5, 20: 0.3, 30: 0.1, 31: 0.1, 10**9: 0.1}),
    ],
)
def test_schedule_values(text, values):
    for step, value in values.items():
        assert schedule(text, step) == pytest.approx(value, abs=1e-12)
        assert type(schedule(text, step)) is float


@pytest.mark.parametrize(
    "text",
    [
        "linear(1,2)",
        "linear(1,2,3,4)",
        "linear(1,2,3)x",
        "linear(a,2,3)",
        "step_linear(1,2,3)",
        "cosine(1,2,3)",
        "__import__('os')",
        "",
    ],
)
def test_invalid_schedule(text):
    with pytest.raises(UserError, match=r"expected a number, linear\(init,final,duration\) or step_linear"):
        schedule(text, 0)


@pytest.mark.parametrize(
    "text", ["linear(1,0.1,0)", "linear(1,0.1,-5)", "step_linear(1,0.5,0,0.1,10)", "step_linear(1,0.5,10,0.1,0)"]
)
def test_schedule_without_duration(text):
    with pytest.raises(UserError, match="a duration must be above 0 agent steps"):
        schedule(text, 0)


# TruncatedNormal


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_truncated_normal_stays_inside():
    distribution = TruncatedNormal(torch.linspace(-3, 3, 1000), 2.0)
    sample = distribution.sample(generator=generator())
    assert sample.min() == pytest.approx(-1 + 1e-6, abs=1e-7)
    assert sample.max() == pytest.approx(1 - 1e-6, abs=1e-7)
    assert sample.abs().max() < 1
    narrow = TruncatedNormal(torch.zeros(1000), 1.0, low=-0.25, high=0.5, eps=0.01).sample(generator=generator())
    assert narrow.min() == pytest.approx(-0.24)
    assert narrow.max() == pytest.approx(0.49)


def test_truncated_normal_is_normal_within():
    loc, scale = torch.full((50_000,), 0.2), 0.1
    sample = TruncatedNormal(loc, scale).sample(generator=generator())
    expected = loc + scale * torch.randn(50_000, generator=generator())
    torch.testing.assert_close(sample, expected)


def test_the_noise_is_clipped_and_not_the_sample():
    loc = torch.tensor([-0.5, 0.0, 0.5]).repeat_interleave(2000)
    noise = TruncatedNormal(loc, 1.0).sample(clip=0.3, generator=generator()) - loc
    torch.testing.assert_close(noise.abs().max(), torch.tensor(0.3))
    assert ((noise.abs() - 0.3).abs() < 1e-6).float().mean() > 0.7  # most of a normal is beyond 0.3 deviations
    unclipped = TruncatedNormal(loc, 1.0).sample(generator=generator()) - loc
    inside = noise.abs() < 0.299
    torch.testing.assert_close(noise[inside], unclipped[inside])


def test_the_gradient_goes_straight_through():
    loc = torch.tensor([0.0, 5.0, -5.0], requires_grad=True)
    scale = torch.full((3,), 0.1, requires_grad=True)
    sample = TruncatedNormal(loc, scale).sample(generator=generator())
    sample.sum().backward()
    assert loc.grad is not None
    assert scale.grad is not None
    assert loc.grad.tolist() == [1, 1, 1]  # also where the sample was clamped
    torch.testing.assert_close(scale.grad, torch.randn(3, generator=generator()))


def test_truncated_normal_is_called_as_agents_call_it():
    mu = torch.zeros(4, 2)
    distribution = TruncatedNormal(mu, torch.ones_like(mu) * 0.2)
    assert distribution.sample().shape == (4, 2)
    assert distribution.sample(0.3).abs().max() <= 0.3 + 1e-6
    assert distribution.sample(None, (7,)).shape == (7, 4, 2)
    assert torch.equal(distribution.mean, mu)
    normal = torch.distributions.Normal(mu, 0.2)
    torch.testing.assert_close(distribution.log_prob(mu + 0.1), normal.log_prob(mu + 0.1))
    torch.testing.assert_close(distribution.entropy(), normal.entropy())


# Modes, targets, arrays, weights


def test_eval_mode_restores_the_previous_mode():
    training, evaluating = nn.Dropout(), nn.Dropout().eval()
    agent = SimpleNamespace(training=True)
    agent.train = lambda mode=True: setattr(agent, "training", mode)
    with utils.eval_mode(training, evaluating, agent):
        assert (training.training, evaluating.training, agent.training) == (False, False, False)
    assert (training.training, evaluating.training, agent.training) == (True, False, True)
    with pytest.raises(KeyError), utils.eval_mode(training):
        raise KeyError
    assert training.training


@given(tau=st.floats(0, 1, width=32))
def test_soft_update(tau):
    torch.manual_seed(0)
    net, target = (nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)) for _ in range(2))
    expected = [
        tau * p.detach() + (1 - tau) * q.detach() for p, q in zip(net.parameters(), target.parameters(), strict=True)
    ]
    kept = [p.detach().clone() for p in net.parameters()]
    held = list(target.parameters())
    utils.soft_update_params(net, target, tau)
    torch.testing.assert_close([p.detach() for p in target.parameters()], expected, rtol=1e-5, atol=1e-6)
    assert all(a is b for a, b in zip(held, target.parameters(), strict=True))  # in place
    assert all(torch.equal(a, b) for a, b in zip(kept, net.parameters(), strict=True))
    assert all(p.grad is None and p.requires_grad for p in target.parameters())


def test_to_torch_keeps_dtypes():
    arrays = (np.zeros((2, 3), np.uint8), np.ones(2, np.float32), torch.arange(3))
    tensors = utils.to_torch(arrays, "cpu")
    assert isinstance(tensors, tuple)
    assert [x.dtype for x in tensors] == [torch.uint8, torch.float32, torch.int64]
    assert [tuple(x.shape) for x in tensors] == [(2, 3), (2,), (3,)]
    (observation,) = utils.to_torch([{"pixels": arrays[0], "joints": arrays[1]}], "cpu")
    assert {key: x.dtype for key, x in observation.items()} == {"pixels": torch.uint8, "joints": torch.float32}


def test_weight_init():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.Conv2d(3, 8, 3), nn.Linear(4, 4, bias=False), nn.LayerNorm(4)).apply(
        utils.weight_init
    )
    linear, conv, _, norm = net
    torch.testing.assert_close(linear.weight @ linear.weight.T, torch.eye(4), rtol=0, atol=1e-5)  # type: ignore[operator]
    rows = conv.weight.flatten(1)  # type: ignore[operator]
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(8), rtol=0, atol=1e-5)
    assert linear.bias.abs().sum() == conv.bias.abs().sum() == 0  # type: ignore[operator]
    assert norm.weight.sum() == 4  # type: ignore[operator]


def test_nearest():
    names = ["cartpole_balance", "cartpole_swingup", "cheetah_run", "walker_run"]
    assert nearest("cheeta_run", names)[0] == "cheetah_run"
    assert len(nearest("cartpole", [f"cartpole_{i}" for i in range(9)])) == 3
    assert nearest("xyz", names) == []


@pytest.mark.parametrize(
    ("rate", "due"),
    [
        (1, [1] * 12),
        (2, [2] * 12),
        (0.25, [1, 0, 0, 0] * 3),
        (1.5, [2, 1] * 6),
        (0.1, [1] + [0] * 9 + [1, 0]),
        (0, [0] * 12),
    ],
)
def test_updates_due_at_each_step(rate, due):
    assert [updates_due(step, Fraction(str(rate))) for step in range(12)] == due


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7, 1 / 3, 2.9])
def test_updates_due_lose_nothing_over_many_steps(rate):
    total = 0
    for step in range(3000):
        total += updates_due(step, Fraction(str(rate)))
        assert -1e-9 < total - (step + 1) * rate < 1 + 1e-9


def test_a_signature_that_extends_another_names_the_arguments_of_both() -> None:
    class Parent:
        def __init__(self, a: int, b: int = 2) -> None:
            self.made = a, b

    class Child(Parent):
        @utils.extends(Parent.__init__)
        def __init__(self, *args: Any, c: int = 3, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.c = c

    class Grandchild(Child):
        def __init__(self, d: int) -> None:
            super().__init__(d, b=d)

    assert str(inspect.signature(Child)) == "(a: 'int', b: 'int' = 2, *, c: 'int' = 3)"
    assert str(inspect.signature(Grandchild)) == "(d: 'int') -> 'None'"
    assert Child(1, b=5, c=6).made == (1, 5)
