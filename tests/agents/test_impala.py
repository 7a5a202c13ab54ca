"""IMPALA's learning step against one written out in loops; ends of episodes, rewards, schedules, the hook."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs

from drqv2.agents.impala import ImpalaAgent, clip_rewards
from drqv2.agents.segments import Segments

ARGUMENTS: dict[str, Any] = {
    "obs_shape": (5,),
    "action_spec": specs.DiscreteArray(3, np.int64, "action"),
    "device": "cpu",
    "encoder": "mlp",
    "hidden_dim": 8,
    "lstm": False,
    "lr": 0.01,
    "rms_alpha": 0.9,
    "rms_eps": 0.02,
    "rms_momentum": 0.0,
    "total_steps": 400,
    "discount": 0.9,
    "reward_scale": 0.7,
    "reward_clipping": "abs_one",
    "rho_clip": 1.1,
    "pg_rho_clip": 1.2,
    "baseline_cost": 0.5,
    "entropy_cost": 0.02,
    "loss_reduction": "sum",
    "max_grad_norm": 3.0,
    "seed": 0,
}
ACTIONS = {
    "discrete": ARGUMENTS["action_spec"],
    "several": specs.BoundedArray((3,), np.int64, 0, [1, 3, 2], "action"),
    "vector": specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action"),
}
ROLLOUTS, LENGTH, STEP = 4, 7, 100


def make_agent(**changes: Any) -> ImpalaAgent:
    torch.manual_seed(0)
    agent = ImpalaAgent(**ARGUMENTS | changes)
    agent.policy.double()
    return agent


def make_batch(agent: ImpalaAgent) -> dict[str, Any]:
    """Return rollouts of a policy that has changed since; episodes terminate and are truncated, also at both ends."""
    generator = torch.Generator().manual_seed(1)
    shape = ROLLOUTS, LENGTH

    def noise(*more: int) -> torch.Tensor:
        return torch.randn(*shape, *more, generator=generator, dtype=torch.float64)

    obs, (terminated, truncated, first) = noise(5), torch.zeros(3, *shape, dtype=torch.bool)
    terminated[0, 2], truncated[1, 3], terminated[2, 0], truncated[3, -1] = True, True, True, True
    first[0, 3], first[1, 4], first[2, 1] = True, True, True
    state = agent.policy.initial_state(ROLLOUTS)
    if state is not None:
        state = tuple(torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in state)  # type: ignore[assignment]
    with torch.no_grad():
        dist, *_ = agent.policy(obs, state, first)
        actions = dist.sample(generator)
        log_probs = dist.log_prob(actions) + 0.3 * noise()
    rewards = torch.where(first, 0.0, 2 * noise())
    values = torch.zeros(shape, dtype=torch.float64)
    return Segments(obs, actions, log_probs, values, rewards, terminated, truncated, first, state)._asdict()


Terms = list[list[torch.Tensor]]  # of each rollout, of each of its actions that counted


def reduced(terms: Terms, how: str) -> torch.Tensor:
    """Return a loss from its terms."""
    total = torch.stack([term for rollout in terms for term in rollout]).sum()
    number = {"sum": 1, "batch_mean": len(terms), "mean": sum(len(rollout) for rollout in terms)}[how]
    return total / number


def written_out(agent: ImpalaAgent, batch: Segments) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Return the parts of the loss and the parameters after one step, computed one number at a time."""
    a = ARGUMENTS
    bootstrap = agent.truncation == "bootstrap"
    dist, values, _ = agent.policy(batch.obs, batch.state, batch.first)
    log_probs, entropies = dist.log_prob(batch.actions), dist.entropy()
    now, log_ratios = values.detach(), (log_probs - batch.log_probs).detach()
    terms: dict[str, Terms] = {name: [[] for _ in range(ROLLOUTS)] for name in ("pg", "baseline", "entropy")}
    for b in range(ROLLOUTS):
        over = [bool(batch.terminated[b, t] or batch.truncated[b, t]) for t in range(LENGTH)]
        # value that a step which leads to t is bootstrapped from
        known = [
            0.0 if batch.terminated[b, t] or (over[t] and not bootstrap) else float(now[b, t]) for t in range(LENGTH)
        ]
        target = list(known)
        for t in reversed(range(LENGTH - 1)):
            if over[t]:
                continue  # the action was ignored
            rho = math.exp(float(log_ratios[b, t]))
            reward = max(-1.0, min(1.0, a["reward_scale"] * float(batch.rewards[b, t + 1])))
            delta = min(a["rho_clip"], rho) * (reward + a["discount"] * known[t + 1] - known[t])
            target[t] = known[t] + delta + a["discount"] * min(1.0, rho) * (target[t + 1] - known[t + 1])
            advantage = min(a["pg_rho_clip"], rho) * (reward + a["discount"] * target[t + 1] - known[t])
            terms["pg"][b].append(-advantage * log_probs[b, t])
            terms["baseline"][b].append(0.5 * a["baseline_cost"] * (target[t] - values[b, t]) ** 2)
            terms["entropy"][b].append(-a["entropy_cost"] * entropies[b, t])
    pg, baseline, entropy = (reduced(part, agent.loss_reduction) for part in terms.values())
    gradients = torch.autograd.grad(pg + baseline + entropy, list(agent.policy.parameters()))
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    lr = a["lr"] * (1 - STEP / a["total_steps"])
    after = []
    for p, g in zip(agent.policy.parameters(), gradients, strict=True):
        g = g * min(1.0, a["max_grad_norm"] / (norm + 1e-6))
        square = (1 - a["rms_alpha"]) * g * g
        after.append(p.detach() - lr * g / (square.sqrt() + a["rms_eps"]))
    return {"pg": pg.item(), "baseline": baseline.item(), "entropy": entropy.item(), "norm": norm}, after


