"""Agents for stored data: DrQ+BC, behaviour cloning and CQL, baselines of V-D4RL (Lu et al., arXiv 2206.04779)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drqv2.agents.drqv2 import DrQV2Agent, Metrics
from drqv2.agents.protocol import ValueNetworks
from drqv2.config.keys import key
from drqv2.config.kinds import Float, Int
from drqv2.utils import extends


class DrQV2BCAgent(DrQV2Agent):
    """DrQ+BC: DrQ-v2 whose policy also imitates the actions in the data, as in TD3+BC (arXiv 2106.06860, equation 5).

    Args:
        args: and kwargs, those of `DrQV2Agent`.
        bc_alpha: lambda of equation 5.
        kwargs: see `args`.
    """

    graphable = True

    @extends(DrQV2Agent.__init__)
    def __init__(
        self,
        *args: Any,
        bc_alpha: Annotated[float, key(Float(0), "Weight of the values relative to the imitation term.")] = 2.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.bc_alpha = bc_alpha

    def update_policy(self, obs: Tensor, action: Tensor, step: int) -> Metrics:
        """Move the policy towards higher values and towards the data: minimise -lambda Q(s, pi(s)) + |pi(s) - a|^2.

        Lambda is bc_alpha over the mean of |Q|, so that the scale of rewards does not matter.
        """
        with self._autocast():
            dist = self.actor(obs, self._stddev(step))
            chosen = dist.sample(clip=self.stddev_clip, generator=self.update_generator)
            q = torch.min(*self.critic(obs, chosen))  # [B, 1]
        bc_loss = F.mse_loss(chosen, action)
        actor_loss = bc_loss - self.bc_alpha * q.mean() / q.abs().mean().detach()

        self.actor_opt.zero_grad(set_to_none=True)
        actor_loss.backward(inputs=list(self.actor.parameters()))
        self.actor_opt.step()
        if not self.use_tb:
            return {}
        return {"actor_loss": actor_loss.detach(), "actor_bc_loss": bc_loss.detach()}


class BCAgent(DrQV2Agent):
    """Behaviour cloning: encoder and actor imitate the actions in the data; the critic is not used.

    Its arguments are those of `DrQV2Agent`.
    """

    graphable = True

    def networks_of(self, task: int) -> ValueNetworks | None:
        """Return None: there are no values to diagnose."""
        return None

    def _learn(self, batch: Sequence[Any], step: int) -> Metrics:
        obs, action, *_ = batch
        obs = self._shifted(obs)
        with self._autocast():
            mean = self.actor(self._encode(obs), self._stddev(step)).mean
        loss = F.mse_loss(mean, action)

        self.encoder_opt.zero_grad(set_to_none=True)
        self.actor_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.actor_opt.step()
        self.encoder_opt.step()
        return {"actor_bc_loss": loss.detach()} if self.use_tb else {}


class CQLAgent(DrQV2Agent):
    """DrQ-v2 with conservative values: CQL(H) (Kumar et al., arXiv 2006.04779, equation 4).

    The sum over actions is estimated from uniform ones and from the policy's at both observations, without importance
    weights.

    Args:
        args: and kwargs, those of `DrQV2Agent`.
        cql_alpha: weight of the conservative term.
        cql_samples: sampled actions per kind (uniform, policy at obs, policy at next_obs).
        kwargs: see `args`.
    """

    graphable = True

    @extends(DrQV2Agent.__init__)
    def __init__(
        self,
        *args: Any,
        cql_alpha: Annotated[float, key(Float(0), "Weight of the conservative term.")] = 1.0,
        cql_samples: Annotated[int, key(Int(1), "Samples per kind (uniform, policy at obs, policy at next_obs).")] = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.cql_alpha, self.cql_samples = cql_alpha, cql_samples

    def critic_loss(
        self, obs: Tensor, next_obs: Tensor, q: tuple[Tensor, Tensor], target_q: Tensor, step: int
    ) -> Tensor:
        """Add cql_alpha (log sum_a exp Q(s, a) - Q(s, a of the data)), averaged over the batch, of both Q functions."""
        with self._autocast():
            h = self.critic.trunk(obs)  # [B, F]
            actions = self._sampled_actions(obs.detach(), next_obs, step)  # [K, B, A]
            h_actions = torch.cat([h.expand(len(actions), *h.shape), actions], dim=-1)
            values = [network(h_actions).float().squeeze(-1) for network in (self.critic.Q1, self.critic.Q2)]  # [K, B]
        gaps = [(torch.logsumexp(all_q, 0) - own.squeeze(-1)).mean() for all_q, own in zip(values, q, strict=True)]
        return super().critic_loss(obs, next_obs, q, target_q, step) + self.cql_alpha * (gaps[0] + gaps[1])

    @torch.no_grad()
    def _sampled_actions(self, obs: Tensor, next_obs: Tensor, step: int) -> Tensor:
        """Return uniform actions and the policy's at both observations, float32 [3 * cql_samples, B, A]."""
        shape, generator, stddev = torch.Size([self.cql_samples]), self.update_generator, self._stddev(step)
        chosen = [
            self.actor(o, stddev).sample(clip=self.stddev_clip, sample_shape=shape, generator=generator)
            for o in (obs, next_obs)
        ]
        uniform = torch.empty_like(chosen[0]).uniform_(-1.0, 1.0, generator=generator)
        return torch.cat([uniform, *chosen])
