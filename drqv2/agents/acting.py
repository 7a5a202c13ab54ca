"""Actions of any agent for several environments at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drqv2.agents.protocol import ActsFromStates, ActsOnBatches, Agent
from drqv2.errors import NotFiniteError, UserError
from drqv2.utils import eval_mode as as_in_evaluation

# Time steps and the numbers of their episodes -> the actions.
Act = Callable[[Sequence[Any], Sequence[int]], Sequence[np.ndarray]]


def choose_actions(
    agent: Agent,
    observations: Sequence[Any],
    shape: Sequence[int],
    step: int,
    eval_mode: bool,
    tasks: Sequence[int] | None = None,
) -> Sequence[np.ndarray]:
    """Return an action for each observation, from the agent's `act_batch` if it has one, else one by one from `act`.

    Args:
        agent: its networks are in evaluation mode meanwhile.
        observations: an array each, uint8 [C, H, W] or float32 [N], or a dict of arrays.
        shape: of an action: (A,), or () of a discrete one.
        step: agent steps so far.
        eval_mode: without exploration.
        tasks: index of each observation's task, for an agent with `takes_task`; None for others.

    Returns:
        float32 [A] each, or a discrete action.

    Raises:
        UserError: one is not an array of that shape.
        NotFiniteError: one is NaN or infinite. A simulation would fail with its own error, or produce nonsense.
    """
    who = f"{type(agent).__name__}.act"
    with as_in_evaluation(agent):
        if len(observations) > 1 and isinstance(agent, ActsOnBatches) and not agent.acts_singly:
            who += "_batch"
            own: dict[str, Any] = {} if tasks is None else {"task": tasks}
            actions = agent.act_batch(_batch(observations), step, eval_mode=eval_mode, **own)
        else:
            each: list[dict[str, Any]] = [{} if tasks is None else {"task": tasks[i]} for i in range(len(observations))]
            actions = [
                agent.act(obs, step, eval_mode=eval_mode, **own) for obs, own in zip(observations, each, strict=True)
            ]
    if len(actions) != len(observations):
        raise UserError(
            f"{who} returned {len(actions)} of {len(observations)} actions: one for each observation is needed"
        )
    _check(actions, who, shape, step)
    return actions


def batch_policy(agent: Agent, shape: Sequence[int], step: int) -> Act:
    """Return a function from time steps and the numbers of their episodes to the actions, without exploration.

    Args:
        agent: acts from states if it can, see `ActsFromStates`.
        shape: of an action.
        step: agent steps so far.
    """
    states: dict[int, Any] = {}
    stateful = agent if isinstance(agent, ActsFromStates) else None

    def act(time_steps: Sequence[Any], episodes: Sequence[int]) -> Sequence[np.ndarray]:
        observations = [time_step.observation for time_step in time_steps]
        if stateful is None:
            tasks = [time_step.task for time_step in time_steps] if agent.takes_task else None
            return choose_actions(agent, observations, shape, step, True, tasks)
        before = [None if time_step.first() else states[i] for time_step, i in zip(time_steps, episodes, strict=True)]
        with as_in_evaluation(agent):
            actions, after = stateful.act_from(before, _batch(observations), step, eval_mode=True)
        states.update(zip(episodes, after, strict=True))
        _check(actions, f"{type(agent).__name__}.act_from", shape, step)
        return actions

    return act


def evaluation_policy(agent: Agent, shape: Sequence[int], step: int) -> Callable[[Any, int], np.ndarray]:
    """Return a function from a time step and the number of its episode to the action; see `batch_policy`."""
    act = batch_policy(agent, shape, step)
    return lambda time_step, episode: act([time_step], [episode])[0]


def _check(actions: Sequence[Any], who: str, shape: Sequence[int], step: int) -> None:
    for action in actions:
        if not isinstance(action, np.ndarray | np.generic | int | float):
            raise UserError(f"{who} returned a {type(action).__name__}: must return one numpy array, the action")
        if np.shape(action) != tuple(shape):
            raise UserError(f"{who} returned an action of shape {np.shape(action)}: must be {tuple(shape)}")
        if not np.isfinite(action).all():
            raise NotFiniteError(f"the agent's action is {np.asarray(action).tolist()} at agent step {step}")


def _batch(observations: Sequence[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in observations[0]}
    return np.stack(observations)
