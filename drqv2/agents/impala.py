"""IMPALA (Espeholt et al., arXiv 1802.01561): a learner like TorchBeast's (1910.03552) and RTFM's (1910.08210)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from drqv2.agents.protocol import Agent
from drqv2.agents.segments import Segments
from drqv2.config.keys import fixed, key
from drqv2.config.kinds import POSITIVE, Bool, Choice, Float, Int
from drqv2.nn.deterministic import most_probable_action
from drqv2.nn.observations import Shapes
from drqv2.nn.optimizers import RMSprop
from drqv2.nn.policies import Policy, State
from drqv2.nn.returns import vtrace
from drqv2.parts import batched, each


class ImpalaAgent(Agent):
    """An actor-critic that learns from rollouts of older policies, corrected by V-trace.

    Args:
        obs_shape: of one observation; of a dict, those of its parts by name.
        action_spec: discrete, several discrete, or a vector within [-1, 1].
        device: where it computes.
        total_steps: agent steps until the learning rate is 0.
        discount: gamma, of a step.
        precision: fp32, or bf16 for the convolutions.
        seed: of the sampled actions.
        others: keys of the configuration, described below.
    """

    def __init__(
        self,
        obs_shape: Shapes,
        action_spec: Any,
        device: str,
        total_steps: int,
        discount: float,
        encoder: Annotated[
            str,
            fixed(
                Choice("auto", "mlp", "small", "nature", "impala"),
                "Network of observations: mlp for vectors; for images the convolutions of arXiv 1312.5602 (small), of "
                "Nature 518 (nature) or of IMPALA's residual network (arXiv 1802.01561); auto: mlp or nature. Where "
                "there are images and vectors, it is that of the images.",
            ),
        ] = "auto",
        hidden_dim: Annotated[int, fixed(Int(1), "Width behind the encoder, and of an LSTM.", "units")] = 256,
        lstm: Annotated[bool, fixed(Bool(), "A recurrent policy.")] = False,
        lr: Annotated[float, key(POSITIVE, "Initial learning rate; decays linearly to 0.")] = 0.0005,
        rms_alpha: Annotated[float, fixed(Float(0, 1), "Decay of RMSprop's mean of squares.")] = 0.99,
        rms_eps: Annotated[float, fixed(POSITIVE, "RMSprop's epsilon.")] = 0.01,
        rms_momentum: Annotated[float, fixed(Float(0, 1), "Momentum of RMSprop.")] = 0.0,
        reward_scale: Annotated[
            float,
            key(
                POSITIVE,
                "Factor of rewards, before they are clipped. Values near 1 take fewer updates to learn than values "
                "near 100.",
            ),
        ] = 1.0,
        reward_clipping: Annotated[
            str,
            key(
                Choice("none", "abs_one", "soft_asymmetric"),
                "Rewards as they are, within [-1, 1], or 5 tanh(r / 5), times 0.3 where negative.",
            ),
        ] = "abs_one",
        rho_clip: Annotated[
            float, key(POSITIVE, "Clip of the importance ratio in V-trace's temporal differences (rho-bar).")
        ] = 1.0,
        pg_rho_clip: Annotated[float, key(POSITIVE, "Clip of the importance ratio in the policy gradient.")] = 1.0,
        baseline_cost: Annotated[float, key(Float(0), "Weight of the value loss.")] = 0.5,
        entropy_cost: Annotated[float, key(Float(0), "Weight of the entropy.")] = 0.0006,
        loss_reduction: Annotated[
            str,
            key(
                Choice("sum", "batch_mean", "mean"),
                "Loss of a batch: the sum over its rollouts and their steps, as in TorchBeast; the mean over rollouts "
                "of the sum over steps, as in RTFM; or the mean over the steps whose actions counted. RMSprop undoes "
                "the scale of a loss, but its epsilon and the gradient limit do not follow it.",
            ),
        ] = "sum",
        max_grad_norm: Annotated[float, key(POSITIVE, "Maximum gradient norm.")] = 40.0,
        truncation: Annotated[
            str,
            key(
                Choice("bootstrap", "ignore"),
                "At a time limit, bootstrap from the last observation, or treat it as a termination.",
            ),
        ] = "bootstrap",
        normalize_observations: Annotated[
            bool, fixed(Bool(), "Normalise vectors by their running mean and deviation.")
        ] = False,
        precision: str = "fp32",
        seed: int = 0,
    ) -> None:
        self.device, self.training = device, True
        policy = Policy(obs_shape, action_spec, encoder, hidden_dim, lstm, normalize_observations, precision)
        self.policy = policy.to(device)
        self.optimizer = RMSprop(self.policy.parameters(), lr=lr, alpha=rms_alpha, eps=rms_eps, momentum=rms_momentum)
        self.lr, self.total_steps, self.discount = lr, total_steps, discount
        self.reward_scale, self.reward_clipping = reward_scale, reward_clipping
        self.rho_clip, self.pg_rho_clip = rho_clip, pg_rho_clip
        self.baseline_cost, self.entropy_cost, self.max_grad_norm = baseline_cost, entropy_cost, max_grad_norm
        self.loss_reduction, self.truncation = loss_reduction, truncation
        self.generator = torch.Generator(device).manual_seed(seed)

    def train(self, training: bool = True) -> None:
        """Put the policy into training or evaluation mode."""
        self.training = training
        self.policy.train(training)

    def act(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Return the action for one observation at the start of an episode; see `act_from`."""
        return np.asarray(self.act_from([None], batched(obs), step, eval_mode)[0][0])

    def act_from(
        self, states: Sequence[State | None], obs: Any, step: int, eval_mode: bool
    ) -> tuple[np.ndarray, list[State | None]]:
        """Return actions for observations [N, ...] and the states of the LSTM after them, see `Policy.act_from`."""
        return self.policy.act_from(states, obs, None if eval_mode else self.generator)

    def deterministic_policy(self) -> nn.Module:
        """Return a module from observations to the most probable actions, which shares the weights: for export."""
        return most_probable_action(self.policy)

    def update(self, rollouts: Iterator[Mapping[str, Any]], step: int) -> dict[str, float]:
        """Learn from the next batch of rollouts.

        Args:
            rollouts: yields the fields of `Segments`, [B, T + 1, ...]. The last step of a rollout is the first of the
                environment's next.
            step: agent steps before the batch.

        Returns:
            total_loss and its parts pg_loss, baseline_loss, entropy_loss and aux_loss; mean_rho, grad_norm,
            learning_rate.
        """
        batch = Segments(**next(rollouts))
        lr = self._decay(step)
        losses, rhos = self._losses(batch)
        total = torch.stack(list(losses.values())).sum()
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.policy.see(each(lambda x: x[:, :-1], batch.obs))
        metrics = {f"{name}_loss": float(value.detach()) for name, value in (losses | {"total": total}).items()}
        return metrics | {"mean_rho": float(rhos), "grad_norm": float(norm), "learning_rate": lr}

    def _losses(self, batch: Segments) -> tuple[dict[str, Tensor], Tensor]:
        """Return the weighted parts of the loss, and the mean of its clipped ratios to the actors' policies."""
        actions = batch.actions.reshape(*batch.rewards.shape, -1)
        dist, values, _ = self.policy(batch.obs, batch.state, batch.first)  # [B, T + 1]
        log_probs = dist.log_prob(actions)[:, :-1]
        log_rhos = log_probs.detach() - batch.log_probs[:, :-1]
        live = batch.live()[:, :-1]
        vs, advantages = self._targets(batch, log_rhos, values.detach())
        parts = {
            "pg": -log_probs * advantages,
            "baseline": 0.5 * self.baseline_cost * (vs - values[:, :-1]).square(),
            "entropy": -self.entropy_cost * dist.entropy()[:, :-1],
        }
        steps = live.sum().clamp(min=1)
        number = {"sum": 1.0, "batch_mean": float(len(live)), "mean": steps}[self.loss_reduction]
        losses = {name: (part * live).sum() / number for name, part in parts.items()}
        rhos = (log_rhos.exp().clamp(max=self.rho_clip) * live).sum() / steps
        return losses | {"aux": self.auxiliary_loss(batch)}, rhos

    def _targets(self, batch: Segments, log_rhos: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return V-trace's targets and advantages, [B, T] each.

        Where an episode has ended, the action was ignored. Its target is its value, which the step before it is
        bootstrapped from: 0 after a termination.
        """
        live = batch.live()[:, :-1]
        values = values * batch.followed(self.truncation == "bootstrap")
        rewards = clip_rewards(self.reward_scale * batch.rewards[:, 1:], self.reward_clipping)
        rewards = torch.where(live > 0, rewards, values[:, :-1])
        vs, advantages = vtrace(
            (log_rhos * live).T,
            (self.discount * live).T,
            rewards.T,
            values[:, :-1].T,
            values[:, -1],
            self.rho_clip,
            self.pg_rho_clip,
        )
        return vs.T, advantages.T

    def auxiliary_loss(self, batch: Segments) -> Tensor:
        """Return an additional loss for subclasses to define; here 0.

        Args:
            batch: of rollouts, [B, T + 1, ...].
        """
        return batch.rewards.new_zeros(())

    def _decay(self, step: int) -> float:
        """Set this update's learning rate and return it."""
        lr = self.lr * max(1.0 - step / self.total_steps, 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr


def clip_rewards(rewards: Tensor, how: str) -> Tensor:
    """Return rewards as they are (none), within [-1, 1] (abs_one), or soft_asymmetric.

    The last is 5 tanh(r / 5), times 0.3 where r is negative (arXiv 1802.01561, appendix).
    """
    if how == "none":
        return rewards
    if how == "abs_one":
        return rewards.clamp(-1, 1)
    squeezed = torch.tanh(rewards / 5)
    return 5 * torch.where(rewards < 0, 0.3 * squeezed, squeezed)
