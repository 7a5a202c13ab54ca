"""Diagnostics against plain loops, from pixels and states, and that they leave no trace in the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.loading import adapted
from drqv2.logging.diagnostics import diagnose, gradient_norms
from tests.toy_agent import ToyAgent

GAMMA = 0.9
STACK = 3


@pytest.fixture
def agent() -> DrQV2Agent:
    return make_agent((3 * STACK, 20, 20))


def make_agent(obs_shape: Any) -> DrQV2Agent:
    torch.manual_seed(0)
    return DrQV2Agent(obs_shape, (2,), "cpu", 1e-3, 5, 16, 0.1, 0, 1, "linear(1.0,0.1,10)", 0.3, use_tb=True)


def episode(length: int, terminated: bool = False, state: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(length)
    discount = np.ones((length + 1, 1), np.float32)
    discount[-1] = 0.0 if terminated else 1.0
    return {
        **(
            {"observation": rng.normal(size=(length + 1, 4)).astype(np.float32)}
            if state
            else {"frame": rng.integers(0, 256, (length + 1, 3, 20, 20), dtype=np.uint8)}
        ),
        "action": rng.uniform(-1, 1, (length + 1, 2)).astype(np.float32),
        "reward": rng.uniform(0, 1, (length + 1, 1)).astype(np.float32),
        "discount": discount,
    }


def observation(data: dict[str, np.ndarray], t: int) -> torch.Tensor:
    if "observation" in data:
        return torch.from_numpy(data["observation"][t])[None]
    frames = [data["frame"][max(t - i, 0)] for i in reversed(range(STACK))]
    return torch.from_numpy(np.concatenate(frames))[None]


@torch.no_grad()
def value(agent: Any, data: dict[str, np.ndarray], t: int, last: int) -> float:
    features = agent.encoder(observation(data, t))
    action = agent.actor(features, 1.0).mean if t == last else torch.from_numpy(data["action"][t + 1])[None]
    return float(min(agent.critic(features, action)))


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize(("length", "state"), [(1, False), (2, False), (40, False), (64, False), (40, True)])
def test_values_and_returns_of_every_step(length: int, terminated: bool, state: bool) -> None:
    agent = make_agent((4,) if state else (3 * STACK, 20, 20))
    data = episode(length, terminated, state)
    figures = diagnose(agent, data, STACK, GAMMA, "cpu")
    q = [value(agent, data, t, last=length) for t in range(length)]
    returns = []
    for t in range(length):
        rewards = [GAMMA ** (i - t) * float(data["reward"][i + 1, 0]) for i in range(t, length)]
        bootstrap = 0.0 if terminated else GAMMA ** (length - t) * value(agent, data, length, last=length)
        returns.append(sum(rewards) + bootstrap)
    assert figures["q_mean"] == pytest.approx(np.mean(q), rel=1e-4, abs=1e-5)
    assert figures["mc_return_mean"] == pytest.approx(np.mean(returns), rel=1e-4, abs=1e-5)
    assert figures["q_bias"] == pytest.approx(np.mean(q) - np.mean(returns), rel=1e-4, abs=1e-5)


def test_an_episode_of_dicts_is_what_its_arrays_are() -> None:
    shapes = {"pixels": (3 * STACK, 20, 20), "goal.x": (4,), "wrist": (3 * STACK, 16, 16)}
    agent, data = make_agent(shapes), episode(40)
    goals = episode(40, state=True)["observation"]
    frames = data.pop("frame")
    data |= {"frame.pixels": frames, "frame.wrist": frames[:, :, 2:18, 4:], "observation.goal.x": goals}
    seen: list[dict[str, torch.Tensor]] = []
    agent.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    figures = diagnose(agent, data, STACK, GAMMA, "cpu")
    assert figures.keys() == {"q_mean", "mc_return_mean", "q_bias", "dormant_share"}
    (obs,) = seen
    for t in range(41):
        stacked = observation({"frame": frames}, t)[0]
        assert torch.equal(obs["pixels"][t], stacked)
        assert torch.equal(obs["wrist"][t], stacked[:, 2:18, 4:])
        np.testing.assert_array_equal(obs["goal.x"][t], goals[t])


def test_a_long_episode_is_looked_at_here_and_there(agent: DrQV2Agent) -> None:
    seen: list[int] = []
    agent.encoder.register_forward_hook(lambda _, args, __: seen.append(len(args[0])))
    figures = diagnose(agent, episode(500), STACK, GAMMA, "cpu")
    assert seen == [65]  # 64 and the last
    assert all(np.isfinite(figure) for figure in figures.values())


def test_dormant_units_are_counted(agent: DrQV2Agent) -> None:
    layers: list[Any] = [net[i] for net in (agent.actor.policy, agent.critic.Q1, agent.critic.Q2) for i in (0, 2)]
    for layer in layers:
        nn.init.zeros_(layer.weight)
        nn.init.ones_(layer.bias)
    assert diagnose(agent, episode(30), STACK, GAMMA, "cpu")["dormant_share"] == 0.0
    for layer in layers[:3]:
        nn.init.constant_(layer.bias[:2], -1.0)  # these never fire
        nn.init.constant_(layer.bias[2:3], 0.01)  # this one hardly
    share = diagnose(agent, episode(30), STACK, GAMMA, "cpu")["dormant_share"]
    assert share == pytest.approx(3 * 3 / (6 * 16))


def test_nothing_is_drawn_and_nothing_is_left_behind(agent: DrQV2Agent) -> None:
    state = torch.get_rng_state()
    diagnose(agent, episode(20), STACK, GAMMA, "cpu")
    assert torch.equal(state, torch.get_rng_state())
    assert not any(layer._forward_hooks for net in (agent.actor, agent.critic) for layer in net.modules())
    assert all(p.grad is None for p in agent.encoder.parameters())


def test_hooks_are_gone_after_a_failure(agent: DrQV2Agent) -> None:
    agent.encoder = nn.Linear(2, 2)  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="no diagnostics"):
        diagnose(agent, episode(3), STACK, GAMMA, "cpu")
    assert not any(layer._forward_hooks for net in (agent.actor, agent.critic) for layer in net.modules())


def test_networks_with_convolutions_or_without_a_relu() -> None:
    class Net(nn.Module):
        def __init__(self, *layers: nn.Module, out: int) -> None:
            super().__init__()
            self.net = nn.Sequential(*layers, nn.LazyLinear(out))

    class Actor(Net):
        def forward(self, obs: torch.Tensor, std: float) -> Any:
            return SimpleNamespace(mean=self.net(obs))

    class Critic(Net):
        def forward(self, obs: torch.Tensor, action: torch.Tensor) -> Any:
            return self.net(obs), self.net(obs) + action.sum(1, keepdim=True)

    conv = Critic(nn.Conv2d(9, 4, 3), nn.ReLU(), nn.Flatten(), out=1)

    class Public(ToyAgent):
        pass

    agent = Public(encoder=nn.Identity(), actor=Actor(nn.Flatten(), out=2), critic=conv, train=lambda mode: None)
    adapted(agent)
    data = episode(5)
    data["frame"] = data["frame"].astype(np.float32)
    assert 0.0 <= diagnose(agent, data, STACK, GAMMA, "cpu")["dormant_share"] <= 1.0
    agent.critic = Critic(nn.Flatten(), out=1)
    assert "dormant_share" not in diagnose(agent, data, STACK, GAMMA, "cpu")


def test_gradient_norms() -> None:
    a, b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, 2))
    groups: list[dict[str, Any]] = [{"params": [a]}, {"params": [b], "lr": 0.1}]
    c: list[torch.Tensor] = [nn.Parameter(torch.zeros(1))]
    agent = SimpleNamespace(
        critic_opt=torch.optim.Adam(groups),
        alpha=torch.optim.SGD(c, lr=0.1),
        number=3,
    )
    assert gradient_norms(agent) == {}
    a.grad, b.grad = torch.tensor([1.0, 2.0]), torch.tensor([[2.0, 0.0], [4.0, 0.0]])
    assert {name: float(norm) for name, norm in gradient_norms(agent).items()} == {"critic_grad_norm": 5.0}


def test_gradient_norms_of_drqv2_are_those_of_its_last_step(agent: DrQV2Agent) -> None:
    assert gradient_norms(agent) == {}
    obs = torch.randint(0, 256, (2, 4, 9, 20, 20), dtype=torch.uint8)
    batch = obs[0], torch.rand(4, 2), torch.rand(4, 1), torch.full((4, 1), GAMMA), obs[1]
    agent.update(iter([batch]), 0)
    norms = gradient_norms(agent)
    assert sorted(norms) == ["actor_grad_norm", "critic_grad_norm", "encoder_grad_norm"]
    for name, norm in norms.items():
        net = getattr(agent, name.removesuffix("_grad_norm"))
        flat = torch.cat([p.grad.flatten() for p in net.parameters()])
        torch.testing.assert_close(norm, flat.norm())
        assert norm > 0


def test_diagnose(agent: DrQV2Agent) -> None:
    modes = []
    agent.actor.register_forward_hook(lambda module, *_: modes.append(module.training))
    figures = diagnose(agent, episode(9), STACK, GAMMA, "cpu")
    assert sorted(figures) == ["dormant_share", "mc_return_mean", "q_bias", "q_mean"]
    assert modes == [False]
    assert agent.training


@pytest.mark.parametrize("error", [AssertionError, KeyError, TypeError, RuntimeError])
def test_networks_that_are_called_in_another_way_only_warn(agent: DrQV2Agent, error: type[Exception]) -> None:
    def fails(*_: object) -> None:
        raise error("so")

    agent.critic.register_forward_pre_hook(fails)
    with pytest.warns(UserWarning, match="no diagnostics: .*so"):
        assert diagnose(agent, episode(9), STACK, GAMMA, "cpu") == {}


def test_an_agent_of_other_parts() -> None:
    assert diagnose(ToyAgent(net=nn.Linear(1, 1)), episode(9), STACK, GAMMA, "cpu") == {}
