"""An update of SPQ against its formulas written out in double precision; its noise; what it learns from a segment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.agents.spq import SPQAgent
from drqv2.errors import UserError
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.noise import HeldNoise
from drqv2.nn.observations import Shapes
from drqv2.nn.returns import segment_returns
from drqv2.parts import each
from drqv2.snapshot import agent_state
from drqv2.snapshot.agent_weights import apply, restore_agent
from tests.compare import assert_equal

B, H, A, D, GAMMA = 6, 3, 2, 16, 0.9
LR, MODEL_LR, TEMPERATURE_LR, TAU, INFONCE, ALPHA, ENTROPY = 0.01, 0.02, 0.03, 0.1, 0.3, 0.4, -2.5
IMAGE, STATE = (6, 32, 32), (5,)  # two frames of three channels
DICT = {"pixels": IMAGE, "wrist": (2, 28, 30), "goal": (2,), "state": STATE}  # two of one channel, and vectors
Weights = dict[str, Tensor]


def make_agent(obs_shape: Shapes, **changes: Any) -> SPQAgent:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {
        "lr": LR,
        "model_lr": MODEL_LR,
        "hidden_dim": D,
        "feature_dim": 7,
        "embed_dim": 4,
        "frame_stack": 2,
        "convolutions": "patch",
        "horizon": H,
        "target_tau": TAU,
        "infonce": INFONCE,
        "temperature_lr": TEMPERATURE_LR,
        "init_temperature": ALPHA,
        "target_entropy": ENTROPY,
        "model_warmup": 0,
        "num_expl_steps": 0,
    }
    agent = SPQAgent(obs_shape, (A,), "cpu", **arguments | changes)
    generator = torch.Generator().manual_seed(1)
    agent.temperature.double()
    agent.temperature.log_alpha.data.fill_(math.log(ALPHA))
    for module in networks(agent).values():
        module.double()
        for parameter in module.parameters():  # the model's last layer is not zero, and no target is a copy
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    agent.bins = agent.bins.double()
    agent.aug = RandomShiftsAug(0)
    agent.aug.generator = torch.Generator()  # which leaves torch's global one to the other noise
    return agent


def networks(agent: SPQAgent) -> dict[str, nn.Module]:
    names = ("encoder", "encoder_target", "model", "actor", "critic", "critic_target")
    return {name: getattr(agent, name) for name in names}


def batch(obs_shape: Shapes) -> tuple[Any, ...]:
    """Segments; the second is of an episode that terminated after two steps, the third of one truncated after one."""
    generator = torch.Generator().manual_seed(2)
    if isinstance(obs_shape, Mapping):
        obs: Any = {name: segments(shape, generator) for name, shape in obs_shape.items()}
    else:
        obs = segments(obs_shape, generator)
    action = torch.rand(B, H, A, generator=generator, dtype=torch.float64) * 2 - 1
    reward = torch.rand(B, H, generator=generator, dtype=torch.float64) * 3 - 1
    discount, mask = torch.full((B, H), GAMMA, dtype=torch.float64), torch.ones(B, H, dtype=torch.float64)
    discount[1, 1:], mask[1, 2], mask[2, 1:] = 0.0, 0.0, 0.0
    return obs, action, reward, discount, mask


def segments(shape: Any, generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.randn(B, H + 1, *shape, generator=generator, dtype=torch.float64)
    frames = shape[0] + shape[0] // 2 * H
    return torch.randint(0, 256, (B, frames, *shape[1:]), generator=generator, dtype=torch.uint8).double()


def normalised(x: Tensor, w: Weights, name: str) -> Tensor:
    x = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def elu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, x.exp() - 1)


def features(obs: Tensor, w: Weights, body: str) -> Tensor:
    if obs.ndim == 4:
        before, now = (obs.double() / 255 - 0.5).chunk(2, 1)
        x = torch.cat([4 * (now - before), now], 1)
        for layer, stride in ((0, 4), (2, 2), (4, 1)):
            x = F.conv2d(x, w[f"{body}.{layer}.weight"], w[f"{body}.{layer}.bias"], stride).clamp(min=0)
        return x.flatten(1)
    return elu(normalised(linear(obs, w, f"{body}.0"), w, f"{body}.1"))


def f_linear(obs: Any, w: Weights) -> Tensor:
    if not isinstance(obs, dict):
        return linear(features(obs, w, "body"), w, "linear")
    seen = torch.cat([features(obs[name], w, f"body.of_image.{name}") for name in ("pixels", "wrist")], 1)
    felt = features(torch.cat([obs["goal"], obs["state"]], 1), w, "body.of_vectors")
    return linear(torch.cat([seen, (seen.shape[1] / D) ** 0.5 * felt], 1), w, "linear")


def f(obs: Any, w: Weights, mean: Tensor | None = None) -> Tensor:
    h = f_linear(obs, w)
    return elu(normalised(h - (h.mean(0) if mean is None else mean), w, "norm"))


def m(latent: Tensor, action: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    x = torch.cat([latent, elu(linear(action, w, "embed.0"))], 1)
    x = elu(normalised(linear(x, w, "net.0"), w, "net.1"))
    x = elu(normalised(linear(x, w, "net.3"), w, "net.4"))
    out = linear(x, w, "net.6")
    return out[:, :D], out[:, D:]


def pi(latent: Tensor, w: Weights, noise: Tensor) -> tuple[Tensor, Tensor]:
    x = normalised(linear(latent, w, "trunk.0"), w, "trunk.1").tanh()
    x = linear(x, w, "policy.0").clamp(min=0)
    x = linear(x, w, "policy.2").clamp(min=0)
    out = linear(x, w, "policy.4")
    mean, std = out[:, :A], (-10 + 6 * (out[:, A:].tanh() + 1)).exp()
    action = (mean + std * noise).tanh()
    density = (-0.5 * noise**2).exp() / (std * math.sqrt(2 * math.pi)) / (1 - action**2)
    return action, density.log().sum(1)


def q(latent: Tensor, action: Tensor, w: Weights) -> list[Tensor]:
    x = torch.cat([normalised(linear(latent, w, "trunk.0"), w, "trunk.1").tanh(), action], 1)
    values = []
    for name in ("Q1", "Q2"):
        y = normalised(linear(x, w, f"{name}.0"), w, f"{name}.1").clamp(min=0)
        y = normalised(linear(y, w, f"{name}.3"), w, f"{name}.4").clamp(min=0)
        values.append(linear(y, w, f"{name}.6"))
    return values


def observation(obs: Any, i: int) -> Any:
    if isinstance(obs, dict):
        return {name: observation(part, i) for name, part in obs.items()}
    channels = obs.shape[1] // (2 + H)
    return obs[:, channels * i : channels * (i + 2)] if obs.ndim == 4 else obs[:, i]


def model_loss(obs: Any, action: Tensor, reward: Tensor, mask: Tensor, w: dict[str, Weights]) -> Tensor:
    latent = f(observation(obs, 0), w["encoder"])
    targets = [f(observation(obs, i + 1), w["encoder_target"]).detach() for i in range(H)]
    u, total = latent, torch.zeros((), dtype=torch.float64)
    for i in range(H):
        u, logits = m(u, action[:, i], w["model"])
        for b in range(B):
            if mask[b, i] == 0:
                continue
            dynamics = ((u[b] - targets[i][b]) ** 2).mean()
            place = (torch.sign(reward[b, i]) * torch.log(1 + reward[b, i].abs()) + 10) / (20 / 64)
            low = int(place)
            log_p = logits[b] - torch.logsumexp(logits[b], 0)
            of_reward = -((low + 1 - place) * log_p[low] + (place - low) * log_p[low + 1])
            cosines = torch.stack([u[b] @ y / (u[b].norm() * y.norm()) for y in targets[i]]) / 0.1
            contrast = -(cosines[b] - torch.logsumexp(cosines, 0))
            total = total + (dynamics + 0.1 * of_reward + INFONCE * contrast) / B
    return total


def stepped(w: Weights, loss: Tensor, lr: float, decay: float) -> Weights:
    """Weights after the first step of AdamW, in which both moments are those of this gradient."""
    grads = torch.autograd.grad(loss, list(w.values()), retain_graph=True)
    return {
        name: p * (1 - lr * decay) - lr * g / (g.abs() + 1e-8) for (name, p), g in zip(w.items(), grads, strict=True)
    }


@pytest.mark.parametrize("obs_shape", [IMAGE, STATE, DICT], ids=["images", "states", "dicts"])
def test_an_update_is_that_of_its_formulas(obs_shape: Shapes) -> None:
    agent = make_agent(obs_shape)
    w = {
        name: {key: p.detach().clone().requires_grad_() for key, p in module.named_parameters()}
        for name, module in networks(agent).items()
    }
    obs, action, reward, discount, mask = batch(obs_shape)
    loss = model_loss(obs, action, reward, mask, w)
    means = [f_linear(observation(obs, i), w["encoder_target" if i else "encoder"]).mean(0) for i in range(H + 1)]
    running = [means[0], means[1]]  # after the first batch, then 0.1 of the way to the next
    for mean in means[2:]:
        running.append(0.9 * running[-1] + 0.1 * mean)
    latent, *targets = (
        f(observation(obs, i), w["encoder_target" if i else "encoder"], running[i]).detach() for i in range(H + 1)
    )
    joint = {f"f.{k}": v for k, v in w["encoder"].items()} | {f"m.{k}": v for k, v in w["model"].items()}
    joint = stepped(joint, loss, MODEL_LR, 0.01)

    torch.manual_seed(3)
    noise = torch.randn(B, A, dtype=torch.float64)
    last = torch.stack([targets[[2, 1, 0, 2, 2, 2][b]][b] for b in range(B)])
    next_action, log_prob = pi(last, w["actor"], noise)
    value = torch.minimum(*q(last, next_action, w["critic_target"]))[:, 0] - ALPHA * log_prob
    after_two = reward[:, 2] + GAMMA * value
    wanted = [reward[:, 0] + GAMMA * (reward[:, 1] + GAMMA * after_two), reward[:, 1] + GAMMA * after_two, after_two]
    wanted[0][1], wanted[1][1] = reward[1, 0] + GAMMA * reward[1, 1], reward[1, 1]
    wanted[0][2] = reward[2, 0] + GAMMA * value[2]
    starts = [latent, *targets[:-1]]
    errors = [
        (q_j[b, 0] - wanted[i][b].detach()) ** 2
        for i in range(H)
        for q_j in q(starts[i], action[:, i], w["critic"])
        for b in range(B)
        if mask[b, i] == 1
    ]
    critic_loss = 2 * torch.stack(errors).mean()
    critic = stepped(w["critic"], critic_loss, LR, 0.0)
    actions, log_prob = pi(torch.cat(starts), w["actor"], torch.randn(H * B, A, dtype=torch.float64))
    inside = mask.T.flatten() == 1
    actor_loss = (ALPHA * log_prob - torch.minimum(*q(torch.cat(starts), actions, critic))[:, 0])[inside].mean()
    actor = stepped(w["actor"], actor_loss, LR, 0.0)
    log_alpha = torch.tensor(math.log(ALPHA), dtype=torch.float64, requires_grad=True)
    alpha_loss = (log_alpha.exp() * (-log_prob[inside].detach() - ENTROPY * A)).mean()
    (alpha_gradient,) = torch.autograd.grad(alpha_loss, log_alpha, retain_graph=True)
    temperature = stepped({"log_alpha": log_alpha}, alpha_loss, TEMPERATURE_LR, 0.0)["log_alpha"]

    torch.manual_seed(3)
    metrics = agent.update(iter([(obs, action, reward, discount, mask)]), 0)
    parts = metrics["dynamics_loss"] + 0.1 * metrics["reward_loss"] + INFONCE * metrics["infonce_loss"]
    assert float(parts) == pytest.approx(loss.item(), rel=1e-9)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss.item(), rel=1e-9)
    assert float(metrics["actor_loss"]) == pytest.approx(actor_loss.item(), rel=1e-9)
    assert float(metrics["actor_ent"]) == pytest.approx(-log_prob[inside].mean().item(), rel=1e-9)
    assert float(metrics["actor_saturated"]) == pytest.approx((actions[inside].abs() > 0.95).double().mean().item())
    for name, values in {
        "target_q": torch.cat(wanted),
        "q1": torch.cat([q(starts[i], action[:, i], w["critic"])[0][:, 0] for i in range(H)]),
    }.items():
        assert float(metrics[f"critic_{name}"]) == pytest.approx(values[inside].mean().item(), rel=1e-9)
    assert agent.temperature.log_alpha.item() == pytest.approx(temperature.item(), rel=1e-9)
    # Adam's first step shows the sign of this gradient alone.
    assert agent.temperature.log_alpha.grad == pytest.approx(alpha_gradient.item(), rel=1e-9)
    after: dict[str, Weights] = {
        "encoder": {k[2:]: v for k, v in joint.items() if k[0] == "f"},
        "model": {k[2:]: v for k, v in joint.items() if k[0] == "m"},
        "critic": critic,
        "actor": actor,
    }
    after |= {
        f"{name}_target": {k: (1 - TAU) * v + TAU * after[name][k] for k, v in w[f"{name}_target"].items()}
        for name in ("encoder", "critic")
    }
    for name, module in networks(agent).items():
        for key, parameter in module.named_parameters():
            torch.testing.assert_close(parameter, after[name][key], rtol=1e-8, atol=1e-9, msg=f"{name}.{key}")
    torch.testing.assert_close(agent.encoder.mean, means[0])
    torch.testing.assert_close(agent.encoder_target.mean, running[-1])


def test_a_segment_of_one_transition() -> None:
    agent = make_agent(STATE, horizon=1)
    obs, action, reward, _, _ = batch(STATE)
    ended = torch.zeros(B, 1, dtype=torch.float64)
    metrics = agent.update(iter([(obs[:, :2], action[:, :1], reward[:, :1], ended, ended + 1)]), 0)
    assert float(metrics["critic_target_q"]) == pytest.approx(reward[:, 0].mean().item())


def test_latents_are_centred_by_their_batch_for_the_model_and_by_a_running_mean_elsewhere() -> None:
    agent = make_agent(STATE)
    first, second = torch.randn(2, B, 5, dtype=torch.float64) + 10
    weights: Weights = {**dict(agent.encoder.named_parameters())}
    h = [f_linear(obs, weights) for obs in (first, second)]
    agent.encoder.both(first)
    of_model, of_others = agent.encoder.both(second)
    torch.testing.assert_close(of_model, elu(normalised(h[1] - h[1].mean(0), weights, "norm")))
    mean = 0.9 * h[0].mean(0) + 0.1 * h[1].mean(0)
    torch.testing.assert_close(agent.encoder.mean, mean)
    torch.testing.assert_close(of_others, elu(normalised(h[1] - mean, weights, "norm")).detach())
    torch.testing.assert_close(agent.encoder(second).detach(), of_others)
    assert not of_others.requires_grad
    of_model[:, 0].sum().backward()
    layer: Any = agent.encoder.linear  # no gradient moves all latents together
    assert float(layer.bias.grad.abs().max()) < 1e-12 < float(layer.weight.grad.abs().max())


def test_latents_tell_images_apart_that_hardly_differ() -> None:
    agent = SPQAgent(IMAGE, (A,), "cpu", hidden_dim=64, convolutions="patch", frame_stack=2, pad=2, horizon=H, seed=1)
    generator = torch.Generator().manual_seed(0)
    scene = torch.randint(0, 256, (3, 32, 32), generator=generator, dtype=torch.uint8)
    for _ in range(150):
        frames = scene.repeat(32, 2 + H, 1, 1).unflatten(1, (2 + H, 3))
        place = torch.randint(4, 26, (32, 2), generator=generator)
        step = torch.randint(-1, 2, (32, H, 2), generator=generator)
        for b in range(32):  # a small square which the actions move
            for t in range(2 + H):
                y, x = (place[b] + step[b, : max(0, t - 1)].sum(0)).tolist()
                frames[b, t, :, y : y + 3, x : x + 3] = 255
        nothing, inside = torch.zeros(32, H), torch.ones(32, H)
        metrics, *_ = agent.update_model(frames.flatten(1, 2), step.float(), nothing, inside, inside)
    assert float(metrics["latent_std"].detach().mean()) > 0.5


def test_actor_and_critic_leave_encoder_and_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(STATE)
    learnt = [*agent.encoder.parameters(), *agent.model.parameters()]
    after_model: list[Tensor] = []
    update_model = agent.update_model

    def recorded(*args: Tensor) -> Any:
        result = update_model(*args)
        assert not any(latents.requires_grad for latents in result[1:])
        after_model.extend(p.detach().clone() for p in learnt)
        return result

    monkeypatch.setattr(agent, "update_model", recorded)
    before = [p.detach().clone() for p in learnt]
    agent.update(iter([batch(STATE)]), 0)
    assert all(torch.equal(p, q) for p, q in zip(learnt, after_model, strict=True))
    assert not any(torch.equal(p, q) for p, q in zip(learnt, before, strict=True))


def test_first_and_later_observations_have_shifts_of_their_own() -> None:
    agent = make_agent(IMAGE)
    agent.aug = RandomShiftsAug(4)
    frames = torch.randint(0, 256, (40, 3 * (2 + H), 32, 32), dtype=torch.uint8)
    first, *later = agent._observations(frames)
    assert [tuple(stack.shape) for stack in (first, *later)] == [(40, 6, 32, 32)] * (H + 1)

    def shift(view: Tensor, of: Tensor) -> tuple[int, int]:
        found = [
            (dy, dx)
            for dy in range(-4, 5)
            for dx in range(-4, 5)
            if torch.equal(view[:, 4:-4, 4:-4], of[:, 4 + dy : 28 + dy, 4 + dx : 28 + dx])
        ]
        assert len(found) == 1
        return found[0]

    shifts = [
        [shift(view, x[3 * i : 3 * i + 6]) for view, x in zip(views, frames, strict=True)]
        for i, views in enumerate([first, *later])
    ]
    assert sum(a != b for a, b in zip(*shifts[:2], strict=True)) > 30
    assert shifts[2:] == [shifts[1]] * (H - 1)


def test_each_image_of_a_dict_has_such_shifts_of_its_own() -> None:
    agent = make_agent(DICT)
    agent.aug = RandomShiftsAug(4)
    generator = torch.Generator().manual_seed(4)
    obs = {name: segments(shape, generator) for name, shape in DICT.items()}
    agent.aug.generator = torch.Generator().manual_seed(5)
    seen = agent._observations(obs)
    draws = torch.Generator().manual_seed(5)
    shifts = [
        {name: torch.randint(-4, 5, (2, B), generator=draws) for name in ("pixels", "wrist")}
        for _ in ("first", "later")
    ]
    for i, views in enumerate(seen):
        for name, part in observation(obs, i).items():
            wanted = part if part.ndim == 2 else RandomShiftsAug(4)(part, shifts[min(i, 1)][name])
            assert torch.equal(views[name], wanted)
    assert not torch.equal(shifts[0]["pixels"], shifts[0]["wrist"])


def test_bf16_learns_nearly_the_same() -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        agent = make_agent(IMAGE, precision=precision)
        for module in networks(agent).values():
            module.float()
        agent.bins = agent.bins.float()
        obs, *others = batch(IMAGE)
        metrics = agent.update(iter([(obs.to(torch.uint8), *(x.float() for x in others))]), 0)
        losses.append([float(metrics[name]) for name in ("dynamics_loss", "reward_loss", "infonce_loss")])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_a_resume_changes_the_learning_rate_of_that_name() -> None:
    agent = make_agent(STATE)

    def rates() -> list[float]:
        optimizers = (agent.model_opt, agent.actor_opt, agent.critic_opt, agent.temperature_opt)
        return [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]

    apply(agent, {}, {"agent.model_lr": 0.5})
    assert rates() == [0.5, LR, LR, TEMPERATURE_LR]
    apply(agent, {}, {"agent.lr": 0.25, "agent.temperature_lr": 0.75})
    assert rates() == [0.5, 0.25, 0.25, 0.75]


@pytest.mark.parametrize(
    ("name", "value", "then"),
    [
        *[("target_entropy", -1.0, -1.0 * A), ("target_tau", 0.5, 0.5), ("infonce", 0.0, 0.0)],
        *[("update_every_steps", 3, 3), ("num_expl_steps", 9, 9), ("model_warmup", 7, 7)],
    ],
)
def test_a_resume_keeps_or_changes_a_key(name: str, value: float, then: float, tmp_path: Path) -> None:
    saved = agent_state.capture(make_agent(STATE, **{name: value}))
    kept, changed = make_agent(STATE), make_agent(STATE)
    own = getattr(changed, name)
    restore_agent(kept, saved, {}, tmp_path)
    restore_agent(changed, saved, {f"agent.{name}": None}, tmp_path)  # the new agent's own value counts
    assert (getattr(kept, name), getattr(changed, name)) == (then, own)
    assert own != then


def test_a_resume_keeps_the_temperature_it_had(tmp_path: Path) -> None:
    old = SPQAgent(STATE, (A,), "cpu", hidden_dim=D, feature_dim=7, init_temperature=0.1, temperature_lr=3e-4)
    new = SPQAgent(STATE, (A,), "cpu", hidden_dim=D, feature_dim=7)
    assert (new.temperature().item(), new.temperature_opt.param_groups[0]["lr"]) == (pytest.approx(0.01), 1e-3)
    restore_agent(new, agent_state.capture(old), {}, tmp_path)
    assert (new.temperature().item(), new.temperature_opt.param_groups[0]["lr"]) == (pytest.approx(0.1), 3e-4)


def test_the_first_update_warms_the_model_up() -> None:
    agent = make_agent(STATE, model_warmup=4, update_every_steps=2)
    drawn: list[int] = []

    def batches() -> Any:
        while True:
            drawn.append(1)
            yield batch(STATE)

    stream = batches()
    assert agent.update(stream, 1) == {}
    assert len(drawn) == 0
    agent.update(stream, 2)
    assert len(drawn) == 5
    agent.update(stream, 4)
    assert len(drawn) == 6


def test_returns_of_segments_end_with_their_episodes() -> None:
    reward = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0], [3.0, 6.0, 4.0]])
    discount = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.0, 0.0], [0.5, 0.5, 0.5]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    value = torch.tensor([[8.0], [16.0], [32.0]])
    assert segment_returns(reward, discount, mask, value).tolist() == [[4, 6, 8], [2, 2, 16], [14, 22, 32]]
    assert segment_returns(reward[:, :1], discount[:, :1], mask[:, :1], value).tolist() == [[5], [9], [19]]


@pytest.mark.parametrize("temperature", [1e-12, 0.01])
def test_a_policy_leaves_the_bounds_of_its_actions_by_its_entropy_alone(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = SPQAgent(STATE, (A,), "cpu", lr=1e-2, hidden_dim=D, feature_dim=7, init_temperature=temperature, seed=1)
    last: Any = agent.actor.policy[-1]
    last.bias.data[:A] = 12.0  # where tanh is 1 in single precision

    def values(_: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return -action.sum(1, keepdim=True), -action.sum(1, keepdim=True)

    monkeypatch.setattr(agent.critic, "forward", values)
    latent = torch.randn(64, D)
    means = []
    for _ in range(300):
        metrics = agent.update_actor(latent[None], torch.ones(64, 1))
        means.append(float(agent.actor(latent).mean.detach().mean()))
    assert (means[-1] < -0.5) == (temperature > 1e-12)
    assert (means[-1] > 0.99) == (temperature == 1e-12)
    assert (float(metrics["actor_saturated"].mean()) > 0.99) == (temperature == 1e-12)


def test_noise_is_held() -> None:
    noise, generator = HeldNoise((2000, 1), 16, torch.device("cpu")), torch.Generator().manual_seed(0)
    drawn = torch.stack([noise.next(False, generator)[:, 0] for _ in range(40)])  # [40, 2000]
    lengths = []
    for row in drawn.T.tolist():
        changes = [i for i in range(1, 40) if row[i] != row[i - 1]]
        lengths += [b - a for a, b in pairwise(changes[:2])]  # the first whole one
    assert max(lengths) <= 16
    weights = np.arange(1, 17.0) ** -2
    assert np.mean(np.array(lengths) == 1) == pytest.approx(weights[0] / weights.sum(), abs=0.04)
    assert float(drawn.std()) == pytest.approx(1.0, abs=0.05)
    last = noise.numbers.clone()
    assert not (noise.next(True, generator) == last).any()  # a new kind of numbers begins at once
    single = HeldNoise((1, 3), 1, torch.device("cpu"))
    uniform = torch.stack([single.next(True, generator) for _ in range(300)])
    assert -1 <= float(uniform.min()) < -0.9 < 0.9 < float(uniform.max()) <= 1
    assert len(uniform.unique()) == uniform.numel()


def test_exploration_is_random_then_noisy_then_absent() -> None:
    agent = make_agent(STATE, num_expl_steps=10, hold=1, num_envs=3)
    for module in networks(agent).values():
        module.float()
    obs = np.ones((3, 5), np.float32)
    of_policy = agent.actor(agent.encoder(torch.from_numpy(obs)))
    quiet = agent.act_batch(obs, 20, eval_mode=True)
    assert quiet.dtype == np.float32
    np.testing.assert_allclose(quiet, np.tile(quiet[0], (3, 1)), atol=1e-6)
    np.testing.assert_array_equal(quiet, agent.act_batch(obs, 0, eval_mode=True))
    random = np.stack([agent.act_batch(obs, 0, eval_mode=False) for _ in range(400)])
    assert abs(random.mean()) < 0.1
    noisy = np.stack([agent.act_batch(obs, 20, eval_mode=False) for _ in range(400)])
    assert (np.abs(noisy) <= 1).all()
    before = np.arctanh(noisy)
    np.testing.assert_allclose(before.mean(0), of_policy.loc.detach(), atol=0.01)
    np.testing.assert_allclose(before.std(0), of_policy.log_std.exp().detach(), rtol=0.15)
    np.testing.assert_allclose(agent.act(obs[0], 20, eval_mode=True), quiet[0], atol=1e-6)
    repeats = [float((np.diff(actions, axis=0) == 0).all(-1).mean()) for actions in (random, noisy)]
    held = make_agent(STATE, num_expl_steps=10, hold=16)
    for module in networks(held).values():
        module.float()
    for step, wanted in ((0, 0), (20, 1)):
        actions = np.stack([held.act(obs[0], step, eval_mode=False) for _ in range(400)])
        assert repeats[wanted] == 0
        assert 0.3 < float((np.diff(actions, axis=0) == 0).all(-1).mean()) < 0.7


def test_actions_are_bang_bang_until_rewards_differ() -> None:
    obs, step = np.ones(5, np.float32), 20
    _, action, reward, discount, mask = batch(STATE)
    none, gamma = torch.zeros_like(reward), torch.full_like(discount, GAMMA)

    def searches(agent: SPQAgent) -> bool:
        actions = np.stack([agent.act(obs, step, eval_mode=False) for _ in range(400)])
        return bool((np.abs(actions) == 1).all())

    def has_seen(*transitions: tuple[Tensor, Tensor, Tensor], search: bool = True) -> SPQAgent:
        agent = make_agent(STATE, num_expl_steps=10, hold=16, search=search)
        for module in networks(agent).values():
            module.float()
        agent.bins = agent.bins.float()
        for own in transitions:
            seen = torch.zeros(B, H + 1, 5), action.float(), *(x.float() for x in own)
            agent.update(repeat(seen), 0)
        return agent

    assert not searches(has_seen())
    agent = has_seen((none, gamma, mask))
    assert searches(agent)
    assert agent.temperature().item() == pytest.approx(ALPHA)
    assert has_seen((reward, gamma, mask)).temperature().item() != pytest.approx(ALPHA)
    quiet = agent.act(obs, step, eval_mode=True)
    np.testing.assert_array_equal(quiet, agent.act(obs, 5, eval_mode=True))
    assert (np.abs(quiet) < 1).all()
    uniform = np.stack([agent.act(obs, 5, eval_mode=False) for _ in range(400)])
    assert (np.abs(uniform) < 1).all()  # these come first
    actions = np.stack([agent.act(obs, step, eval_mode=False) for _ in range(400)])
    assert len(np.unique(actions, axis=0)) == 4
    assert (np.abs(actions.mean(0)) < 0.3).all()
    assert 0.3 < float((np.diff(actions, axis=0) == 0).all(-1).mean()) < 0.9  # held; a new draw may be the same

    resumed = has_seen()
    agent_state.restore(resumed, agent_state.capture(agent))
    assert searches(resumed)
    resumed.update(repeat((torch.zeros(B, H + 1, 5), *(x.float() for x in (action, none, gamma, mask)))), 0)
    assert searches(resumed)
    resumed.search = False  # as a resume may set it
    assert not searches(resumed)
    resumed.search = True
    resumed.update(repeat((torch.zeros(B, H + 1, 5), *(x.float() for x in (action, none + 1, gamma, mask)))), 0)
    assert not searches(resumed)

    outside = torch.where(mask > 0, none, 1.0)  # after the ends of episodes
    one = none.clone()
    one[0, 2] = 0.1
    assert searches(has_seen((none - 1, gamma, mask), (none - 1, gamma, mask)))
    assert searches(has_seen((outside, gamma, mask)))
    assert not searches(has_seen((one, gamma, mask)))
    assert not searches(has_seen((none, gamma, mask), search=False))
    assert not searches(has_seen((none, discount, mask)))  # an episode terminated
    assert not searches(has_seen((none, gamma, mask), (one, gamma, mask), (none, gamma, mask)))
    assert not searches(has_seen((none, gamma, mask), (none + 1, gamma, mask)))


@pytest.mark.parametrize(
    ("obs_shape", "action_shape", "convolutions", "words"),
    [
        ((9, 84, 84), (2, 2), "patch", "one vector"),
        ((4, 9, 84, 84), (2,), "patch", "must be (C, H, W) or (N,)"),
        ((9, 84, 84), (2,), "deep", "agent.convolutions=deep must be patch or strided"),
        ((9, 84, 27), (2,), "patch", "images of 84x27 are too small; set image_size to 28 or more"),
        ((9, 30, 84), (2,), "strided", "images of 30x84 are too small; set image_size to 31 or more"),
    ],
)
def test_what_it_cannot_learn_is_refused(
    obs_shape: Sequence[int], action_shape: Sequence[int], convolutions: str, words: str
) -> None:
    with pytest.raises(UserError) as refused:
        SPQAgent(obs_shape, action_shape, "cpu", convolutions=convolutions)
    assert words in str(refused.value)


@pytest.mark.slow
def test_the_arm_whose_encoder_learns_from_the_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is its only difference: a second step of the encoder, after the same step of encoder and model."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks/plans/agents"))
    from critic_gradient import CriticGradient

    offered: dict[str, Any] = {"precision": "fp32", "seed": 1, "num_envs": 2, "frame_stack": 2}
    sizes: dict[str, Any] = {"hidden_dim": D, "feature_dim": 7, "embed_dim": 4, "convolutions": "patch", "horizon": H}
    plain = SPQAgent(IMAGE, (A,), "cpu", **sizes, **offered)
    own = CriticGradient(IMAGE, (A,), "cpu", encoder_lr=1e-4, **sizes, **offered)
    assert own.noise.numbers.shape == (2, A)
    for name, module in networks(plain).items():
        networks(own)[name].load_state_dict(module.state_dict())
    obs, *others = batch(IMAGE)
    seen = (obs.to(torch.uint8), *(x.float() for x in others))
    received: list[list[Tensor]] = []
    for agent in (plain, own):
        critic_loss = agent.critic_loss

        def recorded(*args: Tensor, critic_loss: Any = critic_loss) -> Any:
            received.append([part.detach() for part in args])
            return critic_loss(*args)

        monkeypatch.setattr(agent, "critic_loss", recorded)
        agent.update(iter([seen] * 300), 0)
    latents, others = ([args[i] for args in received] for i in (0, 1))
    torch.testing.assert_close(latents[0][1:], latents[1][1:])
    torch.testing.assert_close(others[0], others[1])
    assert 0 < float((latents[0][0] - latents[1][0]).abs().max()) < 1  # of an encoder that has just been changed
    apart = [
        (p - q).detach().abs().max() for p, q in zip(plain.encoder.parameters(), own.encoder.parameters(), strict=True)
    ]
    assert 0.5e-4 < float(max(apart)) < 1.5e-4  # the first step of Adam is that of its learning rate
    torch.testing.assert_close(own.model.state_dict(), plain.model.state_dict())


def state_equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_the_arms_without_a_part_lack_that_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks/plans/agents"))
    from spq_without import PARTS, Without

    offered: dict[str, Any] = {"precision": "fp32", "seed": 1, "num_envs": 2, "frame_stack": 2}
    sizes: dict[str, Any] = {"hidden_dim": D, "feature_dim": 7, "embed_dim": 4, "convolutions": "patch", "horizon": H}
    agents = {}
    for part in ("", *PARTS):
        torch.manual_seed(0)
        kind: Any = partial(Without, part=part) if part else SPQAgent
        agents[part] = kind(IMAGE, (A,), "cpu", **sizes, **offered)
    first = networks(agents[""])
    for part, agent in agents.items():
        same = {name for name, own in networks(agent).items() if state_equal(own, first[name])}
        assert same == first.keys() - ({"model"} if part == "zero_start" else set()), part
    obs, *others = batch(IMAGE)
    seen = (obs.to(torch.uint8), *(x.float() for x in others))
    learnt = {part: agent.update_model(*seen) for part, agent in agents.items()}
    metrics = {part: found[0] for part, found in learnt.items()}
    for part, agent in agents.items():
        image = torch.full((1, *IMAGE), 128, dtype=torch.uint8)
        before = agent.encoder(image)
        agent.encoder.mean += 1
        assert torch.equal(before, agent.encoder(image)) == (part == "centring"), part
    assert {part: agent.encoder.body[0].frames for part, agent in agents.items()} == {
        part: 1 if part == "differences" else 2 for part in agents
    }
    zero = math.log(agents[""].bins.numel())  # the loss of a reward's logits that are all zero
    for part in agents:
        starts_at_zero = metrics[part]["reward_loss"].item() == pytest.approx(
            zero * others[3].sum().item() / len(obs), rel=1e-4
        )
        assert starts_at_zero == (part != "zero_start"), part
    for part in ("", "transitions"):
        latents = learnt[part][1]
        returns = torch.randn(B, H, generator=torch.Generator().manual_seed(6))
        seen_by = agents[part].update_critic(latents, seen[1], returns, seen[4])
        metrics[part] = seen_by | agents[part].update_actor(latents, seen[4])
        agents[part].update(repeat(seen), 0)
    whole, first_alone = metrics[""], metrics["transitions"]
    for name in ("critic_target_q", "critic_q1", "critic_q2"):
        torch.testing.assert_close(first_alone[name], whole[name][:B] * seen[4].mean())  # all first ones are inside
    torch.testing.assert_close(first_alone["critic_target_q"], returns[:, :1])
    errors = [(first_alone[name] - returns[:, :1]).square().mean() for name in ("critic_q1", "critic_q2")]
    torch.testing.assert_close(first_alone["critic_loss"], sum(errors))
    assert [found["actor_ent"].shape for found in (whole, first_alone)] == [(H * B, 1), (B, 1)]
    with pytest.raises(UserError, match="for images alone"):
        Without(STATE, (A,), "cpu", part="differences", **sizes, **offered)
    with pytest.raises(UserError, match=r"agent\.part=wings must be one of centring"):
        Without(IMAGE, (A,), "cpu", part="wings", **sizes, **offered)


def test_the_arm_with_drqv2s_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks/plans/agents"))
    from spq_drqv2_policy import DrQV2Policy

    offered: dict[str, Any] = {"precision": "fp32", "seed": 1, "num_envs": 1, "frame_stack": 2}
    agent = DrQV2Policy(STATE, (A,), "cpu", stddev_schedule="0.5", hold=16, hidden_dim=D, feature_dim=7, **offered)
    obs = np.ones((1, 5), np.float32)
    agent.alike = True
    assert (np.abs(agent.act_batch(obs, 2000, eval_mode=False)) == 1).all()
    agent.alike = False
    mean = agent.act_batch(obs, 2000, eval_mode=True)
    np.testing.assert_allclose(agent.deterministic_policy()(torch.from_numpy(obs)).detach(), mean, atol=1e-6)
    noise = np.stack([agent.act_batch(obs, 2000, eval_mode=False) - mean for _ in range(2000)])
    assert 0.3 < float((np.diff(noise, axis=0) == 0).all(-1).mean()) < 0.7
    assert float(noise.std()) == pytest.approx(0.5, abs=0.06)

    def values(_: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return action.sum(1, keepdim=True), action.sum(1, keepdim=True) + 1

    monkeypatch.setattr(agent.critic, "forward", values)
    monkeypatch.setattr(agent.critic_target, "forward", values)
    latent = torch.randn(64, D)
    value = agent.value(latent)
    dist: Any = agent.actor(latent, 0.0)
    wanted = dist.mean.detach().sum(1, keepdim=True)
    assert 0 < float((value - wanted).abs().max()) <= A * 0.3 + 1e-6  # noise is clipped at 0.3
    for _ in range(20):
        agent.update_actor(latent[None], torch.ones(64, 1))
    dist = agent.actor(latent, 0.0)
    assert float((dist.mean.detach().sum(1, keepdim=True) - wanted).mean()) > 0


def float_batch(obs_shape: Shapes) -> list[Any]:
    """Return `batch` in the types that the replay gives, on the GPU."""
    obs, *others = batch(obs_shape)
    seen = each(lambda part: (part.byte() if part.ndim == 4 else part.float()).cuda(), obs)
    return [seen, *(part.float().cuda() for part in others)]


@pytest.mark.gpu
@pytest.mark.parametrize("obs_shape", [IMAGE, STATE, DICT])
def test_a_graph_does_what_single_kernels_do_and_continues_after_a_restore(obs_shape: Shapes) -> None:
    sizes: Any = {"hidden_dim": D, "feature_dim": 7, "embed_dim": 4, "frame_stack": 2, "convolutions": "patch"}

    def agent_on_gpu(compile: bool) -> SPQAgent:
        torch.manual_seed(0)
        return SPQAgent(obs_shape, (A,), "cuda", **sizes, seed=3, model_warmup=2, compile=compile)

    eager, graphed, restored = (agent_on_gpu(compile) for compile in (False, True, True))
    data = float_batch(obs_shape)
    unrewarded = [*data[:2], torch.zeros_like(data[2]), torch.ones_like(data[3]), data[4]]
    for i in range(8):
        if i == 5:
            agent_state.restore(restored, agent_state.capture(graphed))
        agents = [eager, graphed, *([restored] if i >= 5 else [])]
        one, *others = (agent.update(repeat(unrewarded if i < 2 else data), i) for agent in agents)
        assert (graphed._graphed is None) == (i < 2)  # the search has none
        for other in others:
            assert one.keys() == other.keys()
            for name in one:
                torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)
    assert [agent._graphs for agent in (eager, graphed)] == [False, True]
    for name, tensor in graphed.critic.state_dict().items():
        assert torch.equal(tensor, restored.critic.state_dict()[name])
    torch.testing.assert_close(eager.temperature.log_alpha, graphed.temperature.log_alpha)
    assert torch.equal(graphed.temperature.log_alpha, restored.temperature.log_alpha)
    draws = [agent_state.capture(agent)["children"]["update_generator"] for agent in (eager, graphed, restored)]
    obs = each(lambda part: part[:1].cpu().numpy(), observation(data[0], 0))
    for eval_mode in (False, True):
        actions = [agent.act_batch(obs, 5000, eval_mode) for agent in (eager, graphed, restored)]
        for i in (1, 2):
            assert_equal(draws[0], draws[i])
            np.testing.assert_allclose(actions[0], actions[i], rtol=1e-3, atol=1e-4)
