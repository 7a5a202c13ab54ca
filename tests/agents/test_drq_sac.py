"""An update of DrQ's SAC against its formulas written out in double precision; its distribution; whole runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

import train
from drqv2.agents.drq_sac import DrQSACAgent
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.observations import Shapes
from drqv2.nn.squashed import SquashedNormal
from drqv2.parts import each, parts
from tests.short_run import SHORT, assert_same, resume, rows

B, A, GAMMA = 5, 2, 0.9
LR, TEMPERATURE_LR, TAU, ALPHA = 0.01, 0.02, 0.1, 0.3
IMAGE, STATE = (3, 20, 20), (4,)
SHAPES: list[Shapes] = [IMAGE, STATE, {"pixels": IMAGE, "wrist": (1, 16, 18), "goal": (2,), "state": STATE}]
Weights = dict[str, Tensor]


def make_agent(obs_shape: Shapes, **changes: Any) -> DrQSACAgent:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"lr": LR, "temperature_lr": TEMPERATURE_LR, "init_temperature": ALPHA}
    arguments |= {"feature_dim": 6, "hidden_dim": 8, "critic_target_tau": TAU, "num_expl_steps": 0}
    agent = DrQSACAgent(obs_shape, (A,), "cpu", **arguments | changes)
    for module in (agent.encoder, agent.actor, agent.critic, agent.critic_target, agent.temperature):
        module.double()
    for parameter in agent.critic_target.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    agent.aug = RandomShiftsAug(0)
    return agent


def observations(obs_shape: Shapes, generator: torch.Generator) -> Any:
    def made(shape: Any) -> Tensor:
        if len(shape) == 1:
            return torch.randn(B, *shape, generator=generator, dtype=torch.float64)
        return torch.randint(0, 256, (B, *shape), generator=generator, dtype=torch.uint8).double()

    return each(made, obs_shape)


def batch(obs_shape: Shapes) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(1)
    obs, next_obs = observations(obs_shape, generator), observations(obs_shape, generator)
    action = torch.rand(B, A, generator=generator, dtype=torch.float64) * 2 - 1
    reward = torch.randn(B, 1, generator=generator, dtype=torch.float64)
    discount = torch.full((B, 1), GAMMA, dtype=torch.float64)
    discount[1] = 0.0
    return obs, action, reward, discount, next_obs


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def of_part(x: Tensor, w: Weights, prefix: str) -> Tensor:
    if x.ndim == 2:
        return linear(linear(x, w, f"{prefix}mlp.0").relu(), w, f"{prefix}mlp.2").relu()
    x = x / 255 - 0.5
    for layer, stride in ((0, 2), (2, 1), (4, 1), (6, 1)):
        at = f"{prefix}convnet.{layer}"
        x = F.conv2d(x, w[f"{at}.weight"], w[f"{at}.bias"], stride).relu()
    return x.flatten(1)


def f(obs: Any, w: Weights) -> Tensor:
    if not isinstance(obs, Mapping):
        return of_part(obs, w, "")
    seen = torch.cat([of_part(obs[name], w, f"of_image.{name}.") for name in ("pixels", "wrist")], 1)
    felt = of_part(torch.cat([obs["goal"], obs["state"]], 1), w, "of_vectors.")
    return torch.cat([seen, math.sqrt(seen.shape[1] / felt.shape[1]) * felt], 1)


def trunk(z: Tensor, w: Weights) -> Tensor:
    h = linear(z, w, "trunk.0")
    return F.layer_norm(h, h.shape[1:], w["trunk.1.weight"], w["trunk.1.bias"]).tanh()


def mlp(x: Tensor, w: Weights, name: str) -> Tensor:
    for layer in (0, 2):
        x = linear(x, w, f"{name}.{layer}").relu()
    return linear(x, w, f"{name}.4")


def policy(z: Tensor, w: Weights, noise: Tensor) -> tuple[Tensor, Tensor]:
    out = mlp(trunk(z, w), w, "policy")
    mean, std = out[:, :A], (-10 + 6 * (out[:, A:].tanh() + 1)).exp()
    u = mean + std * noise
    log_prob = -((u - mean) ** 2) / (2 * std**2) - std.log() - math.log(2 * math.pi) / 2 - (1 - u.tanh() ** 2).log()
    return u.tanh(), log_prob.sum(1, keepdim=True)


def q(z: Tensor, action: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    h = torch.cat([trunk(z, w), action], 1)
    return mlp(h, w, "Q1"), mlp(h, w, "Q2")


def copies(module: torch.nn.Module) -> Weights:
    return {name: x.detach().clone().requires_grad_() for name, x in module.state_dict().items()}


def stepped(w: Weights, loss: Tensor, lr: float) -> Weights:
    """Return the weights after Adam's first step, lr * g / (|g| + eps); NaN where g is 0 but for rounding."""
    gradients = torch.autograd.grad(loss, list(w.values()), retain_graph=True)
    sure = [torch.where((g != 0) & (g.abs() < 1e-12), torch.nan, g) for g in gradients]
    return {name: (x - lr * g / (g.abs() + 1e-8)).detach() for (name, x), g in zip(w.items(), sure, strict=True)}


