"""The agent of several tasks: one update against a version in plain torch, and what its options do."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drqv2 import utils
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.multitask import MultiTaskAgent
from drqv2.errors import UserError
from drqv2.nn import categorical

SIZES = [2, 1, 3]  # numbers in an action of each task


def make(kind: type = MultiTaskAgent, **kwargs: Any) -> Any:
    common: dict[str, Any] = {
        "obs_shape": (5,),
        "action_shape": (3,),
        "device": "cpu",
        "lr": 1e-3,
        "feature_dim": 8,
        "hidden_dim": 16,
        "critic_target_tau": 0.1,
        "num_expl_steps": 10,
        "update_every_steps": 1,
        "stddev_schedule": "0.0",
        "stddev_clip": 0.3,
        "use_tb": True,
        "seed": 3,
    }
    if kind is MultiTaskAgent:
        common |= {"num_tasks": 3, "action_sizes": SIZES, "task_dim": 4}
    torch.manual_seed(0)
    return kind(**common | kwargs)


def batch_of(tasks: list[int], seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    n = len(tasks)
    mask = torch.tensor([[float(j < SIZES[task]) for j in range(3)] for task in tasks])
    action = (2 * torch.rand(n, 3, generator=generator) - 1) * mask
    obs, next_obs = (torch.randn(n, 5, generator=generator) for _ in range(2))
    reward, discount = 3 * torch.randn(n, 1, generator=generator), torch.rand(n, 1, generator=generator)
    return obs, action, reward, discount, next_obs, torch.tensor(tasks)


TASKS = [0, 0, 1, 1, 2, 2, 0]


# One update, written out in plain torch and float64


class Plain:
    """The networks as functions of their parameters."""

    def __init__(self, agent: Any, bins: int, residual: bool) -> None:
        self.parts = {
            name: {k: v.detach().double().clone().requires_grad_() for k, v in getattr(agent, name).named_parameters()}
            for name in ("encoder", "embedding", "actor", "critic", "critic_target")
        }
        self.bins, self.residual = bins, residual

    def encode(self, obs: Tensor) -> Tensor:
        p = self.parts["encoder"]
        h = torch.relu(obs @ p["mlp.0.weight"].T + p["mlp.0.bias"])
        return torch.relu(h @ p["mlp.2.weight"].T + p["mlp.2.bias"])

    def embed(self, task: Tensor) -> Tensor:
        vectors = self.parts["embedding"]["vectors"]
        return (vectors / vectors.norm(dim=1, keepdim=True))[task]

    @staticmethod
    def norm(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    @staticmethod
    def layer(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def trunk(self, p: dict[str, Tensor], features: Tensor, embedded: Tensor) -> Tensor:
        h = self.layer(p, "trunk.features", features) + embedded @ p["trunk.task.weight"].T
        return torch.cat([torch.tanh(self.norm(p, "trunk.norm", h)), embedded], 1)

    def mean(self, features: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        p = self.parts["actor"]
        h = self.trunk(p, features, embedded)
        h = torch.relu(self.layer(p, "policy.0", h))
        h = torch.relu(self.layer(p, "policy.2", h))
        return torch.tanh(self.layer(p, "policy.4", h)) * mask

    def values(self, part: str, features: Tensor, action: Tensor, embedded: Tensor, task: Tensor) -> list[Tensor]:
        p = self.parts[part]
        x = torch.cat([self.trunk(p, features, embedded), action], 1)
        outputs = []
        for q in ("Q1", "Q2"):
            if self.residual:
                h = torch.relu(self.norm(p, f"{q}.1", self.layer(p, f"{q}.0", x)))
                for block in (f"{q}.3.layers", f"{q}.4.layers"):
                    g = torch.relu(self.norm(p, f"{block}.1", self.layer(p, f"{block}.0", h)))
                    h = h + self.norm(p, f"{block}.4", self.layer(p, f"{block}.3", g))
                out = self.layer(p, f"{q}.5", h)
                heads = [out[:, self.bins * k : self.bins * (k + 1)] for k in range(3)]
                out = torch.stack([heads[int(k)][row] for row, k in enumerate(task)])
            else:
                h = torch.relu(self.layer(p, f"{q}.0", x))
                h = torch.relu(self.layer(p, f"{q}.2", h))
                out = self.layer(p, f"{q}.4", h)
            outputs.append(out)
        return outputs


def gradients(part: dict[str, Tensor], loss: Tensor) -> dict[str, Tensor]:
    return dict(zip(part, torch.autograd.grad(loss, list(part.values()), retain_graph=True), strict=True))


@pytest.mark.parametrize("value", ["scalar", "hl_gauss", "two_hot"])
def test_an_update_is_the_one_that_is_written_out(value: str) -> None:
    distributional = value != "scalar"
    options: dict[str, Any] = {}
    if distributional:
        options = {
            "value": value,
            "value_bins": 11,
            "value_max": 5.0,
            "critic": "residual",
            "critic_dim": 8,
            "critic_blocks": 2,
            "critic_heads": "task",
            "normalize_rewards": True,
        }
    agent = make(**options)
    if distributional:
        agent.return_max[:] = torch.tensor([20.0, 2.5, 0.0])
    with torch.no_grad():  # a target critic of its own, and no weight 0 or 1
        for name in ("actor", "critic", "critic_target"):
            for parameter in getattr(agent, name).parameters():
                parameter += 0.1 * torch.randn(parameter.shape)
    before = Plain(agent, 11, distributional)
    data = batch_of(TASKS)
    metrics = agent.update(iter([data]), 100)

    obs, action, reward, discount, next_obs, task = (x if x.dtype == torch.int64 else x.double() for x in data)
    mask = torch.tensor([[float(j < SIZES[int(k)]) for j in range(3)] for k in task]).double()
    bins = torch.linspace(-5, 5, 11, dtype=torch.float64)

    def mean(output: Tensor) -> Tensor:
        return (output.softmax(1) * bins).sum(1, keepdim=True) if distributional else output

    if distributional:
        reward = reward / torch.tensor([20.0 / 5.0, 2.5 / 5.0, 1.0]).double()[task][:, None]
    with torch.no_grad():
        next_features, embedded = before.encode(next_obs), before.embed(task)
        next_action = before.mean(next_features, embedded, mask).clamp(-1 + 1e-6, 1 - 1e-6)
        target = reward + discount * torch.minimum(
            *map(mean, before.values("critic_target", next_features, next_action, embedded, task))
        )
    features, embedded = before.encode(obs), before.embed(task)
    outputs = before.values("critic", features, action, embedded, task)
    if distributional:
        wanted = getattr(categorical, value)(target, bins)  # checked by its own tests
        critic_loss = sum(-(wanted * output.log_softmax(1)).sum(1).mean() for output in outputs)
    else:
        critic_loss = sum((output - target).square().mean() for output in outputs)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss.item(), rel=1e-4)
    assert float(metrics["critic_target_q"]) == pytest.approx(float(target.mean()), rel=1e-4)
    assert float(metrics["critic_q1"]) == pytest.approx(mean(outputs[0]).mean().item(), rel=1e-4, abs=1e-6)
    for part in ("critic", "encoder", "embedding"):
        expected = gradients(before.parts[part], critic_loss)
        for name, parameter in getattr(agent, part).named_parameters():
            assert parameter.grad is not None
            torch.testing.assert_close(
                parameter.grad.double(), expected[name], rtol=1e-3, atol=1e-5, msg=f"{part} {name}"
            )
        assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3

    # The policy then follows the new critic, on the old features and embeddings.
    after = Plain(agent, 11, distributional)
    after.parts["actor"] = before.parts["actor"]
    features, embedded = features.detach(), embedded.detach()
    chosen = after.mean(features, embedded, mask)
    actor_loss = -torch.minimum(*map(mean, after.values("critic", features, chosen, embedded, task))).mean()
    assert float(metrics["actor_loss"]) == pytest.approx(actor_loss.item(), rel=1e-3, abs=1e-5)
    expected = gradients(before.parts["actor"], actor_loss)
    for name, parameter in agent.actor.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), expected[name], rtol=2e-3, atol=1e-5, msg=name)
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    for name, old in before.parts["critic_target"].items():
        moved = 0.1 * agent.critic.state_dict()[name] + 0.9 * old.detach().float()
        torch.testing.assert_close(agent.critic_target.state_dict()[name], moved)


def test_the_first_step_of_adam_moves_all_four_networks_by_the_learning_rate() -> None:
    agent = make()
    before = copy.deepcopy({name: getattr(agent, name).state_dict() for name in ("actor", "critic", "encoder")})
    vectors = agent.embedding.vectors.detach().clone()
    agent.update(iter([batch_of(TASKS)]), 100)
    for name, old in before.items():
        for key, value in getattr(agent, name).state_dict().items():
            step = float((value - old[key]).abs().max())
            assert 0.9e-3 < step < 1.01e-3, f"{name} {key}"
    assert (agent.embedding.vectors - vectors).abs().max().item() == pytest.approx(1e-3, rel=1e-2)


# Tasks


@pytest.mark.filterwarnings("ignore:agent.value")  # that values are clipped
@pytest.mark.parametrize("value", ["scalar", "hl_gauss"])
def test_of_several_heads_a_batch_of_one_task_changes_that_tasks_alone(value: str) -> None:
    agent = make(critic_heads="task", value=value, value_bins=7)
    bins = 1 if value == "scalar" else 7
    before = copy.deepcopy(agent.critic.state_dict())
    agent.update(iter([batch_of([1] * 6)]), 100)
    for name in ("Q1.4.weight", "Q1.4.bias", "Q2.4.weight", "Q2.4.bias"):
        moved = (agent.critic.state_dict()[name] != before[name]).view(3, bins, -1)
        assert bool(moved[1].any()), name
        assert not moved[0].any(), name
        assert not moved[2].any(), name


def test_of_one_head_every_task_changes_it() -> None:
    agent = make()
    assert agent.critic.Q1[4].weight.shape[0] == 1
    agent.update(iter([batch_of([1] * 6)]), 100)
    moved = {name: bool((p.grad != 0).any()) for name, p in agent.critic.named_parameters() if p.grad is not None}
    assert all(moved.values())


def test_a_batch_of_one_task_teaches_its_embedding_alone() -> None:
    agent = make()
    before = agent.embedding.vectors.detach().clone()
    agent.update(iter([batch_of([2] * 6)]), 100)
    moved = (agent.embedding.vectors != before).any(1)
    assert moved.tolist() == [False, False, True]


def test_embeddings_have_length_1_and_make_a_difference() -> None:
    agent = make(action_sizes=None)
    torch.testing.assert_close(agent.embedding(torch.arange(3)).norm(dim=1), torch.ones(3))
    obs = np.ones((3, 5), np.float32)
    first, second, third = agent.act_batch(obs, 100, True, [0, 1, 2])
    assert not np.allclose(first, second)
    assert not np.allclose(second, third)
    np.testing.assert_allclose(agent.act(obs[0], 100, True, task=1), second, atol=1e-6)


def test_without_an_embedding_all_tasks_are_one() -> None:
    agent = make(task_dim=0, action_sizes=None)
    assert list(agent.embedding.parameters()) == []
    first, second = (agent.act(np.ones(5, np.float32), 100, True, task) for task in (0, 1))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("options", [{"num_tasks": 1, "action_sizes": None}, {"task_dim": 0, "action_sizes": None}])
def test_without_an_embedding_it_is_drqv2_to_the_bit(options: dict[str, Any]) -> None:
    ours, theirs = make(stddev_schedule="0.5", **options), make(DrQV2Agent, stddev_schedule="0.5")
    for seed in range(4):
        *five, task = batch_of([0] * 6, seed)
        mine = ours.update(iter([(*five, task)]), 100 + seed)
        other = theirs.update(iter([tuple(five)]), 100 + seed)
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in other)
    for name in ("encoder", "actor", "critic", "critic_target"):
        a, b = (list(getattr(agent, name).parameters()) for agent in (ours, theirs))
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), name
    obs = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    for step in (0, 100):
        np.testing.assert_array_equal(ours.act_batch(obs, step, False), theirs.act_batch(obs, step, False))


# Actions of different sizes


@pytest.mark.parametrize(("step", "eval_mode"), [(0, False), (100, False), (100, True)])
def test_numbers_beyond_a_tasks_action_are_0(step: int, eval_mode: bool) -> None:
    agent = make(stddev_schedule="0.5")
    actions = agent.act_batch(np.ones((7, 5), np.float32), step, eval_mode, TASKS)
    for action, task in zip(actions, TASKS, strict=True):
        assert (action[SIZES[task] :] == 0).all()
        assert (action[: SIZES[task]] != 0).all()
        assert np.abs(action).max() <= 1


def test_actions_are_uniform_before_num_expl_steps_and_noisy_ones_of_the_policy_after() -> None:
    agent = make(stddev_schedule="0.01", action_sizes=None)
    obs = np.ones((500, 5), np.float32)
    tasks = [0] * 500
    mean = agent.act_batch(obs[:1], 100, True, [0])[0]
    early, late = agent.act_batch(obs, 9, False, tasks), agent.act_batch(obs, 10, False, tasks)
    # The standard deviation of uniform numbers from -1 to 1 is 1 / sqrt(3).
    np.testing.assert_allclose(early.std(0), 1 / math.sqrt(3), rtol=0.1)
    np.testing.assert_allclose(early.mean(0), 0, atol=0.1)
    assert np.abs(early).max() > 0.99
    np.testing.assert_allclose(late.std(0), 0.01, rtol=0.15)
    np.testing.assert_allclose(late.mean(0), mean, atol=2e-3)


@pytest.mark.parametrize("tasks", [[0] * 4, [1] * 4, [2] * 4, [0, 1, 2, 1]])
def test_log_probability_and_entropy_count_the_numbers_of_the_own_action(tasks: list[int]) -> None:
    """Without noise in the update, each number of an action is at the mean of its Gaussian."""
    agent = make(stddev_schedule="0.2", stddev_clip=0.0)
    metrics = agent.update(iter([batch_of(tasks)]), 100)
    numbers = np.mean([SIZES[task] for task in tasks])
    log_density = -math.log(0.2) - 0.5 * math.log(2 * math.pi)
    assert float(metrics["actor_logprob"]) == pytest.approx(numbers * log_density, rel=1e-4)
    assert float(metrics["actor_ent"]) == pytest.approx(numbers * (0.5 - log_density), rel=1e-4)


def test_the_critic_never_sees_noise_beyond_a_tasks_action() -> None:
    agent = make(stddev_schedule="0.5")
    seen: list[Tensor] = []
    for critic in (agent.critic, agent.critic_target):
        critic.register_forward_pre_hook(lambda _, args: seen.append(args[1].detach().clone()))
    agent.update(iter([batch_of(TASKS)]), 100)
    assert len(seen) == 3  # next actions, those in the batch, the policy's
    for actions in seen:
        for action, task in zip(actions, TASKS, strict=True):
            assert bool((action[SIZES[task] :] == 0).all())
            assert bool((action[: SIZES[task]] != 0).all())


# Rewards of one scale


def test_the_greatest_discounted_return_of_each_task_is_kept() -> None:
    agent = make(normalize_rewards=True, value_max=8.0)
    tasks = torch.arange(3)
    assert agent.reward_scale(tasks).tolist() == [[1.0], [1.0], [1.0]]
    half = np.full(3, 0.5, np.float32)
    agent.observe_episode(1, np.array([1.0, 2.0, 4.0], np.float32), half)  # 1 + 1 + 1 = 3; from later on 4, 4
    assert agent.return_max.tolist() == [0.0, 4.0, 0.0]
    agent.observe_episode(1, np.array([1.0, 1.0, 1.0], np.float32), half)  # smaller
    assert agent.return_max.tolist() == [0.0, 4.0, 0.0]
    agent.observe_episode(1, np.array([-9.0, -2.0, 0.0], np.float32), half)  # -10
    agent.observe_episode(0, np.array([2.0, 2.0], np.float32), np.array([0.0, 0.5], np.float32))  # an end in between
    assert agent.return_max.tolist() == [2.0, 10.0, 0.0]
    assert agent.reward_scale(tasks).tolist() == [[0.25], [1.25], [1.0]]


def test_without_normalisation_nothing_is_kept() -> None:
    agent = make()
    agent.observe_episode(1, np.ones(3, np.float32), np.ones(3, np.float32))
    assert agent.return_max.tolist() == [0.0, 0.0, 0.0]


def test_values_of_one_task_are_told_on_the_scale_of_its_rewards() -> None:
    agent = make(normalize_rewards=True, value="hl_gauss", value_bins=11, value_max=5.0, critic_heads="task")
    agent.return_max[:] = torch.tensor([20.0, 2.5, 0.0])
    obs, action, *_ = batch_of([0, 0, 0])
    with torch.no_grad():
        for task, scale in enumerate((4.0, 0.5, 1.0)):
            encoder, actor, critic, _ = agent.networks_of(task)
            features = encoder(obs)
            own = torch.tensor([task] * 3)
            raw = agent.critic(features, action, agent.embedding(own), own)
            for value, logits in zip(critic(features, action), raw, strict=True):
                torch.testing.assert_close(value, scale * categorical.expected(logits, agent._centers))
            assert bool((actor(features, 0.1).mean[:, SIZES[task] :] == 0).all())


def test_the_policy_of_a_task_is_that_of_its_actions() -> None:
    agent = make()
    obs = batch_of([1])[0]
    encoder, actor, *_ = agent.networks_of(1)
    with torch.no_grad():
        dist: utils.TruncatedNormal = actor(encoder(obs), 0.1)
    assert float(dist.mean[0, 0]) != 0
    np.testing.assert_allclose(agent.act(obs[0].numpy(), 100, True, task=1), dist.mean[0].numpy(), atol=1e-6)


# Precision, and what is refused


@pytest.mark.parametrize("options", [{}, {"critic": "residual", "critic_dim": 16, "value": "hl_gauss"}])
def test_bf16_updates_stay_near_those_of_fp32(options: dict[str, Any]) -> None:
    agents = [make(precision=precision, normalize_rewards=True, **options) for precision in ("fp32", "bf16")]
    found = [[agent.update(iter([batch_of(TASKS, seed)]), 0) for seed in range(3)] for agent in agents]
    losses = [torch.stack([metrics["critic_loss"] for metrics in own]) for own in found]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.05, atol=0.01)
    assert not torch.equal(losses[0], losses[1]), "it is bf16"


def test_a_value_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"agent\.value=hlgauss must be scalar, two_hot or hl_gauss"):
        make(value="hlgauss", normalize_rewards=True)


def test_a_warning_says_that_values_are_clipped() -> None:
    with pytest.warns(UserWarning, match="clips values at 10"):
        make(value="two_hot")


@pytest.mark.parametrize(("step", "std"), [(0, 0.2), (50, 0.11), (100, 0.02), (10**6, 0.02)])
def test_noise_follows_the_schedule_in_actions_and_updates(step: int, std: float) -> None:
    agent = make(DrQV2Agent, stddev_schedule="linear(0.2,0.02,100)", num_expl_steps=0)
    obs = np.ones((4000, 5), np.float32)
    noise = agent.act_batch(obs, step, eval_mode=False) - agent.act_batch(obs, step, eval_mode=True)
    assert noise.std() == pytest.approx(std, rel=0.05)
    *batch, _ = batch_of(TASKS)
    entropy = float(agent.update(iter([batch]), step)["actor_ent"])
    assert entropy == pytest.approx(3 * (math.log(std) + 0.5 * math.log(2 * math.pi * math.e)), rel=1e-4)
