"""PPO (Schulman et al., arXiv 1707.06347), with PufferLib 3's V-trace weights and prioritised segments as options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from drqv2.agents.protocol import Agent
from drqv2.agents.segments import Segments, shuffled, take_rows
from drqv2.config.keys import fixed, key
from drqv2.config.kinds import POSITIVE, Bool, Choice, Float, Int
from drqv2.nn.deterministic import most_probable_action
from drqv2.nn.normalization import RunningMeanStd
from drqv2.nn.observations import Observation, Shapes
from drqv2.nn.optimizers import make_optimizers
from drqv2.nn.policies import Policy, State
from drqv2.nn.returns import explained_variance, puff_advantage, standardised
from drqv2.parts import batched, each

Minibatch = tuple[dict[str, Any], Tensor, Tensor]  # steps of a batch, its rows, their weights
METRICS = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "clipfrac", "importance", "approx_kl")


class PPOAgent(Agent):
    """Proximal policy optimisation.

    Args:
        obs_shape: of one observation; of a dict, those of its parts by name.
        action_spec: discrete, several discrete, or a vector within [-1, 1].
        device: where it computes.
        total_steps: agent steps of the run, over which learning rates are annealed.
        discount: gamma, of a step.
        update_epochs: passes over the batch per update.
        minibatch_size: steps in a minibatch, a multiple of the horizon.
        precision: fp32, or bf16 for the convolutions.
        seed: of what it draws.
        others: keys of the configuration, described below.
    """

    def __init__(
        self,
        obs_shape: Shapes,
        action_spec: Any,
        device: str,
        total_steps: int,
        discount: float,
        update_epochs: float,
        minibatch_size: int,
        encoder: Annotated[
            str,
            fixed(
                Choice("auto", "mlp", "small", "nature", "impala"),
                "Network of observations: mlp for vectors; for images the convolutions of arXiv 1312.5602 (small), of "
                "Nature 518 (nature) or of IMPALA's residual network (arXiv 1802.01561); auto: mlp or nature. Where "
                "there are images and vectors, it is that of the images.",
            ),
        ] = "auto",
        hidden_dim: Annotated[int, fixed(Int(1), "Width behind the encoder, and of an LSTM.", "units")] = 128,
        lstm: Annotated[bool, fixed(Bool(), "A recurrent policy.")] = False,
        optimizer: Annotated[
            str,
            fixed(
                Choice("adam", "muon"),
                "Adam for all parameters; or Muon for matrices (torch.optim.Muon), with Adam for the rest.",
            ),
        ] = "adam",
        lr: Annotated[float, key(POSITIVE, "Learning rate, at the start of the run if agent.anneal_lr.")] = 0.001,
        adam_lr: Annotated[
            float | None, key(POSITIVE, "Learning rate of Adam beside Muon.", null="as agent.lr", legacy=None)
        ] = None,
        anneal_lr: Annotated[
            bool,
            key(
                Bool(),
                "Let learning rates decay to 0 along a cosine over total_timesteps, or keep them constant.",
                legacy=True,
            ),
        ] = True,
        adam_beta1: Annotated[float, fixed(Float(0, 0.999), "Adam's decay of the mean of gradients.")] = 0.9,
        adam_beta2: Annotated[
            float,
            fixed(Float(0, 0.99999), "Adam's decay of the mean of squared gradients.", legacy=0.999),
        ] = 0.999,
        adam_eps: Annotated[
            float,
            fixed(
                POSITIVE,
                "Adam's epsilon; larger: smaller steps where gradients are small, as of a still background's noise.",
            ),
        ] = 1e-5,
        gae_lambda: Annotated[float, key(Float(0, 1), "Lambda of the advantages.")] = 0.95,
        rho_clip: Annotated[float, key(POSITIVE, "Clip of the importance ratio in advantages' differences.")] = 1.0,
        c_clip: Annotated[float, key(POSITIVE, "Clip of the importance ratio in advantages' trace (c-bar).")] = 1.0,
        target_kl: Annotated[
            float | None,
            key(
                POSITIVE,
                "End an update after the first pass over the batch whose mean approximate KL divergence, "
                "r - 1 - log r, exceeds this.",
                null="make all passes",
                legacy=None,
            ),
        ] = None,
        accumulate_minibatches: Annotated[int, key(Int(1), "Minibatches before a step of the optimizer.")] = 1,
        clip_coef: Annotated[float, key(POSITIVE, "PPO's clipping range around a ratio of 1.")] = 0.2,
        vf_coef: Annotated[float, key(Float(0), "Weight of the value loss.")] = 0.5,
        vf_clip: Annotated[float, key(POSITIVE, "Clipping range of values around the old ones.")] = 100.0,
        ent_coef: Annotated[float, key(Float(0), "Weight of the entropy bonus.")] = 0.001,
        max_grad_norm: Annotated[float, key(POSITIVE, "Maximum gradient norm.")] = 0.5,
        prio_alpha: Annotated[float, key(Float(0), "Exponent of segments' priorities; 0 draws uniformly.")] = 0.0,
        prio_beta0: Annotated[float, key(Float(0, 1), "Exponent of importance weights at the start.")] = 0.2,
        truncation: Annotated[
            str,
            key(
                Choice("bootstrap", "ignore"),
                "At a time limit, bootstrap from the last observation; or treat it as an end.",
            ),
        ] = "bootstrap",
        advantage: Annotated[
            str,
            key(
                Choice("full_batch", "minibatch", "once"),
                "Advantages of the whole batch before each minibatch; or again of the minibatch, with its own ratios; "
                "or once, with minibatches of shuffled steps (whole segments with an LSTM) and prio_alpha=0, as in the "
                "paper.",
            ),
        ] = "once",
        normalize_observations: Annotated[
            bool, fixed(Bool(), "Normalise vectors by their running mean and deviation.")
        ] = True,
        normalize_rewards: Annotated[
            bool, fixed(Bool(), "Divide rewards by the running deviation of their discounted sum.")
        ] = True,
        precision: str = "fp32",
        seed: int = 0,
    ) -> None:
        self.device, self.training = device, True
        policy = Policy(obs_shape, action_spec, encoder, hidden_dim, lstm, normalize_observations, precision)
        self.policy = policy.to(device)
        self.optimizers = make_optimizers(self.policy, optimizer, lr, adam_lr, (adam_beta1, adam_beta2), adam_eps)
        self.reward_stats = RunningMeanStd().to(device) if normalize_rewards else None
        self.lr, self.adam_lr, self.anneal_lr, self.total_steps = lr, adam_lr, anneal_lr, total_steps
        self.discount, self.gae_lambda, self.rho_clip, self.c_clip = discount, gae_lambda, rho_clip, c_clip
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size
        self.accumulate_minibatches, self.max_grad_norm = accumulate_minibatches, max_grad_norm
        self.target_kl = target_kl
        self.clip_coef, self.vf_coef, self.vf_clip, self.ent_coef = clip_coef, vf_coef, vf_clip, ent_coef
        self.prio_alpha, self.prio_beta0 = prio_alpha, prio_beta0
        self.truncation, self.advantage = truncation, advantage
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

    def step(self, obs: Observation, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """Return actions [N, ...], their log probabilities [N], values [N] and the next state, for collecting."""
        return self.policy.choose(obs, state, first, self.generator)

    def deterministic_policy(self) -> nn.Module:
        """Return a module from observations to the most probable actions, which shares the weights: for export."""
        return most_probable_action(self.policy)

    def update(self, segments: Iterator[Mapping[str, Any]], step: int) -> dict[str, float]:
        """Learn from the next batch of segments.

        Args:
            segments: yields the fields of `Segments`, and with normalize_rewards `sums`: discounted sums of past
                rewards, [S, H].
            step: agent steps before the batch.

        Returns:
            losses/: policy_loss, value_loss, entropy, old_approx_kl, approx_kl, clipfrac, importance (mean ratio),
            explained_variance; learning_rate; and gradient_steps, those of the optimizer. Nothing for a batch that only
            begins the statistics.
        """
        collected = dict(next(segments))
        sums, batch = collected.pop("sums", None), Segments(**collected)
        if self.reward_stats is not None:
            self.reward_stats.update(sums)
            batch = batch._replace(rewards=self.reward_stats.scale(batch.rewards))
        known = self.policy.knows_observations()
        metrics = self._learn(batch, min(step / self.total_steps, 1.0)) if known else {}
        self.policy.see(batch.obs)  # after learning: most log probabilities are of the statistics before
        return metrics

    def _learn(self, batch: Segments, progress: float) -> dict[str, float]:
        """Take the steps of one update, `progress` of the way through the run; return its metrics."""
        lr = self._anneal(progress)
        steps = self._steps(batch)
        number = int(self.update_epochs * batch.rewards.numel() / self.minibatch_size)
        beta = self.prio_beta0 + (1 - self.prio_beta0) * self.prio_alpha * progress
        found, made = self._optimise(steps, number, beta)
        means = dict(zip(METRICS, found, strict=True))
        returns = self._advantages(steps) + steps["values"]
        if (explained := explained_variance(steps["values"], returns, steps["live"])) is not None:
            means["explained_variance"] = explained
        return {f"losses/{name}": value for name, value in means.items()} | {
            "learning_rate": lr,
            "gradient_steps": float(made),
        }

    def _steps(self, batch: Segments) -> dict[str, Any]:
        """Return the fields of a batch that learning needs, and what it derives from them, [S, H, ...].

        Minibatches may write `values` and `ratio`. A value of 0 is not bootstrapped from. A ratio of 0, where the
        action was ignored, cuts both the difference there and the trace through it.
        """
        live, followed = batch.live(), batch.followed(self.truncation == "bootstrap")
        steps: dict[str, Any] = {"obs": batch.obs, "actions": batch.actions.reshape(*batch.rewards.shape, -1)}
        steps |= {"log_probs": batch.log_probs, "rewards": batch.rewards, "first": batch.first, "state": batch.state}
        steps |= {"dones": batch.first.to(batch.values.dtype), "live": live, "followed": followed}
        return steps | {"values": batch.values * followed, "ratio": live.clone()}

    def _optimise(self, steps: dict[str, Any], number: int, beta: float) -> tuple[list[float], int]:
        """Learn from so many minibatches, or from fewer passes; return means of METRICS and the optimizer's steps.

        Args:
            steps: of the batch.
            number: minibatches.
            beta: exponent of the importance weights.
        """
        group, in_pass = self.accumulate_minibatches, self._pass(steps["rewards"].numel())
        once = self.advantage == "once"
        minibatches = self._shuffled(steps, number) if once else self._drawn(steps, number, beta)
        metrics: list[Tensor] = []
        made = 0
        for k, minibatch in enumerate(minibatches, 1):
            loss, of_minibatch = self._loss(*minibatch)
            (loss / min(group, number - (k - 1) // group * group)).backward()
            metrics.append(of_minibatch)
            if k % group == 0 or k == number:  # a snapshot holds no gradients
                nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                made += 1
            if self.target_kl and k % in_pass == 0 and torch.stack(metrics[-in_pass:])[:, -1].mean() > self.target_kl:
                break
        means: list[float] = torch.stack(metrics).mean(0).tolist()
        return means, made

    def _pass(self, steps: int) -> int:
        """Return the minibatches of a pass over a batch of so many steps, after which the optimizer has made a step."""
        return math.ceil(steps / self.minibatch_size / self.accumulate_minibatches) * self.accumulate_minibatches

    def _shuffled(self, steps: dict[str, Any], number: int) -> Iterator[Minibatch]:
        """Yield minibatches of single steps, or with an LSTM of segments: each once before any comes again."""
        steps = steps | {"advantages": self._advantages(steps)}
        if self.policy.lstm is None:
            steps = {name: x if x is None else each(_single_steps, x) for name, x in steps.items()}
        count, horizon = steps["rewards"].shape
        for rows in shuffled(count, self.minibatch_size // horizon, number, self.generator):
            yield steps, rows, steps["rewards"].new_ones(len(rows))

    def _drawn(self, steps: dict[str, Any], number: int, beta: float) -> Iterator[Minibatch]:
        """Yield minibatches of segments, each without replacement by their advantages, as these are then."""
        count, horizon = steps["rewards"].shape
        for noise in steps["rewards"].new_empty(number, count).exponential_(generator=self.generator):
            steps["advantages"] = self._advantages(steps)
            priority = torch.nan_to_num(steps["advantages"].abs().sum(1) ** self.prio_alpha, 0.0, 0.0, 0.0)
            p = (priority + 1e-6) / (priority.sum() + 1e-6)
            rows = (p / noise).topk(self.minibatch_size // horizon).indices  # as in torch.multinomial
            yield steps, rows, (count * p[rows]) ** -beta

    def _loss(self, steps: Mapping[str, Any], rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a minibatch, segments `rows` of the batch, and its metrics: means over steps that count.

        policy_loss = -min(r A, clip(r, 1 - clip_coef, 1 + clip_coef) A)      (arXiv 1707.06347, equation 7)
        value_loss = max((V - R)^2, (V_old + clip(V - V_old, -vf_clip, vf_clip) - R)^2) / 2
        loss = policy_loss + vf_coef value_loss - ent_coef entropy            (equation 9, to be minimised)

        r is the probability of an action over that when it was chosen, R its advantage plus V_old, and A its advantage
        standardised over the minibatch, times the weight of its segment, as in PufferLib (mb_prio). With weights of 1
        this is CleanRL's loss. Values and ratios replace the batch's, unless advantages are computed only once.
        """
        batch: dict[str, Any] = {name: None if x is None else take_rows(x, rows) for name, x in steps.items()}
        live, old_values, advantages = batch["live"], batch["values"], batch["advantages"]  # [S, H]
        share = live / live.sum().clamp(min=1)

        dist, values, _ = self.policy(batch["obs"], batch["state"], batch["first"])
        log_ratio = dist.log_prob(batch["actions"]) - batch["log_probs"]
        ratio = log_ratio.exp()

        if self.advantage == "minibatch":
            advantages = self._advantages(batch | {"ratio": ratio.detach() * live})
        if self.advantage != "once":
            steps["values"][rows], steps["ratio"][rows] = values.detach() * batch["followed"], ratio.detach() * live
        returns = advantages + old_values
        advantages = weights[:, None] * standardised(advantages, live)

        clipped_ratio = ratio.clamp(1 - self.clip_coef, 1 + self.clip_coef)
        policy_loss = -torch.minimum(advantages * ratio, advantages * clipped_ratio)

        clipped_values = old_values + (values - old_values).clamp(-self.vf_clip, self.vf_clip)
        value_loss = 0.5 * torch.maximum((values - returns).square(), (clipped_values - returns).square())

        entropy = dist.entropy()
        loss = policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy

        with torch.no_grad():
            clipped = ((ratio - 1).abs() > self.clip_coef).to(ratio.dtype)
            terms = policy_loss, value_loss, entropy, -log_ratio, clipped, ratio, ratio - 1 - log_ratio
            metrics = torch.stack(terms).flatten(1) @ share.flatten()
        return (loss * share).sum(), metrics

    def _advantages(self, steps: Mapping[str, Any]) -> Tensor:
        """Return advantages [S, H]: 0 at a segment's last step and where an episode has ended."""
        values, rewards, dones, ratio = (steps[name] for name in ("values", "rewards", "dones", "ratio"))
        clips = self.rho_clip, self.c_clip
        return puff_advantage(values, rewards, dones, ratio, self.discount, self.gae_lambda, *clips)

    def _anneal(self, progress: float) -> float:
        """Set this update's learning rates and return `lr`'s."""
        factor = 0.5 * (1 + math.cos(math.pi * progress)) if self.anneal_lr else 1.0
        for optimizer in self.optimizers:
            own = self.adam_lr if isinstance(optimizer, torch.optim.Adam) else None
            for group in optimizer.param_groups:
                group["lr"] = factor * (self.lr if own is None else own)
        return factor * self.lr


def _single_steps(x: Tensor) -> Tensor:
    """Return the steps of segments, [S, H, ...], as segments of one step, [S H, 1, ...]."""
    return x.flatten(0, 1)[:, None]
