"""DrQ-v2 and its relatives on dicts of images and vectors: updates written out in double precision, shifts, actions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dm_env import StepType, specs
from torch import Tensor

from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.multitask import MultiTaskAgent
from drqv2.agents.offline import BCAgent, CQLAgent, DrQV2BCAgent
from drqv2.agents.spq import SPQAgent
from drqv2.envs.wrappers import ExtendedTimeStep
from drqv2.errors import UserError
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.deterministic import OfParts
from drqv2.nn.networks import Encoder
from drqv2.nn.observations import PartsEncoder
from drqv2.snapshot import agent_state
from replay_buffer import ReplayBufferStorage, make_replay_loader

B, A, LR, TAU, STD = 5, 2, 0.01, 0.1, 0.2
SHAPES = {"pixels": (6, 20, 20), "wrist": (3, 16, 17), "goal": (2,), "state": (3,)}
Weights = dict[str, Tensor]


def make(kind: Any = DrQV2Agent, shapes: Any = SHAPES, **changes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"feature_dim": 7, "hidden_dim": 9, "num_expl_steps": 0, "lr": LR}
    common = {"critic_target_tau": TAU, "update_every_steps": 1, "stddev_schedule": STD}
    return kind(shapes, (A,), **{"device": "cpu"} | sizes | common | changes)


def observations(seed: int, rows: int = B, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, Tensor]:
    """In another order than that of the shapes, as batches of the replay may be."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in sorted(shapes.items(), key=lambda item: (len(item[1]), item[0])):
        if len(shape) == 3:
            found[name] = torch.randint(0, 256, (rows, *shape), generator=generator, dtype=torch.uint8)
        else:
            found[name] = torch.randn(rows, *shape, generator=generator)
    return found


def batch(seed: int = 1) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    action = torch.rand(B, A, generator=generator) * 2 - 1
    reward, discount = torch.randn(B, 1, generator=generator), torch.full((B, 1), 0.9)
    return observations(seed), action, reward, discount, observations(seed + 100)


def double(x: Any) -> Any:
    return {name: part.double() for name, part in x.items()} if isinstance(x, dict) else x.double()


# --- the update -----------------------------------------------------------------------------------------------------


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def mlp(x: Tensor, w: Weights, name: str) -> Tensor:
    x = linear(x, w, f"{name}.0").clamp(min=0)
    return linear(linear(x, w, f"{name}.2").clamp(min=0), w, f"{name}.4")


def trunk(x: Tensor, w: Weights) -> Tensor:
    x = linear(x, w, "trunk.0")
    x = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return (x * w["trunk.1.weight"] + w["trunk.1.bias"]).tanh()


def encoded(obs: dict[str, Tensor], w: Weights) -> Tensor:
    """Maps of 32 x 3 x 3 and 32 x 1 x 2 numbers, and the 256 of the vectors, of as much weight together."""
    features = []
    for name in ("pixels", "wrist"):
        x = obs[name].double() / 255 - 0.5
        for i in range(4):
            layer = f"of_image.{name}.convnet.{2 * i}"
            x = F.conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"], 1 if i else 2).clamp(min=0)
        features.append(x.flatten(1))
    seen = sum(x.shape[1] for x in features)
    x = torch.cat([obs["goal"], obs["state"]], 1).double()
    x = linear(linear(x, w, "of_vectors.mlp.0").clamp(min=0), w, "of_vectors.mlp.2").clamp(min=0)
    return torch.cat([*features, (seen / 256) ** 0.5 * x], 1)


def pi(h: Tensor, w: Weights, noise: Tensor) -> Tensor:
    action = mlp(trunk(h, w), w, "policy").tanh() + (STD * noise).clamp(-0.3, 0.3)
    return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach()


def q(h: Tensor, action: Tensor, w: Weights) -> list[Tensor]:
    x = torch.cat([trunk(h, w), action], 1)
    return [mlp(x, w, name) for name in ("Q1", "Q2")]


