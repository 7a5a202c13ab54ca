"""A fork's own utils: nothing of this project's is in here."""

import torch


def schedule(step):
    return 1.0 / (1.0 + step)


class Normalizer:
    """Running mean and variance, with the methods of torch's own stateful things."""

    def __init__(self):
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4

    def update(self, x):
        total = self.count + x.numel()
        delta = x.mean().item() - self.mean
        self.mean += delta * x.numel() / total
        self.var += (x.var(unbiased=False).item() - self.var) * x.numel() / total
        self.count = total

    def __call__(self, x):
        return (x - self.mean) / (self.var + 1e-8) ** 0.5

    def state_dict(self):
        return {"moments": torch.tensor([self.mean, self.var], dtype=torch.float64), "count": self.count}

    def load_state_dict(self, state):
        self.mean, self.var = state["moments"].tolist()
        self.count = state["count"]
