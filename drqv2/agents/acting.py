"""Choose actions for several environments with any agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drqv2.errors import NotFiniteError
from drqv2.utils import eval_mode as as_in_evaluation


def choose_actions(agent: Any, observations: Sequence[np.ndarray], step: int, eval_mode: bool) -> Sequence[np.ndarray]:
    """Return an action for each observation, by the agent's `act_batch` if it has one, else by calling `act` for each.

    Args:
        agent: has `act`; called with its networks in evaluation mode.
        observations: uint8 [C, H, W] each.
        step: agent steps so far.
        eval_mode: act without exploration.

    Returns:
        float32 [A] each.

    Raises:
        NotFiniteError: an action is NaN or infinite, which would break the simulation.
    """
    with as_in_evaluation(agent):
        if len(observations) > 1 and acts_on_batches(agent):
            actions: Sequence[np.ndarray] = agent.act_batch(np.stack(observations), step, eval_mode=eval_mode)
        else:
            actions = [agent.act(obs, step, eval_mode=eval_mode) for obs in observations]
    for action in actions:
        if not np.isfinite(action).all():
            raise NotFiniteError(f"the agent's action is {np.asarray(action).tolist()} at agent step {step}")
    return actions


def acts_on_batches(agent: Any) -> bool:
    """Return whether `act_batch` is defined by the same class as `act`, not inherited while `act` is overridden."""
    owners = [{"act", "act_batch"} & vars(kind).keys() for kind in type(agent).__mro__]
    return "act_batch" in next(filter(None, owners), set())
