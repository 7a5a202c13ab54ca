"""Classes written elsewhere get from `loading` what the protocol declares and they lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from drqv2.agents.loading import adapted
from drqv2.agents.protocol import ActsOnBatches, Agent, EstimatesValues, ObservesEpisodes
from drqv2.snapshot import agent_state


class Foreign:
    def __init__(self) -> None:
        self.update_every_steps, self.encoder = 3, nn.Identity()

    def train(self, training: bool = True) -> None: ...

    def act(self, obs: np.ndarray, step: int, eval_mode: bool, task: int = 0) -> np.ndarray:
        return np.zeros(1, np.float32)

    def update(self, replay_iter: Any, step: int) -> dict[str, Any]:
        return {}

    def observe_episode(self, task: int, rewards: np.ndarray, discounts: np.ndarray) -> None: ...


def test_a_class_written_elsewhere_has_all_that_is_declared() -> None:
    before = agent_state.capture(Foreign())
    agent = adapted(Foreign())
    assert all(hasattr(agent, name) for name in Agent.__annotations__)
    assert (agent.update_every_steps, agent.segment, agent.training, agent.device) == (3, None, True, "cpu")
    assert agent.takes_task
    assert isinstance(agent, ObservesEpisodes)
    assert agent_state.capture(agent).keys() == before.keys()
    assert (
        agent_state.capture(agent)["children"].keys() == before["children"].keys() == {"update_every_steps", "encoder"}
    )


def test_networks_of_drqv2_are_found_in_any_agent_and_in_modules() -> None:
    class Module(nn.Module, Foreign):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.actor = nn.Identity(), nn.Linear(1, 1)

    agent = adapted(Module())
    assert isinstance(agent, EstimatesValues)
    assert agent.networks_of(0) is None
    agent.critic = nn.Linear(1, 2)  # type: ignore[attr-defined]
    networks = agent.networks_of(0)
    assert networks is not None
    assert networks.critic(torch.ones(1)).shape == (2,)


def test_a_wrapper_has_what_it_forwards_and_says_itself_how_it_acts() -> None:
    class Inner(Foreign):
        def act_batch(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
            return np.full((len(obs), 1), 7, np.float32)

    class Wrapper:
        takes_task = False

        def __init__(self) -> None:
            self.inner = Inner()

        def __getattr__(self, name: str) -> Any:
            return getattr(vars(self)["inner"], name)

    agent = adapted(Wrapper())
    assert isinstance(agent, ActsOnBatches)
    assert isinstance(agent, ObservesEpisodes)
    assert np.asarray(agent.act_batch(np.zeros((2, 3)), 0, True)).tolist() == [[7], [7]]
    assert not agent.takes_task
    assert "act_batch" in vars(Wrapper), "isinstance need not ask __getattr__"
