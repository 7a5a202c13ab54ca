"""Observations that are dicts: segments, rollouts and actors hand over what the environments returned."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from drqv2.agents.segments import Segments
from drqv2.rollout.batches import BatchesInTurn, stack
from drqv2.rollout.collector import Collector
from drqv2.rollout.unroll import Unroller, acts_with, rollout_layout
from tests.rollout import parts
from tests.rollout.test_actors import BUFFERS, ENVS, running, take
from tests.rollout.test_actors import LENGTH as OF_ACTORS

LENGTH = 5


def started(env: parts.Parts, policy: Any, generator: torch.Generator) -> Unroller:
    unroller = Unroller(env, acts_with(policy, generator), policy.initial_state(env.num_envs))
    unroller.start(env.reset())
    return unroller


@pytest.mark.parametrize("lstm", [False, True])
def test_segments_have_the_parts_that_the_environments_returned(lstm: bool) -> None:
    env, policy, generator = parts.vector(3), parts.policy(lstm), torch.Generator().manual_seed(1)

    def act(obs: Any, state: Any, first: torch.Tensor) -> Any:
        return policy.choose(obs, state, first, generator)

    collector = Collector(env, act, policy.initial_state(3), segments=6, horizon=4)
    collector.start(env.reset())
    for begin in (0, 8):
        batch = Segments(**{name: x for name, x in next(collector).items() if name != "sums"})
        assert list(batch.obs) == list(parts.SHAPES)
        for name, part in batch.obs.items():
            wanted = parts.of(env.returned[begin : begin + 8], name)  # two segments of each environment
            assert torch.equal(part, torch.cat([wanted[:, :4], wanted[:, 4:]]))
            assert part.dtype == wanted.dtype
        with torch.no_grad():
            dist, values, _ = policy(batch.obs, batch.state, batch.first)
        torch.testing.assert_close(values, batch.values)
        torch.testing.assert_close(dist.log_prob(batch.actions[..., None]), batch.log_probs)


@pytest.mark.parametrize("lstm", [False, True])
def test_rollouts_have_the_parts_that_the_environments_returned(lstm: bool) -> None:
    env, policy = parts.vector(3), parts.policy(lstm)
    layout = rollout_layout(env, policy.initial_state(3), LENGTH)
    assert layout["obs/pixels"] == ((3, LENGTH + 1, 1, 20, 20), np.uint8)
    unroller = started(env, policy, torch.Generator().manual_seed(1))
    batches = BatchesInTurn(unroller, layout, 2, torch.device("cpu"))
    for begin in (0, 2 * LENGTH):
        batch = Segments(**batches.take())
        assert list(batch.obs) == list(parts.SHAPES)
        for name, part in batch.obs.items():
            steps = [env.returned[at : at + LENGTH + 1] for at in (begin, begin + LENGTH)]
            assert torch.equal(part, torch.cat([parts.of(some, name) for some in steps]))
        with torch.no_grad():
            dist, *_ = policy(batch.obs, batch.state, batch.first)
        torch.testing.assert_close(dist.log_prob(batch.actions[..., None])[:, :-1], batch.log_probs[:, :-1])


@pytest.mark.parametrize("lstm", [False, True])
def test_an_actor_continues_from_its_state_with_the_same_bits(lstm: bool) -> None:
    env, policy, generator = parts.vector(3), parts.policy(lstm), torch.Generator().manual_seed(1)
    layout = rollout_layout(env, policy.initial_state(3), LENGTH)

    def filled(unroller: Unroller) -> dict[str, np.ndarray]:
        out = {name: np.zeros(shape, dtype) for name, (shape, dtype) in layout.items()}
        unroller.fill(out)
        return out

    unroller = started(env, policy, generator)
    filled(unroller)
    saved, at, noise = copy.deepcopy(unroller.state_dict()), copy.deepcopy(env), generator.get_state()
    wanted = filled(unroller)
    generator.set_state(noise)
    resumed = Unroller(at, acts_with(policy, generator), policy.initial_state(3))
    resumed.load_state_dict(saved, at.returned[-1])
    found = filled(resumed)
    for name, x in wanted.items():
        np.testing.assert_array_equal(found[name], x)
    assert resumed.totals.episodes == unroller.totals.episodes


@pytest.mark.slow
@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_actors_in_processes(batched: bool, lstm: bool) -> None:
    with running(batched=batched, lstm=lstm, of=parts) as actors:
        rollouts = [copy.deepcopy(actors.rollout(take(actors))) for _ in range(BUFFERS)]
    policy, batch = parts.policy(lstm), Segments(**stack(rollouts, torch.device("cpu")))
    with torch.no_grad():
        dist, *_ = policy(batch.obs, batch.state, batch.first)
    torch.testing.assert_close(dist.log_prob(batch.actions[..., None])[:, :-1], batch.log_probs[:, :-1])
    env = parts.vector(ENVS)  # whose episodes of 4 and 5 steps begin together every 20 steps
    env.reset()
    for _ in range(OF_ACTORS):
        env.step(np.zeros(ENVS, np.int64))
    assert OF_ACTORS == 20
    for name, part in batch.obs.items():
        assert torch.equal(part, torch.cat([parts.of(env.returned, name)] * BUFFERS))
