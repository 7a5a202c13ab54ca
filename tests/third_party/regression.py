"""Reward-weighted regression onto replayed actions: no critic, no state_dict, and state of many plain kinds."""

from collections import deque

import numpy as np
import torch
import torch.nn as nn
import utils

from drqv2 import Encoder, RandomShiftsAug


class RegressionAgent:
    def __init__(self, obs_shape, action_shape, device, lr, num_expl_steps, target_entropy=-1.0):
        self.device = device
        self.num_expl_steps = num_expl_steps
        self.target_entropy = target_entropy

        self.net = Encoder(obs_shape).to(device)
        self.head = nn.Linear(self.net.repr_dim, action_shape[0]).to(device)
        self.head.apply(utils.weight_init)
        self.opt = torch.optim.Adam(list(self.net.parameters()) + list(self.head.parameters()), lr=lr)
        self.log_alpha = torch.tensor(np.log(0.5), dtype=torch.float32, device=device, requires_grad=True)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=lr)
        self.aug = RandomShiftsAug(pad=4)

        self.baseline = 0.0
        self.best = None
        self.num_updates = 0
        self.action_mean = np.zeros(action_shape, dtype=np.float64)
        self.recent: deque = deque(maxlen=5)
        self.train()

    def train(self, training=True):
        self.training = training
        self.net.train(training)

    def act(self, obs, step, eval_mode):
        obs = torch.as_tensor(obs, device=self.device)
        mean = torch.tanh(self.head(self.net(obs.unsqueeze(0))))
        dist = utils.TruncatedNormal(mean, torch.ones_like(mean) * self.log_alpha.exp())
        if eval_mode:
            action = dist.mean
        else:
            action = dist.sample(clip=None)
            if step < self.num_expl_steps:
                action.uniform_(-1.0, 1.0)
        return action.cpu().numpy()[0]

    def update(self, replay_iter, step):
        from utils import to_torch  # as forks do to get around circular imports

        obs, action, reward, _, _ = to_torch(next(replay_iter), self.device)
        weight = torch.exp((reward - self.baseline).clamp(max=2.0))
        loss = (weight * (torch.tanh(self.head(self.net(self.aug(obs)))) - action) ** 2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()

        alpha_loss = self.log_alpha.exp() * (-self.log_alpha.detach() - self.target_entropy)
        self.alpha_opt.zero_grad(set_to_none=True)
        alpha_loss.backward()
        self.alpha_opt.step()

        self.baseline = 0.99 * self.baseline + 0.01 * reward.mean().item()
        self.best = np.max([self.best or 0.0, loss.item()])  # np.float64, which is a float and yet none to torch.load
        self.num_updates += 1
        self.action_mean += 0.01 * (action.mean(0).cpu().numpy() - self.action_mean)
        self.recent.append(loss.item())
        return {"loss": loss.item(), "alpha": self.log_alpha.exp().item()}
