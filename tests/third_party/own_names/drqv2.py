"""Acts by random shooting on a learned reward model: an agent that shares no more than its name with DrQ-v2."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import utils
from heads.reward import RewardHead


class Encoder(nn.Module):
    def __init__(self, obs_shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(obs_shape[0], 4, 5, stride=4), nn.ReLU(), nn.Flatten())
        self.repr_dim = self.layers(torch.zeros(obs_shape).unsqueeze(0)).shape[1]

    def forward(self, obs):
        return self.layers(obs.float() / 255.0)


class DrQV2Agent(nn.Module):
    def __init__(self, obs_shape, action_shape, device, lr, num_candidates=8):
        super().__init__()
        self.device = device
        self.num_candidates = num_candidates
        self.action_dim = action_shape[0]
        self.encoder = Encoder(obs_shape)
        self.reward = RewardHead(self.encoder.repr_dim, self.action_dim)
        self.to(device)
        self.opt = torch.optim.SGD(self.parameters(), lr=lr, momentum=0.9)
        self.sharpness = 1.0
        self.num_updates = 0

    def act(self, obs, step, eval_mode):
        import drqv2  # this very file, also long after it was imported

        assert drqv2.DrQV2Agent is DrQV2Agent
        actions = torch.empty(self.num_candidates, self.action_dim, device=self.device).uniform_(-1.0, 1.0)
        h = self.encoder(torch.as_tensor(obs, device=self.device).unsqueeze(0))
        score = self.reward(h.expand(self.num_candidates, -1), actions)[:, 0]
        if not eval_mode:
            score = score + utils.schedule(step) * torch.rand_like(score)
        return actions[score.argmax()].cpu().numpy()

    def update(self, replay_iter, step):
        if step % 2 != 0:
            return {}
        obs, action, reward, _, _ = next(replay_iter)
        obs, action, reward = obs.to(self.device), action.to(self.device), reward.to(self.device)
        self.reward.normalizer.update(reward)
        loss = F.mse_loss(self.reward(self.encoder(obs), action), self.reward.normalizer(reward))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.sharpness = self.sharpness * 0.9 + loss.item()
        self.num_updates += 1
        return {"model_loss": loss.item(), "sharpness": self.sharpness}
