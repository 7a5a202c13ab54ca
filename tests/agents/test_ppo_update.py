"""A whole update of PPO, of torch's operations and of the C++ code, against one written out in double precision."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs

from drqv2.agents import ppo
from drqv2.agents.ppo import PPOAgent
from drqv2.agents.ppo_mlp import MlpPPOAgent, fast
from drqv2.agents.segments import Segments

COUNT, HORIZON, STEP = 4, 6, 60
ARGUMENTS: dict[str, Any] = {
    "obs_shape": (5,),
    "action_spec": specs.DiscreteArray(3, np.int64, "action"),
    "device": "cpu",
    "encoder": "mlp",
    "hidden_dim": 16,
    "lstm": False,
    "optimizer": "adam",
    "lr": 0.01,
    "total_steps": 240,
    "discount": 0.9,
    "gae_lambda": 0.8,
    "rho_clip": 0.95,
    "c_clip": 0.9,
    "update_epochs": 1.5,  # three minibatches of two segments, two steps of the optimizer
    "minibatch_size": 12,
    "accumulate_minibatches": 2,
    "clip_coef": 0.2,
    "vf_coef": 2.0,
    "vf_clip": 0.2,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
    "prio_alpha": 0.8,
    "prio_beta0": 0.3,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "adam_eps": 0.001,
    "advantage": "full_batch",
    "normalize_observations": False,
    "normalize_rewards": False,
    "seed": 0,
}
ACTIONS = {
    "discrete": ARGUMENTS["action_spec"],
    "several": specs.BoundedArray((3,), np.int64, 0, [1, 3, 2], "action"),
    "vector": specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action"),
}


def make_agent(kind: type[PPOAgent] = PPOAgent, dtype: torch.dtype = torch.float64, **changes: Any) -> PPOAgent:
    torch.manual_seed(0)
    agent = PPOAgent(**ARGUMENTS | changes)
    if kind is MlpPPOAgent:
        agent = fast(agent)
        assert type(agent) is MlpPPOAgent
    agent.policy.to(dtype)
    return agent


def make_batch(agent: PPOAgent) -> Segments:
    """Return random steps of a policy that has changed since; one episode terminates, another is truncated."""
    generator = torch.Generator().manual_seed(1)
    dtype = agent.policy.critic.weight.dtype
    obs = torch.randn(COUNT, HORIZON, 5, generator=generator).to(dtype)
    terminated, truncated, first = torch.zeros(3, COUNT, HORIZON, dtype=torch.bool)
    terminated[0, 2], truncated[1, 3], first[0, 3], first[1, 4] = True, True, True, True
    rewards = torch.randn(COUNT, HORIZON, generator=generator).masked_fill(first, 0.0).to(dtype)
    with torch.no_grad():
        dist, values, _ = agent.policy(obs)
        actions = dist.sample(torch.Generator().manual_seed(2))
        log_probs = dist.log_prob(actions)
    shift = 0.3 * torch.randn(2, COUNT, HORIZON, generator=generator).to(dtype)
    log_probs, values = log_probs + shift[0], values + shift[1]
    return Segments(obs, actions, log_probs, values, rewards, terminated, truncated, first, None)


class WrittenOut:
    """The update, one step of an environment at a time; only the policy's layers and the noise are the agent's."""

    def __init__(self, agent: PPOAgent, batch: Segments) -> None:
        self.a: dict[str, Any] = ARGUMENTS | {"advantage": agent.advantage, "truncation": agent.truncation}
        self.policy, self.batch = agent.policy, batch
        self.parameters = list(agent.policy.parameters())
        self.once = agent.advantage == "once"
        if self.once:
            orders = [torch.randperm(COUNT * HORIZON, generator=agent.generator).tolist() for _ in range(2)]
            self.shuffled = [[divmod(i, HORIZON) for i in part] for part in (orders[0][:12], orders[0][12:], orders[1])]
        else:
            self.noise = torch.empty(3, COUNT, dtype=torch.float64).exponential_(generator=agent.generator)
        ended = batch.terminated | batch.truncated
        self.live = [[not ended[s, t] and t + 1 < HORIZON for t in range(HORIZON)] for s in range(COUNT)]
        bootstrapped = ~batch.terminated if agent.truncation == "bootstrap" else ~ended
        self.bootstrapped = bootstrapped.double().tolist()
        self.values = [[float(batch.values[s, t]) * self.bootstrapped[s][t] for t in range(HORIZON)] for s in range(4)]
        self.ratio = [[1.0] * HORIZON for _ in range(COUNT)]
        self.sums, self.moments = np.zeros(7), [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.taken = 0

    def advantages(self, s: int) -> list[float]:
        result = [0.0] * HORIZON
        for t in reversed(range(HORIZON)):
            if self.live[s][t]:
                rho, c = min(self.ratio[s][t], self.a["rho_clip"]), min(self.ratio[s][t], self.a["c_clip"])
                target = float(self.batch.rewards[s, t + 1]) + 0.9 * self.values[s][t + 1]
                result[t] = rho * (target - self.values[s][t]) + 0.9 * 0.8 * c * result[t + 1]
        return result

    def update(self) -> dict[str, float]:
        progress = STEP / self.a["total_steps"]
        gradients = [torch.zeros_like(p) for p in self.parameters]
        for k in range(3):
            known = [self.advantages(s) for s in range(COUNT)]
            drawn, weights = self.draw(k, known)
            loss = self.loss(drawn, known, weights)
            for total, part in zip(
                gradients, torch.autograd.grad(loss / (1 if k == 2 else 2), self.parameters), strict=True
            ):
                total += part
            if k in (1, 2):
                self.step(gradients, 0.5 * 0.01 * (1 + math.cos(math.pi * progress)))
                gradients = [torch.zeros_like(p) for p in self.parameters]
        means = dict(zip(ppo.METRICS, self.sums / 3, strict=True))
        chosen = [(s, t) for s in range(COUNT) for t in range(HORIZON) if self.live[s][t]]
        known = [self.advantages(s) for s in range(COUNT)]
        left = np.var([known[s][t] for s, t in chosen], ddof=1)
        spread = np.var([known[s][t] + self.values[s][t] for s, t in chosen], ddof=1)
        return means | {"explained_variance": 1 - left / spread}

    def draw(self, k: int, known: list[list[float]]) -> tuple[list[tuple[int, int]], list[float]]:
        """Return the steps of minibatch k, and a weight of each segment."""
        if self.once:
            return self.shuffled[k][:12], [1.0] * COUNT
        progress = STEP / self.a["total_steps"]
        beta = 0.3 + 0.7 * 0.8 * progress
        priority = [sum(map(abs, row)) ** 0.8 for row in known]
        p = [(x + 1e-6) / (sum(priority) + 1e-6) for x in priority]
        drawn = sorted(range(COUNT), key=lambda s: -p[s] / float(self.noise[k, s]))[:2]
        return [(s, t) for s in drawn for t in range(HORIZON)], [(COUNT * x) ** -beta for x in p]

    def loss(self, drawn: list[tuple[int, int]], known: list[list[float]], weights: list[float]) -> torch.Tensor:
        outputs = {}
        for s, t in drawn:
            h = self.policy.encoder(self.batch.obs[s, t])
            logs = torch.log_softmax(self.policy.actor(h), -1)
            outputs[s, t] = logs, self.policy.critic(h)[0], logs[self.batch.actions[s, t, 0]]
        log_ratio = {at: x[2] - self.batch.log_probs[at] for at, x in outputs.items()}
        if self.a["advantage"] == "minibatch":
            for s, t in outputs:
                self.ratio[s][t] = float(log_ratio[s, t].detach().exp())
            known = [self.advantages(s) for s in range(COUNT)]
        steps = [at for at in outputs if self.live[at[0]][at[1]]]
        chosen = [known[s][t] for s, t in steps]
        mean, std = float(np.mean(chosen)), float(np.std(chosen, ddof=1))
        loss = torch.zeros((), dtype=torch.float64)
        for s, t in steps:
            logs, value, _ = outputs[s, t]
            ratio, old, target = log_ratio[s, t].exp(), self.values[s][t], known[s][t] + self.values[s][t]
            a = weights[s] * (known[s][t] - mean) / (std + 1e-8)
            policy_loss = torch.max(-a * ratio, -a * torch.clamp(ratio, 0.8, 1.2))
            near = old + torch.clamp(value - old, -0.2, 0.2)
            value_loss = 0.5 * torch.max((value - target) ** 2, (near - target) ** 2)
            entropy = -(logs.exp() * logs).sum()
            loss = loss + (policy_loss + 2.0 * value_loss - 0.01 * entropy) / len(steps)
            of_ratio = -log_ratio[s, t], abs(ratio - 1) > 0.2, ratio, ratio - 1 - log_ratio[s, t]
            terms = policy_loss, value_loss, entropy, *of_ratio
            self.sums += np.array([float(x.detach()) for x in terms]) / len(steps)
        for s, t in [] if self.once else outputs:
            self.values[s][t] = float(outputs[s, t][1].detach()) * self.bootstrapped[s][t]
            self.ratio[s][t] = float(log_ratio[s, t].detach().exp())
        return loss

    def step(self, gradients: list[torch.Tensor], lr: float) -> None:
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        self.taken += 1
        for p, g, (first, second) in zip(self.parameters, gradients, self.moments, strict=True):
            g = g * min(1.0, 0.5 / (norm + 1e-6))
            first += (1 - self.a["adam_beta1"]) * (g - first)
            second += (1 - self.a["adam_beta2"]) * (g * g - second)
            scaled = (second / (1 - self.a["adam_beta2"] ** self.taken)).sqrt() + self.a["adam_eps"]
            p.data -= lr * first / (1 - self.a["adam_beta1"] ** self.taken) / scaled


@pytest.mark.parametrize("truncation", ["bootstrap", "ignore"])
@pytest.mark.parametrize(
    ("kind", "advantage"),
    [
        (PPOAgent, "full_batch"),
        (PPOAgent, "minibatch"),
        (PPOAgent, "once"),
        (MlpPPOAgent, "full_batch"),
        (MlpPPOAgent, "once"),
    ],
)
def test_an_update_is_the_one_written_out(kind: type[PPOAgent], advantage: str, truncation: str) -> None:
    agent = make_agent(kind, advantage=advantage, truncation=truncation)
    plain, batch = copy.deepcopy(agent), make_batch(agent)
    metrics, expected = agent.update(iter([batch._asdict()]), STEP), WrittenOut(plain, batch).update()
    assert 0 < expected["clipfrac"] < 1
    for name, value in expected.items():
        assert metrics[f"losses/{name}"] == pytest.approx(value, rel=1e-6), name
    for got, want in zip(agent.policy.parameters(), plain.policy.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("changes", [{}, {"advantage": "once", "prio_alpha": 0.0}])
def test_cpp_learns_and_acts_as_torch(
    changes: dict[str, Any], actions: str, dtype: torch.dtype, tolerance: float
) -> None:
    changes = changes | {"normalize_observations": True, "normalize_rewards": True, "hidden_dim": 48}
    found = []
    for kind in (MlpPPOAgent, PPOAgent):
        agent = make_agent(kind, dtype, action_spec=ACTIONS[actions], **changes)
        batch = make_batch(agent)
        sums = {"sums": batch.rewards}
        metrics = [agent.update(iter([batch._asdict() | sums]), STEP) for _ in range(3)][2]
        chosen, log_probs, values, _ = agent.step(batch.obs[:, 0], None, batch.first[:, 0])
        state = agent.optimizers[0].state_dict()["state"]
        moments = [state[i][name].flatten() for i in sorted(state) for name in ("exp_avg", "exp_avg_sq", "step")]
        numbers = torch.tensor(list(metrics.values()), dtype=dtype)
        weights = [p.detach().flatten() for p in agent.policy.parameters()]
        found.append(torch.cat([numbers, chosen.flatten(), log_probs, values, *moments, *weights]))
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", [MlpPPOAgent, PPOAgent])
@pytest.mark.parametrize("advantage", ["full_batch", "once"])
def test_an_update_ends_after_the_pass_that_exceeds_target_kl(advantage: str, kind: type[PPOAgent]) -> None:
    """Five passes of two minibatches each; those that are made are as without a target."""

    def learn(epochs: float, target_kl: float | None) -> tuple[PPOAgent, dict[str, float]]:
        changes: dict[str, Any] = {"accumulate_minibatches": 1, "lr": 0.003, "prio_alpha": 0.0, "advantage": advantage}
        agent = make_agent(kind, update_epochs=epochs, target_kl=target_kl, **changes)
        batch = make_batch(agent)
        with torch.no_grad():
            dist, _, _ = agent.policy(batch.obs)
        batch = batch._replace(log_probs=dist.log_prob(batch.actions))  # of this very policy: KL grows from 0
        return agent, agent.update(iter([batch._asdict()]), 0)

    # The mean of each pass, from the means of all passes up to it.
    means = [learn(n, None)[1]["losses/approx_kl"] for n in (1.0, 2.0, 3.0, 4.0, 5.0)]
    passes = [n * mean - (n - 1) * before for n, (before, mean) in enumerate(itertools.pairwise([0.0, *means]), 1)]
    ended = set()
    for target in (passes[0] / 2, *((a + b) / 2 for a, b in itertools.pairwise(sorted(passes)))):
        stopped, metrics = learn(5.0, target)
        made = next(n for n, kl in enumerate(passes, 1) if kl > target)
        whole, expected = learn(float(made), None)
        assert metrics == pytest.approx(expected)
        assert metrics["gradient_steps"] == 2 * made
        assert stopped.optimizers[0].state_dict()["state"][0]["step"] == 2 * made
        for a, b in zip(stopped.policy.parameters(), whole.policy.parameters(), strict=True):
            torch.testing.assert_close(a, b)
        ended.add(made)
    assert len(ended) >= 3
    assert learn(5.0, 2 * max(passes))[1]["gradient_steps"] == 10


def test_passes_end_with_a_step_of_the_optimizer() -> None:
    """Two minibatches a pass and three a step: a pass counts as three, so that no gradients are lost."""
    for kind in (MlpPPOAgent, PPOAgent):
        agent = make_agent(kind, update_epochs=6.0, accumulate_minibatches=3, target_kl=1e-9)
        metrics = agent.update(iter([make_batch(agent)._asdict()]), 0)
        assert metrics["gradient_steps"] == 1
        assert all(p.grad is None for p in agent.policy.parameters())


def test_cpp_is_not_used_where_a_loss_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = PPOAgent._loss

    def changed(agent: PPOAgent, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        value, metrics = loss(agent, *args)
        return value + 0.01 * agent.policy.critic.bias.sum(), metrics

    monkeypatch.setattr(PPOAgent, "_loss", changed)
    agent = make_agent(dtype=torch.float32)
    with pytest.warns(UserWarning, match=r"ppo_mlp\.cpp differs"):
        assert fast(agent) is agent


def test_cpp_is_not_used_for_an_agent_of_another_class() -> None:
    agent = type("Own", (PPOAgent,), {})(**ARGUMENTS)
    assert fast(agent) is agent


@pytest.mark.parametrize(
    "changes",
    [
        *({"lstm": True}, {"optimizer": "muon"}, {"hidden_dim": 24}, {"hidden_dim": 512}, {"minibatch_size": 4096}),
        {"advantage": "minibatch"},
    ],
)
def test_other_policies_and_large_ones_use_torch(changes: dict[str, Any]) -> None:
    agent = make_agent(**changes)
    assert fast(agent) is agent


def test_without_a_compiler_torch_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from drqv2.nn import extension

    extension.load.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    agent = make_agent()
    try:
        assert fast(agent) is agent
    finally:
        extension.load.cache_clear()