def shifted(x: Tensor, shift: Tensor) -> Tensor:
    """Images, each with its own row and column first, and its border repeated."""
    padded = F.pad(x.double(), (4, 4, 4, 4), mode="replicate")
    h, w = x.shape[2:]
    moved = [image[:, 4 + dy : 4 + dy + h, 4 + dx : 4 + dx + w] for image, dy, dx in zip(padded, *shift, strict=True)]
    return torch.stack(moved)


def all_shifted(obs: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    draw = partial(torch.randint, -4, 5, (2, B), generator=generator)
    return {name: shifted(x, draw()) if x.ndim == 4 else x for name, x in obs.items()}


def stepped(w: Weights, loss: Tensor) -> Weights:
    """Weights after Adam's first step, in which both moments are those of this gradient."""
    grads = torch.autograd.grad(loss, list(w.values()), retain_graph=True)
    return {name: p - LR * g / (g.abs() + 1e-8) for (name, p), g in zip(w.items(), grads, strict=True)}


def test_an_update_is_that_of_its_formulas() -> None:
    agent = make()
    w: dict[str, Weights] = {}
    generator = torch.Generator().manual_seed(1)
    for name in ("encoder", "actor", "critic", "critic_target"):
        module = getattr(agent, name).double()
        for parameter in module.parameters():  # no bias is zero, and no target is a copy
            parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        w[name] = {key: p.detach().clone().requires_grad_() for key, p in module.named_parameters()}
    agent.aug.generator = torch.Generator().manual_seed(2)
    obs, action, reward, discount, next_obs = map(double, batch())

    generator = torch.Generator().manual_seed(2)
    h = encoded(all_shifted(obs, generator), w["encoder"])
    next_h = encoded(all_shifted(next_obs, generator), w["encoder"]).detach()
    torch.manual_seed(3)
    next_action = pi(next_h, w["actor"], torch.randn(B, A, dtype=torch.float64))
    wanted = (reward + discount * torch.minimum(*q(next_h, next_action, w["critic_target"]))).detach()
    critic_loss = torch.stack([((value - wanted) ** 2).mean() for value in q(h, action, w["critic"])]).sum()
    after = {name: stepped(w[name], critic_loss) for name in ("encoder", "critic")}
    chosen = pi(h.detach(), w["actor"], torch.randn(B, A, dtype=torch.float64))
    actor_loss = -torch.minimum(*q(h.detach(), chosen, after["critic"])).mean()
    after["actor"] = stepped(w["actor"], actor_loss)
    after["critic_target"] = {k: (1 - TAU) * p + TAU * after["critic"][k] for k, p in w["critic_target"].items()}

    torch.manual_seed(3)
    metrics = agent.update(iter([(obs, action, reward, discount, next_obs)]), 0)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss.item(), rel=1e-9)
    assert float(metrics["actor_loss"]) == pytest.approx(actor_loss.item(), rel=1e-9)
    for name, expected in after.items():
        for key, parameter in getattr(agent, name).named_parameters():
            torch.testing.assert_close(parameter.data, expected[key].data, rtol=1e-6, atol=1e-8, msg=f"{name} {key}")


def test_each_image_has_its_own_shift_and_vectors_none() -> None:
    aug, obs = RandomShiftsAug(4), observations(0, rows=64)
    aug.generator = torch.Generator().manual_seed(7)
    drawn = aug.draw(obs)
    assert set(drawn) == {"pixels", "wrist"}
    assert (drawn["pixels"] != drawn["wrist"]).float().mean() > 0.7
    aug.generator.manual_seed(7)
    moved = aug(obs)
    for name, x in obs.items():
        wanted = shifted(x, drawn[name]) if name in drawn else x
        assert torch.equal(moved[name].to(wanted.dtype), wanted)
        assert moved[name].dtype == x.dtype


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("encoder", ["drqv2", "strided"])
def test_every_network_learns(precision: str, encoder: str) -> None:
    agent = make(precision=precision, encoder=encoder, seed=1)
    assert agent._as_published
    before = {key: p.clone() for key, p in agent.encoder.named_parameters()}
    agent.update(iter([batch()]), 0)
    assert all(not torch.equal(p, before[key]) for key, p in agent.encoder.named_parameters())
    assert sum(key.startswith("of_image.wrist") for key in before) == (8 if encoder == "drqv2" else 4)


