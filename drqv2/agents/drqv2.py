"""DrQ-v2 (Yarats et al., "Mastering Visual Continuous Control", arXiv 2107.09645).

Deterministic policy gradients with clipped double Q-learning, n-step returns and exploration noise that shrinks on
a schedule, on features of a convolutional encoder that learns from the critic's loss alone. What makes it learn
from pixels is the random shift of every image drawn from replay. It can also learn from state vectors, with a small MLP
as encoder and without augmentation, and from dicts of images and vectors.

The code below follows the paper's order. What makes it fast does not change that order: bf16 products under autocast
(`precision`), features left in the convolutions' memory order, the whole update as one CUDA graph (`compile`, see
`drqv2.nn.cuda_graph`). In fp32 without compile it is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from drqv2 import utils
from drqv2.agents import fast_paths
from drqv2.agents.protocol import Agent, ValueNetworks
from drqv2.config.keys import fixed, free, key
from drqv2.config.kinds import FRACTION, POSITIVE, Bool, Choice, Device, Int, Schedule, Shape
from drqv2.nn import pixels
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.cuda_graph import GraphedPolicy, GraphedUpdate, graphed_policy, graphed_update
from drqv2.nn.deterministic import MeanAction, of_parts
from drqv2.nn.networks import (
    TRUNK_GAINS,
    Actor,
    Critic,
    Encoder,
    StateEncoder,
    check_shapes,
    make_encoder,
)
from drqv2.nn.observations import Observation, PartsEncoder, Shapes, has_images, to_device
from drqv2.nn.optimizers import Adam
from drqv2.parts import batched, each, names

Metrics = dict[str, Tensor]


class DrQV2Agent(Agent):
    """The DrQ-v2 agent.

    Args:
        obs_shape: (C, H, W) of a uint8 observation, frames stacked along C; (N,) of a state, float32; or a dict of
            these by the names of an observation's parts.
        action_shape: (A,); actions lie in [-1, 1].
        precision: fp32; or bf16, in which updates multiply in bf16 and keep parameters, normalisation, the last layers,
            losses and optimizers in fp32.
        compile: on CUDA, whether updates, and actions, are replayed as a graph each; elsewhere, whether torch compiles
            the networks.
        seed: seeds the agent's own generators (exploration, learning). Without it they are torch's global ones.
        others: keys of the configuration, described below.

    Raises:
        UserError: a part of the observation is neither an image nor a vector, or too small an image; the actions are
            not one vector; or there is no such encoder.
    """

    graphable: ClassVar[bool] = True  # of a class that says so: its own updates may be captured in a graph
    obs_parts: tuple[str, ...] = ()  # names of an observation's parts, if it is a dict

    def __init__(
        self,
        obs_shape: Annotated[Shapes, key(Shape(), "Shape of an observation.", null="the environment's")],
        action_shape: Annotated[Sequence[int], key(Shape(), "Shape of an action.", null="the environment's")],
        device: Annotated[torch.device | str, free(Device(), "As device.", follows="device")],
        lr: Annotated[float, key(POSITIVE, "Learning rate of Adam, for all networks.", follows="lr")] = 1e-4,
        feature_dim: Annotated[int, key(Int(1), "Width of the trunks.", "units", follows="feature_dim")] = 50,
        hidden_dim: Annotated[int, key(Int(1), "Width of hidden layers.", "units")] = 1024,
        critic_target_tau: Annotated[float, key(FRACTION, "Fraction of the critic mixed into its target.")] = 0.01,
        num_expl_steps: Annotated[int, key(Int(0), "Uniformly random actions at the start.", "agent steps")] = 2000,
        update_every_steps: Annotated[int, key(Int(1), "Interval between updates.", "agent steps")] = 2,
        stddev_schedule: Annotated[
            str | float, key(Schedule(), "Standard deviation of the exploration noise.", follows="stddev_schedule")
        ] = "linear(1.0,0.1,100000)",
        stddev_clip: Annotated[float, key(POSITIVE, "Bound on the noise in updates.", null="no bound")] = 0.3,
        use_tb: Annotated[bool, free(Bool(), "Whether update returns metrics.", follows="use_tb")] = True,
        precision: str = "fp32",
        compile: bool = False,
        seed: int | None = None,
        encoder: Annotated[
            str,
            fixed(
                Choice("drqv2", "strided"),
                "Convolutions: the paper's, or fewer, with an eighth of the multiplications.",
                legacy="drqv2",
            ),
        ] = "drqv2",
        critic_layer_norm: Annotated[
            bool,
            fixed(
                Bool(),
                "Normalise the critic's hidden layers (RLPD, arXiv 2302.02948); the paper does not.",
                legacy=False,
            ),
        ] = False,
    ) -> None:
        check_shapes("DrQ-v2", obs_shape, action_shape)
        self.device = device
        self.critic_target_tau = critic_target_tau
        self.update_every_steps = update_every_steps
        self.use_tb = use_tb
        self.num_expl_steps = num_expl_steps
        self.stddev_schedule = stddev_schedule
        self.stddev_clip = stddev_clip
        self.precision = precision
        self.compile = compile
        self.obs_parts = names(obs_shape)
        self.encoder: Encoder | StateEncoder | PartsEncoder
        self.aug: Any
        self.encoder = make_encoder(obs_shape, encoder).to(device)
        own_shifts = isinstance(obs_shape, Mapping) or len(obs_shape) == 3
        self.aug = RandomShiftsAug(pad=4) if own_shifts else torch.nn.Identity()
        trunk_gain = TRUNK_GAINS[encoder] if has_images(obs_shape) else 1.0
        sizes = (int(self.encoder.repr_dim), action_shape, feature_dim, hidden_dim, trunk_gain)
        self.actor, self.critic, self.critic_target = (
            module.to(device) for module in self._networks(sizes, critic_layer_norm)
        )
        self.critic_target.load_state_dict(self.critic.state_dict())
        self._make_optimizers(lr)
        self.act_generator, self.update_generator, self.aug.generator = utils.agent_generators(seed, device)
        if compile and self._as_published and torch.device(device).type != "cuda":
            for module in (self.encoder, self.actor, self.critic, self.critic_target):
                module.compile(dynamic=False)
        self._graphed: GraphedUpdate | None = None
        self._graphed_policy: GraphedPolicy | None = None
        self.graph_stddev: Tensor | None = None
        self.train()

    def _networks(
        self, sizes: tuple[int, Sequence[int], int, int, float], critic_layer_norm: bool
    ) -> tuple[Any, Any, Any]:
        """Return actor, critic and target critic of these sizes."""
        return Actor(*sizes), Critic(*sizes, critic_layer_norm), Critic(*sizes, critic_layer_norm)

    def _make_optimizers(self, lr: float) -> None:
        adam = partial(Adam, lr=lr, fused=True, capturable=torch.device(self.device).type == "cuda")
        self.encoder_opt = adam(self.encoder.parameters())
        self.actor_opt = adam(self.actor.parameters())
        self.critic_opt = adam(self.critic.parameters())

    def train(self, training: bool = True) -> None:
        """Put the networks into training mode, or evaluation mode when `training` is False."""
        self.training = training
        for module in (self.encoder, self.actor, self.critic):
            module.train(training)

    def act(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action.

        Args:
            obs: uint8 [C, H, W], float32 [N], or a dict of these.
            step: agent steps so far.
            eval_mode: True for the mean action, False for exploration.

        Returns:
            float32 [A] in [-1, 1].
        """
        action: np.ndarray = self.act_batch(batched(obs), step, eval_mode)[0]
        return action

    @torch.no_grad()
    def act_batch(self, obs: Any, step: int, eval_mode: bool) -> np.ndarray:
        """Choose an action for each of a batch of observations, [B, ...]; see `act`. Returns float32 [B, A]."""
        if self._graphs:
            self._graphed_policy = self._graphed_policy or graphed_policy(self)
            mean = self._graphed_policy(each(torch.from_numpy, obs))
            stddev = utils.schedule(self.stddev_schedule, step)
            dist = utils.TruncatedNormal(mean, torch.full_like(mean, stddev))
        else:
            dist = self.actor(self.encoder(to_device(obs, self.device)), self._stddev(step))
        if eval_mode:
            action = dist.mean
        elif step < self.num_expl_steps:
            action = torch.empty_like(dist.mean).uniform_(-1.0, 1.0, generator=self.act_generator)
        else:
            action = dist.sample(clip=None, generator=self.act_generator)
        return action.cpu().numpy()

    def deterministic_policy(self) -> torch.nn.Module:
        """Return a module from observations to the mean actions, which shares the agent's weights: for export."""
        return of_parts(MeanAction(self.encoder, self.actor), self.obs_parts)

    def networks_of(self, task: int) -> ValueNetworks | None:
        """Return the networks that diagnostics call; None if the critic does not learn."""
        return ValueNetworks(self.encoder, self.actor, self.critic, (self.actor, self.critic))

    def update(self, replay_iter: Iterator[Any], step: int) -> Metrics:
        """Learn from one batch, every `update_every_steps` agent steps; otherwise do nothing.

        Args:
            replay_iter: yields (obs uint8 [B, C, H, W] or float32 [B, N], action float32 [B, A], n-step reward
                float32 [B, 1], discount float32 [B, 1] with gamma^n in it, next_obs as obs); obs may be a dict.
            step: agent steps so far.

        Returns:
            Scalars by name, on the device; empty when there was no update or `use_tb` is False.
        """
        if step % self.update_every_steps != 0:
            return {}
        batch = utils.to_torch(next(replay_iter), self.device)
        if not self._update_in_graph:
            return self._learn(batch, step)
        generators = self.update_generator, self.aug.generator
        self._graphed = self._graphed or graphed_update(
            self, partial(self._learn_in_graph, step=step), batch, generators
        )
        return self._graphed(batch, utils.schedule(self.stddev_schedule, step))

    def _learn_in_graph(self, batch: Sequence[Any], stddev: Tensor, step: int) -> Metrics:
        self.graph_stddev = stddev
        metrics = self._learn(batch, step)
        self.graph_stddev = None
        return metrics

    def _learn(self, batch: Sequence[Any], step: int) -> Metrics:
        obs, action, reward, discount, next_obs = batch
        # Both before the convolutions: on a CPU one core shifts, another is free for the environment process.
        ready = self._pixels_ready
        if ready:
            obs, next_obs = (pixels.shifted_and_centred(x, self.aug.draw(x)) for x in (obs, next_obs))
        else:
            obs = self._shifted(obs)
            with torch.no_grad():
                next_obs = self._shifted(next_obs)
        with self._autocast():
            features = self._encode(obs, ready)
        with torch.no_grad(), self._autocast():
            next_features = self._encode(next_obs, ready)

        metrics: Metrics = {"batch_reward": reward.mean()} if self.use_tb else {}
        metrics.update(self.update_critic(features, action, reward, discount, next_features, step))
        metrics.update(self.update_policy(features.detach(), action, step))
        utils.soft_update_params(self.critic, self.critic_target, self.critic_target_tau)
        return metrics

    def update_policy(self, obs: Tensor, action: Tensor, step: int) -> Metrics:
        """Update the actor, see `update_actor`. Agents that imitate use `action` of the batch, [B, A]."""
        return self.update_actor(obs, step)

    def update_critic(
        self, obs: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_obs: Tensor, step: int
    ) -> Metrics:
        """Fit both Q functions, and the encoder through them, to the n-step target (paper, equation 1).

        Args:
            obs: features with a graph to the encoder, [B, repr_dim] or maps as `Encoder` gives them, float32 or in the
                precision of `update`.
            action: float32 [B, A].
            reward: n-step reward, float32 [B, 1].
            discount: factor on the bootstrap value, float32 [B, 1].
            next_obs: features n steps later, without gradient.
            step: agent steps so far.

        Returns:
            Metrics as in `update`.
        """
        with torch.no_grad(), self._autocast():
            dist = self.actor(next_obs, self._stddev(step))
            next_action = dist.sample(clip=self.stddev_clip, generator=self.update_generator)
            target_q1, target_q2 = self.critic_target(next_obs, next_action)
            target_q = reward + discount * torch.min(target_q1, target_q2)  # [B, 1]

        with self._autocast():
            q1, q2 = self.critic(obs, action)
        critic_loss = self.critic_loss(obs, next_obs, (q1, q2), target_q, step)

        self.encoder_opt.zero_grad(set_to_none=True)
        self.critic_opt.zero_grad(set_to_none=True)
        critic_loss.backward()
        self.critic_opt.step()
        self.encoder_opt.step()

        if not self.use_tb:
            return {}
        return {
            "critic_target_q": target_q.mean(),
            "critic_q1": q1.detach().mean(),
            "critic_q2": q2.detach().mean(),
            "critic_loss": critic_loss.detach(),
        }

    def critic_loss(
        self, obs: Tensor, next_obs: Tensor, q: tuple[Tensor, Tensor], target_q: Tensor, step: int
    ) -> Tensor:
        """Return the loss of both Q functions, [B, 1] each, against their target [B, 1]; see `update_critic`."""
        return F.mse_loss(q[0], target_q) + F.mse_loss(q[1], target_q)

    def update_actor(self, obs: Tensor, step: int) -> Metrics:
        """Move the policy towards actions of higher value (paper, equation 2).

        Args:
            obs: features without gradient, [B, repr_dim] or maps.
            step: agent steps so far.

        Returns:
            Metrics as in `update`.
        """
        with self._autocast():
            dist = self.actor(obs, self._stddev(step))
            action = dist.sample(clip=self.stddev_clip, generator=self.update_generator)
            q1, q2 = self.critic(obs, action)
        actor_loss = -torch.min(q1, q2).mean()

        self.actor_opt.zero_grad(set_to_none=True)
        # Named inputs: the critic only passes the gradient on, it collects none from the actor's loss.
        actor_loss.backward(inputs=list(self.actor.parameters()))
        self.actor_opt.step()

        if not self.use_tb:
            return {}
        return {
            "actor_loss": actor_loss.detach(),
            "actor_logprob": dist.log_prob(action).sum(-1, keepdim=True).detach().mean(),
            "actor_ent": dist.entropy().sum(-1).detach().mean(),
        }

    def _shifted(self, obs: Observation) -> Any:
        # A replaced `aug` or encoder may rely on floats in the usual memory order, as in the public implementation.
        return self.aug(obs if fast_paths.are_own(self) else each(Tensor.float, obs))

    def _encode(self, obs: Any, ready: bool = False) -> Any:
        """Return features of images, which may be `ready` as `drqv2.nn.pixels` makes them."""
        if self._maps:
            return self.encoder(obs, as_maps=True, ready=ready)  # [B, 32, h, w]
        return self.encoder(obs)  # [B, repr_dim]

    @property
    def _as_published(self) -> bool:
        """Whether nothing of the update has been replaced or hooked: otherwise it has fp32 and flat features."""
        methods = ("update", "update_critic", "update_actor")
        overridden = any(getattr(type(self), name) is not getattr(DrQV2Agent, name) for name in methods)
        return not overridden and fast_paths.are_published(self, [Actor, Critic, Critic])

    @property
    def _maps(self) -> bool:
        """Whether features stay the convolutions' maps."""
        return self._as_published and fast_paths.keep_maps(self)

    @property
    def _pixels_ready(self) -> bool:
        """Whether one kernel shifts, centres and rounds a batch's images."""
        return self.precision == "bf16" and self._maps and fast_paths.have_pixel_kernel(self)

    @property
    def _graphs(self) -> bool:
        return self.compile and self._as_published and torch.device(self.device).type == "cuda"

    @property
    def _update_in_graph(self) -> bool:
        # Code of your own may depend on the step, or count calls: a graph would repeat what it captured.
        names = ("_learn", "update_policy", "critic_loss")
        owners = (next(kind for kind in type(self).__mro__ if name in vars(kind)) for name in names)
        return self._graphs and all(vars(owner).get("graphable", False) for owner in owners)

    def _autocast(self) -> torch.autocast:
        # A new context for each pass: within one, autocast keeps using a parameter's first bf16 copy.
        bf16 = self.precision == "bf16" and self._as_published
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=bf16)

    def _stddev(self, step: int) -> float | Tensor:
        """Return the noise's standard deviation; in a graph it is a tensor that is filled in before each replay.

        A compiled actor gets a tensor, too: it would be compiled again for each number, and after a few not any
        more, so that its bits would depend on how long the process has been running.
        """
        if self.graph_stddev is not None:
            return self.graph_stddev
        stddev = utils.schedule(self.stddev_schedule, step)
        compiled = self.compile and torch.device(self.device).type != "cuda"
        return torch.tensor(stddev) if compiled else stddev
