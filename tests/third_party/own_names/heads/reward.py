import torch
import torch.nn as nn
import utils


class RewardHead(nn.Module):
    """Predicts a normalized reward from features and an action, and counts its own calls."""

    def __init__(self, repr_dim, action_dim):
        super().__init__()
        self.layer = nn.Linear(repr_dim + action_dim, 1)
        self.normalizer = utils.Normalizer()
        self.calls = 0

    def forward(self, h, action):
        self.calls += 1
        return self.layer(torch.cat([h, action], dim=-1))
