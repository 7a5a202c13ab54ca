"""Returns and advantages: pure functions. What starts a new episode is never bootstrapped across."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from drqv2.nn.scan import reverse_scan


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


def segment_returns(reward: Tensor, discount: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Return the return from each step of segments to their end or that of their episode, whichever is first, [B, H].

    G_i = r_i + gamma_i G_{i+1}, where the mask is 1, and G_i = G_{i+1} after the episode's end, with `value` as G_H.

    Args:
        reward: reward of each step, [B, H].
        discount: discount of each step, with gamma in it, [B, H].
        mask: 1 for steps of the episode, 0 after its end, [B, H].
        value: value of the observation after the last step of the episode in the segment, [B, 1].
    """
    returns = [value[:, 0]]
    for r, gamma, inside in zip(*(part.flip(1).T for part in (reward, discount, mask)), strict=True):
        returns.append(torch.where(inside > 0, r + gamma * returns[-1], returns[-1]))
    return torch.stack(returns[:0:-1], 1)


def vtrace(
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap_value: Tensor,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return V-trace's targets and policy gradient advantages (IMPALA, arXiv 1802.01561, section 4.1).

    With rho_t = exp(log_rho_t), rho' = min(clip_rho, rho), c = min(1, rho):
    delta_t = rho'_t (r_t + gamma_t V_{t+1} - V_t), vs_t - V_t = delta_t + gamma_t c_t (vs_{t+1} - V_{t+1}) and
    advantage_t = min(clip_pg_rho, rho_t) (r_t + gamma_t vs_{t+1} - V_t).

    Args:
        log_rhos: log of the probability of the action under the learner over that under the actor, [T, B].
        discounts: gamma, or 0 where the episode ended, [T, B].
        rewards: [T, B].
        values: V_t, [T, B].
        bootstrap_value: V_T, [B].
        clip_rho_threshold: of the ratios in delta; None: not clipped.
        clip_pg_rho_threshold: of those in the advantages; None: not clipped.

    Returns:
        (vs, advantages), [T, B] each, without gradient.
    """
    with torch.no_grad():
        rhos = log_rhos.exp()
        clipped, pg_clipped = (
            rhos if most is None else rhos.clamp(max=most) for most in (clip_rho_threshold, clip_pg_rho_threshold)
        )
        deltas = clipped * (rewards + discounts * torch.cat([values[1:], bootstrap_value[None]]) - values)
        vs = values + reverse_scan(deltas, discounts * rhos.clamp(max=1), time_first=True)
        next_vs = torch.cat([vs[1:], bootstrap_value[None]])
        return vs, pg_clipped * (rewards + discounts * next_vs - values)


def puff_advantage(
    values: Tensor,
    rewards: Tensor,
    dones: Tensor,
    ratio: Tensor,
    gamma: float,
    gae_lambda: float,
    rho_clip: float,
    c_clip: float,
) -> Tensor:
    """Return PufferLib's advantages: GAE whose terms are weighted by clipped ratios, as in V-trace.

    With n = 1 - done_{t+1}, for t = H - 2 ... 0: delta_t = min(ratio_t, rho_clip) (r_{t+1} + gamma n V_{t+1} - V_t) and
    A_t = delta_t + gamma lambda min(ratio_t, c_clip) n A_{t+1}; A_{H-1} = 0. Reward and done of a step arrive with the
    observation after it, hence t + 1.

    Args:
        values: V of each observation, any float dtype, [segments, horizon].
        rewards: reward that arrived with it, same shape.
        dones: 1 where it starts an episode, else 0.
        ratio: probability of the action now over that when it was taken.
        gamma: discount of a step.
        gae_lambda: lambda in [0, 1].
        rho_clip: greatest ratio in delta.
        c_clip: greatest ratio in the trace.

    Returns:
        [segments, horizon], without gradient.
    """
    with torch.no_grad():
        goes_on = gamma * (1 - dones[:, 1:])
        deltas = ratio[:, :-1].clamp(max=rho_clip) * (rewards[:, 1:] + goes_on * values[:, 1:] - values[:, :-1])
        advantages = torch.zeros_like(values)
        decays = gae_lambda * goes_on * ratio[:, :-1].clamp(max=c_clip)
        advantages[:, :-1] = reverse_scan(deltas, decays, time_first=False)
        return advantages


def standardised(advantages: Tensor, live: Tensor) -> Tensor:
    """Return advantages less their mean, over their deviation, of steps where `live` is 1; elsewhere they are 0."""
    number = live.sum().clamp(min=1)
    centred = (advantages - advantages.sum() / number) * live
    return centred / ((centred.square().sum() / (number - 1).clamp(min=1)).sqrt() + 1e-8)


def explained_variance(values: Tensor, returns: Tensor, live: Tensor) -> float | None:
    """Return 1 - var(returns - values) / var(returns) where `live` is 1; None without two different ones."""
    chosen = live.bool()
    if chosen.sum() < 2:
        return None
    residual, spread = (returns - values)[chosen].var(), returns[chosen].var()
    return None if spread == 0 else float(1 - residual / spread)
