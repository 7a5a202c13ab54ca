"""An agent with a training procedure of its own: a slowly moving target encoder and a self-supervised loss.

Each update draws two batches, one for actor and critics and one for the encoder. Every network has its own optimizer,
every optimizer a learning-rate scheduler. Exploration draws from the global generators of numpy and torch.
"""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import utils

from drqv2 import Actor, Critic, Encoder, RandomShiftsAug


def projector(repr_dim, dim):
    return nn.Sequential(nn.Linear(repr_dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim))


class EMAEncoderAgent:
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
        stddev_clip,
        warmup,
        epsilon=0.1,
        encoder_tau=0.05,
    ):
        self.device = device
        self.tau, self.encoder_tau = critic_target_tau, encoder_tau
        self.num_expl_steps, self.epsilon, self.stddev_clip = num_expl_steps, epsilon, stddev_clip
        self.action_shape = action_shape

        self.encoder = Encoder(obs_shape).to(device)
        dims = self.encoder.repr_dim, action_shape, feature_dim, hidden_dim
        self.actor = Actor(*dims).to(device)
        self.critic = Critic(*dims).to(device)
        self.projector = projector(self.encoder.repr_dim, feature_dim).to(device)
        self.predictor = nn.Linear(feature_dim, feature_dim).to(device)
        self.target_encoder, self.target_critic, self.target_projector = (
            copy.deepcopy(net).requires_grad_(False) for net in (self.encoder, self.critic, self.projector)
        )
        self.aug = RandomShiftsAug(pad=3)

        ssl = [*self.projector.parameters(), *self.predictor.parameters()]
        self.opts = {
            "encoder": torch.optim.AdamW(self.encoder.parameters(), lr=lr),
            "actor": torch.optim.Adam(self.actor.parameters(), lr=lr),
            "critic": torch.optim.RMSprop(self.critic.parameters(), lr=lr),
            "ssl": torch.optim.SGD(ssl, lr=10 * lr, momentum=0.9, nesterov=True),
        }
        self.schedulers: list = [
            torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1.0, (n + 1) / warmup)) for opt in self.opts.values()
        ]
        self.schedulers.append(torch.optim.lr_scheduler.MultiStepLR(self.opts["ssl"], [20, 40], gamma=0.5))
        self.noise = np.zeros(action_shape, dtype=np.float32)
        self.train()

    def train(self, training=True):
        self.training = training
        for net in (self.encoder, self.actor, self.critic, self.projector, self.predictor):
            net.train(training)

    def act(self, obs, step, eval_mode):
        obs = torch.as_tensor(obs, device=self.device)[None]
        action = self.actor(self.encoder(obs), 0.1).mean[0].cpu().numpy()
        if eval_mode:
            return action
        if step < self.num_expl_steps or np.random.rand() < self.epsilon:
            return np.random.uniform(-1.0, 1.0, self.action_shape).astype(np.float32)
        self.noise = 0.8 * self.noise + 0.2 * torch.randn(self.action_shape).numpy()  # noise that lasts for some steps
        return np.clip(action + self.noise, -1.0, 1.0)

    def descend(self, loss, *names):
        for name in names:
            self.opts[name].zero_grad(set_to_none=True)
        loss.backward()
        for name in names:
            self.opts[name].step()

    def update(self, replay_iter, step):
        obs, action, reward, discount, next_obs = utils.to_torch(next(replay_iter), self.device)
        ssl_obs = utils.to_torch(next(replay_iter), self.device)[0]

        h = self.encoder(self.aug(obs))
        with torch.no_grad():
            next_h = self.target_encoder(self.aug(next_obs))
            next_action = self.actor(next_h, 0.2).sample(clip=self.stddev_clip)
            target_q = reward + discount * torch.min(*self.target_critic(next_h, next_action))
        q1, q2 = self.critic(h, action)
        critic_loss = F.smooth_l1_loss(q1, target_q) + F.smooth_l1_loss(q2, target_q)
        self.descend(critic_loss, "encoder", "critic")

        h = h.detach()
        actor_loss = -torch.min(*self.critic(h, self.actor(h, 0.2).sample(clip=self.stddev_clip))).mean()
        self.descend(actor_loss, "actor")

        online = self.predictor(self.projector(self.encoder(self.aug(ssl_obs))))
        with torch.no_grad():
            target = self.target_projector(self.target_encoder(self.aug(ssl_obs)))
        ssl_loss = -F.cosine_similarity(online, target).mean()
        self.descend(ssl_loss, "encoder", "ssl")

        for scheduler in self.schedulers:
            scheduler.step()
        utils.soft_update_params(self.critic, self.target_critic, self.tau)
        utils.soft_update_params(self.encoder, self.target_encoder, self.encoder_tau)
        utils.soft_update_params(self.projector, self.target_projector, self.encoder_tau)
        losses = {"critic_loss": critic_loss, "actor_loss": actor_loss, "ssl_loss": ssl_loss}
        lr = {f"{name}_lr": opt.param_groups[0]["lr"] for name, opt in self.opts.items()}
        return {name: loss.item() for name, loss in losses.items()} | lr
