"""Stable-Baselines3's PPO on the settings of `benchmarks.ppo`."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import nn


class Pool(VecEnv):
    """EnvPool's environments as Stable-Baselines3 expects them: reset at once where an episode has ended."""

    def __init__(self, name: str, num_envs: int) -> None:
        import envpool

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pool: Any = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=0)
            super().__init__(num_envs, self.pool.observation_space, self.pool.action_space)
        self.returns, self.ended = np.zeros(num_envs), list[float]()

    def reset(self) -> Any:
        return self.pool.reset()[0]

    def step_async(self, actions: Any) -> None:
        self.pool.send(actions, np.arange(self.num_envs))

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, _ = self.pool.recv()
        dones = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self.returns += rewards
        if dones.any():
            over = np.flatnonzero(dones)
            for i in over:
                late = bool(truncated[i] and not terminated[i])
                infos[i] = {"terminal_observation": observations[i].copy(), "TimeLimit.truncated": late}
                self.ended.append(self.returns[i])
                self.returns[i] = 0.0
            observations[over] = self.pool.reset(over.astype(np.int32))[0]
        return observations, rewards, dones, infos

    def close(self) -> None:
        self.pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return []

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class Shared(BaseFeaturesExtractor):
    """The MLP of this project's policy: two layers, for actor and critic alike."""

    def __init__(self, space: Any, hidden: int) -> None:
        super().__init__(space, hidden)
        layers = nn.Linear(space.shape[0], hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        self.layers = nn.Sequential(*layers)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(obs)
        return out


def make(setting: Any, pool: bool) -> Any:
    """Return a model; `model.learn(setting.batch, reset_num_timesteps=False)` collects a batch and learns from it."""
    own = [lambda: gymnasium.make(setting.env)] * setting.num_envs
    extractor = (
        {"features_extractor_class": NatureCNN, "features_extractor_kwargs": {"features_dim": setting.hidden}}
        if setting.image
        else {"features_extractor_class": Shared, "features_extractor_kwargs": {"hidden": setting.hidden}}
    )
    return stable_baselines3.PPO(
        "CnnPolicy" if setting.image else "MlpPolicy",
        Pool(setting.env, setting.num_envs) if pool else DummyVecEnv(own),
        n_steps=setting.horizon,
        batch_size=setting.minibatch,
        n_epochs=setting.epochs,
        learning_rate=2.5e-4,
        ent_coef=0.01,
        device="cpu",
        seed=0,
        policy_kwargs={"net_arch": [], **extractor},
    )