@pytest.mark.parametrize("obs_shape", SHAPES, ids=["image", "vector", "dict"])
def test_an_update_is_the_formulas(obs_shape: Shapes) -> None:
    agent = make_agent(obs_shape)
    encoder, actor, critic, target, temperature = (
        copies(module) for module in (agent.encoder, agent.actor, agent.critic, agent.critic_target, agent.temperature)
    )
    obs, action, reward, discount, next_obs = given = batch(obs_shape)
    agent.update_generator = torch.Generator().manual_seed(3)
    generator = torch.Generator().manual_seed(3)
    noises = [torch.empty(B, A, dtype=torch.float64).normal_(generator=generator) for _ in range(2)]
    metrics = agent.update(repeat(given), 0)

    z, alpha = f(obs, encoder), temperature["log_alpha"].exp()
    next_action, log_prob = policy(f(next_obs, encoder), actor, noises[0])
    y = reward + discount * (torch.min(*q(f(next_obs, encoder), next_action, target)) - alpha * log_prob)
    y = y.detach()
    q1, q2 = q(z, action, critic)
    loss = ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean()
    new_critic = stepped(critic, loss, LR)
    new_encoder = stepped(encoder, loss, LR)
    chosen, log_prob = policy(z.detach(), actor, noises[1])
    fitted = {name: x.clone().requires_grad_() for name, x in new_critic.items()}
    actor_loss = (alpha.detach() * log_prob - torch.min(*q(z.detach(), chosen, fitted))).mean()
    new_actor = stepped(actor, actor_loss, LR)
    entropy = -log_prob.detach()
    alpha_loss = (alpha * (entropy + A)).mean()
    (alpha_gradient,) = torch.autograd.grad(alpha_loss, temperature["log_alpha"], retain_graph=True)
    new_temperature = stepped(temperature, alpha_loss, TEMPERATURE_LR)
    new_target = {name: x.detach() + TAU * (new_critic[name] - x.detach()) for name, x in target.items()}

    # Adam's first step shows the sign of this gradient alone.
    assert agent.temperature.log_alpha.grad == pytest.approx(alpha_gradient.item(), rel=1e-9)
    for module, wanted in (
        (agent.critic, new_critic),
        (agent.encoder, new_encoder),
        (agent.actor, new_actor),
        (agent.temperature, new_temperature),
        (agent.critic_target, new_target),
    ):
        for name, x in module.state_dict().items():
            known = ~wanted[name].isnan()
            assert known.double().mean() > 0.8, name
            torch.testing.assert_close(x[known], wanted[name][known], rtol=1e-6, atol=1e-9, msg=name)
    torch.testing.assert_close(metrics["critic_loss"], loss.detach())
    torch.testing.assert_close(metrics["actor_loss"], actor_loss.detach())
    torch.testing.assert_close(metrics["actor_ent"], entropy.mean())


def test_the_distribution_is_that_of_torch() -> None:
    loc, log_std = torch.tensor([[0.3, -1.0], [4.0, 9.0]]).double(), torch.tensor([[-1.0, 0.5], [0.0, -2.0]]).double()
    action, log_prob = SquashedNormal(loc, log_std).sample(torch.Generator().manual_seed(0))
    base = Independent(Normal(loc, log_std.exp()), 1)
    transform = TanhTransform(cache_size=1)
    noise = torch.empty_like(loc).normal_(generator=torch.Generator().manual_seed(0))
    value = transform(loc + log_std.exp() * noise)
    torch.testing.assert_close(action, value)
    torch.testing.assert_close(log_prob[:, 0], TransformedDistribution(base, [transform]).log_prob(value))


