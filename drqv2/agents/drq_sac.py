"""DrQ: soft actor-critic on features of randomly shifted images; on state vectors, SAC behind DrQ-v2's trunks.

A policy that keeps its entropy, of which the temperature alpha learns how much. With features z = f(o) of shifted
observations, which learn from the critic's loss alone, the n-step return R of the replay and its factor gamma^n,

    u ~ Normal(mean(z), std(z)),  a = tanh(u),  log pi(a | z) = sum log Normal(u) - log(1 - a^2)
    y = R + gamma^n (min_j Q'_j(z', a') - alpha log pi(a' | z')),  a' ~ pi(z')
    L_Q = sum_j mean (Q_j(z, a) - y)^2
    L_pi = mean (alpha log pi(a | z) - min_j Q_j(z, a)),  a ~ pi(z)
    L_alpha = mean alpha (-log pi(a | z) - H),  H = -dim(a)

and the weights of Q' follow those of Q. Objectives: Haarnoja et al., arXiv 1812.05905, section 5; shifts and bounds of
the standard deviation: Kostrikov et al., DrQ, arXiv 2004.13649, which sums one reward (nstep=1) where DrQ-v2 sums
three. The return leaves out the entropy of the steps between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2 import utils
from drqv2.agents.fast_paths import is_hooked
from drqv2.agents.protocol import Agent, ValueNetworks
from drqv2.config.keys import fixed, free, key
from drqv2.config.kinds import FRACTION, POSITIVE, Bool, Choice, Device, Int, Shape
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.cuda_graph import GraphedPolicy, GraphedUpdate, graphed_policy, graphed_update
from drqv2.nn.deterministic import of_parts
from drqv2.nn.networks import TRUNK_GAINS, Critic, check_shapes, make_encoder
from drqv2.nn.observations import Shapes, has_images, to_device
from drqv2.nn.optimizers import Adam, minimise
from drqv2.nn.squashed import SquashedActor, SquashedMean, Temperature
from drqv2.parts import batched, each, names

Metrics = dict[str, Tensor]


class DrQSACAgent(Agent):
    """Soft actor-critic from images, vectors or dicts of both, see the head of this file.

    Args:
        obs_shape, action_shape, precision, compile, seed: as those of `DrQV2Agent`; bf16 for the encoder's products
            alone, compile on CUDA alone.
        others: keys of the configuration, described below.

    Raises:
        UserError: the shapes are others, or there are no such convolutions.
    """

    device: torch.device
    learning_rates: ClassVar = {
        "lr": ("encoder_opt", "actor_opt", "critic_opt"),
        "temperature_lr": ("temperature_opt",),
    }

    def __init__(
        self,
        obs_shape: Annotated[Shapes, key(Shape(), "Shape of an observation.", null="the environment's")],
        action_shape: Annotated[Sequence[int], key(Shape(), "Shape of an action.", null="the environment's")],
        device: Annotated[torch.device | str, free(Device(), "As device.", follows="device")],
        lr: Annotated[float, key(POSITIVE, "Learning rate of Adam, for all networks.", follows="lr")] = 3e-4,
        temperature_lr: Annotated[float, key(POSITIVE, "Learning rate of Adam, for the temperature.")] = 3e-4,
        init_temperature: Annotated[float, fixed(POSITIVE, "Weight of the entropy at the start.")] = 0.1,
        feature_dim: Annotated[int, key(Int(1), "Width of the trunks.", "units", follows="feature_dim")] = 50,
        hidden_dim: Annotated[int, key(Int(1), "Width of hidden layers.", "units")] = 1024,
        critic_target_tau: Annotated[float, key(FRACTION, "Fraction of the critic mixed into its target.")] = 0.005,
        num_expl_steps: Annotated[int, key(Int(0), "Uniformly random actions at the start.", "agent steps")] = 1000,
        update_every_steps: Annotated[int, key(Int(1), "Interval between updates.", "agent steps")] = 1,
        use_tb: Annotated[bool, free(Bool(), "Whether update returns metrics.", follows="use_tb")] = True,
        convolutions: Annotated[
            str,
            fixed(
                Choice("drqv2", "strided"),
                "Those of the encoder: DrQ-v2's, or fewer, with an eighth of the multiplications.",
            ),
        ] = "drqv2",
        critic_layer_norm: Annotated[bool, fixed(Bool(), "Normalise the critic's hidden layers.")] = False,
        precision: str = "fp32",
        compile: bool = False,
        seed: int | None = None,
    ) -> None:
        check_shapes("DrQ", obs_shape, action_shape)
        self.device = torch.device(device)
        self.critic_target_tau, self.update_every_steps = critic_target_tau, update_every_steps
        self.num_expl_steps, self.use_tb = num_expl_steps, use_tb
        self.precision, self.compile = precision, compile
        self.obs_parts, self.images = names(obs_shape), has_images(obs_shape)
        self.target_entropy = -float(action_shape[0])

        self.encoder = make_encoder(obs_shape, convolutions, "agent.convolutions").to(self.device)
        gain = TRUNK_GAINS[convolutions] if self.images else 1.0
        sizes = (int(self.encoder.repr_dim), action_shape, feature_dim, hidden_dim, gain)
        self.actor = SquashedActor(*sizes).to(self.device)
        self.critic = Critic(*sizes, critic_layer_norm).to(self.device)
        self.critic_target = Critic(*sizes, critic_layer_norm).to(self.device)
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.temperature = Temperature(init_temperature).to(self.device)

        options: dict[str, Any] = {"fused": True, "capturable": self.device.type == "cuda"}
        self.encoder_opt = Adam(self.encoder.parameters(), lr=lr, **options)
        self.actor_opt = Adam(self.actor.parameters(), lr=lr, **options)
        self.critic_opt = Adam(self.critic.parameters(), lr=lr, **options)
        self.temperature_opt = Adam(self.temperature.parameters(), lr=temperature_lr, **options)
        self.aug = RandomShiftsAug(pad=4)
        self.act_generator, self.update_generator, self.aug.generator = utils.agent_generators(seed, self.device)
        self._graphed: GraphedUpdate | None = None
        self._graphed_policy: GraphedPolicy | None = None
        self.train()

    def train(self, training: bool = True) -> None:
        """Put the networks into training mode, or evaluation mode when `training` is False."""
        self.training = training
        for module in (self.encoder, self.actor, self.critic):
            module.train(training)

    def act(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action; arguments and result are those of `DrQV2Agent.act`."""
        return np.asarray(self.act_batch(batched(obs), step, eval_mode)[0])

    @torch.no_grad()
    def act_batch(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action for each of a batch of observations, [B, ...]; see `act`. Returns float32 [B, A]."""
        if eval_mode and self._graphs:
            self._graphed_policy = self._graphed_policy or graphed_policy(self)
            return self._graphed_policy(each(torch.from_numpy, obs)).cpu().numpy()
        dist = self.actor(self.encoder(to_device(obs, self.device)))
        if eval_mode:
            action = dist.mean
        elif step < self.num_expl_steps:
            action = torch.empty_like(dist.loc).uniform_(-1.0, 1.0, generator=self.act_generator)
        else:
            action, _ = dist.sample(self.act_generator)
        return action.cpu().numpy()

    def deterministic_policy(self) -> nn.Module:
        """Return a module from observations to the mean actions, which shares the agent's weights: for export."""
        return of_parts(SquashedMean(self.encoder, self.actor), self.obs_parts)

    def networks_of(self, task: int) -> ValueNetworks:
        """Return the networks that diagnostics call."""
        return ValueNetworks(self.encoder, self.actor, self.critic, (self.actor, self.critic))

    def update(self, replay_iter: Iterator[Any], step: int) -> Metrics:
        """Learn from one batch, every `update_every_steps` agent steps; arguments are those of `DrQV2Agent.update`.

        Returns:
            Scalars by name, on the device; empty when there was no update or `use_tb` is False.
        """
        if step % self.update_every_steps != 0:
            return {}
        batch = utils.to_torch(next(replay_iter), self.device)
        if not self._graphs:
            return self._learn(batch)
        self._graphed = self._graphed or graphed_update(
            self, lambda batch, _: self._learn(batch), batch, (self.update_generator, self.aug.generator)
        )
        return self._graphed(batch)

    def _learn(self, batch: Sequence[Any]) -> Metrics:
        obs, action, reward, discount, next_obs = batch
        if self.images:
            obs, next_obs = self.aug(obs), self.aug(next_obs)
        with self._autocast():
            features = self.encoder(obs)
        with torch.no_grad(), self._autocast():
            next_features = self.encoder(next_obs)
        features, next_features = features.to(reward.dtype), next_features.to(reward.dtype)
        metrics = {"batch_reward": reward}
        metrics |= self.update_critic(features, action, reward, discount, next_features)
        metrics |= self.update_actor(features.detach())
        utils.soft_update_params(self.critic, self.critic_target, self.critic_target_tau)
        return {name: value.detach().mean() for name, value in metrics.items()} if self.use_tb else {}

    def update_critic(self, obs: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_obs: Tensor) -> Metrics:
        """Fit both Q functions, and the encoder through them: minimise L_Q.

        Shapes are [B, repr_dim], [B, A], [B, 1], [B, 1] and [B, repr_dim]; `obs` has a graph to the encoder.
        """
        with torch.no_grad():
            next_action, log_prob = self.actor(next_obs).sample(self.update_generator)
            value = torch.min(*self.critic_target(next_obs, next_action)) - self.temperature() * log_prob
            target = reward + discount * value
        q1, q2 = self.critic(obs, action)
        loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
        self.encoder_opt.zero_grad(set_to_none=True)
        self.critic_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.critic_opt.step()
        self.encoder_opt.step()
        return {"critic_target_q": target, "critic_q1": q1, "critic_q2": q2, "critic_loss": loss}

    def update_actor(self, obs: Tensor) -> Metrics:
        """Move policy and temperature: minimise L_pi and L_alpha, for features [B, repr_dim] without gradient."""
        action, log_prob = self.actor(obs).sample(self.update_generator)
        alpha = self.temperature()
        loss = (alpha.detach() * log_prob - torch.min(*self.critic(obs, action))).mean()
        minimise(self.actor_opt, loss)
        entropy = -log_prob.detach()
        minimise(self.temperature_opt, (alpha * (entropy - self.target_entropy)).mean())
        return {"actor_loss": loss, "actor_ent": entropy, "temperature": alpha}

    @property
    def _graphs(self) -> bool:
        hooked = any(is_hooked(value) for value in vars(self).values() if isinstance(value, nn.Module))
        return self.compile and self.device.type == "cuda" and type(self) is DrQSACAgent and not hooked

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")
