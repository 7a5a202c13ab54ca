"""DrQ-v2 with a curiosity bonus: two auxiliary networks built from nested nodes, settings read by attribute.

The forward model is given to Hydra whole. The inverse model is a node with `_partial_`, which the agent completes once
it knows the width of its features.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
import utils

from drqv2 import DrQV2Agent


class ForwardModel(nn.Module):
    """Predicts a random embedding of the next image from one of this image and the action."""

    def __init__(self, obs_shape, action_shape, hidden_dim, embed_dim=16):
        super().__init__()
        self.embed = nn.Sequential(
            nn.Conv2d(obs_shape[0], 8, kernel_size=5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(embed_dim)
        )
        self.embed(torch.zeros(1, *obs_shape))
        self.embed.requires_grad_(False)
        self.net = nn.Sequential(
            nn.Linear(embed_dim + action_shape[0], hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, embed_dim)
        )

    def forward(self, obs, action, next_obs):
        h, next_h = self.embed(obs / 255.0 - 0.5), self.embed(next_obs / 255.0 - 0.5)
        error = self.net(torch.cat([h, action], dim=-1)) - next_h
        return error.pow(2).mean(dim=-1, keepdim=True)


class InverseModel(nn.Module):
    def __init__(self, repr_dim, action_shape, hidden_dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * repr_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, action_shape[0]), nn.Tanh()
        )

    def forward(self, h, next_h):
        return self.net(torch.cat([h, next_h], dim=-1))


class CuriosityAgent(DrQV2Agent):
    def __init__(self, *args, cfg, losses, forward_model, inverse_model, **kwargs):
        super().__init__(*args, **kwargs)
        self.cfg = cfg
        self.losses = losses
        self.forward_model = forward_model.to(self.device)
        self.inverse_model = inverse_model(self.encoder.repr_dim).to(self.device)
        learnt = [p for p in self.forward_model.parameters() if p.requires_grad]
        self.curiosity_opt = torch.optim.Adam(
            [
                {"params": learnt, "lr": cfg.forward_lr},
                {"params": self.inverse_model.parameters()},
            ],
            lr=kwargs["lr"],
        )
        self.bonus_scale = cfg.bonus.init

    def crop(self, obs):
        size = self.cfg.aug.crop.size
        top, left = torch.randint(obs.shape[-1] - size + 1, (2,)).tolist()
        return F.interpolate(obs[..., top : top + size, left : left + size], size=obs.shape[-2:])

    def update(self, replay_iter, step):
        if step % self.update_every_steps != 0:
            return {}
        obs, action, reward, discount, next_obs = utils.to_torch(next(replay_iter), self.device)
        obs, next_obs = obs.float(), next_obs.float()

        error = self.forward_model(obs, action, next_obs)
        h = self.encoder(self.crop(self.aug(obs)))
        with torch.no_grad():
            next_h = self.encoder(self.crop(self.aug(next_obs)))
        fwd_loss = error.mean()
        inv_loss = F.mse_loss(self.inverse_model(h.detach(), next_h), action)
        loss = self.losses.fwd_loss * fwd_loss + self.losses.inv_loss * inv_loss
        self.curiosity_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.curiosity_opt.step()

        reward = reward + self.bonus_scale * error.detach()
        self.bonus_scale *= self.cfg.bonus.decay
        metrics = {"fwd_loss": fwd_loss.item(), "inv_loss": inv_loss.item(), "bonus_scale": self.bonus_scale}
        metrics.update(self.update_critic(h, action, reward, discount, next_h, step))
        metrics.update(self.update_actor(h.detach(), step))
        utils.soft_update_params(self.critic, self.critic_target, self.critic_target_tau)
        return metrics
