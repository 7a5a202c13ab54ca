"""PPO (Schulman et al., arXiv 1707.06347) as in PufferLib 3: V-trace weights in advantages, prioritised segments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.nn.normalization import RunningMeanStd
from drqv2.nn.policies import Policy, State
from drqv2.nn.returns import puff_advantage

METRICS = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "clipfrac", "importance")


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
        encoder: mlp, small, nature or impala; auto: mlp for vectors, nature for images.
        hidden_dim: units.
        lstm: whether the policy is recurrent.
        optimizer: muon (matrices; Adam for the rest) or adam.
        lr: learning rate at the start; it falls to 0 along a cosine.
        total_steps: agent steps until it is 0.
        discount: gamma, of a step.
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
        prio_beta0: exponent of the importance weights at the start; it rises with the steps.
        truncation: bootstrap from the last observation of a truncated episode, or ignore that it was cut off and treat
            it as an end.
        advantage: full_batch computes advantages before each minibatch, with the current ratios and values of all
            segments; minibatch does so again for the segments drawn, with their ratios after the forward pass.
        normalize_observations: vectors by their running mean and deviation. The first batch only begins these.
        normalize_rewards: by the running deviation of their discounted sum.
        precision: fp32, or bf16 for the convolutions.
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
        total_steps: int,
        discount: float,
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
        truncation: str = "bootstrap",
        advantage: str = "full_batch",
        normalize_observations: bool = False,
        normalize_rewards: bool = False,
        precision: str = "fp32",
        seed: int = 0,
    ) -> None:
        self.device, self.training = device, True
        policy = Policy(obs_shape, action_spec, encoder, hidden_dim, lstm, normalize_observations, precision)
        self.policy = policy.to(device)
        self.optimizers = make_optimizers(self.policy, optimizer, lr)
        self.reward_stats = RunningMeanStd().to(device) if normalize_rewards else None
        self.lr, self.total_steps = lr, total_steps
        self.advantage_args = discount, gae_lambda, rho_clip, c_clip
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

    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        """Return the action for one observation at the start of an episode; see `act_from`."""
        return self.act_from(None, obs, step, eval_mode)[0]

    @torch.no_grad()
    def act_from(
        self, state: State | None, obs: np.ndarray, step: int, eval_mode: bool
    ) -> tuple[np.ndarray, State | None]:
        """Return the action for one observation and the state of the LSTM after it.

        Args:
            state: of the LSTM before it; None at the start of an episode.
            obs: the observation.
            step: agent steps so far; not used.
            eval_mode: take the most probable action (the mean, of a vector) instead of a sample.
        """
        batch = torch.as_tensor(obs, device=self.device)[None, None]  # [1, 1, ...]
        first = torch.full((1, 1), state is None, device=self.device)
        dist, _, state = self.policy(batch, self.policy.initial_state(1) if state is None else state, first)
        action: np.ndarray = (dist.mode() if eval_mode else dist.sample(self.generator))[0, 0].cpu().numpy()
        return action.reshape(self.policy.action_shape), state

    @torch.inference_mode()
    def step(self, obs: Tensor, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """Return actions [N, ...], their log probabilities [N], values [N] and the next state, for collecting."""
        dist, values, state = self.policy(obs[:, None], state, first[:, None])
        actions = dist.sample(self.generator)  # [N, 1, A]
        shaped = actions.reshape(len(obs), *self.policy.action_shape)
        return shaped, dist.log_prob(actions)[:, 0], values[:, 0], state

    def update(self, segments: Iterator[Mapping[str, Any]], step: int) -> dict[str, float]:
        """Learn from the next batch of segments.

        Args:
            segments: yields the fields of `Segments`, and with normalize_rewards `sums`: discounted sums of past
                rewards, [S, H].
            step: agent steps before the batch.

        Returns:
            losses/: policy_loss, value_loss, entropy, old_approx_kl, approx_kl, clipfrac, importance (mean ratio),
            explained_variance; and learning_rate. Nothing for a batch that only begins the statistics.
        """
        collected = dict(next(segments))
        sums, batch = collected.pop("sums", None), Segments(**collected)
        if self.reward_stats is not None:
            self.reward_stats.update(sums)
            batch = batch._replace(rewards=self.reward_stats.scale(batch.rewards))
        known = self.policy.knows_observations()
        metrics = self._learn(batch, min(step / self.total_steps, 1.0)) if known else {}
        self.policy.see(batch.obs)  # after learning, whose log probabilities are of the statistics before
        return metrics

    def _learn(self, batch: Segments, progress: float) -> dict[str, float]:
        """Take the steps of one update, `progress` of the way through the run; return its metrics."""
        lr = self._anneal(progress)
        count, horizon = batch.rewards.shape
        batch = batch._replace(actions=batch.actions.reshape(count, horizon, -1))
        live, followed = _live(batch), self._followed(batch)
        # Written back after each minibatch. A value of 0 is not bootstrapped from. A ratio of 0, where the action was
        # ignored, cuts both the difference there and the trace through it.
        values, ratio = batch.values * followed, live.clone()
        sums: list[Tensor] = []
        number = int(self.update_epochs * count * horizon / self.minibatch_size)
        for k in range(number):
            advantages = self._advantages(batch, values, ratio)
            rows, weights = self._draw(advantages, self.minibatch_size // horizon, progress)
            part = Segments(*(None if x is None else _rows(x, rows) for x in batch))  # type: ignore[arg-type]
            new_values, new_ratio, metrics = self._accumulate(part, values[rows], advantages[rows], weights, live[rows])
            if (k + 1) % self.accumulate_minibatches == 0 or k + 1 == number:  # a snapshot holds no gradients
                self._step()
            values[rows], ratio[rows] = new_values * followed[rows], new_ratio * live[rows]
            sums.append(metrics)
        means = dict(zip(METRICS, torch.stack(sums).mean(0).tolist(), strict=True))
        means["approx_kl"] = means["importance"] - 1 + means["old_approx_kl"]
        returns = self._advantages(batch, values, ratio) + values
        if (explained := explained_variance(values, returns, live)) is not None:
            means["explained_variance"] = explained
        return {f"losses/{name}": value for name, value in means.items()} | {"learning_rate": lr}

    def _accumulate(
        self, part: Segments, old_values: Tensor, advantages: Tensor, weights: Tensor, live: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add the gradients of a minibatch; return new values and ratios [S, H], and metrics in the order of METRICS.

        The loss is that of the class, averaged over steps that count. Its derivatives are written out, since a graph
        of so many small operations would take longer than the networks.
        """
        dist, values, _ = self.policy(part.obs, part.state, part.first)
        log_probs, entropy = dist.log_prob(part.actions), dist.entropy()  # [S, H]
        with torch.no_grad():
            log_ratio = log_probs - part.log_probs
            ratio = log_ratio.exp()
            if self.advantage == "minibatch":
                advantages = self._advantages(part, old_values, ratio * live)
            number = live.sum().clamp(min=1)
            centred = (advantages - advantages.sum() / number) * live  # advantages are 0 where live is
            scaled = weights * centred / ((centred.square().sum() / (number - 1).clamp(min=1)).sqrt() + 1e-8)
            policy_loss, by_log_probs = clipped_policy_loss(ratio, scaled, self.clip_coef)
            value_loss, by_values = clipped_value_loss(values, old_values, advantages + old_values, self.vf_clip)
            share = live / number
            shared = share / self.accumulate_minibatches
            clipped = ((ratio - 1).abs() > self.clip_coef).to(ratio.dtype)
            terms = torch.stack([policy_loss, value_loss, entropy, -log_ratio, clipped, ratio])
            metrics = terms.flatten(1) @ share.flatten()
        torch.autograd.backward(
            (log_probs, values, entropy),
            (by_log_probs * shared, by_values * (self.vf_coef * shared), -self.ent_coef * shared),
        )
        return values.detach(), ratio, metrics

    def _advantages(self, batch: Segments, values: Tensor, ratio: Tensor) -> Tensor:
        """Return advantages [S, H]: 0 at a segment's last step and where an episode has ended."""
        dones = batch.first.to(values.dtype)
        return puff_advantage(values, batch.rewards, dones, ratio, *self.advantage_args)

    def _followed(self, batch: Segments) -> Tensor:
        """Return 0 where nothing is bootstrapped, since an episode has ended, else 1, [S, H]."""
        ended = batch.terminated if self.truncation == "bootstrap" else batch.terminated | batch.truncated
        return (~ended).to(batch.values.dtype)

    def _draw(self, advantages: Tensor, number: int, progress: float) -> tuple[Tensor, Tensor]:
        """Return segments drawn without replacement by their advantages, and their importance weights [number, 1]."""
        priority = torch.nan_to_num(advantages.abs().sum(1) ** self.prio_alpha, 0.0, 0.0, 0.0)
        p = (priority + 1e-6) / (priority.sum() + 1e-6)
        rows = torch.multinomial(p, number, generator=self.generator)
        beta = self.prio_beta0 + (1 - self.prio_beta0) * self.prio_alpha * progress
        return rows, (len(p) * p[rows, None]) ** -beta

    def _step(self) -> None:
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _anneal(self, progress: float) -> float:
        """Set this update's learning rate and return it."""
        lr = 0.5 * self.lr * (1 + math.cos(math.pi * progress))
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


