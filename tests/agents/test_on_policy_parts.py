"""PPO and IMPALA with observations that are dicts: updates equal those with one array of the same numbers; resumes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs
from torch import Tensor, nn

from drqv2.agents import ppo_mlp
from drqv2.agents.impala import ImpalaAgent
from drqv2.agents.ppo import PPOAgent
from drqv2.agents.segments import Segments
from drqv2.parts import each
from drqv2.rollout.batches import BatchesInTurn
from drqv2.rollout.collector import Collector
from drqv2.rollout.unroll import Unroller, acts_with, rollout_layout
from drqv2.snapshot import agent_state
from tests.rollout import parts

COUNT, HORIZON = 4, 6
COMMON: dict[str, Any] = {
    "obs_shape": parts.SHAPES,
    "action_spec": parts.ACTION,
    "device": "cpu",
    "encoder": "small",
    "hidden_dim": 16,
    "total_steps": 240,
    "discount": 0.9,
    "lr": 0.01,
}
OF_PPO = {"update_epochs": 2.0, "minibatch_size": 12, "normalize_observations": False, "normalize_rewards": False}
VECTORS = {"goal": (2,), "state": (3,)}  # in the order in which an encoder joins them


def make_agent(kind: type, **changes: Any) -> Any:
    torch.manual_seed(0)
    agent = kind(**COMMON | (OF_PPO if kind is PPOAgent else {}) | changes)
    agent.policy.double()
    return agent


def make_batch(agent: Any, shapes: Mapping[str, tuple[int, ...]] = parts.SHAPES) -> Segments:
    """Return random steps of a policy that has changed since; one episode terminates, another is truncated."""
    noise = torch.Generator().manual_seed(1)
    shape = COUNT, HORIZON
    obs = {
        name: torch.randint(0, 256, (*shape, *part), dtype=torch.uint8, generator=noise)
        if len(part) == 3
        else 3 + 2 * torch.randn(*shape, *part, generator=noise, dtype=torch.float64)
        for name, part in shapes.items()
    }
    terminated, truncated, first = torch.zeros(3, *shape, dtype=torch.bool)
    terminated[0, 2], truncated[1, 3], first[0, 3], first[1, 4] = True, True, True, True
    rewards, shift = torch.randn(2, *shape, generator=noise, dtype=torch.float64)
    state = agent.policy.initial_state(COUNT)
    with torch.no_grad():
        dist, values, _ = agent.policy(obs, state, first)
        actions = dist.sample(noise)
    log_probs = dist.log_prob(actions) + 0.3 * shift
    return Segments(obs, actions, log_probs, values, rewards * ~first, terminated, truncated, first, state)


def flat(obs: dict[str, Tensor]) -> Tensor:
    """Return the numbers of all parts [S, H, ...] as one vector of each step, float64 [S, H, N]."""
    return torch.cat([part.flatten(2).double() for part in obs.values()], -1)


class OfFlat(nn.Module):
    """An encoder of such vectors: takes them apart again for an encoder of the parts."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        pieces = x.split([math.prod(shape) for shape in parts.SHAPES.values()], 1)
        named = zip(parts.SHAPES.items(), pieces, strict=True)
        features: Tensor = self.encoder({name: piece.unflatten(1, shape) for (name, shape), piece in named})
        return features


def of_one_array(agent: Any) -> Any:
    """Return a copy of an agent for flat observations, whose networks are the same."""
    agent = copy.deepcopy(agent)
    agent.policy.obs_ndim, agent.policy.encoder = 1, OfFlat(agent.policy.encoder)
    return agent


def assert_learn_the_same(agents: Any, batches: Any, updates: int) -> None:
    before = [p.clone() for p in agents[0].policy.parameters()]
    for step in range(updates):
        found = [agent.update(iter([batch._asdict()]), 24 * step) for agent, batch in zip(agents, batches, strict=True)]
        assert found[0] == pytest.approx(found[1], rel=1e-6, abs=1e-9)
    for p, ours, theirs in zip(before, *(agent.policy.parameters() for agent in agents), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert not torch.equal(p, ours)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (PPOAgent, {"advantage": "once"}),
        (PPOAgent, {"advantage": "full_batch", "prio_alpha": 0.8}),
        (PPOAgent, {"advantage": "minibatch"}),
        (PPOAgent, {"optimizer": "muon"}),
        (ImpalaAgent, {}),
    ],
)
def test_updates_are_those_with_one_array_of_the_same_numbers(kind: type, changes: dict[str, Any], lstm: bool) -> None:
    agent = make_agent(kind, lstm=lstm, **changes)
    batch = make_batch(agent)
    assert_learn_the_same([agent, of_one_array(agent)], [batch, batch._replace(obs=flat(batch.obs))], 2)


