"""Trained policies as plain modules, from observations to actions without exploration: for export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class OfParts(nn.Module):
    """A policy of dicts, with their parts as arguments.

    Args:
        policy: its first argument is an observation; others may follow, which `inputs` names.
        parts: names of the observation's parts.

    Attributes:
        inputs: names of the arguments of `forward`: the parts, then the policy's other ones.
    """

    def __init__(self, policy: nn.Module, parts: Sequence[str]) -> None:
        super().__init__()
        others: Sequence[str] = getattr(policy, "inputs", ("obs",))[1:]
        self.policy, self.parts, self.inputs = policy, tuple(parts), (*parts, *others)

    def forward(self, *given: Tensor) -> Any:
        """Return what the policy returns for the parts, images uint8 [B, C, H, W] and vectors float32 [B, N]."""
        obs = dict(zip(self.parts, given, strict=False))
        return self.policy(obs, *given[len(obs) :])


def of_parts(policy: nn.Module, parts: Sequence[str]) -> nn.Module:
    """Return a policy for export: with its observation's parts as arguments, if there are any."""
    return OfParts(policy, parts) if parts else policy


class MeanAction(nn.Module):
    """DrQ-v2's policy without noise.

    Args:
        encoder: images or vectors to features.
        actor: with `trunk` and `policy`, see `drqv2.nn.networks.Actor`.
    """

    def __init__(self, encoder: nn.Module, actor: Any) -> None:
        super().__init__()
        self.encoder, self.trunk, self.policy = encoder, actor.trunk, actor.policy

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions, float32 [B, A] in (-1, 1), for observations, uint8 [B, C, H, W] or float32 [B, N]."""
        return torch.tanh(self.policy(self.trunk(self.encoder(obs))))


class MeanActionOfTask(nn.Module):
    """The policy of several tasks without noise.

    Args:
        encoder: images or vectors to features.
        actor: with `trunk` and `policy`, see `drqv2.nn.task_networks.TaskActor`.
        embedding: of the tasks.
        mask: 1 for the numbers of a task's own actions, [num_tasks, A]; None: they are all of one size.
    """

    inputs: ClassVar[tuple[str, ...]] = ("obs", "task")
    mask: Tensor | None

    def __init__(self, encoder: nn.Module, actor: Any, embedding: nn.Module, mask: Tensor | None) -> None:
        super().__init__()
        self.encoder, self.trunk, self.policy, self.embedding = encoder, actor.trunk, actor.policy, embedding
        self.register_buffer("mask", mask)

    def forward(self, obs: Tensor, task: Tensor) -> Tensor:
        """Return actions, float32 [B, A], for observations and the indices of their tasks, int64 [B]."""
        action = torch.tanh(self.policy(self.trunk(self.encoder(obs), self.embedding(task))))
        return action if self.mask is None else action * self.mask[task]


def _mode(policy: Any, features: Tensor) -> Tensor:
    """Return the most probable actions for features, of vectors the means, inside [-1, 1] as the environment acts."""
    action: Tensor = policy.distribution(features).mode()
    action = action.clamp(-1, 1) if action.is_floating_point() else action
    return action.reshape(-1, *policy.action_shape)


class MostProbableAction(nn.Module):
    """A policy of regime=ppo or regime=impala without an LSTM: the most probable action, of a vector the mean.

    Args:
        policy: see `drqv2.nn.policies.Policy`.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.net = policy

    def forward(self, obs: Any) -> Tensor:
        """Return actions, float32 [B, A] in [-1, 1], or discrete ones, int64 [B] or [B, A]."""
        return _mode(self.net, self.net.features(obs))


class MostProbableActionFrom(nn.Module):
    """The same with an LSTM, whose state is passed on from step to step; it is 0 where an episode starts.

    Args:
        policy: see `drqv2.nn.policies.Policy`.
    """

    inputs: ClassVar[tuple[str, ...]] = ("obs", "h", "c")

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.net = policy

    def forward(self, obs: Any, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions and the next state, for observations and the state before them, float32 [B, hidden] each."""
        features, (h, c) = self.net.lstm(self.net.features(obs)[:, None], (h[None], c[None]))
        return _mode(self.net, features), h[0], c[0]


def most_probable_action(policy: Any) -> nn.Module:
    """Return a policy of regime=ppo or regime=impala without its randomness."""
    chosen = MostProbableAction(policy) if policy.lstm is None else MostProbableActionFrom(policy)
    return of_parts(chosen, policy.obs_parts)
