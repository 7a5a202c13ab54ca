"""Policies: distributions against torch's own, shapes, and an LSTM stepped against the same unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Normal

from drqv2.errors import UserError
from drqv2.nn.policies import Categorical, Gaussian, Policy, action_sizes

DISCRETE = specs.DiscreteArray(4, np.int64, "action")
SEVERAL = specs.BoundedArray((2,), np.int64, 0, [2, 4], "action")
VECTOR = specs.BoundedArray((3,), np.float32, -1.0, 1.0, "action")


def test_categorical_is_torchs() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64)
    ours, parts = Categorical(logits, (3, 4)), [TorchCategorical(logits=x) for x in logits.split([3, 4], -1)]
    actions = torch.stack([part.sample() for part in parts], -1)
    log_prob = parts[0].log_prob(actions[:, 0]) + parts[1].log_prob(actions[:, 1])
    torch.testing.assert_close(ours.log_prob(actions), log_prob)
    torch.testing.assert_close(ours.entropy(), parts[0].entropy() + parts[1].entropy())
    assert torch.equal(ours.mode(), torch.stack([part.probs.argmax(-1) for part in parts], -1))
    many = Categorical(logits[:1].expand(20_000, 7), (3, 4)).sample(torch.Generator().manual_seed(0))
    for column, part in zip(many.T, parts, strict=True):
        counts = torch.bincount(column, minlength=part.probs.shape[1]) / len(column)
        torch.testing.assert_close(counts.double(), part.probs[0], atol=0.02, rtol=0)


def test_gaussian_is_torchs() -> None:
    mean, log_std = torch.randn(5, 3), torch.randn(3)
    ours, theirs = Gaussian(mean, log_std), Normal(mean, log_std.exp())
    actions = theirs.sample()
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    samples = Gaussian(mean.expand(20_000, 5, 3), log_std).sample(torch.Generator().manual_seed(0))
    torch.testing.assert_close(samples.mean(0), mean, atol=0.05 * float(log_std.exp().max()), rtol=0)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("spec", [DISCRETE, SEVERAL, VECTOR])
@pytest.mark.parametrize(
    ("encoder", "obs"), [("mlp", (6,)), ("small", (4, 84, 84)), ("nature", (4, 84, 84)), ("impala", (3, 20, 20))]
)
def test_shapes(encoder: str, obs: tuple[int, ...], spec: Any, lstm: bool) -> None:
    policy = Policy(obs, spec, encoder, 8, lstm)
    batch = torch.zeros(2, 3, *obs) if encoder == "mlp" else torch.zeros(2, 3, *obs, dtype=torch.uint8)
    dist, values, state = policy(batch, policy.initial_state(2), torch.zeros(2, 3, dtype=torch.bool))
    actions = dist.sample()
    assert actions.shape == (2, 3, spec.shape[0] if spec.shape else 1)
    assert actions.dtype == (torch.float32 if spec is VECTOR else torch.int64)
    assert dist.log_prob(actions).shape == dist.entropy().shape == values.shape == (2, 3)
    assert dist.mode().shape == actions.shape
    assert (state is not None) == lstm


def test_an_lstm_stepped_is_the_same_unrolled() -> None:
    torch.manual_seed(0)
    policy = Policy((6,), DISCRETE, "mlp", 8, lstm=True).double()
    obs, first = torch.randn(5, 12, 6, dtype=torch.float64), torch.rand(5, 12) < 0.2
    state = start = tuple(torch.randn(5, 8, dtype=torch.float64) for _ in range(2))
    stepped = []
    for t in range(12):
        dist, values, state = policy(obs[:, t : t + 1], state, first[:, t : t + 1])
        stepped.append((dist.log_probs[0][:, 0], values[:, 0]))
    dist, values, end = policy(obs, start, first)
    torch.testing.assert_close(dist.log_probs[0], torch.stack([x for x, _ in stepped], 1))
    torch.testing.assert_close(values, torch.stack([x for _, x in stepped], 1))
    torch.testing.assert_close(end, state)


def test_an_lstm_forgets_where_an_episode_starts() -> None:
    policy = Policy((6,), DISCRETE, "mlp", 8, lstm=True)
    obs, first = torch.randn(1, 1, 6), torch.ones(1, 1, dtype=torch.bool)
    states: Any = policy.initial_state(1), tuple(torch.randn(1, 8) for _ in range(2))
    values = [policy(obs, state, first)[1] for state in states]
    assert torch.equal(*values)


@pytest.mark.parametrize(
    ("encoder", "obs", "told"), [("mlp", (4, 84, 84), "use small, nature, impala"), ("nature", (6,), "use mlp")]
)
def test_an_encoder_for_other_observations_is_refused(encoder: str, obs: tuple[int, ...], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Policy(obs, DISCRETE, encoder)


def test_actions_that_no_policy_fits_are_refused() -> None:
    assert [action_sizes(spec) for spec in (DISCRETE, SEVERAL, VECTOR)] == [(4,), (3, 5), None]
    with pytest.raises(UserError, match="no policy fits the actions"):
        action_sizes(specs.BoundedArray((2, 2), np.float32, -1, 1, "action"))
    with pytest.raises(UserError, match="whole numbers must begin at 0"):
        action_sizes(specs.BoundedArray((1,), np.int32, -2, 2, "action"))


@pytest.mark.parametrize("encoder", ["small", "impala"])
def test_images_are_scaled_to_one(encoder: str) -> None:
    torch.manual_seed(0)
    policy = Policy((4, 84, 84), DISCRETE, encoder, 8)
    images = torch.randint(0, 256, (2, 1, 4, 84, 84), dtype=torch.uint8)
    _, values, _ = policy(images)
    first = next(m for m in policy.modules() if isinstance(m, torch.nn.Conv2d))
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(type(first), "forward", torch.nn.Conv2d.forward)
    scaled = policy.encoder(images[:, 0].float() / 255)
    monkeypatch.undo()
    torch.testing.assert_close(values[:, 0], policy.critic(scaled)[:, 0])


def test_bf16_is_for_images_alone_and_near_fp32() -> None:
    torch.manual_seed(0)
    policy = Policy((4, 84, 84), DISCRETE, "small", 32)
    images = torch.randint(0, 256, (64, 1, 4, 84, 84), dtype=torch.uint8)
    _, exact, _ = policy(images)
    policy.bf16 = Policy((4, 84, 84), DISCRETE, "small", 32, precision="bf16").bf16
    dist, values, _ = policy(images)
    values.sum().backward()
    assert policy.bf16
    assert values.dtype == dist.entropy().dtype == policy.critic.weight.dtype == torch.float32
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in policy.parameters())
    error = (values - exact).detach().abs().max()
    assert 0 < error < 0.05 * exact.detach().abs().max()
    assert not Policy((6,), DISCRETE, "mlp", 8, precision="bf16").bf16


@pytest.mark.parametrize(("encoder", "smallest"), [("nature", 36), ("small", 20)])
def test_images_that_are_too_small_are_refused_with_the_smallest(encoder: str, smallest: int) -> None:
    Policy((3, smallest, smallest), DISCRETE, encoder, 8, False)
    with pytest.raises(UserError, match=f"set image_size to {smallest} or more"):
        Policy((3, smallest - 1, smallest), DISCRETE, encoder, 8, False)
    Policy((3, 15, 15), DISCRETE, "impala", 8, False)
