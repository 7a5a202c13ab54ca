"""Tianshou's PPO on the settings of `benchmarks.ppo`."""

from __future__ import annotations

import math
import warnings
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

from benchmarks.peers import networks


class Features(nn.Module):
    """The network of this project's policy."""

    def __init__(self, encoder: str, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.output_dim = hidden
        self.image = encoder != "mlp"
        self.layers = networks.features(encoder, shape, hidden)

    def get_output_dim(self) -> int:
        return self.output_dim

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        x = torch.as_tensor(np.asarray(obs), dtype=torch.float32)
        return self.layers(x / 255 if self.image else x), state


def make(setting: Any, seed: int = 0) -> tuple[Any, Any]:
    """Return a function that collects a batch and learns from it, and the algorithm."""
    import envpool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs: Any = envpool.make(setting.env, env_type="gymnasium", num_envs=setting.num_envs, seed=seed)
        space, actions = envs.observation_space, envs.action_space
    features = Features(setting.encoder, space.shape, setting.hidden)
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
        optim=AdamOptimizerFactory(lr=setting.lr),
        ent_coef=0.01,
        max_grad_norm=0.5,
        max_batchsize=setting.batch,
        return_scaling=setting.scale_rewards,
    )
    buffer = VectorReplayBuffer(setting.batch, setting.num_envs)
    collector = Collector(policy, envs, buffer)
    collector.reset()

    steps = 0

    def update() -> None:
        nonlocal steps
        if setting.total:
            lr = 0.5 * setting.lr * (1 + math.cos(math.pi * min(steps / setting.total, 1.0)))
            for group in algorithm.optim._optim.param_groups:
                group["lr"] = lr
        steps += setting.batch
        with policy_within_training_step(policy):
            collector.collect(n_step=setting.batch)
            algorithm.update(buffer=buffer, batch_size=setting.minibatch, repeat=setting.epochs)
        collector.reset_buffer(keep_statistics=True)

    return update, algorithm


def learner(setting: Any, seed: int) -> tuple[Any, Any]:
    """Return a function that collects a batch and learns from it, and the most probable actions' function."""
    update, algorithm = make(setting, seed)

    @torch.no_grad()
    def act(obs: np.ndarray) -> np.ndarray:
        logits, _ = algorithm.policy.actor(obs)
        chosen: np.ndarray = logits.argmax(1).numpy()
        return chosen

    return update, act
