"""SPQ, self-predictive Q-learning: soft actor-critic on latents that learn to predict themselves.

An encoder f and a model m learn from segments of H transitions alone, not from the critic: unrolled from a segment's
first observation, the model must predict the rewards and the latents that a target encoder f' gives to the later
observations. Actor and critic take latents as if they were states. With two random shifts, one for the first
observation and one for all later ones,

    z = f(o_t),  u_0 = z,  (u_i, l_i) = m(u_{i-1}, a_{t+i-1}),  y_i = f'(o_{t+i}),  i = 1 ... H
    L_m = sum_i mean (u_i - y_i)^2 + 0.1 CE(two_hot(symlog r_{t+i-1}), l_i) + infonce CE(cos(u_i, y_.) / 0.1, own y_i)
    a' ~ pi(y_H),  G_H = min_j Q'_j(y_H, a') - alpha log pi(a' | y_H),  G_i = r_{t+i} + gamma G_{i+1},  y_0 = z
    L_Q = mean_{i<H} sum_j (Q_j(y_i, a_{t+i}) - G_i)^2
    L_pi = mean_{i<H} (alpha log pi(a | y_i) - min_j Q_j(y_i, a)),  a ~ pi(y_i)
    L_alpha = mean_{i<H} alpha (-log pi(a | y_i) - target_entropy dim(a))

where pi(z) is the tanh of normal numbers, and the weights of f', Q' follow those of f, Q by `target_tau`. L_m is the
objective of MR.Q (Fujimoto et al., arXiv 2501.16142, section 4) with a contrastive term. L_Q, L_pi and L_alpha are
those of soft actor-critic (Haarnoja et al., arXiv 1812.05905, section 5), with a low temperature, so that values count
early; the policy's entropy keeps it from staying at the bounds of its actions, where one without may find no rewards.
What else is needed to learn from the first frames on: the first layer weighs differences of frames, latents are centred
by their batch's mean before they are normalised, and the model's last layer starts at zero. The normal numbers of an
action are held for several steps. As long as all rewards and discounts in batches are the same, actions are bang-bang,
each number -1 or 1 at random: they reach rare rewards more often than a policy that has nothing to learn from, whose
temperature would become tiny. So it stays as it begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2 import utils
from drqv2.agents.fast_paths import is_hooked
from drqv2.agents.protocol import Agent, ValueNetworks
from drqv2.config.keys import fixed, free, key
from drqv2.config.kinds import FRACTION, POSITIVE, Bool, Choice, Device, Float, Int, Shape
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.categorical import expected, symexp, symlog, two_hot
from drqv2.nn.convolutions import check_name
from drqv2.nn.cuda_graph import GraphedPolicy, GraphedUpdate, graphed_policy, graphed_update
from drqv2.nn.deterministic import of_parts
from drqv2.nn.latents import LatentEncoder, LatentModel
from drqv2.nn.networks import Critic, check_shapes
from drqv2.nn.noise import HeldNoise
from drqv2.nn.observations import Shapes, has_images, to_device
from drqv2.nn.optimizers import Adam, AdamW, minimise
from drqv2.nn.returns import segment_returns
from drqv2.nn.squashed import SquashedActor, SquashedMean, Temperature
from drqv2.parts import batched, each, names

Metrics = dict[str, Tensor]


class SPQAgent(Agent):
    """Self-predictive Q-learning from images, vectors or dicts of them, see the head of this file.

    Args:
        obs_shape, action_shape, precision, compile, seed: as those of `DrQV2Agent`; bf16 for the encoder's products
            alone, compile on CUDA alone.
        num_envs, frame_stack: environments that act at once; images in an observation.
        others: keys of the configuration, described below.

    Raises:
        UserError: the shapes are others, there are no such convolutions, or the images are too small.
    """

    device: torch.device
    segment: int
    learning_rates: ClassVar = {
        "lr": ("actor_opt", "critic_opt"),
        "model_lr": ("model_opt",),
        "temperature_lr": ("temperature_opt",),
    }

    def __init__(
        self,
        obs_shape: Annotated[Shapes, key(Shape(), "Shape of an observation.", null="the environment's")],
        action_shape: Annotated[Sequence[int], key(Shape(), "Shape of an action.", null="the environment's")],
        device: Annotated[torch.device | str, free(Device(), "As device.", follows="device")],
        lr: Annotated[float, key(POSITIVE, "Learning rate of Adam, for actor and critic.", follows="lr")] = 3e-4,
        model_lr: Annotated[float, key(POSITIVE, "Learning rate of AdamW, for encoder and model.")] = 1e-3,
        temperature_lr: Annotated[float, key(POSITIVE, "Learning rate of Adam, for the temperature.")] = 1e-3,
        init_temperature: Annotated[float, fixed(POSITIVE, "Weight of the entropy at the start.")] = 0.01,
        target_entropy: Annotated[
            float, key(Float(), "Entropy of the policy to keep, for each number of an action.", "nats")
        ] = -3.0,
        hidden_dim: Annotated[int, key(Int(1), "Width of latents and hidden layers.", "units")] = 512,
        feature_dim: Annotated[int, key(Int(1), "Width of the trunks.", "units", follows="feature_dim")] = 50,
        embed_dim: Annotated[int, key(Int(1), "Width of an action's embedding.", "units")] = 256,
        pad: Annotated[int, fixed(Int(0, 24), "Greatest random shift of images.", "pixels")] = 4,
        convolutions: Annotated[
            str,
            fixed(Choice("patch", "strided"), "Those of the encoder, with 4 or 10 million multiplications an image."),
        ] = "strided",
        horizon: Annotated[
            int,
            fixed(Int(1), "Transitions of a segment and of the longest return.", "agent steps", follows="nstep"),
        ] = 3,
        target_tau: Annotated[float, key(FRACTION, "Fraction of networks mixed into targets.")] = 0.01,
        infonce: Annotated[float, key(Float(0), "Weight of the contrastive loss.")] = 0.1,
        num_expl_steps: Annotated[int, key(Int(0), "Uniformly random actions at the start.", "agent steps")] = 1000,
        model_warmup: Annotated[int, key(Int(0), "Updates of encoder and model before others.", "updates")] = 250,
        update_every_steps: Annotated[int, key(Int(1), "Interval between updates.", "agent steps")] = 1,
        hold: Annotated[int, fixed(Int(1), "Longest time for which noise is held.", "agent steps")] = 16,
        search: Annotated[bool, key(Bool(), "Bang-bang after uniform actions until rewards differ.")] = True,
        use_tb: Annotated[bool, free(Bool(), "Whether update returns metrics.", follows="use_tb")] = True,
        precision: str = "fp32",
        compile: bool = False,
        seed: int | None = None,
        num_envs: int = 1,
        frame_stack: int = 3,
    ) -> None:
        check_shapes("SPQ", obs_shape, action_shape)
        check_name(convolutions, "agent.convolutions")
        self.device = torch.device(device)
        self.segment = horizon  # transitions of each segment in the replay's batches
        self.target_tau, self.infonce, self.model_warmup = target_tau, infonce, model_warmup
        self.num_expl_steps, self.update_every_steps = num_expl_steps, update_every_steps
        self.use_tb, self.precision, self.compile = use_tb, precision, compile
        self.target_entropy = target_entropy * action_shape[0]
        self.obs_parts, self.images, self.frame_stack = names(obs_shape), has_images(obs_shape), frame_stack
        self.bins = torch.linspace(-10, 10, 65, device=self.device)

        self.encoder = LatentEncoder(obs_shape, hidden_dim, convolutions, frame_stack).to(self.device)
        self.model = LatentModel(hidden_dim, action_shape[0], embed_dim, len(self.bins)).to(self.device)
        sizes = (hidden_dim, action_shape, feature_dim, hidden_dim)
        self.actor = SquashedActor(*sizes).to(self.device)
        self.critic = Critic(*sizes, layer_norm=True).to(self.device)
        self.encoder_target, self.critic_target = deepcopy(self.encoder), deepcopy(self.critic)
        self.temperature = Temperature(init_temperature).to(self.device)

        modelled = [*self.encoder.parameters(), *self.model.parameters()]
        options: dict[str, Any] = {"fused": True, "capturable": self.device.type == "cuda"}
        self.model_opt = AdamW(modelled, lr=model_lr, **options)
        self.actor_opt = Adam(self.actor.parameters(), lr=lr, **options)
        self.critic_opt = Adam(self.critic.parameters(), lr=lr, **options)
        self.temperature_opt = Adam(self.temperature.parameters(), lr=temperature_lr, **options)
        self.aug = RandomShiftsAug(pad)
        self.noise = HeldNoise((num_envs, action_shape[0]), hold, self.device)
        self.act_generator, self.update_generator, self.aug.generator = utils.agent_generators(seed, self.device)
        self.warmed_up = False
        self.search = search
        self.alike: bool | None = None  # whether all transitions in batches so far have one reward and discount
        self.usual = torch.zeros(2, device=self.device)  # these two
        self._graphed: GraphedUpdate | None = None
        self._graphed_policy: GraphedPolicy | None = None
        self.train()

    def train(self, training: bool = True) -> None:
        """Put the networks into training mode, or evaluation mode when `training` is False."""
        self.training = training
        for module in (self.encoder, self.model, self.actor, self.critic):
            module.train(training)

    def act(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action; arguments and result are those of `DrQV2Agent.act`."""
        return np.asarray(self.act_batch(batched(obs), step, eval_mode)[0])

    @torch.no_grad()
    def act_batch(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action for each of a batch of observations, [B, ...]; see `act`. Returns float32 [B, A]."""
        random = None if eval_mode else self.random_actions(step)
        if random is not None:
            return random.cpu().numpy()
        noise = torch.zeros(()) if eval_mode else self.noise.next(False, self.act_generator)
        if self._graphs:
            self._graphed_policy = self._graphed_policy or graphed_policy(self, self._numbers)
            numbers = self._graphed_policy(each(torch.from_numpy, obs))
        else:
            numbers = self._numbers(to_device(obs, self.device))
        return self.actor.distribution(numbers).at(noise).cpu().numpy()

    def random_actions(self, step: int) -> Tensor | None:
        """Return uniform actions at the start, bang-bang ones during the search, float32 [B, A]; None after them.

        Bang-bang actions (Seyde et al., arXiv 2111.02552) are at their bounds.
        """
        if step < self.num_expl_steps:
            return self.noise.next(True, self.act_generator)
        return self.noise.next(True, self.act_generator).sign() if self.searching else None

    def _numbers(self, obs: Any) -> Tensor:
        return self.actor.numbers(self.encoder(obs))

    def deterministic_policy(self) -> nn.Module:
        """Return a module from observations to the actions without noise, which shares the agent's weights."""
        return of_parts(SquashedMean(self.encoder, self.actor), self.obs_parts)

    def networks_of(self, task: int) -> ValueNetworks:
        """Return the networks that diagnostics call."""
        return ValueNetworks(self.encoder, self.actor, self.critic, (self.actor, self.critic))

    def update(self, replay_iter: Iterator[Any], step: int) -> Metrics:
        """Learn from one batch, every `update_every_steps` agent steps, and return metrics; see `DrQV2Agent.update`.

        `replay_iter` yields segments: obs uint8 [B, C + H * channels, h, w], float32 [B, H + 1, N] or a dict of these,
        action float32 [B, H, A], reward, discount with gamma in it and mask, float32 [B, H].
        """
        if step % self.update_every_steps != 0:
            return {}
        if not self.warmed_up:
            for _ in range(self.model_warmup):
                self.update_model(*self._next(replay_iter))
            self.warmed_up = True
        batch = self._next(replay_iter)
        if self.searching or not self._graphs:  # a graph is of what follows the search
            return self._learn(batch)
        self._graphed = self._graphed or graphed_update(
            self, lambda batch, _: self._learn(batch), batch, (self.update_generator, self.aug.generator)
        )
        return self._graphed(batch)

    @property
    def searching(self) -> bool:
        """Whether it acts without a reward to learn from, see `random_actions`."""
        return self.search and self.alike is True

    def _next(self, replay_iter: Iterator[Any]) -> tuple[Any, ...]:
        """Return the next batch, and note whether a reward or a discount in it is the first that differs."""
        batch = utils.to_torch(next(replay_iter), self.device)
        if self.search and self.alike is not False:
            _, _, reward, discount, mask = batch
            seen = torch.stack((reward, discount), -1)[mask > 0]  # [transitions, 2]
            if self.alike is None:
                self.usual.copy_(seen[0])
            self.alike = bool((seen == self.usual).all())
        return batch

    @property
    def _graphs(self) -> bool:
        hooked = any(is_hooked(value) for value in vars(self).values() if isinstance(value, nn.Module))
        return self.compile and self.device.type == "cuda" and type(self) is SPQAgent and not hooked

    def _learn(self, batch: Sequence[Any]) -> Metrics:
        _, action, reward, discount, mask = batch
        metrics, latents, last = self.update_model(*batch)
        returns = segment_returns(reward, discount, mask, self.value(last))
        metrics |= self.update_critic(latents, action, returns, mask)
        metrics |= self.update_actor(latents, mask)
        utils.soft_update_params(self.critic, self.critic_target, self.target_tau)
        return {name: value.detach().mean() for name, value in metrics.items()} if self.use_tb else {}

    def update_model(
        self, obs: Any, action: Tensor, reward: Tensor, discount: Tensor, mask: Tensor
    ) -> tuple[Metrics, Tensor, Tensor]:
        """Fit encoder and model to a batch, as `update` draws it: minimise L_m.

        It returns metrics and, without gradient, the latents of the observations before each transition, [H, B, D],
        and of the last ones within their episodes, [B, D]. They are target latents, except those of the first.
        """
        first, *later = self._observations(obs)
        targets, seen = self._targets(later)
        with self._autocast():
            latent, seen_first = self.encoder.both(first)

        unrolled, last = [], latent
        for i in range(self.segment):
            unrolled.append(self.model(last, action[:, i]))
            last = unrolled[-1][0]
        predicted, logits = (torch.stack(parts) for parts in zip(*unrolled, strict=True))  # [H, B, D], [H, B, bins]
        share, own = mask.T / len(mask), torch.arange(len(mask), device=self.device)
        dynamics = ((predicted - targets).square().mean(2) * share).sum()
        wanted = two_hot(symlog(reward.T)[..., None], self.bins)
        rewards = -((wanted * logits.log_softmax(2)).sum(2) * share).sum()
        cosines = F.normalize(predicted, dim=2, eps=0.1) @ F.normalize(targets, dim=2, eps=0.1).mT  # [H, B, B]
        contrast = -((cosines / 0.1).log_softmax(2)[:, own, own] * share).sum()
        loss = dynamics + 0.1 * rewards + self.infonce * contrast
        minimise(self.model_opt, loss)
        utils.soft_update_params(self.encoder, self.encoder_target, self.target_tau)

        metrics = {
            **{"dynamics_loss": dynamics, "reward_loss": rewards, "infonce_loss": contrast},
            "infonce_hits": (cosines[-1].argmax(1) == own).float(),
            "reward_error": (symexp(expected(logits[-1], self.bins)) - reward[:, -1:]).abs(),
            "latent_std": latent.std(0),
        }
        latents = torch.cat([seen_first[None], seen[:-1]])
        return metrics, latents, seen[(mask.sum(1).long() - 1).clamp(min=0), own]

    @torch.no_grad()
    def value(self, latent: Tensor) -> Tensor:
        """Return G_H, [B, 1], at target latents [B, D]."""
        action, log_prob = self.actor(latent).sample(self.update_generator)
        return torch.min(*self.critic_target(latent, action)) - self.temperature() * log_prob

    def update_critic(self, latents: Tensor, action: Tensor, returns: Tensor, mask: Tensor) -> Metrics:
        """Fit both Q functions: minimise L_Q; arguments are those of `critic_loss`."""
        metrics = self.critic_loss(latents, action, returns, mask)
        minimise(self.critic_opt, metrics["critic_loss"])
        return metrics

    def critic_loss(self, latents: Tensor, action: Tensor, returns: Tensor, mask: Tensor) -> Metrics:
        """Return L_Q, "critic_loss", and metrics whose means are those over the transitions, [H * B, 1].

        Arguments are y_i, [H, B, D], and a_{t+i}, [B, H, A], G_i and the mask of a batch, [B, H].
        """
        q1, q2 = self.critic(latents.flatten(0, 1), action.transpose(0, 1).flatten(0, 1))
        target, weight = returns.T.reshape(-1, 1), weights(mask)
        loss = (weight * ((q1 - target).square() + (q2 - target).square())).mean()
        values = {"critic_target_q": target, "critic_q1": q1, "critic_q2": q2}
        return {"critic_loss": loss} | {name: weight * value for name, value in values.items()}

    def update_actor(self, latents: Tensor, mask: Tensor) -> Metrics:
        """Move policy and temperature: minimise L_pi and L_alpha, for latents and the mask as in `critic_loss`."""
        latent, weight, alpha = latents.flatten(0, 1), weights(mask), self.temperature()
        action, log_prob = self.actor(latent).sample(self.update_generator)
        loss = (weight * (alpha.detach() * log_prob - torch.min(*self.critic(latent, action)))).mean()
        minimise(self.actor_opt, loss)
        entropy = -weight * log_prob.detach()
        if not self.searching:
            minimise(self.temperature_opt, (alpha * (entropy - self.target_entropy)).mean())
        saturated = weight * (action.abs() > 0.95)
        return {"actor_loss": loss, "actor_ent": entropy, "actor_saturated": saturated, "temperature": alpha}

    def _observations(self, obs: Any) -> Sequence[Any]:
        """Return a segment's H + 1 observations, [B, ...]: the first with a random shift, the others with another."""
        first, *later = (each(partial(self._after, i), obs) for i in range(self.segment + 1))
        if not self.images:
            return [first, *later]
        shifts = self.aug.draw(first), self.aug.draw(first)
        return [self.aug(first, shifts[0]), *(self.aug(seen, shifts[1]) for seen in later)]

    def _after(self, steps: int, part: Tensor) -> Tensor:
        """Return what a segment has of an image or a vector so many steps after its first observation."""
        if part.ndim < 4:
            return part[:, steps]
        channels = part.shape[1] // (self.frame_stack + self.segment)  # of a frame
        return part[:, steps * channels : (steps + self.frame_stack) * channels]

    @torch.no_grad()
    def _targets(self, later: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return the target encoder's latents of the observations 1 ... H steps after the first, [H, B, D] each.

        See `LatentEncoder.both`: the first are for the model, the second for actor and critic.
        """
        with self._autocast():
            centred, seen = zip(*(self.encoder_target.both(obs) for obs in later), strict=True)
        return torch.stack(centred), torch.stack(seen)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")


def weights(mask: Tensor) -> Tensor:
    """Return the weights of transitions in means, [H * B, 1], for the mask of a batch, [B, H]: 0 after an end."""
    return (mask.T / mask.mean()).reshape(-1, 1)
