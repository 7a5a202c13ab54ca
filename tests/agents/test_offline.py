"""DrQ+BC, behaviour cloning and CQL: their losses written out, and what they learn from stored actions."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.offline import BCAgent, CQLAgent, DrQV2BCAgent
from drqv2.logging.diagnostics import diagnose


def make(kind: type[DrQV2Agent], **more: Any) -> Any:
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "obs_shape": (3,),
        "action_shape": (2,),
        "device": "cpu",
        "lr": 1e-3,
        "feature_dim": 8,
        "hidden_dim": 16,
        "critic_target_tau": 0.05,
        "num_expl_steps": 0,
        "update_every_steps": 1,
        "stddev_schedule": "0.0",  # the policy's mean, which makes the loss a plain formula
        "stddev_clip": 0.3,
        "use_tb": True,
        "seed": 1,
    }
    return kind(**common | more)


def batch(seed: int = 0, n: int = 16) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    obs, next_obs = (torch.randn(n, 3, generator=generator) for _ in range(2))
    action = 2 * torch.rand(n, 2, generator=generator) - 1
    reward, discount = torch.randn(n, 1, generator=generator), torch.full((n, 1), 0.97)
    return obs, action, reward, discount, next_obs


@pytest.mark.parametrize("alpha", [2.5, 0.5])
def test_the_actors_loss_of_drq_bc_is_the_formula(alpha: float) -> None:
    agent = make(DrQV2BCAgent, bc_alpha=alpha)
    obs, action, *_ = data = batch()
    features = agent.encoder(obs).detach()
    before = copy.deepcopy(agent.actor)
    metrics = agent.update(iter([data]), 0)
    # The critic has taken its step before; the actor had not moved yet.
    mean = before(features, 0.0).mean
    q = torch.min(*agent.critic(features, mean))
    imitation = ((mean - action) ** 2).mean()
    expected = -alpha / q.abs().mean() * q.mean() + imitation
    torch.testing.assert_close(metrics["actor_bc_loss"], imitation.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(metrics["actor_loss"], expected.detach(), rtol=1e-4, atol=1e-6)


def test_the_step_of_the_actor_is_that_of_the_formulas_gradient() -> None:
    agent = make(DrQV2BCAgent)
    obs, action, *_ = data = batch()
    features = agent.encoder(obs).detach()
    before = copy.deepcopy(agent.actor)
    agent.update(iter([data]), 0)
    mean = before(features, 0.0).mean
    q = torch.min(*agent.critic(features, mean))
    loss = F.mse_loss(mean, action) - 2.5 * q.mean() / q.abs().mean().detach()
    loss.backward(inputs=list(before.parameters()))
    optimizer = torch.optim.Adam(before.parameters(), lr=1e-3)
    optimizer.step()
    for own, expected in zip(agent.actor.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-5)


def test_the_critic_of_drq_bc_is_that_of_drqv2() -> None:
    agents = [make(kind) for kind in (DrQV2Agent, DrQV2BCAgent)]
    for agent in agents:
        agent.update(iter([batch()]), 0)
    assert all(torch.equal(a, b) for a, b in zip(*(agent.critic.parameters() for agent in agents), strict=True))


def mirrored() -> Any:
    """Batches in which the action is half of two numbers of the observation, whatever the rewards."""
    generator = torch.Generator().manual_seed(1)
    while True:
        obs = 2 * torch.rand(64, 3, generator=generator) - 1
        yield obs, obs[:, :2] / 2, torch.randn(64, 1, generator=generator), torch.zeros(64, 1), obs


@pytest.mark.parametrize(("kind", "more"), [(BCAgent, {}), (DrQV2BCAgent, {"bc_alpha": 0.0})])
def test_without_values_the_actions_of_the_data_are_learnt(kind: type[DrQV2Agent], more: dict[str, float]) -> None:
    agent = make(kind, hidden_dim=64, feature_dim=32, lr=3e-3, **more)
    batches = mirrored()
    losses = [float(agent.update(batches, step)["actor_bc_loss"]) for step in range(400)]
    assert losses[-1] < 0.05 * losses[0]
    states = np.linspace(-1, 1, 33, dtype=np.float32).reshape(11, 3)
    np.testing.assert_allclose(agent.act_batch(states, 0, eval_mode=True), states[:, :2] / 2, atol=0.15)


def test_behaviour_cloning_leaves_the_critic_alone_and_has_no_diagnostics_of_values() -> None:
    agent = make(BCAgent)
    before = [parameter.clone() for parameter in agent.critic.parameters()]
    agent.update(iter([batch()]), 0)
    assert all(torch.equal(a, b) for a, b in zip(before, agent.critic.parameters(), strict=True))
    episode = {
        "observation": np.zeros((5, 3), np.float32),
        "action": np.zeros((5, 2), np.float32),
        "reward": np.zeros((5, 1), np.float32),
        "discount": np.ones((5, 1), np.float32),
    }
    assert diagnose(agent, episode, 1, 0.99, "cpu") == {}
    assert diagnose(make(DrQV2BCAgent), episode, 1, 0.99, "cpu").keys() >= {"q_bias"}


def test_the_critics_loss_of_cql_is_the_formula() -> None:
    agent = make(CQLAgent, cql_alpha=0.7, cql_samples=5)
    obs, action, reward, discount, next_obs = data = batch()
    features, next_features = agent.encoder(obs).detach(), agent.encoder(next_obs).detach()
    before, sampled = copy.deepcopy(agent.critic), []
    sample = agent._sampled_actions

    def recorded(*args: Any) -> Tensor:
        sampled.append(sample(*args))
        return sampled[-1]

    agent._sampled_actions = recorded
    mean, next_mean = (agent.actor(x, 0.0).mean.detach() for x in (features, next_features))
    metrics = agent.update(iter([data]), 0)
    (actions,) = sampled
    assert actions.shape == (15, 16, 2)
    assert (actions[:5].abs() <= 1).all()
    assert actions[:5].std() > 0.4  # uniform
    torch.testing.assert_close(actions[5:10], mean.expand(5, 16, 2))
    torch.testing.assert_close(actions[10:], next_mean.expand(5, 16, 2))
    target = reward + discount * torch.min(*before(next_features, next_mean))  # the target critic is still the same
    expected = torch.zeros(())
    for i in range(2):
        own = before(features, action)[i]
        others = torch.stack([before(features, a)[i] for a in actions])  # [15, B, 1]
        expected = expected + F.mse_loss(own, target) + 0.7 * (others.exp().sum(0).log() - own).mean()
    torch.testing.assert_close(metrics["critic_loss"], expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_cql_values_other_actions_below_those_of_the_data() -> None:
    def gap(kind: type[DrQV2Agent], **more: Any) -> float:
        agent = make(kind, hidden_dim=64, feature_dim=32, lr=3e-3, stddev_schedule="0.2", **more)
        batches = mirrored()
        for step in range(200):
            agent.update(batches, step)
        obs, action, *_ = next(batches)
        with torch.no_grad():
            features = agent.encoder(obs)
            own, other = (torch.min(*agent.critic(features, a)).mean() for a in (action, -action))
        return float(own - other)

    assert gap(CQLAgent, cql_alpha=5.0) > gap(DrQV2Agent) + 1.0


@pytest.mark.parametrize("kind", [BCAgent, CQLAgent, DrQV2BCAgent])
def test_images_bf16_and_no_metrics(kind: type[DrQV2Agent]) -> None:
    agent = make(kind, obs_shape=(9, 48, 48), use_tb=False, precision="bf16", stddev_schedule="0.1")
    assert agent._as_published, "updates may use bf16 and CUDA graphs, as DrQ-v2's"
    generator = torch.Generator().manual_seed(0)
    obs = torch.randint(0, 256, (4, 9, 48, 48), generator=generator, dtype=torch.uint8)
    before = [parameter.clone() for parameter in (*agent.encoder.parameters(), *agent.actor.parameters())]
    assert agent.update(iter([(obs, torch.rand(4, 2), torch.rand(4, 1), torch.ones(4, 1), obs)]), 0) == {}
    after = (*agent.encoder.parameters(), *agent.actor.parameters())
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_noise_of_the_policys_update_is_clipped() -> None:
    agent, seen = make(DrQV2BCAgent, stddev_schedule="5.0"), list[Tensor]()
    obs, action, *_ = batch()
    features = agent.encoder(obs).detach()
    mean = agent.actor(features, 0.0).mean.detach()
    agent.critic.register_forward_pre_hook(lambda _, args: seen.append(args[1].detach()))
    agent.update_policy(features, action, 0)
    assert 0.2 < float((seen[0] - mean).abs().max()) <= 0.3 + 1e-5
