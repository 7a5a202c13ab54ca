"""An agent's weights alone, and whether they are finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from drqv2.errors import UserError
from drqv2.snapshot import agent_state
from drqv2.snapshot.agent_weights import not_finite, restore_weights, weights
from tests.snapshot.test_agent_state import Net, assert_same, batches, drqv2_agent, through_a_file
from tests.toy_agent import ToyAgent as Agent


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


def test_an_agent_without_networks_is_told_what_it_needs() -> None:
    agent = Agent(mean=np.zeros(2))
    with pytest.raises(UserError, match=r"has no networks .*\nor define state_dict .* docs/porting\.md#weights$"):
        restore_weights(agent, weights(through_a_file(agent)))


def test_parts_alone() -> None:
    """An encoder that has learnt with actions of another size."""
    old, new, untouched = drqv2_agent(1), drqv2_agent(2, action_shape=(3,)), drqv2_agent(2, action_shape=(3,))
    with pytest.raises(
        RuntimeError, match=r"^actor\.policy\.4\.bias has shape \[2\] in the file and \[3\] in the agent"
    ):
        restore_weights(new, weights(through_a_file(old)))
    new = drqv2_agent(2, action_shape=(3,))
    given_state = weights(through_a_file(old))
    restore_weights(new, given_state, ["encoder", "actor.trunk"])
    got, kept = (weights(agent_state.capture(agent)) for agent in (new, untouched))
    for name in got:
        assert_same(got[name], (given_state if name.startswith(("encoder.", "actor.trunk.")) else kept)[name])
    with pytest.raises(RuntimeError, match=r"^critic\.Q1\.0\.weight has shape"):
        restore_weights(new, given_state, ["encoder", "critic"])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (["net", "polcy"], "the agent has no polcy; its parts are net, policy"),
        (["encoder"], "the agent has no encoder; its parts are net, policy; nearest: policy.encoder"),
        (["policy.encoder"], "the file has no policy.encoder; its parts are encoder, net"),
        ([], "init_parts=[]: names no part"),
    ],
)
def test_unknown_parts_are_refused_by_name(parts: list[str], said: str) -> None:
    policy = nn.ModuleDict({"encoder": nn.Linear(2, 2)})
    agent, file = Agent(policy=policy, net=nn.Linear(2, 2)), Agent(encoder=nn.Linear(2, 2), net=nn.Linear(2, 2))
    with pytest.raises(UserError) as refusal:
        restore_weights(agent, weights(through_a_file(file)), parts)
    assert said in str(refusal.value)


def test_parts_of_a_state_of_its_own_are_unknown() -> None:
    class Own(Agent):
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None: ...

    with pytest.raises(UserError, match="leave init_parts out"):
        restore_weights(Own(), weights(through_a_file(Own())), ["encoder"])


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