def test_a_replaced_network_is_not_as_published() -> None:
    agent = make(precision="bf16")
    agent.encoder.of_image["wrist"] = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 14, 3), torch.nn.ReLU())
    assert not agent._as_published
    agent.encoder.of_image["wrist"] = Encoder(SHAPES["wrist"])
    assert agent._as_published
    agent.encoder.of_image["wrist"].register_forward_hook(lambda *_: None)
    assert not agent._as_published


# --- the relatives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DrQV2BCAgent, BCAgent, CQLAgent])
def test_agents_for_stored_data_learn_from_dicts(kind: type[DrQV2Agent]) -> None:
    agent = make(kind, seed=1)
    before = [p.clone() for p in agent.encoder.parameters()]
    metrics = agent.update(iter([batch()]), 0)
    assert all(np.isfinite(float(value)) for value in metrics.values())
    assert not any(torch.equal(a, b) for a, b in zip(before, agent.encoder.parameters(), strict=True))


def test_behaviour_cloning_of_dicts_is_its_formula() -> None:
    agent = make(BCAgent, stddev_schedule="0.0")
    agent.aug.pad = 0
    obs, action, *_ = data = batch()
    wanted = F.mse_loss(agent.actor(agent.encoder(obs), 0.0).mean, action)
    assert float(agent.update(iter([data]), 0)["actor_bc_loss"]) == pytest.approx(wanted.item(), rel=1e-5)


