"""An arm of successor_s1.yaml: SPQ whose encoder also learns from the critic's error, as DrQ-v2's does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drqv2.agents.spq import Metrics, SPQAgent


class CriticGradient(SPQAgent):
    """SPQ with a second step of its encoder in each update, by Adam, for L_Q.

    Args:
        obs_shape, action_shape, device: as kwargs, those of SPQAgent.
        precision, seed, num_envs, frame_stack: the same; a run passes them to agents that name them.
        encoder_lr: learning rate of that step.
        kwargs: the others.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        action_shape: Sequence[int],
        device: str,
        precision: str,
        seed: int,
        num_envs: int,
        frame_stack: int,
        encoder_lr: float = 1e-4,
        **kwargs: Any,
    ) -> None:
        own: dict[str, Any] = {"precision": precision, "seed": seed, "num_envs": num_envs, "frame_stack": frame_stack}
        super().__init__(obs_shape, action_shape, device, **own, **kwargs)
        self.encoder_opt = torch.optim.Adam(self.encoder.parameters(), lr=encoder_lr, fused=True)
        self._seen: Sequence[Tensor] = ()

    def _observations(self, obs: Tensor) -> Sequence[Tensor]:
        self._seen = super()._observations(obs)
        return self._seen

    def update_critic(self, latents: Tensor, action: Tensor, returns: Tensor, mask: Tensor) -> Metrics:
        """Fit both Q functions and the encoder: minimise L_Q, with new latents of the segments' first observations."""
        with self._autocast():
            first = self.encoder(self._seen[0])
        self._seen = ()  # not in snapshots
        metrics = self.critic_loss(torch.cat([first[None], latents[1:]]), action, returns, mask)
        for optimizer in (self.critic_opt, self.encoder_opt):
            optimizer.zero_grad(set_to_none=True)
        metrics["critic_loss"].backward()
        self.critic_opt.step()
        self.encoder_opt.step()
        return metrics
