"""A fork that keeps everything in its own drqv2.py and takes the augmentation from the configuration.

RandomShiftsAug and Encoder have the names of the public classes, but other arguments: the augmentation also changes
the contrast, the encoder has skip connections and batch norm.
"""

import copy
from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F
import utils


class RandomShiftsAug(nn.Module):
    def __init__(self, pad, contrast):
        super().__init__()
        self.pad, self.contrast = pad, contrast
        self.num_images = 0

    def forward(self, x):
        n, _, h, w = x.shape
        self.num_images += n
        x = F.pad(x, [self.pad] * 4, mode="reflect")
        rows, cols = torch.randint(2 * self.pad + 1, (2, n)).tolist()
        x = torch.stack([img[:, i : i + h, j : j + w] for img, i, j in zip(x, rows, cols, strict=True)])
        return (x + x * self.contrast * torch.randn(n, 1, 1, 1, device=x.device)).clamp(0, 255)


class Block(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.down = nn.Conv2d(c_in, c_out, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(c_out)
        self.conv = nn.Conv2d(c_out, c_out, 3, padding=1)

    def forward(self, x):
        x = self.norm(self.down(x))
        return F.relu(x + self.conv(F.relu(x)))


class Encoder(nn.Module):
    def __init__(self, obs_shape, widths):
        super().__init__()
        widths = [obs_shape[0], *widths]
        self.blocks = nn.Sequential(*[Block(a, b) for a, b in pairwise(widths)])
        self.repr_dim = widths[-1] * (obs_shape[1] // 2 ** len(self.blocks)) ** 2
        self.apply(utils.weight_init)

    def forward(self, obs):
        return self.blocks(obs / 255.0 - 0.5).flatten(1)


def values(qs, h, action):
    return [q(torch.cat([h, action], dim=1)) for q in qs]


def mlp(n_in, hidden_dim, n_out):
    return nn.Sequential(nn.Linear(n_in, hidden_dim), nn.ReLU(inplace=True), nn.Linear(hidden_dim, n_out))


class DrQV2Agent:
    def __init__(
        self,
        obs_shape,
        action_shape,
        device,
        lr,
        hidden_dim,
        critic_target_tau,
        num_expl_steps,
        stddev_schedule,
        augmentation,
        widths,
    ):
        self.device, self.num_expl_steps, self.critic_target_tau = device, num_expl_steps, critic_target_tau
        self.stddev_schedule, self.aug = stddev_schedule, augmentation
        self.encoder = Encoder(obs_shape, widths).to(device)
        dim, num_actions = self.encoder.repr_dim, action_shape[0]
        self.policy = mlp(dim, hidden_dim, num_actions).to(device)
        self.qs = nn.ModuleList(mlp(dim + num_actions, hidden_dim, 1) for _ in range(2)).to(device)
        self.target_qs = copy.deepcopy(self.qs)
        self.policy_opt = torch.optim.AdamW(self.policy.parameters(), lr=lr)
        self.q_opt = torch.optim.AdamW([*self.encoder.parameters(), *self.qs.parameters()], lr=lr)
        self.train()

    def train(self, training=True):
        self.training = training
        for net in (self.encoder, self.policy, self.qs):
            net.train(training)

    def act(self, obs, step, eval_mode):
        obs = torch.as_tensor(obs, device=self.device).unsqueeze(0)
        mean = torch.tanh(self.policy(self.encoder(obs)))
        if not eval_mode:
            mean += utils.schedule(self.stddev_schedule, step) * torch.randn_like(mean)
            if step < self.num_expl_steps:
                mean.uniform_(-1.0, 1.0)
        return mean.clamp(-1.0, 1.0).cpu().numpy()[0]

    def update(self, replay_iter, step):
        obs, action, reward, discount, next_obs = utils.to_torch(next(replay_iter), self.device)
        h = self.encoder(self.aug(obs.float()))
        stddev = utils.schedule(self.stddev_schedule, step)
        with torch.no_grad():
            next_h = self.encoder(self.aug(next_obs.float()))
            next_dist = utils.TruncatedNormal(torch.tanh(self.policy(next_h)), stddev)
            target = reward + discount * torch.min(*values(self.target_qs, next_h, next_dist.sample(clip=0.3)))
        q_loss = torch.stack([F.mse_loss(q, target) for q in values(self.qs, h, action)]).sum()
        self.q_opt.zero_grad()
        q_loss.backward()
        self.q_opt.step()
        dist = utils.TruncatedNormal(torch.tanh(self.policy(h.detach())), stddev)
        policy_loss = -torch.min(*values(self.qs, h.detach(), dist.sample(clip=0.3))).mean()
        self.policy_opt.zero_grad()
        policy_loss.backward()
        self.policy_opt.step()
        utils.soft_update_params(self.qs, self.target_qs, self.critic_target_tau)
        return {"critic_loss": q_loss, "actor_loss": policy_loss, "num_images": self.aug.num_images}