def test_one_task_of_dicts_is_drqv2() -> None:
    agents = [make(seed=1), make(MultiTaskAgent, seed=1)]
    data = batch()
    first, second = (
        agent.update(iter([each]), 0) for agent, each in zip(agents, (data, (*data, _tasks())), strict=True)
    )
    assert {name: float(x) for name, x in first.items()} == {name: float(x) for name, x in second.items()}
    names = ("encoder", "actor", "critic", "critic_target")
    for name in names:
        pairs = zip(*(getattr(agent, name).parameters() for agent in agents), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def _tasks() -> Tensor:
    return torch.zeros(B, dtype=torch.int64)


def test_several_tasks_of_dicts() -> None:
    agent = make(MultiTaskAgent, num_tasks=3, seed=1)
    before = [p.clone() for p in agent.encoder.parameters()]
    agent.update(iter([(*batch(), torch.tensor([0, 2, 1, 1, 0]))]), 0)
    assert not any(torch.equal(a, b) for a, b in zip(before, agent.encoder.parameters(), strict=True))
    obs = {name: x.numpy() for name, x in observations(4).items()}
    one = {name: x[2] for name, x in obs.items()}
    together = agent.act_batch(obs, 0, True, [0, 1, 2, 0, 1])
    np.testing.assert_allclose(agent.act(one, 0, True, 2), together[2], rtol=1e-4, atol=1e-6)
    policy = agent.deterministic_policy()
    assert policy.inputs == (*SHAPES, "task")
    parts = [observations(4)[name] for name in SHAPES]
    np.testing.assert_allclose(policy(*parts, torch.tensor([0, 1, 2, 0, 1])).detach(), together, rtol=1e-4, atol=1e-6)


# --- acting, shapes, snapshots --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DrQV2Agent, SPQAgent])
def test_actions_of_dicts(kind: Any) -> None:
    shapes = SHAPES | {"pixels": (6, 36, 36), "wrist": (3, 31, 33)}
    changes: dict[str, Any] = {"frame_stack": 3} if kind is SPQAgent else {}
    torch.manual_seed(0)
    agent = kind(shapes, (A,), "cpu", num_expl_steps=0, hidden_dim=16, feature_dim=7, **changes)
    seen = observations(4, shapes=shapes)
    obs = {name: x.numpy() for name, x in seen.items()}
    together = agent.act_batch(obs, 0, eval_mode=True)
    assert together.shape == (B, A)
    for i in range(B):
        alone = agent.act({name: x[i] for name, x in obs.items()}, 0, eval_mode=True)
        np.testing.assert_allclose(alone, together[i], rtol=1e-4, atol=1e-6)
    policy = agent.deterministic_policy()
    assert isinstance(policy, OfParts)
    assert policy.inputs == tuple(SHAPES)
    acted = policy(*(seen[name] for name in SHAPES))
    np.testing.assert_allclose(acted.detach(), together, rtol=1e-4, atol=1e-6)
    changed = {**obs, "goal": obs["goal"] + 1}
    assert np.abs(agent.act_batch(changed, 0, eval_mode=True) - together).max() > 1e-4


def test_a_dict_of_vectors_alone() -> None:
    shapes = {"goal": (2,), "state": (3,)}
    agent = make(shapes=shapes, seed=1)
    assert isinstance(agent.encoder, PartsEncoder)
    assert agent.encoder.repr_dim == 256
    obs, next_obs = observations(1, shapes=shapes), observations(2, shapes=shapes)
    agent.update(iter([(obs, *batch()[1:4], next_obs)]), 0)
    assert agent.act({"goal": np.zeros(2, np.float32), "state": np.ones(3, np.float32)}, 0, True).shape == (A,)


@pytest.mark.parametrize("encoder", ["drqv2", "strided"])
@pytest.mark.parametrize("side", [15, 16, 31, 84])
def test_images_from_15_pixels_on(encoder: str, side: int) -> None:
    agent = make(shapes={"pixels": (3, side, side), "state": (2,)}, encoder=encoder)
    action = agent.act({"pixels": np.zeros((3, side, side), np.uint8), "state": np.zeros(2, np.float32)}, 0, True)
    assert np.isfinite(action).all()


def test_the_network_of_vectors_computes_in_fp32_beside_images_in_bf16() -> None:
    encoder: Any = make().encoder
    seen: list[torch.dtype] = []
    encoder.of_vectors.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder({name: torch.zeros(2, *shape) for name, shape in SHAPES.items()}).dtype == torch.bfloat16
    assert seen == [torch.float32]


def test_shapes_that_no_network_takes() -> None:
    with pytest.raises(UserError, match=r"agent.encoder=drqv2: images of 14x20 are too small; set image_size to 15"):
        make(shapes={"pixels": (3, 14, 20), "state": (2,)})
    with pytest.raises(UserError, match=r"observes images or vectors: obs_shape=\(2, 3\) must be"):
        make(shapes={"pixels": (3, 20, 20), "map": (2, 3)})
    with pytest.raises(UserError, match=r"agent.convolutions=strided: images of 16x17 are too small"):
        SPQAgent(SHAPES | {"pixels": (6, 36, 36)}, (A,), "cpu", frame_stack=3)
    with pytest.raises(UserError, match=r"images a\.b, a_b: .* with _ in place of dots"):
        make(shapes={"a.b": (3, 20, 20), "a_b": (3, 20, 20)})


def test_a_snapshot_keeps_the_shifts_of_an_agent(tmp_path: Path) -> None:
    first, second = make(seed=1), make(seed=2)
    first.update(iter([batch(1)]), 0)
    torch.save(agent_state.capture(first), tmp_path / "agent.pt")
    agent_state.restore(second, torch.load(tmp_path / "agent.pt", weights_only=True))
    for agent in (first, second):
        agent.update(iter([batch(2)]), 0)
    assert all(torch.equal(a, b) for a, b in zip(first.encoder.parameters(), second.encoder.parameters(), strict=True))
    assert torch.equal(first.aug.draw(observations(0))["wrist"], second.aug.draw(observations(0))["wrist"])


# --- a replay of dicts ----------------------------------------------------------------------------------------------

PARTS = {"pixels": (6, 32, 32), "arm.wrist": (2, 31, 31), "goal": (2,)}  # two frames of each image


def stored(folder: Path, episodes: int = 4, length: int = 6) -> ReplayBufferStorage:
    """Episodes in which the parts of a time step say which one it is."""
    seen = {name: specs.Array(shape, np.uint8 if len(shape) == 3 else np.float32) for name, shape in PARTS.items()}
    numbers = [specs.Array((1,), np.float32, name) for name in ("reward", "discount")]
    storage = ReplayBufferStorage((seen, specs.Array((A,), np.float32, "action"), *numbers), folder, 100, frame_stack=2)
    for episode in range(episodes):
        for t in range(length + 1):
            frames = [10 * episode + max(t - 1, 0), 10 * episode + t]
            images = {
                name: np.repeat(np.array(frames, np.uint8), shape[0] // 2)[:, None, None] * np.ones(shape[1:], np.uint8)
                for name, shape in PARTS.items()
                if len(shape) == 3
            }
            obs = {**images, "goal": np.array([episode, t], np.float32)}
            step_type = [StepType.FIRST, StepType.MID, StepType.LAST][(t > 0) + (t == length)]
            action = np.full(A, 0.1 * t, np.float32)
            storage.add(ExtendedTimeStep(step_type, float(t), 1.0, obs, action))
    return storage


PLACES: dict[str, dict[str, Any]] = {
    "disk": {},
    "workers": {"num_workers": 2},
    "device": {"replay_device": "cpu"},
    "fading": {"fading": 0.9},
    "by_reward": {"by_reward": 0.5},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [DrQV2Agent, SPQAgent])
def test_agents_learn_from_a_replay_of_dicts(kind: Any, place: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"horizon": 3, "frame_stack": 2, "model_warmup": 1} if kind is SPQAgent else {}
    agent = kind(PARTS, (A,), "cpu", feature_dim=7, hidden_dim=9, num_expl_steps=0, seed=1, **options)
    own = dict(PLACES[place])
    workers = own.pop("num_workers", 0)
    storage = stored(tmp_path)
    loader = make_replay_loader(
        tmp_path, 100, 8, workers, True, 3, 0.9, storage=storage, seed=1, frame_stack=2, segment=agent.segment, **own
    )
    obs = next(loader)[0]
    number, t = obs["goal"][:, 0].unbind(-1) if kind is SPQAgent else obs["goal"].unbind(-1)
    newest = (10 * number + t).long()
    for name in ("pixels", "arm.wrist"):
        assert torch.equal(obs[name][:, PARTS[name][0] - 1, 0, 0].long(), newest)
        frames = 2 + (agent.segment or 0)
        assert tuple(obs[name].shape) == (8, PARTS[name][0] // 2 * frames, *PARTS[name][1:])
    if kind is SPQAgent:
        for i, seen in enumerate(agent._observations(obs)):  # one value in each frame: no shift changes it
            later = torch.minimum(t + i, torch.tensor(6.0))
            assert torch.equal(seen["arm.wrist"][:, 1, 0, 0].long(), (10 * number + later).long())
            assert torch.equal(seen["goal"], torch.stack([number, later], 1))
    before = {name: p.clone() for name, p in agent.encoder.named_parameters()}
    for step in (0, 2):
        agent.update(loader, step)
    loader.close()
    assert not any(torch.equal(p, before[name]) for name, p in agent.encoder.named_parameters() if p.ndim > 1)


# --- on a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_does_what_single_kernels_do(precision: str) -> None:
    eager, graphed = (make(seed=1, precision=precision, compile=how, device="cuda") for how in (False, True))
    assert [agent._graphs for agent in (eager, graphed)] == [False, True]
    obs = {name: x.numpy() for name, x in observations(4).items()}
    for step in range(4):
        one, other = (agent.update(iter([batch(step)]), step) for agent in (eager, graphed))
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-3)
        first, second = (agent.act_batch(obs, 0, eval_mode=True) for agent in (eager, graphed))
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-3)
