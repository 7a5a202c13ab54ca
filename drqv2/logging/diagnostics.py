"""Diagnostics of the learner's health, taken at intervals from a finished episode, without random numbers."""

from __future__ import annotations

import itertools
import warnings
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drqv2.agents.protocol import Agent, EstimatesValues, ValueNetworks, attributes_of
from drqv2.utils import eval_mode, to_torch

MAX_OBSERVATIONS = 64
DORMANT_BELOW = 0.025  # of the layer's mean activation; Sokar et al., arXiv 2302.12902, definition 3.1


def gradient_norms(agent: object) -> dict[str, Tensor]:
    """Return the L2 norm of the gradient that each optimizer of `agent` last stepped with, by the optimizer's name."""
    norms = {}
    for name, optimizer in attributes_of(agent).items():
        if isinstance(optimizer, torch.optim.Optimizer):
            grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            grads = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
            if grads:
                norms[f"{name.removesuffix('_opt')}_grad_norm"] = nn.utils.get_total_norm(grads)
    return norms


def diagnose(
    agent: Agent, episode: dict[str, np.ndarray], frame_stack: int, discount: float, device: torch.device | str
) -> dict[str, float]:
    """Compare the critic with an episode's returns, and count dormant units.

    Args:
        agent: one that is not `EstimatesValues` has no such statistics. If it calls its networks in another way than
            DrQ-v2, a warning says so.
        episode: as in its file: `frame` uint8 [T + 1, C, H, W] or `observation` [T + 1, ...], of a dict `frame.KEY` and
            `observation.KEY`; `action` [T + 1, A], `reward` and `discount` float32 [T + 1, 1].
        frame_stack: frames in one observation.
        discount: gamma of an agent step.
        device: where the agent lives.

    Returns:
        q_mean: mean of min(Q1, Q2) at the actions taken, over observations spread evenly over the episode.
        mc_return_mean: mean of the discounted return that followed, bootstrapped with Q at the last observation unless
            the episode terminated there.
        q_bias: mean of their difference; above zero the critic overestimates.
        dormant_share: share of the actor's and critic's hidden units whose mean activation is at most 2.5 % of their
            layer's mean.
    """
    if not isinstance(agent, EstimatesValues):
        return {}
    try:
        networks = agent.networks_of(int(episode["task"].flat[0]) if "task" in episode else 0)
        if networks is None:
            return {}
        with eval_mode(agent), torch.no_grad():
            return _statistics(networks, episode, frame_stack, discount, device)
    except Exception as e:  # whatever the agent's networks raise, it must not stop a training run
        why = " ".join(str(e).split())[:100]
        warnings.warn(f"no diagnostics: the agent calls its networks differently ({why})", stacklevel=2)
    return {}


def _statistics(
    networks: ValueNetworks,
    episode: dict[str, np.ndarray],
    frame_stack: int,
    discount: float,
    device: torch.device | str,
) -> dict[str, float]:
    length = len(episode["reward"]) - 1
    steps = np.unique(np.linspace(0, length, num=min(MAX_OBSERVATIONS, length) + 1).astype(int))  # the last is T
    obs, taken = to_torch([_observations(episode, steps, frame_stack), episode["action"][steps[:-1] + 1]], device)

    activations: list[Tensor] = []
    with ExitStack() as hooks:
        for layer in itertools.chain.from_iterable(module.modules() for module in networks.layers):
            if isinstance(layer, nn.ReLU):
                hook = layer.register_forward_hook(lambda _, __, out: activations.append(out.mean(0).flatten()))
                hooks.enter_context(hook)
        features = networks.encoder(obs)
        policy_action = networks.actor(features, 1.0).mean
        action = torch.cat([taken, policy_action[-1:]])
        q = torch.min(*networks.critic(features, action))[:, 0].double().cpu().numpy()  # [N]

    returns = np.empty(length + 1)
    returns[-1] = q[-1]
    for t in reversed(range(length)):
        returns[t] = episode["reward"][t + 1, 0] + discount * episode["discount"][t + 1, 0] * returns[t + 1]
    returns = returns[steps[:-1]]

    figures = {
        "q_mean": float(q[:-1].mean()),
        "mc_return_mean": float(returns.mean()),
        "q_bias": float((q[:-1] - returns).mean()),
    }
    if activations:
        dormant = torch.cat([a <= DORMANT_BELOW * a.mean() for a in activations])
        figures["dormant_share"] = float(dormant.float().mean())
    return figures


def _observations(episode: dict[str, np.ndarray], steps: np.ndarray, frame_stack: int) -> Any:
    """Return the observations of agent steps [N]: images as stacks of the stored frames, anything else as stored."""
    stacks = np.maximum(steps[:, None] + np.arange(1 - frame_stack, 1), 0)  # [N, frame_stack]
    found: dict[str, np.ndarray] = {}
    for name, array in episode.items():
        kind, _, key = name.partition(".")
        if kind == "frame":
            frames = array[stacks]  # [N, frame_stack, C, H, W]
            found[key] = frames.reshape(len(steps), -1, *frames.shape[3:])
        elif kind == "observation":
            found[key] = array[steps]
    return found.get("", found)  # one array has no key
