"""PPO (Schulman et al., arXiv 1707.06347), with PufferLib 3's V-trace weights and prioritised segments as options."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from drqv2.agents import ppo_mlp
from drqv2.agents.ppo_mlp import Kernels
from drqv2.agents.protocol import Agent
from drqv2.agents.segments import Segments, take_rows
from drqv2.config.kinds import POSITIVE, Bool, Choice, Float, Int, fixed, key
from drqv2.nn.deterministic import most_probable_action
from drqv2.nn.losses import clipped_policy_loss, clipped_value_loss, explained_variance
from drqv2.nn.normalization import RunningMeanStd
from drqv2.nn.optimizers import make_optimizers
from drqv2.nn.policies import Policy, State
from drqv2.nn.returns import puff_advantage

Minibatch = tuple[dict[str, Any], Tensor, Tensor]  # steps of a batch, its rows, their weights
METRICS = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "clipfrac", "importance")


class PPOAgent(Agent):
    """Proximal policy optimisation.

    Args:
        obs_shape: of one observation.
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
        obs_shape: tuple[int, ...],
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
                "Nature 518 (nature) or of IMPALA's residual network (arXiv 1802.01561); auto: mlp or nature.",
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
        self.advantage_args = discount, gae_lambda, rho_clip, c_clip
        self.update_epochs, self.minibatch_size = update_epochs, minibatch_size
        self.accumulate_minibatches, self.max_grad_norm = accumulate_minibatches, max_grad_norm
        self.target_kl = target_kl
        self.clip_coef, self.vf_coef, self.vf_clip, self.ent_coef = clip_coef, vf_coef, vf_clip, ent_coef
        self.prio_alpha, self.prio_beta0 = prio_alpha, prio_beta0
        self.truncation, self.advantage = truncation, advantage
        self.generator = torch.Generator(device).manual_seed(seed)
        self.kernels = ppo_mlp.choose(self)

    def train(self, training: bool = True) -> None:
        """Put the policy into training or evaluation mode."""
        self.training = training
        self.policy.train(training)

    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        """Return the action for one observation at the start of an episode; see `act_from`."""
        return np.asarray(self.act_from([None], obs[None], step, eval_mode)[0][0])

    def act_from(
        self, states: Sequence[State | None], obs: np.ndarray, step: int, eval_mode: bool
    ) -> tuple[np.ndarray, list[State | None]]:
        """Return actions for observations [N, ...] and the states of the LSTM after them, see `Policy.act_from`."""
        return self.policy.act_from(states, obs, None if eval_mode else self.generator)

    @torch.inference_mode()
    def step(self, obs: Tensor, state: State | None, first: Tensor) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """Return actions [N, ...], their log probabilities [N], values [N] and the next state, for collecting."""
        if self.kernels is not Kernels.CPP:
            return self.policy.choose(obs, state, first, self.generator)
        actions, log_probs, values = ppo_mlp.act(self.policy, self.policy.normalized(obs), self.generator)
        return actions.reshape(len(obs), *self.policy.action_shape), log_probs, values, None

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
        count, horizon = batch.rewards.shape
        steps = self._steps(batch)
        number = int(self.update_epochs * count * horizon / self.minibatch_size)
        if self.advantage == "once":
            found, made = self._learn_from_shuffled(steps, number)
        else:
            noise = batch.rewards.new_empty(number, count).exponential_(generator=self.generator)
            beta = self.prio_beta0 + (1 - self.prio_beta0) * self.prio_alpha * progress
            found, made = self._learn_by_priority(steps, noise, beta)
        means = dict(zip(METRICS, found, strict=True))
        means["approx_kl"] = means["importance"] - 1 + means["old_approx_kl"]
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

    def _pass(self, steps: int) -> int:
        """Return the number of minibatches in a pass over a batch of `steps` steps, whole optimizer steps."""
        return math.ceil(steps / self.minibatch_size / self.accumulate_minibatches) * self.accumulate_minibatches

    def _learn_by_priority(self, steps: dict[str, Any], noise: Tensor, beta: float) -> tuple[list[float], int]:
        """Learn from minibatches of segments, drawn by their advantages; return as `_learn_from`.

        Args:
            steps: of the batch.
            noise: exponential, for the draws, [minibatches, S].
            beta: exponent of the importance weights.
        """
        if self.kernels is Kernels.CPP:
            return self._learn_in_cpp(steps, noise, beta)
        drawn = self.minibatch_size // steps["rewards"].shape[1]

        def draws() -> Iterator[Minibatch]:
            for one in noise:
                steps["advantages"] = self._advantages(steps)
                yield steps, *self._draw(steps["advantages"], drawn, one, beta)

        return self._learn_from(draws(), len(noise), self._pass(steps["rewards"].numel()))

    def _learn_from_shuffled(self, steps: dict[str, Any], number: int) -> tuple[list[float], int]:
        """Learn from `number` minibatches of shuffled steps, or from fewer passes; return as `_learn_from`."""
        minibatches = self._shuffled(steps, number)
        if self.kernels is not Kernels.CPP:
            return self._learn_from(minibatches, number, self._pass(steps["rewards"].numel()))
        shuffled, rows, _ = zip(*minibatches, strict=True)
        return self._learn_in_cpp(shuffled[0], torch.stack(rows))

    def _learn_in_cpp(self, steps: dict[str, Any], draws: Tensor, beta: float = 0.0) -> tuple[list[float], int]:
        """Learn from minibatches as `ppo_mlp.learn` draws them; return as `_learn_from`."""
        losses = self.clip_coef, self.vf_coef, self.vf_clip, self.ent_coef
        target_kl = math.inf if self.target_kl is None else self.target_kl
        numbers = *self.advantage_args, *losses, self.max_grad_norm, self.prio_alpha, beta, target_kl
        settings = dict(zip(ppo_mlp.SETTINGS, numbers, strict=True))
        sizes = len(draws), self._pass(steps["rewards"].numel()), self.minibatch_size // steps["rewards"].shape[1]
        settings |= dict(zip(ppo_mlp.COUNTS, (*sizes, self.accumulate_minibatches), strict=True))
        steps["obs"] = self.policy.normalized(steps["obs"])
        return ppo_mlp.learn(self.policy, self.optimizers[0], steps, settings, draws)

    def _shuffled(self, steps: dict[str, Any], number: int) -> Iterator[Minibatch]:
        """Yield minibatches of single steps, or with an LSTM of segments: each once before any comes again."""
        steps = steps | {"advantages": self._advantages(steps)}
        if self.policy.lstm is None:
            steps = {name: x if x is None else x.flatten(0, 1)[:, None] for name, x in steps.items()}
        rows, horizon = steps["rewards"].shape
        drawn, left = self.minibatch_size // horizon, steps["rewards"].new_empty(0, dtype=torch.int64)
        for _ in range(number):
            while len(left) < drawn:
                left = torch.cat([left, torch.randperm(rows, generator=self.generator, device=left.device)])
            yield steps, left[:drawn], steps["rewards"].new_ones(drawn)
            left = left[drawn:]

    def _learn_from(self, minibatches: Iterator[Minibatch], number: int, in_pass: int) -> tuple[list[float], int]:
        """Learn from `number` minibatches, or from fewer passes; return means of METRICS and the optimizer's steps."""
        sums: list[Tensor] = []
        group, made = self.accumulate_minibatches, 0
        for k, minibatch in enumerate(minibatches, 1):
            sums.append(self._accumulate(*minibatch, min(group, number - (k - 1) // group * group)))
            if k % group == 0 or k == number:  # a snapshot holds no gradients
                self._step()
                made += 1
            if self.target_kl is not None and k % in_pass == 0 and approx_kl(sums[-in_pass:]) > self.target_kl:
                break
        means: list[float] = torch.stack(sums).mean(0).tolist()
        return means, made

    def _accumulate(self, steps: Mapping[str, Any], rows: Tensor, weights: Tensor, group: int) -> Tensor:
        """Add the gradients of a minibatch, return metrics in the order of METRICS.

        Values and ratios are replaced by the new ones, unless advantages are computed only once.

        The loss is that of the class, averaged over steps that count. Its derivatives are written out, since a graph
        of so many small operations would take longer than the networks.

        Args:
            steps: of the batch.
            rows: segments of the minibatch.
            weights: of their importance.
            group: minibatches whose gradients are averaged.
        """
        part: dict[str, Any] = {name: None if x is None else take_rows(x, rows) for name, x in steps.items()}
        live, old_values, advantages = part["live"], part["values"], part["advantages"]
        dist, values, _ = self.policy(part["obs"], part["state"], part["first"])
        log_probs, entropy = dist.log_prob(part["actions"]), dist.entropy()  # [S, H]
        with torch.no_grad():
            log_ratio = log_probs - part["log_probs"]
            ratio = log_ratio.exp()
            if self.advantage == "minibatch":
                advantages = self._advantages(part | {"ratio": ratio * live})
            number = live.sum().clamp(min=1)
            centred = (advantages - advantages.sum() / number) * live  # advantages are 0 where live is
            spread = (centred.square().sum() / (number - 1).clamp(min=1)).sqrt() + 1e-8
            scaled = weights[:, None] * centred / spread
            policy_loss, by_log_probs = clipped_policy_loss(ratio, scaled, self.clip_coef)
            value_loss, by_values = clipped_value_loss(values, old_values, advantages + old_values, self.vf_clip)
            share = live / number
            shared = share / group
            clipped = ((ratio - 1).abs() > self.clip_coef).to(ratio.dtype)
            terms = torch.stack([policy_loss, value_loss, entropy, -log_ratio, clipped, ratio])
            metrics = terms.flatten(1) @ share.flatten()
            if self.advantage != "once":
                steps["values"][rows], steps["ratio"][rows] = values * part["followed"], ratio * live
        torch.autograd.backward(
            (log_probs, values, entropy),
            (by_log_probs * shared, by_values * (self.vf_coef * shared), -self.ent_coef * shared),
        )
        return metrics

    def _advantages(self, steps: Mapping[str, Any]) -> Tensor:
        """Return advantages [S, H]: 0 at a segment's last step and where an episode has ended."""
        values, rewards, dones, ratio = (steps[name] for name in ("values", "rewards", "dones", "ratio"))
        return puff_advantage(values, rewards, dones, ratio, *self.advantage_args)

    def _draw(self, advantages: Tensor, number: int, noise: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Return segments drawn without replacement by their advantages, and their importance weights [number]."""
        priority = torch.nan_to_num(advantages.abs().sum(1) ** self.prio_alpha, 0.0, 0.0, 0.0)
        p = (priority + 1e-6) / (priority.sum() + 1e-6)
        rows = (p / noise).topk(number).indices  # as in torch.multinomial
        return rows, (len(p) * p[rows]) ** -beta

    def _step(self) -> None:
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _anneal(self, progress: float) -> float:
        """Set this update's learning rates and return `lr`'s."""
        factor = 0.5 * (1 + math.cos(math.pi * progress)) if self.anneal_lr else 1.0
        for optimizer in self.optimizers:
            own = self.adam_lr if isinstance(optimizer, torch.optim.Adam) else None
            for group in optimizer.param_groups:
                group["lr"] = factor * (self.lr if own is None else own)
        return factor * self.lr


def approx_kl(sums: list[Tensor]) -> float:
    """Return the mean of r - 1 - log r over minibatches, from their metrics in the order of METRICS."""
    means = dict(zip(METRICS, torch.stack(sums).mean(0).tolist(), strict=True))
    return float(means["importance"] - 1 + means["old_approx_kl"])