@pytest.mark.parametrize("kind", [PPOAgent, ImpalaAgent])
def test_updates_from_vectors_are_those_from_the_joined_vector(kind: type) -> None:
    changes = {"encoder": "auto", "normalize_observations": True}
    split, joined = (make_agent(kind, obs_shape=shape, **changes) for shape in (VECTORS, (5,)))
    batch = make_batch(split, VECTORS)
    assert_learn_the_same([split, joined], [batch, batch._replace(obs=flat(batch.obs))], 3)
    means = [stats.mean for stats in split.policy.obs_stats.of_vector]
    torch.testing.assert_close(torch.cat(means), joined.policy.obs_stats.mean)
    assert joined.policy.obs_stats.count == split.policy.obs_stats.count > 0


def test_dicts_never_use_the_code_in_cpp() -> None:
    for shapes in (VECTORS, parts.SHAPES):
        agent = make_agent(PPOAgent, obs_shape=shapes, encoder="auto" if shapes is VECTORS else "small")
        agent.policy.float()
        assert ppo_mlp.fast(agent) is agent


@pytest.mark.parametrize("kind", [PPOAgent, ImpalaAgent])
@pytest.mark.parametrize("lstm", [False, True])
def test_actions_alone_are_those_of_a_batch(kind: type, lstm: bool) -> None:
    agent = make_agent(kind, lstm=lstm, action_spec=specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action"))
    agent.policy.float()
    step = parts.vector(3).reset()
    together, _ = agent.act_from([None] * 3, step.observation, 0, eval_mode=True)
    for i in range(3):
        alone = agent.act(each(lambda part, i=i: part[i], step.observation), 0, eval_mode=True)
        np.testing.assert_allclose(alone, together[i], atol=1e-6)


class Run:
    """An agent that learns from `parts.vector`, with what collects for it."""

    def __init__(self, kind: type, lstm: bool, env: parts.Parts) -> None:
        self.agent = make_agent(kind, lstm=lstm, normalize_observations=True)
        policy = self.agent.policy.float()
        self.env, self.step, state = env, 0, policy.initial_state(env.num_envs)
        self.collects: Any  # what has state, and what batches come from
        self.batches: Any
        if kind is PPOAgent:
            self.collects = self.batches = Collector(env, self.agent.step, state, 6, 4)
        else:
            self.collects = Unroller(env, acts_with(policy, self.agent.generator), state)
            in_turn = BatchesInTurn(self.collects, rollout_layout(env, state, 4), 2, torch.device("cpu"))
            self.batches = iter(in_turn.take, None)

    def learn(self, updates: int) -> list[Any]:
        found = []
        for _ in range(updates):
            found.append(self.agent.update(self.batches, self.step))
            self.step += 24
        return found

    def save(self) -> Any:
        collected = self.collects.state_dict()
        return copy.deepcopy((agent_state.capture(self.agent), collected, self.env, self.step))

    @classmethod
    def resumed(cls, kind: type, lstm: bool, saved: Any) -> Run:
        state, collected, env, step = saved
        run = cls(kind, lstm, env)
        agent_state.restore(run.agent, state)
        run.collects.load_state_dict(collected, env.returned[-1])
        run.step = step
        return run


@pytest.mark.parametrize("kind", [PPOAgent, ImpalaAgent])
@pytest.mark.parametrize("lstm", [False, True])
def test_a_resumed_run_ends_in_the_same_bits(kind: type, lstm: bool) -> None:
    whole = Run(kind, lstm, parts.vector(3))
    whole.collects.start(whole.env.reset())
    whole.learn(2)
    saved = whole.save()
    wanted = whole.learn(2)
    run = Run.resumed(kind, lstm, saved)
    assert run.learn(2) == wanted
    state = whole.agent.policy.state_dict()
    assert any("stats" in name for name in state)
    for name, x in run.agent.policy.state_dict().items():
        assert torch.equal(x, state[name])