@pytest.mark.parametrize("truncation", ["bootstrap", "ignore"])
@pytest.mark.parametrize("kind", list(ACTIONS))
@pytest.mark.parametrize("lstm", [False, True])
def test_an_update_is_the_written_out_one(kind: str, lstm: bool, truncation: str) -> None:
    compare_with_written_out(make_agent(action_spec=ACTIONS[kind], lstm=lstm, truncation=truncation))


@pytest.mark.parametrize("how", ["batch_mean", "mean"])
def test_losses_are_reduced_as_written_out(how: str) -> None:
    compare_with_written_out(make_agent(loss_reduction=how))


def compare_with_written_out(agent: ImpalaAgent) -> None:
    batch = make_batch(agent)
    parts, after = written_out(agent, Segments(**batch))
    metrics = agent.update(iter([batch]), STEP)
    for name in ("pg", "baseline", "entropy"):
        assert metrics[f"{name}_loss"] == pytest.approx(parts[name], rel=1e-9)
    assert metrics["total_loss"] == pytest.approx(parts["pg"] + parts["baseline"] + parts["entropy"], rel=1e-9)
    assert metrics["grad_norm"] == pytest.approx(parts["norm"], rel=1e-9)
    for got, want in zip(agent.policy.parameters(), after, strict=True):
        torch.testing.assert_close(got.detach(), want, rtol=1e-9, atol=1e-9)


def test_ignored_actions_do_not_matter() -> None:
    agent = make_agent()
    batch = make_batch(agent)
    over = batch["terminated"] | batch["truncated"]
    over[:, -1] = True  # nor does the one that is not in the rollout
    other = batch | {"log_probs": batch["log_probs"] + 5.0 * over, "actions": batch["actions"].clone()}
    other["actions"][over] = 0
    got = [make_agent().update(iter([x]), 0) for x in (batch, other)]
    assert got[0]["total_loss"] == got[1]["total_loss"]


def test_reductions_of_entropy_are_those_published() -> None:
    agents = {how: make_agent(loss_reduction=how) for how in ("sum", "batch_mean", "mean")}
    batch = make_batch(agents["sum"])
    for name in ("terminated", "truncated", "first"):
        batch[name] = torch.zeros_like(batch[name])  # all actions count
    with torch.no_grad():
        dist, *_ = agents["sum"].policy(batch["obs"], batch["state"], batch["first"])
    loss = -ARGUMENTS["entropy_cost"] * dist.entropy().T[:-1]  # [T, B]
    found = {how: agent.update(iter([batch]), 0)["entropy_loss"] for how, agent in agents.items()}
    assert found["sum"] == pytest.approx(float(torch.sum(loss)))  # TorchBeast
    assert found["batch_mean"] == pytest.approx(float(torch.sum(torch.mean(loss, dim=1))))  # RTFM
    assert found["mean"] == pytest.approx(float(torch.mean(loss)))
    assert len({round(value, 9) for value in found.values()}) == 3


def test_rewards_are_clipped() -> None:
    rewards = torch.tensor([-10.0, -0.5, 0.0, 0.5, 10.0])
    assert clip_rewards(rewards, "none").tolist() == rewards.tolist()
    assert clip_rewards(rewards, "abs_one").tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    soft = [1.5 * math.tanh(-2), 1.5 * math.tanh(-0.1), 0.0, 5 * math.tanh(0.1), 5 * math.tanh(2)]
    assert clip_rewards(rewards, "soft_asymmetric").tolist() == pytest.approx(soft)


def test_the_learning_rate_falls_to_zero_in_a_line() -> None:
    agent = make_agent()
    rates = [agent.update(iter([make_batch(agent)]), step)["learning_rate"] for step in (0, 100, 400, 500)]
    assert rates == pytest.approx([0.01, 0.0075, 0.0, 0.0])


def test_a_subclass_adds_its_loss() -> None:
    class Shrinking(ImpalaAgent):
        def auxiliary_loss(self, batch: Segments) -> torch.Tensor:
            return 10 * self.policy.critic.weight.square().sum()

    torch.manual_seed(0)
    agent = Shrinking(**ARGUMENTS)
    agent.policy.double()
    weight = agent.policy.critic.weight.detach().clone()
    batch = make_batch(agent)
    metrics = agent.update(iter([batch]), 0)
    plain = make_agent().update(iter([batch]), 0)
    assert metrics["aux_loss"] == pytest.approx(10 * float(weight.square().sum()))
    assert metrics["total_loss"] == pytest.approx(plain["total_loss"] + metrics["aux_loss"])


def test_the_policy_fits_what_it_saw() -> None:
    agent = make_agent(max_grad_norm=40.0, total_steps=10**9, entropy_cost=0.0, lr=0.003)
    batch = make_batch(agent)
    losses = [agent.update(iter([batch]), 0)["baseline_loss"] for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
