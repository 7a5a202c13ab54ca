"""An arm of successor_parts.yaml: SPQ with DrQ-v2's policy, which has no entropy and a schedule of noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drqv2 import utils
from drqv2.agents.spq import Metrics, SPQAgent, weights
from drqv2.nn.deterministic import MeanAction, of_parts
from drqv2.nn.networks import Actor
from drqv2.nn.observations import to_device
from drqv2.nn.optimizers import Adam, minimise


class DrQV2Policy(SPQAgent):
    """SPQ with a policy of one action for a latent and noise beside it, held as SPQ's own.

    Args:
        obs_shape, action_shape, device: as kwargs, those of SPQAgent.
        precision, seed, num_envs, frame_stack: the same; a run passes them to agents that name them.
        stddev_schedule: standard deviation of the exploration noise; 0.2, clipped at 0.3, in updates.
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
        stddev_schedule: str = "linear(0.6,0.2,8000)",
        **kwargs: Any,
    ) -> None:
        own: dict[str, Any] = {"precision": precision, "seed": seed, "num_envs": num_envs, "frame_stack": frame_stack}
        super().__init__(obs_shape, action_shape, device, **own, **kwargs)
        self.stddev_schedule = stddev_schedule
        old: Any = self.actor
        trunk, first = old.trunk[0], old.policy[0]
        self.actor: Any = Actor(trunk.in_features, action_shape, trunk.out_features, first.out_features)
        self.actor.to(self.device)
        self.actor_opt = Adam(self.actor.parameters(), lr=kwargs.get("lr", 3e-4), fused=True)

    @torch.no_grad()
    def act_batch(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action for each of a batch of observations, [B, ...]; see `SPQAgent.act_batch`."""
        random = None if eval_mode else self.random_actions(step)
        if random is not None:
            return random.cpu().numpy()
        noise = torch.zeros(()) if eval_mode else self.noise.next(False, self.act_generator)
        mean = self.actor(self.encoder(to_device(obs, self.device)), 0.0).mean
        action = mean + utils.schedule(self.stddev_schedule, step) * noise
        return action.clamp(-1, 1).cpu().numpy()

    def deterministic_policy(self) -> nn.Module:
        """Return a module from observations to the actions without noise."""
        return of_parts(MeanAction(self.encoder, self.actor), self.obs_parts)

    @torch.no_grad()
    def value(self, latent: Tensor) -> Tensor:
        """Return DrQ-v2's target value, [B, 1], at target latents [B, D]."""
        return torch.min(*self.critic_target(latent, self._smoothed(latent)))

    def update_actor(self, latents: Tensor, mask: Tensor) -> Metrics:
        """Move the policy towards actions of higher value at latents [H, B, D], where the mask [B, H] is 1."""
        latent, weight = latents.flatten(0, 1), weights(mask)
        action = self._smoothed(latent)
        loss = -(weight * torch.min(*self.critic(latent, action))).mean()
        minimise(self.actor_opt, loss)
        return {"actor_loss": loss, "actor_saturated": weight * (action.abs() > 0.95)}

    def _smoothed(self, latent: Tensor) -> Tensor:
        dist: Any = self.actor(latent, 0.2)
        action: Tensor = dist.sample(clip=0.3, generator=self.update_generator)
        return action
