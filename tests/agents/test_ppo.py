"""PPO: ends of episodes, losses, minibatches, statistics; see also test_ppo_update.py."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs

from drqv2.agents.ppo import PPOAgent
from drqv2.agents.segments import Segments
from drqv2.config.schema import REGIMES
from drqv2.errors import UserError

ARGUMENTS: dict[str, Any] = {
    "obs_shape": (5,),
    "action_spec": specs.DiscreteArray(3, np.int64, "action"),
    "device": "cpu",
    "encoder": "mlp",
    "hidden_dim": 8,
    "lstm": False,
    "optimizer": "adam",
    "lr": 0.01,
    "total_steps": 240,
    "discount": 0.9,
    "gae_lambda": 0.8,
    "rho_clip": 1.0,
    "c_clip": 1.0,
    "update_epochs": 1.0,
    "minibatch_size": 24,
    "accumulate_minibatches": 1,
    "clip_coef": 0.2,
    "vf_coef": 2.0,
    "vf_clip": 0.2,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
    "prio_alpha": 0.8,
    "prio_beta0": 0.2,
    "truncation": "bootstrap",
    "advantage": "full_batch",
    "adam_beta1": 0.95,
    "adam_eps": 1e-8,
    "normalize_observations": False,
    "normalize_rewards": False,
    "seed": 0,
}


def make_agent(**changes: Any) -> PPOAgent:
    torch.manual_seed(0)
    agent = PPOAgent(**ARGUMENTS | changes)
    agent.policy.double()
    return agent


def make_batch(agent: PPOAgent, count: int = 4, horizon: int = 6) -> Segments:
    """Return steps of random observations; an episode terminates in segment 0, one is truncated in segment 1."""
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(count, horizon, 5, generator=generator, dtype=torch.float64)
    terminated, truncated, first = torch.zeros(3, count, horizon, dtype=torch.bool)
    terminated[0, 2], truncated[1, 3], first[0, 3], first[1, 4] = True, True, True, True
    rewards = torch.randn(count, horizon, generator=generator, dtype=torch.float64).masked_fill(first, 0.0)
    with torch.no_grad():
        state = agent.policy.initial_state(count)
        dist, values, _ = agent.policy(obs, state, first)
        actions = dist.sample(generator)
    log_probs = dist.log_prob(actions) + 0.3 * torch.randn(count, horizon, generator=generator, dtype=torch.float64)
    return Segments(obs, actions, log_probs, values, rewards, terminated, truncated, first, state)


def test_a_truncated_episode_is_bootstrapped_or_not() -> None:
    for truncation, value in (("bootstrap", 0.9), ("ignore", 0.0)):
        agent = make_agent(truncation=truncation)
        batch = make_batch(agent)
        values = batch.values
        advantages = agent._advantages(agent._steps(batch))
        want = batch.rewards[1, 3] + value * values[1, 3] - values[1, 2]
        torch.testing.assert_close(advantages[1, 2], want)
        assert advantages[1, 3] == advantages[0, 2] == 0
        torch.testing.assert_close(advantages[0, 1], batch.rewards[0, 2] - values[0, 1])


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("changes", [{}, {"advantage": "minibatch"}, {"advantage": "once"}, {"optimizer": "muon"}])
def test_minibatches(changes: dict[str, Any], lstm: bool) -> None:
    agent = make_agent(minibatch_size=12, update_epochs=2.0, accumulate_minibatches=2, lstm=lstm, **changes)
    before = [p.clone() for p in agent.policy.parameters()]
    steps = []
    for optimizer in agent.optimizers:
        optimizer.register_step_post_hook(lambda *_: steps.append(1))
    metrics = agent.update(iter([make_batch(agent)._asdict()]), 0)
    assert len(steps) == 2 * len(agent.optimizers)  # four minibatches
    assert all(math.isfinite(value) for value in metrics.values())
    moved = [not torch.equal(a, b) for a, b in zip(before, agent.policy.parameters(), strict=True)]
    assert all(moved)


def test_one_minibatch_of_everything_is_the_same_however_advantages_are_computed() -> None:
    for lstm in (False, True):
        found = []
        for advantage in ("full_batch", "once"):
            agent = make_agent(minibatch_size=24, update_epochs=1.0, lstm=lstm, advantage=advantage, prio_alpha=0.0)
            metrics = agent.update(iter([make_batch(agent)._asdict()]), 0)
            del metrics["losses/explained_variance"]  # of the values after and before the update
            found.append([torch.tensor(list(metrics.values())), *agent.policy.parameters()])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def test_steps_left_over_from_an_epoch_come_first_in_the_next() -> None:
    agent = make_agent(minibatch_size=18, advantage="once")
    drawn = torch.cat([rows for _, rows, _ in agent._shuffled(agent._steps(make_batch(agent)), 4)])
    assert drawn.bincount().tolist() == [3] * 24  # 4 x 18 steps of 24


def test_no_gradients_are_left_for_the_next_update() -> None:
    agent = make_agent(minibatch_size=12, update_epochs=1.5, accumulate_minibatches=2)  # three minibatches
    agent.update(iter([make_batch(agent)._asdict()]), 0)
    assert all(p.grad is None for p in agent.policy.parameters())


def test_the_learning_rate_falls_along_a_cosine() -> None:
    agent = make_agent()
    rates = [agent.update(iter([make_batch(agent)._asdict()]), 24 * k)["learning_rate"] for k in range(12)]
    assert rates[:6:5] == pytest.approx([0.01, 0.005])
    assert rates[10:] == [0, 0]


@pytest.mark.parametrize("step", [0, 120, 240])
def test_a_learning_rate_that_is_not_annealed_is_constant(step: int) -> None:
    agent = make_agent(anneal_lr=False)
    assert agent.update(iter([make_batch(agent)._asdict()]), step)["learning_rate"] == 0.01
    assert agent.optimizers[0].param_groups[0]["lr"] == 0.01


def test_adam_beside_muon_has_its_own_learning_rate() -> None:
    """A first step of Adam moves each parameter by its learning rate, whatever the gradient."""
    moved = {}
    for adam_lr, rate in ((None, 0.01), (0.0001, 0.0001)):
        agent = make_agent(optimizer="muon", adam_lr=adam_lr, adam_eps=1e-12)
        before = copy.deepcopy(agent.policy)
        agent.update(iter([make_batch(agent)._asdict()]), 120)  # half way: half of the rate
        torch.testing.assert_close((agent.policy.critic.bias - before.critic.bias).abs().item(), rate / 2)
        moved[adam_lr] = agent.policy.actor.weight - before.actor.weight
    torch.testing.assert_close(moved[None], moved[0.0001])  # Muon's part keeps its own
    with pytest.raises(UserError, match=r"agent\.adam_lr=0\.1: applies only to agent\.optimizer=muon"):
        make_agent(adam_lr=0.1)


def test_the_same_seed_gives_the_same_bits() -> None:
    agents = [make_agent(minibatch_size=12) for _ in range(2)]
    metrics = [[agent.update(iter([make_batch(agent)._asdict()]), 0) for _ in range(3)] for agent in agents]
    assert metrics[0] == metrics[1]


def test_rewards_are_normalised_by_their_discounted_sum() -> None:
    agent, plain = make_agent(normalize_rewards=True), make_agent()
    batch = make_batch(agent)
    sums = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rewards = batch.rewards / sums.var(correction=0).add(1e-8).sqrt()
    metrics = agent.update(iter([batch._asdict() | {"sums": sums}]), 0)
    assert metrics == plain.update(iter([batch._replace(rewards=rewards)._asdict()]), 0)


def test_the_first_batch_only_begins_the_statistics_of_observations() -> None:
    agent = make_agent(normalize_observations=True)
    batch = make_batch(agent)
    before = copy.deepcopy(agent.policy.state_dict())
    assert agent.update(iter([batch._asdict()]), 0) == {}
    stats = agent.policy.obs_stats
    assert stats is not None
    torch.testing.assert_close(stats.mean, batch.obs.mean((0, 1)))
    assert all(torch.equal(x, before[name]) for name, x in agent.policy.state_dict().items() if "stats" not in name)
    assert agent.update(iter([batch._asdict()]), 24)["losses/policy_loss"] != 0
    assert stats.count == 48


@pytest.mark.parametrize("lstm", [True, False])
def test_episodes_are_played_together_as_one_by_one(lstm: bool) -> None:
    agent, rng = make_agent(lstm=lstm), np.random.default_rng(0)
    agent.policy.float()
    alone: list[Any] = [None, None, None]
    together: list[Any] = [None, None, None]
    for step in range(4):
        obs = rng.standard_normal((3, 5)).astype(np.float32)
        if step == 2:  # an episode starts anew
            alone[1] = together[1] = None
        actions, together = agent.act_from(together, obs, 0, eval_mode=True)
        for i in range(3):
            (action,), (alone[i],) = agent.act_from([alone[i]], obs[i : i + 1], 0, eval_mode=True)
            np.testing.assert_allclose(actions[i], action, atol=1e-6)
            for ours, theirs in zip(together[i] or (), alone[i] or (), strict=True):
                torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("spec", [ARGUMENTS["action_spec"], specs.BoundedArray((2,), np.int64, 0, [1, 3], "action")])
def test_actions_have_the_shape_of_the_spec(spec: Any) -> None:
    agent = make_agent(action_spec=spec, lstm=True)
    agent.policy.float()
    (action,), states = agent.act_from([None], np.zeros((1, 5), np.float32), 0, eval_mode=True)
    assert action.shape == spec.shape
    spec.validate(action)
    agent.act_from(states, np.zeros((1, 5), np.float32), 0, eval_mode=False)
    actions, *_ = agent.step(torch.zeros(7, 5), agent.policy.initial_state(7), torch.zeros(7, dtype=torch.bool))
    assert actions.shape == (7, *spec.shape)


def test_advantages_of_a_minibatch_have_its_ratios_and_the_values_before_it() -> None:
    found = []
    for advantage in ("minibatch", "full_batch"):
        agent = make_agent(advantage=advantage)
        batch = make_batch(agent)
        steps = agent._steps(batch._replace(values=batch.values + 1))
        with torch.no_grad():
            dist, _, _ = agent.policy(batch.obs, batch.state, batch.first)
            ratio = (dist.log_prob(batch.actions) - batch.log_probs).exp() * steps["live"]
        known = agent._advantages(steps | {"ratio": ratio})
        steps["advantages"] = torch.zeros_like(known) if advantage == "minibatch" else known
        loss, metrics = agent._loss(steps, torch.arange(4), torch.ones(4))
        loss.backward()
        found.append([metrics, *(p.grad for p in agent.policy.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_one_step_that_counts_gives_finite_losses() -> None:
    agent = make_agent(minibatch_size=2)
    batch = make_batch(agent, 4, 6)
    short = Segments(*(x[2:3, :2] if isinstance(x, torch.Tensor) else None for x in batch))  # type: ignore[arg-type]
    metrics = agent.update(iter([short._asdict()]), 0)
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_resume_can_change_what_is_declared_to_be_changeable() -> None:
    """It sets the attribute of the key's name; what `make_optimizers` gets is in the optimizers."""
    regime, agent = REGIMES["ppo"], make_agent()
    passed = {argument for argument, key in regime.passes.items() if regime.every_key[key].resume != "fixed"}
    own = {key.name.partition(".")[2] for key in regime.every_key.values() if key.name.startswith("agent.")}
    forced = {name for name in own if regime.every_key[f"agent.{name}"].resume == "force"} | passed
    assert forced - {"_target_", "obs_shape", "action_shape"} <= vars(agent).keys()


@pytest.mark.parametrize("advantage", ["once", "full_batch", "minibatch"])
def test_an_lstm_goes_on_from_the_state_before_each_segment(advantage: str) -> None:
    agent = make_agent(lstm=True, advantage=advantage)
    batch, noise = make_batch(agent), torch.Generator().manual_seed(3)
    state: Any = tuple(torch.randn(x.shape, generator=noise, dtype=x.dtype) for x in batch.state or ())
    with torch.no_grad():
        dist, values, _ = agent.policy(batch.obs, state, batch.first)
    batch = batch._replace(state=state, values=values, log_probs=dist.log_prob(batch.actions))
    metrics = agent.update(iter([batch._asdict()]), 0)  # of one minibatch, before the policy has changed
    assert metrics["losses/importance"] == pytest.approx(1)
    assert metrics["losses/approx_kl"] == pytest.approx(0, abs=1e-12)
