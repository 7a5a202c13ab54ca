"""Tianshou's PPO on the settings of `benchmarks.ppo`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn


class Features(nn.Module):
    """The encoder of this project's policy: two layers, or the convolutions of Nature 518 and one."""

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.output_dim = hidden
        self.image = len(shape) == 3
        if self.image:
            convolutions = [nn.Conv2d(shape[0], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
            convolutions += [nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, hidden), nn.ReLU()]
            self.layers = nn.Sequential(*convolutions)
        else:
            self.layers = nn.Sequential(nn.Linear(shape[0], hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())

    def get_output_dim(self) -> int:
        return self.output_dim

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        x = torch.as_tensor(np.asarray(obs), dtype=torch.float32)
        return self.layers(x / 255 if self.image else x), state


def make(setting: Any) -> Callable[[], Any]:
    """Return a function that collects a batch and learns from it."""
    import envpool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs: Any = envpool.make(setting.env, env_type="gymnasium", num_envs=setting.num_envs, seed=0)
        space, actions = envs.observation_space, envs.action_space
    features = Features(space.shape, setting.hidden)
    actor = DiscreteActor(preprocess_net=features, action_shape=actions.n, softmax_output=False)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
        action_space=actions,
        action_scaling=False,
        action_bound_method=None,
    )
    algorithm = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=features),
        optim=AdamOptimizerFactory(lr=2.5e-4),
        ent_coef=0.01,
        max_grad_norm=0.5,
        max_batchsize=setting.batch,
    )
    buffer = VectorReplayBuffer(setting.batch, setting.num_envs)
    collector = Collector(policy, envs, buffer)
    collector.reset()

    def update() -> None:
        with policy_within_training_step(policy):
            collector.collect(n_step=setting.batch)
            algorithm.update(buffer=buffer, batch_size=setting.minibatch, repeat=setting.epochs)
        collector.reset_buffer(keep_statistics=True)

    return update
