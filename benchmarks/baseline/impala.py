"""IMPALA's learner written straight from the paper (arXiv 1802.01561): time-major, loops over the steps, eager fp32.

Where an episode has ended, the observation is its last one and the action at it was ignored, as in the rollouts of this
project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# (channels, kernel size, stride) of each convolution.
CONVOLUTIONS = {"small": [(16, 8, 4), (32, 4, 2)], "nature": [(32, 8, 4), (64, 4, 2), (64, 3, 1)]}


class PlainPolicy(nn.Module):
    """Logits of a discrete action and a value: an MLP or a CNN, and an LSTM behind it.

    Args:
        obs_shape: (N,) float32, or (C, H, W) uint8.
        actions: choices.
        encoder: mlp, small or nature.
        hidden: units.
        lstm: whether there is one.
    """

    def __init__(self, obs_shape: Sequence[int], actions: int, encoder: str, hidden: int, lstm: bool) -> None:
        super().__init__()
        self.convnet: nn.Module | None = None
        if encoder == "mlp":
            self.fc: nn.Module = nn.Sequential(
                nn.Linear(obs_shape[0], hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
            )
        else:
            layers: list[nn.Module] = []
            channels = obs_shape[0]
            for width, size, stride in CONVOLUTIONS[encoder]:
                layers += [nn.Conv2d(channels, width, size, stride), nn.ReLU()]
                channels = width
            self.convnet = nn.Sequential(*layers, nn.Flatten())
            features = self.convnet(torch.zeros(1, *obs_shape)).shape[1]
            self.fc = nn.Sequential(nn.Linear(features, hidden), nn.ReLU())
        self.lstm = nn.LSTM(hidden, hidden) if lstm else None
        self.policy, self.baseline = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, obs: Tensor, first: Tensor, state: Any) -> tuple[Tensor, Tensor]:
        """Return logits [T + 1, B, A] and values [T + 1, B] of observations [T + 1, B, ...].

        Args:
            obs: observations.
            first: where an episode starts, bool [T + 1, B].
            state: of the LSTM before the first step, two [B, hidden]; None without one.
        """
        steps, batch = obs.shape[:2]
        x = torch.flatten(obs, 0, 1)
        if self.convnet is not None:
            x = self.convnet(x.float() / 255.0)
        x = self.fc(x).view(steps, batch, -1)
        if self.lstm is not None:
            h, c = state[0][None], state[1][None]
            outputs = []
            for features, start in zip(x, first, strict=True):
                keep = (~start).float()[None, :, None]
                output, (h, c) = self.lstm(features[None], (h * keep, c * keep))
                outputs.append(output)
            x = torch.cat(outputs)
        return self.policy(x), self.baseline(x)[..., 0]


def vtrace(
    rhos: Tensor, discounts: Tensor, rewards: Tensor, values: Tensor, live: Tensor, rho_clip: float, pg_rho_clip: float
) -> tuple[Tensor, Tensor]:
    """Return targets and advantages of T steps, [T, B] each.

    Args:
        rhos: probability of the action now over that when it was taken, [T, B].
        discounts: of the value of the next observation, 0 if it is terminal, [T, B].
        rewards: of the action, [T, B].
        values: of the observations, [T + 1, B].
        live: 0 where the action was ignored, [T, B].
        rho_clip: greatest ratio in the differences.
        pg_rho_clip: greatest ratio in the advantages.
    """
    steps = len(rewards)
    targets = [values[steps]]
    for t in reversed(range(steps)):
        delta = rhos[t].clamp(max=rho_clip) * (rewards[t] + discounts[t] * values[t + 1] - values[t])
        carried = discounts[t] * rhos[t].clamp(max=1.0) * (targets[-1] - values[t + 1])
        targets.append(values[t] + live[t] * (delta + carried))
    vs = torch.stack(targets[::-1])
    return vs[:-1], rhos.clamp(max=pg_rho_clip) * (rewards + discounts * vs[1:] - values[:-1])


class PlainImpala:
    """The learner, with the published losses, RMSprop and limit of the gradient.

    Args:
        policy: that learns.
        lr: learning rate at the start.
        total_steps: agent steps until it is 0.
        discount: gamma.
        rho_clip: see `vtrace`.
        pg_rho_clip: see `vtrace`.
        baseline_cost: weight of the value loss.
        entropy_cost: weight of the entropy.
        max_grad_norm: limit of the gradient's norm.
    """

    def __init__(
        self,
        policy: PlainPolicy,
        lr: float = 5e-4,
        total_steps: int = 10**9,
        discount: float = 0.99,
        rho_clip: float = 1.0,
        pg_rho_clip: float = 1.0,
        baseline_cost: float = 0.5,
        entropy_cost: float = 6e-4,
        max_grad_norm: float = 40.0,
    ) -> None:
        self.policy, self.lr, self.total_steps, self.discount = policy, lr, total_steps, discount
        self.rho_clip, self.pg_rho_clip, self.max_grad_norm = rho_clip, pg_rho_clip, max_grad_norm
        self.baseline_cost, self.entropy_cost = baseline_cost, entropy_cost
        self.optimizer = torch.optim.RMSprop(policy.parameters(), lr=lr, alpha=0.99, eps=0.01)

    def update(self, batch: Mapping[str, Any], step: int) -> dict[str, float]:
        """Learn from rollouts; return the parts of the loss and the gradient's norm.

        Args:
            batch: fields of `Segments` as [T + 1, B, ...]; the state of the LSTM is [B, hidden].
            step: agent steps so far.
        """
        logits, values = self.policy(batch["obs"], batch["first"], batch["state"])
        logits, actions = logits[:-1], batch["actions"][:-1]
        log_probs = -F.cross_entropy(logits.flatten(0, 1), actions.flatten(), reduction="none").view_as(actions)
        live = (~(batch["terminated"] | batch["truncated"])).float()[:-1]
        vs, advantages = self.targets(batch, log_probs.detach(), values.detach(), live)
        entropy = -(F.softmax(logits, -1) * F.log_softmax(logits, -1)).sum(-1)
        losses = {
            "pg": -(live * advantages * log_probs).sum(),
            "baseline": self.baseline_cost * 0.5 * (live * (vs - values[:-1]) ** 2).sum(),
            "entropy": -self.entropy_cost * (live * entropy).sum(),
        }
        total = sum(losses.values(), torch.zeros(()))
        self.optimizer.zero_grad()
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * max(1 - step / self.total_steps, 0.0)
        self.optimizer.step()
        metrics = {f"{name}_loss": loss.item() for name, loss in losses.items()}
        return metrics | {"total_loss": total.item(), "grad_norm": norm.item()}

    def targets(
        self, batch: Mapping[str, Any], log_probs: Tensor, values: Tensor, live: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return V-trace's targets and advantages, [T, B] each."""
        rhos = torch.exp(log_probs - batch["log_probs"][:-1])
        discounts = self.discount * (~batch["terminated"][1:]).float()
        rewards = torch.clamp(batch["rewards"][1:], -1, 1)
        return vtrace(rhos, discounts, rewards, values, live, self.rho_clip, self.pg_rho_clip)
