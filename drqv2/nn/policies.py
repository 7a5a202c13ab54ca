"""Policies with a value head, for on-policy learning: an encoder, an optional LSTM, heads by the kind of action."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from dm_env import specs
from torch import Tensor, nn

from drqv2.errors import UserError
from drqv2.nn.normalization import PartsMeanStd, RunningMeanStd
from drqv2.nn.observations import Observation, Shapes, has_images
from drqv2.nn.policy_encoders import make_encoder, orthogonal
from drqv2.parts import each, names, parts

State = tuple[Tensor, Tensor]  # of the LSTM: h and c, [B, hidden] each


class Categorical:
    """Independent categorical actions, one for each group of logits.

    Args:
        logits: [B, sum of sizes].
        sizes: choices of each action.
    """

    def __init__(self, logits: Tensor, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        parts = logits.split(self.sizes, dim=-1) if len(sizes) > 1 else (logits,)
        self.log_probs = [F.log_softmax(part, dim=-1) for part in parts]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return actions, int64 [B, number of actions]."""
        # The exponential race: argmax of p / e is a sample of p (as in torch.multinomial, without its checks).
        shape = *self.log_probs[0].shape[:-1], sum(self.sizes)
        noise = self.log_probs[0].new_empty(shape).exponential_(generator=generator).split(self.sizes, dim=-1)
        drawn = [(p.exp() / e).argmax(-1, keepdim=True) for p, e in zip(self.log_probs, noise, strict=True)]
        return drawn[0] if len(drawn) == 1 else torch.cat(drawn, -1)

    def mode(self) -> Tensor:
        """Return the most probable actions, int64 [B, number of actions]."""
        return torch.stack([part.argmax(-1) for part in self.log_probs], -1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log probability of actions [B, number of actions], summed over them, [B]."""
        if len(self.log_probs) == 1:
            return self.log_probs[0].gather(-1, actions)[..., 0]
        chosen = [p.gather(-1, actions[..., i : i + 1]) for i, p in enumerate(self.log_probs)]
        return torch.cat(chosen, -1).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy, summed over the actions, [B]."""
        return -sum((p.exp() * p).sum(-1) for p in self.log_probs)  # type: ignore[return-value]


class Gaussian:
    """Actions with independent normal components; the environment clips them to [-1, 1].

    Args:
        mean: [B, A].
        log_std: [A].
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return actions, float32 [B, A]."""
        return self.mean + self.log_std.exp() * torch.empty_like(self.mean).normal_(generator=generator)

    def mode(self) -> Tensor:
        """Return the means, [B, A]."""
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density of actions [B, A], summed over components, [B]."""
        scaled = (actions - self.mean) / self.log_std.exp()
        return -(0.5 * scaled.square() + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy, summed over components, [B]."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(self.mean.shape[:-1])


def action_sizes(spec: Any) -> tuple[int, ...] | None:
    """Return the number of choices of each discrete action of a spec; None for a vector of floats.

    Raises:
        UserError: no policy fits the actions.
    """
    shown = " ".join(str(spec).split())
    if isinstance(spec, specs.DiscreteArray):
        return (int(spec.num_values),)
    if isinstance(spec, specs.BoundedArray) and len(spec.shape) == 1:
        if np.issubdtype(spec.dtype, np.floating):
            return None
        if np.any(spec.minimum):
            raise UserError(f"no policy fits the actions {shown}: whole numbers must begin at 0; wrap the environment")
        return tuple(int(n) for n in np.broadcast_to(spec.maximum, spec.shape) + 1)
    raise UserError(f"no policy fits the actions {shown}: they must be discrete, several discrete ones, or one vector")


class Policy(nn.Module):
    """Distribution of actions and value of each observation, feed-forward or with an LSTM behind the encoder.

    Args:
        obs_shape: (N,) float32 or (C, H, W) uint8; of a dict, those of its parts by name.
        action_spec: see `action_sizes`.
        encoder: auto, mlp, small, nature or impala, see `make_encoder`.
        hidden_dim: features, and units of the LSTM.
        lstm: whether there is one.
        normalize: whether vector observations are normalised by the statistics that `see` collects.
        precision: fp32, or bf16 for the products of an encoder of images.

    Attributes:
        obs_parts: of observations that are dicts; empty where they are one array.
    """

    def __init__(
        self,
        obs_shape: Shapes,
        action_spec: Any,
        encoder: str = "auto",
        hidden_dim: int = 64,
        lstm: bool = False,
        normalize: bool = False,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.sizes, self.hidden_dim = action_sizes(action_spec), hidden_dim
        self.action_shape, self.obs_ndim = tuple(action_spec.shape), 3 if has_images(obs_shape) else 1
        self.obs_parts = names(obs_shape)
        self.bf16 = precision == "bf16" and self.obs_ndim == 3
        self.encoder = make_encoder(encoder, obs_shape, hidden_dim)
        self.lstm = nn.LSTM(hidden_dim, hidden_dim, batch_first=True) if lstm else None
        outputs = int(action_spec.shape[0]) if self.sizes is None else sum(self.sizes)
        self.actor = orthogonal(nn.Linear(hidden_dim, outputs), 0.01)
        self.critic = orthogonal(nn.Linear(hidden_dim, 1), 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs)) if self.sizes is None else None
        self.obs_stats = _statistics(obs_shape) if normalize else None
        if self.obs_ndim == 3:
            self.encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def initial_state(self, batch: int) -> State | None:
        """Return the LSTM's state where an episode starts, zeros; None without an LSTM."""
        if self.lstm is None:
            return None
        zeros = self.critic.weight.new_zeros(batch, self.hidden_dim)
        return zeros, zeros.clone()

    def see(self, obs: Observation) -> None:
        """Update the normalisation statistics with observations, [..., *obs_shape]."""
        if self.obs_stats is not None:
            self.obs_stats.update(obs)

    def normalized(self, obs: Observation) -> Any:
        """Return observations, [..., *obs_shape], as the encoder gets them."""
        return obs if self.obs_stats is None else self.obs_stats.normalize(obs)

    def knows_observations(self) -> bool:
        """Return whether observations need no statistics, or these have begun."""
        return self.obs_stats is None or bool(self.obs_stats.count > 0)

    def forward(
        self, obs: Observation, state: State | None = None, first: Tensor | None = None
    ) -> tuple[Categorical | Gaussian, Tensor, State | None]:
        """Return the distribution of actions, values, and the LSTM's next state.

        Args:
            obs: [B, T, ...], T consecutive steps each; or a dict of these.
            state: before the first of them; None without an LSTM.
            first: where an observation starts an episode, which resets the state, bool [B, T]; for an LSTM.

        Returns:
            A distribution over [B, T, ...], values [B, T], the state after the last step.
        """
        if isinstance(obs, Tensor):
            joined, steps = obs.flatten(0, 1), obs.shape[:2]
        else:
            joined, steps = each(_joined, obs), next(iter(obs.values())).shape[:2]
        features = self.features(joined).view(*steps, self.hidden_dim)
        if self.lstm is not None:
            assert state is not None
            assert first is not None
            features, state = self._unroll(features, state, first)
        values: Tensor = self.critic(features)[..., 0]
        return self.distribution(features), values, state

    def distribution(self, features: Tensor) -> Categorical | Gaussian:
        """Return the distribution of actions [..., A] for features [..., hidden], behind the LSTM if there is one."""
        outputs = self.actor(features)
        if self.sizes is None:
            assert self.log_std is not None
            return Gaussian(outputs, self.log_std)
        return Categorical(outputs, self.sizes)

    @torch.inference_mode()
    def choose(
        self, obs: Observation, state: State | None, first: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, State | None]:
        """Return sampled actions [N, ...], their log probabilities [N], values [N] and the LSTM's next state.

        Args:
            obs: of N environments, [N, ...], or a dict of these.
            state: of the LSTM before them, two [N, hidden]; None without one.
            first: where an observation starts an episode, bool [N].
            generator: of the samples.
        """
        one_step = obs[:, None] if isinstance(obs, Tensor) else each(_one_step, obs)
        dist, values, state = self(one_step, state, first[:, None])
        actions = dist.sample(generator)  # [N, 1, A]
        return actions.reshape(len(first), *self.action_shape), dist.log_prob(actions)[:, 0], values[:, 0], state

    @torch.no_grad()
    def act_from(
        self, states: Sequence[State | None], obs: Any, generator: torch.Generator | None
    ) -> tuple[np.ndarray, list[State | None]]:
        """Return the actions for observations of several episodes [N, ...] and the states of the LSTM after them.

        Args:
            states: of the LSTM before each; None at the start of an episode.
            obs: the observations, an array [N, ...] or a dict of arrays.
            generator: of the samples; None for the most probable actions (the means, of vectors).
        """
        device = self.critic.weight.device
        first = torch.tensor([[state is None] for state in states], device=device)
        before = self.initial_state(len(states))
        if before is not None:
            known = [before[0][:1], before[1][:1]]  # of an episode's start
            h, c = zip(*(known if state is None else state for state in states), strict=True)
            before = torch.cat(h), torch.cat(c)
        dist, _, after = self(each(lambda x: torch.as_tensor(x, device=device)[:, None], obs), before, first)
        actions: np.ndarray = (dist.mode() if generator is None else dist.sample(generator))[:, 0].cpu().numpy()
        of_each: list[State | None] = [None] * len(states)
        if after is not None:
            of_each = [(h, c) for h, c in zip(after[0].split(1), after[1].split(1), strict=True)]
        return actions.reshape(len(states), *self.action_shape), of_each

    def features(self, obs: Observation) -> Tensor:
        """Return features [B, hidden] of observations [B, ...], before the LSTM."""
        if self.obs_ndim == 1:
            vectors: Tensor = self.encoder(self.normalized(obs))
            return vectors
        inputs = each(self._prepared, self.normalized(obs))
        with torch.autocast(self.critic.weight.device.type, torch.bfloat16, enabled=self.bf16):
            features: Tensor = self.encoder(inputs)
        return features.to(self.critic.weight.dtype)

    def _prepared(self, part: Tensor) -> Tensor:
        """Return images [B, C, H, W] as the encoder computes with them; vectors [B, N] as they are."""
        if part.ndim == 2:
            return part
        dtype = torch.bfloat16 if self.bf16 else self.critic.weight.dtype
        return part.to(dtype).contiguous(memory_format=torch.channels_last)  # in one step it takes longer

    def _unroll(self, features: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """Run the LSTM over steps [B, T, hidden], in one call where no episode starts after the first of them."""
        assert self.lstm is not None
        steps = features.shape[1]
        starts = [0, *(first[:, 1:].any(0).nonzero()[:, 0] + 1).tolist(), steps]
        outputs = []
        h, c = state
        for begin, end in pairwise(starts):
            keep = (~first[:, begin]).to(h.dtype)[:, None]
            out, (h, c) = self.lstm(features[:, begin:end], ((h * keep)[None], (c * keep)[None]))
            h, c = h[0], c[0]
            outputs.append(out)
        return torch.cat(outputs, 1), (h, c)


def _statistics(obs_shape: Shapes) -> Any:
    """Return the statistics by which observations are normalised; None where all are images."""
    if all(len(shape) == 3 for shape in parts(obs_shape)):
        return None
    return PartsMeanStd(obs_shape) if isinstance(obs_shape, Mapping) else RunningMeanStd(obs_shape)


def _joined(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


def _one_step(x: Tensor) -> Tensor:
    return x[:, None]
