"""PPO (Schulman et al., arXiv 1707.06347) as in PufferLib 3: V-trace weights in advantages, prioritised segments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.nn.policies import Policy, State
from drqv2.nn.returns import puff_advantage


class Segments(NamedTuple):
    """Consecutive steps of environments, as collected: [S, H, ...], S segments of H steps each.

    Reward and the three flags came with the observation. Where an episode ended, the observation is its last, the
    action was ignored, and the next step is `first`.

    Attributes:
        obs: float32 [S, H, N] or uint8 [S, H, C, H, W].
        actions: chosen at it, float32 [S, H, A] or int64 [S, H, A].
        log_probs: of the actions when they were chosen, [S, H].
        values: of the observations then, [S, H].
        rewards: [S, H].
        terminated: bool [S, H].
        truncated: bool [S, H].
        first: bool [S, H].
        state: of the LSTM before each segment, two [S, hidden]; None without one.
    """

    obs: Tensor
    actions: Tensor
    log_probs: Tensor
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    first: Tensor
    state: State | None


class PPOAgent:
    """Proximal policy optimisation.

    Args:
        obs_shape: of one observation.
        action_spec: discrete, several discrete, or a vector within [-1, 1].
        device: where it computes.
        encoder: mlp, small, nature or impala.
        hidden_dim: units.
        lstm: whether the policy is recurrent.
        optimizer: muon (matrices; Adam for the rest) or adam.
        lr: learning rate at the start; it falls to 0 along a cosine.
        total_updates: calls of `update` until it is 0.
        gamma: discount of a step.
        gae_lambda: lambda of the advantages.
        rho_clip: greatest ratio in their differences.
        c_clip: greatest ratio in their trace.
        update_epochs: how often an update goes through its steps.
        minibatch_size: steps in a minibatch, a multiple of the horizon.
        accumulate_minibatches: minibatches before a step of the optimizer.
        clip_coef: how far the ratio may leave 1.
        vf_coef: weight of the value loss.
        vf_clip: how far values may leave the old ones.
        ent_coef: weight of the entropy.
        max_grad_norm: to which gradients are clipped.
        prio_alpha: exponent of the segments' priorities; 0 draws uniformly.
        prio_beta0: exponent of the importance weights at the start; it rises with the updates.
        truncation: bootstrap from the last observation of a truncated episode, or ignore it: PufferLib treats it as an
            end.
        advantage: full_batch computes advantages before each minibatch, with the current ratios and values of all
            segments; minibatch does so again for the segments drawn, after their forward pass.
        seed: of what it draws.
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        action_spec: Any,
        device: str,
        encoder: str,
        hidden_dim: int,
        lstm: bool,
        optimizer: str,
        lr: float,
        total_updates: int,
        gamma: float,
        gae_lambda: float,
        rho_clip: float,
        c_clip: float,
        update_epochs: float,
        minibatch_size: int,
        accumulate_minibatches: int,
        clip_coef: float,
        vf_coef: float,
        vf_clip: float,
        ent_coef: float,
        max_grad_norm: float,
        prio_alpha: float,
        prio_beta0: float,
        truncation: str,
        advantage: str,
        seed: int,
    ) -> None:
        self.device, self.training = device, True
        self.policy = Policy(obs_shape, action_spec, encoder, hidden_dim, lstm).to(device)
        self.optimizers = make_optimizers(self.policy, optimizer, lr)
        self.lr, self.total_updates, self.updates = lr, total_updates, 0
        self.advantage_args = gamma, gae_lambda, rho_clip, c_clip
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size
        self.accumulate_minibatches, self.max_grad_norm = accumulate_minibatches, max_grad_norm
        self.clip_coef, self.vf_coef, self.vf_clip, self.ent_coef = clip_coef, vf_coef, vf_clip, ent_coef
        self.prio_alpha, self.prio_beta0 = prio_alpha, prio_beta0
        self.truncation, self.advantage = truncation, advantage
        self.generator = torch.Generator(device).manual_seed(seed)

    def train(self, training: bool = True) -> None:
        """Put the policy into training or evaluation mode."""
        self.training = training
        self.policy.train(training)

    @torch.no_grad()
    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        """Return the action for one observation: the most probable one with `eval_mode`, else a sample."""
        batch = torch.as_tensor(obs, device=self.device)[None, None]  # [1, 1, ...]
        first = torch.ones(1, 1, dtype=torch.bool, device=self.device)
        dist, _, _ = self.policy(batch, self.policy.initial_state(1), first)
        action = dist.mode() if eval_mode else dist.sample(self.generator)
        chosen: np.ndarray = action[0, 0].cpu().numpy()
        return chosen

    @torch.no_grad()
    def step(self, obs: Tensor, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """Return actions [N, ...], their log probabilities [N], values [N] and the next state, for collecting."""
        dist, values, state = self.policy(obs[None], state, first[None])
        actions = dist.sample(self.generator)
        return actions[0], dist.log_prob(actions)[0], values[0], state

    def update(self, segments: Iterator[Segments], step: int) -> dict[str, float]:
        """Learn from the next batch of segments.

        Returns:
            policy_loss, value_loss, entropy, old_approx_kl, approx_kl, clipfrac, importance (mean ratio),
            explained_variance, learning_rate.
        """
        batch = next(segments)
        lr = self._anneal()
        count, horizon = batch.rewards.shape
        drawn = self.minibatch_size // horizon
        values, ratio = batch.values.clone(), torch.ones_like(batch.values)
        minibatches = int(self.update_epochs * count * horizon / self.minibatch_size)
        metrics: list[Tensor] = []
        for k in range(minibatches):
            advantages = self._advantages(batch, values, ratio)
            rows, weights = self._draw(advantages, drawn)
            part = Segments(*(None if x is None else _rows(x, rows) for x in batch))  # type: ignore[arg-type]
            loss, new_values, new_ratio, losses = self._loss(part, values[rows], advantages[rows], weights)
            (loss / self.accumulate_minibatches).backward()
            if (k + 1) % self.accumulate_minibatches == 0:
                self._step()
            values[rows], ratio[rows] = new_values.detach(), new_ratio.detach()
            metrics.append(losses)
        self.updates += 1
        mean = torch.stack(metrics).mean(0).tolist()
        names = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "importance")
        explained = explained_variance(values, self._advantages(batch, values, ratio) + values, _live(batch))
        return dict(zip(names, mean, strict=True)) | {"explained_variance": explained, "learning_rate": lr}

    def _advantages(self, batch: Segments, values: Tensor, ratio: Tensor) -> Tensor:
        """Return advantages [S, H]: 0 at a segment's last step and where an episode has ended."""
        nothing_follows = batch.terminated if self.truncation == "bootstrap" else batch.terminated | batch.truncated
        over = batch.terminated | batch.truncated
        # A ratio of 0 where the action was ignored cuts both the difference there and the trace through it.
        return puff_advantage(
            values.masked_fill(nothing_follows, 0.0),
            batch.rewards,
            batch.first.to(values.dtype),
            ratio.masked_fill(over, 0.0),
            *self.advantage_args,
        )

    def _draw(self, advantages: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return segments drawn without replacement by their advantages, and their importance weights [number, 1]."""
        priority = torch.nan_to_num(advantages.abs().sum(1) ** self.prio_alpha, 0.0, 0.0, 0.0)
        p = (priority + 1e-6) / (priority.sum() + 1e-6)
        rows = torch.multinomial(p, number, generator=self.generator)
        progress = self.prio_alpha * self.updates / self.total_updates
        beta = self.prio_beta0 + (1 - self.prio_beta0) * progress
        return rows, (len(p) * p[rows, None]) ** -beta

    def _loss(
        self, part: Segments, old_values: Tensor, advantages: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the loss, new values and ratios [S, H], and the metrics in the order of `update`."""
        dist, values, _ = self.policy(part.obs.transpose(0, 1), part.state, part.first.transpose(0, 1))
        log_probs = dist.log_prob(part.actions.transpose(0, 1)).T
        values, entropy, live = values.T, dist.entropy().T, _live(part)
        log_ratio = log_probs - part.log_probs
        ratio = log_ratio.exp()
        if self.advantage == "minibatch":
            advantages = self._advantages(part, values.detach(), ratio.detach())
        returns = advantages + old_values
        mean = (advantages * live).sum() / live.sum()
        std = (((advantages - mean) * live).square().sum() / (live.sum() - 1)).sqrt()
        scaled = weights * (advantages - mean) / (std + 1e-8)
        clipped = ratio.clamp(1 - self.clip_coef, 1 + self.clip_coef)
        policy_loss = _mean(torch.maximum(-scaled * ratio, -scaled * clipped), live)
        near = old_values + (values - old_values).clamp(-self.vf_clip, self.vf_clip)
        value_loss = 0.5 * _mean(torch.maximum((values - returns).square(), (near - returns).square()), live)
        entropy = _mean(entropy, live)
        with torch.no_grad():
            losses = [policy_loss, value_loss, entropy, _mean(-log_ratio, live), _mean(ratio - 1 - log_ratio, live)]
            losses += [_mean(((ratio - 1).abs() > self.clip_coef).float(), live), _mean(ratio, live)]
        loss = policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy
        return loss, values, ratio, torch.stack(losses)

    def _step(self) -> None:
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _anneal(self) -> float:
        """Set this update's learning rate and return it."""
        lr = 0.5 * self.lr * (1 + math.cos(math.pi * min(self.updates / self.total_updates, 1.0)))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        return lr


def _rows(x: Any, rows: Tensor) -> Any:
    return tuple(part[rows] for part in x) if isinstance(x, tuple) else x[rows]


def _live(batch: Segments) -> Tensor:
    """Return 1 where an action counted and its result is in the segment, else 0, [S, H]."""
    live = (~(batch.terminated | batch.truncated)).to(batch.rewards.dtype)
    return F.pad(live[:, :-1], (0, 1))


def _mean(x: Tensor, live: Tensor) -> Tensor:
    return (x * live).sum() / live.sum()


def explained_variance(values: Tensor, returns: Tensor, live: Tensor) -> float:
    """Return 1 - var(returns - values) / var(returns) where `live` is 1."""
    chosen = live > 0
    residual, spread = (returns - values)[chosen].var(), returns[chosen].var()
    return float("nan") if spread == 0 else float(1 - residual / spread)


def make_optimizers(policy: nn.Module, name: str, lr: float) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a policy: Muon (Jordan et al., 2024) takes matrices alone, Adam the rest or all."""
    parameters = list(policy.parameters())
    matrices = [p for p in parameters if p.ndim == 2] if name == "muon" else []
    others = [p for p in parameters if name != "muon" or p.ndim != 2]
    made: list[torch.optim.Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=lr, momentum=0.95, weight_decay=0.0))
    if others:
        made.append(torch.optim.Adam(others, lr=lr, betas=(0.95, 0.999), eps=1e-8))
    return made