def test_densities_far_out_are_finite() -> None:
    _, log_prob = SquashedNormal(torch.tensor([[60.0, -60.0]]), torch.zeros(1, 2)).sample()
    assert log_prob.isfinite().all()


@pytest.mark.parametrize(("start", "lower"), [(-4.0, False), (-0.5, True)])
def test_the_temperature_rises_where_the_entropy_is_low(start: float, lower: bool) -> None:
    agent = make_agent(STATE)
    last: Any = agent.actor.policy[-1]
    with torch.no_grad():  # the policy's log standard deviation is about `start`
        last.weight[A:] = 0.0
        last.bias[A:] = math.atanh((start - 0.01 + 10) / 6 - 1)
    before = agent.temperature().item()
    metrics = agent.update(repeat(batch(STATE)), 0)
    assert (metrics["actor_ent"] > agent.target_entropy) == lower
    assert (agent.temperature().item() < before) == lower


def test_actions() -> None:
    agent = make_agent(STATE, num_expl_steps=10, seed=1)
    obs = np.zeros((3, *STATE))
    mean = agent.act_batch(obs, 0, eval_mode=True)
    assert (agent.act_batch(obs, 100, eval_mode=True) == mean).all()
    uniform, own = (agent.act_batch(np.zeros((5000, *STATE)), step, eval_mode=False) for step in (0, 10))
    assert np.abs(uniform).max() <= 1.0
    assert abs(uniform.mean()) < 0.02
    assert uniform.var() == pytest.approx(1 / 3, abs=0.02)
    assert own.var() < 0.2
    (one,) = make_agent(STATE).act_batch(obs[:1], 0, eval_mode=True)
    np.testing.assert_array_equal(make_agent(STATE).act(obs[0], 0, eval_mode=True), one)


@pytest.mark.parametrize("obs_shape", SHAPES, ids=["image", "vector", "dict"])
def test_the_exported_policy_is_the_mean(obs_shape: Shapes) -> None:
    agent, generator = DrQSACAgent(obs_shape, (A,), "cpu", hidden_dim=8), torch.Generator().manual_seed(0)
    obs = each(lambda x: x.to(torch.uint8) if x.ndim == 4 else x.float(), observations(obs_shape, generator))
    policy: Any = agent.deterministic_policy()
    with torch.no_grad():
        action = policy(*parts(obs))
    np.testing.assert_allclose(action, agent.act_batch(each(torch.Tensor.numpy, obs), 0, eval_mode=True), atol=1e-6)


def test_convolutions_that_do_not_exist() -> None:
    with pytest.raises(UserError, match=r"agent\.convolutions=deep must be drqv2 or strided"):
        DrQSACAgent(STATE, (A,), "cpu", convolutions="deep")


@pytest.mark.slow
def test_a_run_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    base = [word for word in SHORT if not word.startswith("agent.")]
    base += [
        "agent=drq_sac",
        "agent.num_expl_steps=20",
        "agent.hidden_dim=16",
        "agent.convolutions=strided",
        "use_tb=false",
    ]
    for name, frames in (("whole", 480), ("part", 320)):
        words = [*base, f"num_train_frames={frames}", f"hydra.run.dir={tmp_path / name}"]
        launch(train.main, "cfgs", argv=words)
    resume(tmp_path / "part", "num_train_frames=480")
    assert_same(tmp_path / "whole", tmp_path / "part")
    assert len(rows(tmp_path / "whole", "train")) == 8


def test_images_of_an_update_are_shifted() -> None:
    assert DrQSACAgent(IMAGE, (A,), "cpu").aug.pad == 4
    agent, aug = make_agent(IMAGE), RandomShiftsAug(4)
    agent.aug = RandomShiftsAug(4)
    seen: list[Any] = []
    agent.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    obs, *_, next_obs = given = batch(IMAGE)
    agent.aug.generator, aug.generator = (torch.Generator().manual_seed(5) for _ in range(2))
    agent.update(repeat(given), 0)
    for got, part in zip(seen, (obs, next_obs), strict=True):
        assert torch.equal(got, aug(part))
        assert not torch.equal(got, part)


def test_the_target_begins_as_a_copy_and_updates_come_at_their_interval() -> None:
    agent = DrQSACAgent(STATE, (A,), "cpu", hidden_dim=8, update_every_steps=2)
    for own, target in zip(agent.critic.parameters(), agent.critic_target.parameters(), strict=True):
        assert torch.equal(own, target)
    assert agent.update(iter([]), 1) == {}
