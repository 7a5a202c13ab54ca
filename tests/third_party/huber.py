"""DrQ-v2 with a Huber loss for the critic, and a penalty on large actions: a file as forks of DrQ-v2 have it."""

import hydra
import numpy as np
import torch
import torch.nn.functional as F
import utils

import drqv2
from drqv2 import DrQV2Agent


class HuberAgent(DrQV2Agent):
    def __init__(
        self,
        obs_shape,
        action_shape,
        device,
        lr,
        feature_dim,
        hidden_dim,
        critic_target_tau,
        num_expl_steps,
        update_every_steps,
        stddev_schedule,
        stddev_clip,
        use_tb,
        huber_delta=1.0,
    ):
        super().__init__(
            obs_shape,
            action_shape,
            device,
            lr,
            feature_dim,
            hidden_dim,
            critic_target_tau,
            num_expl_steps,
            update_every_steps,
            stddev_schedule,
            stddev_clip,
            use_tb,
        )
        self.huber_delta = huber_delta
        self.value_head = torch.nn.Linear(self.encoder.repr_dim, 1).to(device)
        self.value_head.apply(utils.weight_init)
        self.value_opt = torch.optim.Adam(self.value_head.parameters(), lr=lr)
        self.num_updates = 0
        self.last_losses = np.zeros(4)
        # forks build parts by configuration, and by the public classes with positional arguments
        self.aug = hydra.utils.instantiate({"_target_": "drqv2.RandomShiftsAug", "pad": 2})
        self.probe = drqv2.Critic(self.encoder.repr_dim, action_shape, feature_dim, hidden_dim).to(device)

    def update_critic(self, obs, action, reward, discount, next_obs, step):
        metrics = {}

        with torch.no_grad():
            stddev = utils.schedule(self.stddev_schedule, step)
            dist = self.actor(next_obs, stddev)
            next_action = dist.sample(clip=self.stddev_clip)
            target_Q1, target_Q2 = self.critic_target(next_obs, next_action)
            target_V = torch.min(target_Q1, target_Q2)
            target_Q = reward + (discount * target_V)

        Q1, Q2 = self.critic(obs, action)
        critic_loss = F.huber_loss(Q1, target_Q, delta=self.huber_delta)
        critic_loss = critic_loss + F.huber_loss(Q2, target_Q, delta=self.huber_delta)
        value_loss = F.mse_loss(self.value_head(obs.detach()), target_V)

        if self.use_tb:
            metrics["critic_target_q"] = target_Q.mean().item()
            metrics["critic_q1"] = Q1.mean().item()
            metrics["critic_q2"] = Q2.mean().item()
            metrics["critic_loss"] = critic_loss.item()
            metrics["value_loss"] = value_loss.item()

        self.encoder_opt.zero_grad(set_to_none=True)
        self.critic_opt.zero_grad(set_to_none=True)
        self.value_opt.zero_grad(set_to_none=True)
        (critic_loss + value_loss).backward()
        self.value_opt.step()
        self.critic_opt.step()
        self.encoder_opt.step()

        self.last_losses = np.roll(self.last_losses, 1)
        self.last_losses[0] = critic_loss.item()
        self.num_updates += 1

        return metrics

    def update(self, replay_iter, step):
        metrics: dict = {}

        if step % self.update_every_steps != 0:
            return metrics

        batch = next(replay_iter)
        obs, action, reward, discount, next_obs = utils.to_torch(batch, self.device)

        obs = self.aug(obs.float())
        next_obs = self.aug(next_obs.float())
        obs = self.encoder(obs)
        with torch.no_grad():
            next_obs = self.encoder(next_obs)

        if self.use_tb:
            metrics["batch_reward"] = reward.mean().item()

        metrics.update(self.update_critic(obs, action, reward, discount, next_obs, step))
        metrics.update(self.update_actor(obs.detach(), step))
        utils.soft_update_params(self.critic, self.critic_target, self.critic_target_tau)

        return metrics
