"""What an agent is: three methods, attributes with defaults, and methods that only some agents have.

The project's agents derive from `Agent`. A class written elsewhere need not know of it: `drqv2.agents.loading` gives it
the attributes that it lacks, once, when it makes the agent. Nothing else asks what an agent has, except by `isinstance`
with one of the protocols of optional methods below.

A snapshot keeps an agent's attributes, or what its own `state_dict` returns: see `drqv2.snapshot.agent_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from drqv2.nn.observations import Observation
from drqv2.nn.policies import Policy, State


class Agent(Protocol):
    """What learns and acts.

    Attributes:
        training: whether it is in training mode, see `train`.
        device: where tensors that a resume makes anew belong.
        update_every_steps: agent steps from one update that learns to the next; `update` is called at each of them.
        segment: None: batches are of transitions, see `update`. H: they are of segments of so many transitions,
            (obs, action, reward, discount, mask). Images are uint8 [B, (frame_stack + H) * C, h, w], of which channels
            i * C to (i + frame_stack) * C are the observation i steps after the first; states float32 [B, H + 1, N].
            Observations may be dicts of both.
            Actions are float32 [B, H, A]; reward, discount with gamma in it, and mask float32 [B, H]. The mask is 0
            after the end of an episode, where the last frame and transition are repeated.
        takes_task: whether `act` and `act_batch` take the argument `task`, the task's index or that of each
            observation, and batches have it as a sixth field, int64 [B]. Of a class written elsewhere, its `act` says.
        acts_singly: whether to leave out its `act_batch`. `loading` sets it where a subclass overrides `act` alone.
        learning_rates: the keys of learning rates that a resume can change, and the names of the optimizers that each
            one is for; None for all.
    """

    training: bool = True
    device: torch.device | str = "cpu"
    update_every_steps: int = 1
    segment: int | None = None
    takes_task: ClassVar[bool] = False
    acts_singly: ClassVar[bool] = False
    learning_rates: ClassVar[Mapping[str, Sequence[str] | None]] = {"lr": None}

    def train(self, training: bool = True) -> None:
        """Put the networks into training mode, or evaluation mode when `training` is False; set `training`."""

    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action, without gradients.

        Args:
            obs: uint8 [C, H, W], frames stacked along C; float32 [N]; or a dict of these.
            step: agent steps so far.
            eval_mode: without exploration.

        Returns:
            float32 [A] in [-1, 1], or a discrete action.
        """
        ...

    def update(self, replay_iter: Iterator[Any], step: int) -> dict[str, Any]:
        """Learn, or do nothing; called at every agent step once enough is stored.

        Args:
            replay_iter: yields batches as long as it is asked: (obs uint8 [B, C, H, W] or float32 [B, N], action
                float32 [B, A], n-step reward float32 [B, 1], discount float32 [B, 1] with gamma^n in it, next_obs as
                obs). Observations may be dicts. Images are not augmented. Other batches: see `segment`, `takes_task`;
                the agents of regime=ppo and regime=impala.
            step: agent steps so far.

        Returns:
            Metrics by name, numbers or tensors of one; empty if there are none.
        """
        ...


@runtime_checkable
class ActsOnBatches(Protocol):
    """Acts for several environments at once. Each row must be what `act` would return."""

    def act_batch(self, obs: np.ndarray, step: int, eval_mode: bool) -> Sequence[Any]:
        """Choose an action for each observation, [B, ...]; see `Agent.act`. Returns [B, A], or [B] discrete ones."""
        ...


@runtime_checkable
class ActsFromStates(Protocol):
    """A recurrent agent, which evaluations pass the state from step to step, and always batches."""

    def act_from(
        self, states: Sequence[Any], obs: np.ndarray, step: int, eval_mode: bool
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return actions, [B, A] or discrete ones [B], and the states for the next steps of their episodes.

        Args:
            states: of each episode; None where it starts.
            obs: observations, [B, ...].
            step: agent steps so far.
            eval_mode: without exploration.
        """
        ...


@runtime_checkable
class ObservesEpisodes(Protocol):
    """Learns something from whole episodes, such as the scale of rewards."""

    def observe_episode(self, task: int, rewards: np.ndarray, discounts: np.ndarray) -> None:
        """See an episode that the replay now holds.

        Args:
            task: its task's index.
            rewards: float32 [T].
            discounts: of each step, gamma in them, float32 [T].
        """


class ValueNetworks(NamedTuple):
    """Networks of an agent, to be called as those of DrQ-v2.

    Attributes:
        encoder: maps observations to features.
        actor: maps features and a standard deviation to a distribution of actions, with `mean`.
        critic: maps features and actions to two values, [B, 1] each.
        layers: the modules whose hidden units diagnostics count.
    """

    encoder: Callable[..., Any]
    actor: Callable[..., Any]
    critic: Callable[..., Any]
    layers: Iterable[nn.Module]


@runtime_checkable
class EstimatesValues(Protocol):
    """Has a critic that diagnostics can compare with returns.

    `loading` adds the method to classes written elsewhere, for agents that have `encoder`, `actor` and `critic`.
    """

    def networks_of(self, task: int) -> ValueNetworks | None:
        """Return the networks of a task, 0 where there is one; None if the critic does not learn."""
        ...


@runtime_checkable
class Exportable(Protocol):
    """Can be exported to a file for other programs."""

    def deterministic_policy(self) -> nn.Module:
        """Return a module from observations to actions without exploration, which shares the agent's weights."""
        ...


@runtime_checkable
class NamesInputs(Protocol):
    """A policy for export whose inputs are not just `obs`.

    Attributes:
        inputs: names of the arguments of `forward`: obs, or the parts of one that is a dict; task; h and c, the state
            of an LSTM.
    """

    inputs: tuple[str, ...]


class OnPolicyAgent(Agent, Protocol):
    """What regime=ppo needs.

    Attributes:
        policy: gives the state where an episode starts.
    """

    policy: Policy

    def step(self, obs: Observation, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """Return actions [N, ...], their log probabilities [N], values [N] and the next state, for collecting."""
        ...


class ActorCriticAgent(Agent, Protocol):
    """What regime=impala needs.

    Attributes:
        policy: actors act with copies of it.
        generator: of the actions of an actor in the learner's process.
    """

    policy: Policy
    generator: torch.Generator


def attributes_of(agent: object) -> dict[str, Any]:
    """Return the attributes of an agent by name; of one with `__slots__`, none."""
    return dict(getattr(agent, "__dict__", {}))
