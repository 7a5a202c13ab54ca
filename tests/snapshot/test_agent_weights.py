"""An agent's weights alone, and whether they are finite."""

from __future__ import annotations

from types import SimpleNamespace as Agent

import pytest
import torch
from torch import nn

from drqv2.snapshot import agent_state
from drqv2.snapshot.agent_weights import not_finite, restore_weights, weights
from tests.snapshot.test_agent_state import Net, assert_same, batches, drqv2_agent, through_a_file


def test_weights_alone() -> None:
    old, new = drqv2_agent(1), drqv2_agent(2, num_expl_steps=9)
    for agent in (old, old, new):
        agent.update(batches(0), 0)
    old.critic_target_tau = 0.5
    kept = through_a_file(new)["children"]
    restore_weights(new, weights(through_a_file(old)))
    got, given_state = through_a_file(new)["children"], through_a_file(old)["children"]
    for name in kept:
        assert_same(got[name], (given_state if name in ("encoder", "actor", "critic", "critic_target") else kept)[name])


def test_weights_alone_wherever_networks_are() -> None:
    def make() -> Agent:
        holder = Net(1.0)
        holder.hidden = [nn.Linear(1, 1)]  # type: ignore[assignment]
        return Agent(nets=[nn.Linear(2, 2), {"a": nn.Linear(1, 1)}], deep=Agent(net=holder), steps=0, kind="module")

    old, new = make(), make()
    old.steps = 5
    state = weights(through_a_file(old))
    restore_weights(new, state)
    names = {"nets.0.weight", "nets.1.a.bias", "deep.net.tied.weight", "deep.net.hidden.0.weight"}
    assert names <= weights(state).keys()
    assert_same(weights(agent_state.capture(new)), weights(state))
    assert new.steps == 0


def test_weights_alone_of_another_agent() -> None:
    state = through_a_file(Agent(net=nn.Linear(2, 2), encoder=nn.Linear(2, 2)))
    with pytest.warns(UserWarning, match="no counterpart: net.bias, net.weight$"):
        restore_weights(Agent(net=None, encoder=nn.Linear(2, 2)), weights(state))
    with pytest.raises(RuntimeError, match="no network of the snapshot"):
        restore_weights(Agent(other=nn.Linear(2, 2)), weights(state))


def test_masks_may_be_infinite_and_parameters_must_be_finite() -> None:
    masked = nn.Linear(2, 2)
    masked.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    agent = Agent(nets=[masked])
    assert not_finite(agent_state.capture(agent), "agent") is None
    masked.mask[0, 0] = torch.nan  # type: ignore[operator]
    assert not_finite(agent_state.capture(agent), "agent") == "agent.nets.0.mask"


def test_a_network_with_more_layers_than_the_file_is_refused() -> None:
    state = through_a_file(Agent(net=nn.Sequential(nn.Linear(2, 2))))
    with pytest.raises(RuntimeError, match=r"net\.1\.bias is not in the file"):
        restore_weights(Agent(net=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))), weights(state))
