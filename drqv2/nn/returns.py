"""Returns: pure functions on arrays whose first axis is time."""

from __future__ import annotations

import numpy as np


def nstep_returns(reward: np.ndarray, discount: np.ndarray, nstep: int, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the n-step reward and bootstrap discount of every transition of an episode.

    R_t = sum_i (prod_{j<i} discount_{t+j} gamma) r_{t+i} and D_t = prod_i discount_{t+i} gamma, for i = 0 ... m-1 with
    m = min(nstep, T - t): near the episode's end the sum is shorter and bootstraps from the last observation (DrQ-v2,
    arXiv 2107.09645, section 3.1).

    Args:
        reward: reward of each transition, float32 [T].
        discount: the environment's discount of each transition, 0 at a termination, float32 [T].
        nstep: maximum number of agent steps to sum over.
        gamma: discount factor per agent step.

    Returns:
        (R, D), float32 [T] each.
    """
    length = len(reward)
    returns = np.zeros(length, np.float32)
    factor = np.ones(length, np.float32)
    for i in range(min(nstep, length)):
        n = length - i  # number of transitions with an i-th successor in the episode
        returns[:n] += factor[:n] * reward[i:]
        factor[:n] *= discount[i:] * np.float32(gamma)
    return returns, factor
