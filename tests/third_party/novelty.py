"""DrQ-v2 with a bonus for novel features, kept in plain helper objects that hold one another.

The agent owns one `Novelty`. That owns a bank of features, a normaliser for each of its statistics, and a curriculum;
the curriculum looks at the same bank.
"""

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import torch

from drqv2 import DrQV2Agent


class RunningMeanStd:
    def __init__(self, shape=(), device="cpu"):
        self.mean = torch.zeros(shape, device=device)
        self.var = torch.ones(shape, device=device)
        self.count = 1e-4

    def update(self, x):
        share = len(x) / (self.count + len(x))
        delta = x.mean(dim=0) - self.mean
        self.var = (1 - share) * self.var + share * x.var(dim=0, unbiased=False) + share * (1 - share) * delta**2
        self.mean += share * delta
        self.count += len(x)

    def __call__(self, x):
        return (x - self.mean) / (self.var.sqrt() + 1e-4)


class FeatureBank:
    """The newest features, with the agent step at which each was added."""

    def __init__(self, capacity, dim, device, seed):
        self.features = torch.zeros(capacity, dim, device=device)
        self.added_at = np.full(capacity, -1, dtype=np.int64)
        self.next, self.full = 0, False
        self.generator = torch.Generator(device).manual_seed(seed)

    def __len__(self):
        return len(self.features) if self.full else self.next

    def add(self, features, step):
        for row in features:
            self.features[self.next] = row
            self.added_at[self.next] = step
            self.next = (self.next + 1) % len(self.features)
            self.full |= self.next == 0

    def distance(self, features, k):
        chosen = torch.randperm(len(self), generator=self.generator, device=features.device)[: 4 * k]
        return torch.cdist(features, self.features[chosen]).topk(k, largest=False).values.mean(dim=-1)


@dataclass
class Curriculum:
    """The weight of the bonus: it grows while the bank holds old features, and now and then starts anew."""

    bank: FeatureBank
    weight: float = 0.1
    recent: deque = field(default_factory=lambda: deque(maxlen=10))
    rng: random.Random = field(default_factory=lambda: random.Random(3))

    def advance(self, step, novelty):
        self.recent.append((step, np.float32(novelty)))
        age = step - self.bank.added_at[: len(self.bank)].mean()
        self.weight = min(1.0, self.weight * (1.02 if age > 5 else 0.99))
        if self.rng.random() < 0.05:
            self.weight = 0.1
        return self.weight / (1.0 + float(np.mean([value for _, value in self.recent])))


class Novelty:
    def __init__(self, repr_dim, device, dim=12, capacity=100, k=3):
        self.k = k
        self.rng = np.random.default_rng(5)
        self.projection = torch.as_tensor(self.rng.normal(size=(repr_dim, dim)), dtype=torch.float32, device=device)
        self.bank = FeatureBank(capacity, dim, device, seed=7)
        self.curriculum = Curriculum(self.bank)
        self.stats = {"features": RunningMeanStd(dim, device), "distance": RunningMeanStd((), device)}
        self.history = defaultdict(lambda: deque(maxlen=3))

    def bonus(self, h, step):
        features = h @ self.projection
        self.stats["features"].update(features)
        features = self.stats["features"](features)
        self.bank.add(features[self.rng.permutation(len(features))[:4]], step)
        distance = self.bank.distance(features, self.k)
        self.stats["distance"].update(distance)
        weight = self.curriculum.advance(step, distance.mean().item())
        self.history[("even", "odd")[step // 2 % 2]].append({"weight": weight, "worst": distance.max()})
        return weight * self.stats["distance"](distance).clamp(min=0.0)[:, None]


class NoveltyAgent(DrQV2Agent):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.novelty = Novelty(self.encoder.repr_dim, self.device)

    def update_critic(self, obs, action, reward, discount, next_obs, step):
        bonus = self.novelty.bonus(obs.detach(), step)
        metrics = super().update_critic(obs, action, reward + bonus, discount, next_obs, step)
        worst = [entry["worst"] for entries in self.novelty.history.values() for entry in entries]
        return metrics | {"bonus": bonus.mean().item(), "worst": max(worst)}
