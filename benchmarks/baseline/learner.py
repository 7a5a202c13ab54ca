"""The learner: eager fp32, shifts by interpolation, one Adam optimizer per network, metrics as Python numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

INIT_STDDEV, FINAL_STDDEV, DURATION = 1.0, 0.1, 100_000  # noise schedule; duration in agent steps
NUM_EXPL_STEPS = 2000  # agent steps


class Encoder(nn.Module):
    """Four convolutions of 32 channels."""

    def __init__(self, obs_shape: Sequence[int]) -> None:
        super().__init__()
        self.convnet = nn.Sequential(
            nn.Conv2d(obs_shape[0], 32, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
        )
        self.repr_dim = self(torch.zeros(1, *obs_shape)).shape[1]

    def forward(self, obs: Tensor) -> Tensor:
        """Return features [B, repr_dim] of float images [B, C, H, W] in [0, 255]."""
        return self.convnet(obs / 255.0 - 0.5).flatten(1)


def _trunk(repr_dim: int, feature_dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(repr_dim, feature_dim), nn.LayerNorm(feature_dim), nn.Tanh())


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class Actor(nn.Module):
    """Maps features to the mean action."""

    def __init__(self, repr_dim: int, actions: int, feature_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.trunk = _trunk(repr_dim, feature_dim)
        self.policy = _mlp(feature_dim, hidden_dim, actions)

    def forward(self, features: Tensor) -> Tensor:
        """Return the mean [B, A]."""
        return torch.tanh(self.policy(self.trunk(features)))


class Critic(nn.Module):
    """Two Q-functions."""

    def __init__(self, repr_dim: int, actions: int, feature_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.trunk = _trunk(repr_dim, feature_dim)
        self.Q1 = _mlp(feature_dim + actions, hidden_dim, 1)
        self.Q2 = _mlp(feature_dim + actions, hidden_dim, 1)

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return both values, [B, 1] each."""
        h = torch.cat([self.trunk(features), action], dim=1)
        return self.Q1(h), self.Q2(h)


def random_shift(obs: Tensor, pad: int) -> Tensor:
    """Pad float images [B, C, H, W] by replication and interpolate a random crop of the original size from each."""
    offsets = torch.randint(0, 2 * pad + 1, (len(obs), 2), device=obs.device)  # (right, down)
    return shifted(obs, pad, offsets)


def shifted(obs: Tensor, pad: int, offsets: Tensor) -> Tensor:
    """Return the crops of the padded images at `offsets`, int64 [B, 2] (right, down)."""
    n, _, h, w = obs.shape
    padded = F.pad(obs, (pad, pad, pad, pad), mode="replicate")
    right, down = offsets.to(obs.dtype).T
    x = torch.arange(w, device=obs.device) + right[:, None]  # [B, W], pixels of the padded image
    y = torch.arange(h, device=obs.device) + down[:, None]  # [B, H]
    x = ((2 * x + 1) / (w + 2 * pad) - 1)[:, None, :].expand(n, h, w)
    y = ((2 * y + 1) / (h + 2 * pad) - 1)[:, :, None].expand(n, h, w)
    return F.grid_sample(padded, torch.stack([x, y], dim=3), padding_mode="zeros", align_corners=False)


def noisy(mean: Tensor, stddev: float, clip: float | None) -> Tensor:
    """Return `mean` plus clipped noise, clamped to (-1, 1) with a straight-through gradient."""
    noise = torch.randn_like(mean) * stddev
    if clip is not None:
        noise = noise.clamp(-clip, clip)
    action = mean + noise
    return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach()


class PlainDrQV2:
    """The DrQ-v2 agent.

    Args:
        obs_shape: (C, H, W).
        actions: number of action dimensions.
        device: the agent's device.
        feature_dim: width of the trunks.
        hidden_dim: width of the hidden layers.
        lr: learning rate.
        tau: soft update rate of the target critic.
        stddev: standard deviation of the noise; None for the schedule linear(1.0,0.1,100000).
        clip: bound of the noise in updates.
        pad: maximum shift in pixels.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        actions: int,
        device: str = "cpu",
        feature_dim: int = 50,
        hidden_dim: int = 1024,
        lr: float = 1e-4,
        tau: float = 0.01,
        stddev: float | None = None,
        clip: float = 0.3,
        pad: int = 4,
    ) -> None:
        self.device, self.tau, self.stddev, self.clip, self.pad = device, tau, stddev, clip, pad
        self.encoder = Encoder(obs_shape).to(device)
        sizes = (self.encoder.repr_dim, actions, feature_dim, hidden_dim)
        self.actor, self.critic, self.critic_target = (kind(*sizes).to(device) for kind in (Actor, Critic, Critic))
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.encoder_opt, self.actor_opt, self.critic_opt = (
            torch.optim.Adam(net.parameters(), lr=lr) for net in (self.encoder, self.actor, self.critic)
        )

    def act(self, obs: np.ndarray, step: int) -> np.ndarray:
        """Return an exploratory action, float32 [A], for an observation, uint8 [C, H, W], at an agent step."""
        with torch.no_grad():
            mean = self.actor(self.encoder(torch.as_tensor(obs, device=self.device)[None].float()))
            action = noisy(mean, self.stddev_at(step), None)
            if step < NUM_EXPL_STEPS:
                action.uniform_(-1, 1)
        return action[0].cpu().numpy()

    def stddev_at(self, step: int) -> float:
        """Return the noise's standard deviation at an agent step."""
        share = min(step / DURATION, 1.0)
        return INIT_STDDEV + share * (FINAL_STDDEV - INIT_STDDEV) if self.stddev is None else self.stddev

    def update(self, batches: Iterator[Any], step: int) -> dict[str, float]:
        """Learn from one batch (obs, action, reward, discount, next_obs), images uint8; return metrics."""
        obs, action, reward, discount, next_obs = (torch.as_tensor(x, device=self.device) for x in next(batches))
        stddev = self.stddev_at(step)
        features = self.encoder(random_shift(obs.float(), self.pad))
        with torch.no_grad():
            next_features = self.encoder(random_shift(next_obs.float(), self.pad))
            next_action = noisy(self.actor(next_features), stddev, self.clip)
            next_q = torch.min(*self.critic_target(next_features, next_action))
            target = reward + discount * next_q
        q1, q2 = self.critic(features, action)
        critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.encoder_opt.zero_grad()
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        self.encoder_opt.step()

        features = features.detach()
        mean = self.actor(features)
        new_action = noisy(mean, stddev, self.clip)
        actor_loss = -torch.min(*self.critic(features, new_action)).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()

        with torch.no_grad():
            for param, target_param in zip(self.critic.parameters(), self.critic_target.parameters(), strict=True):
                target_param.copy_(self.tau * param + (1 - self.tau) * target_param)
            policy = Normal(mean, torch.full_like(mean, stddev), validate_args=False)
            log_prob, entropy = policy.log_prob(new_action).sum(1), policy.entropy().sum(1)
        return {
            "batch_reward": reward.mean().item(),
            "critic_target_q": target.mean().item(),
            "critic_q1": q1.mean().item(),
            "critic_q2": q2.mean().item(),
            "critic_loss": critic_loss.item(),
            "actor_loss": actor_loss.item(),
            "actor_logprob": log_prob.mean().item(),
            "actor_ent": entropy.mean().item(),
        }