def clipped_policy_loss(ratio: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the clipped loss of each step and its derivative by the log probability of the action.

    The loss is -min(A r, A clip(r, 1 - c, 1 + c)) (arXiv 1707.06347, equation 7).

    Args:
        ratio: r, probability of the action over that when it was taken.
        advantages: A.
        clip: c.
    """
    gain, clipped = advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(gain, clipped), (-gain).masked_fill(clipped < gain, 0.0)


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the clipped loss of each step and its derivative by the value V.

    The loss is max((V - R)^2, (V' - R)^2) / 2, where V' is V, but no further than `clip` from the old value.
    """
    moved, error = values - old, values - returns
    near = old + moved.clamp(-clip, clip) - returns
    flat = (moved.abs() > clip) & (near.abs() > error.abs())
    return 0.5 * torch.maximum(error.square(), near.square()), error.masked_fill(flat, 0.0)


def explained_variance(values: Tensor, returns: Tensor, live: Tensor) -> float | None:
    """Return 1 - var(returns - values) / var(returns) where `live` is 1; None without two different ones."""
    chosen = live.bool()
    if chosen.sum() < 2:
        return None
    residual, spread = (returns - values)[chosen].var(), returns[chosen].var()
    return None if spread == 0 else float(1 - residual / spread)


def make_optimizers(policy: nn.Module, name: str, lr: float) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a policy: Muon (Jordan et al., 2024) takes matrices alone, Adam the rest or all."""
    parameters = list(policy.parameters())
    matrices = [p for p in parameters if p.ndim == 2] if name == "muon" else []
    others = [p for p in parameters if name != "muon" or p.ndim != 2]
    made: list[torch.optim.Optimizer] = []
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=lr, momentum=0.95, weight_decay=0.0))
    if others:
        made.append(torch.optim.Adam(others, lr=lr, betas=(0.95, 0.999), eps=1e-8, fused=True))
    return made
