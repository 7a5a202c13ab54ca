"""Stable-Baselines3's PPO on the settings of `benchmarks.ppo`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from benchmarks.peers import networks


class Pool(VecEnv):
    """EnvPool's environments as Stable-Baselines3 expects them: reset at once where an episode has ended."""

    def __init__(self, name: str, num_envs: int, seed: int = 0) -> None:
        import envpool

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pool: Any = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=seed)
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


class Features(BaseFeaturesExtractor):
    """The network of this project's policy, for actor and critic alike."""

    def __init__(self, space: Any, encoder: str, hidden: int) -> None:
        super().__init__(space, hidden)
        self.layers = networks.features(encoder, space.shape, hidden)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(obs)
        return out


def make(setting: Any, pool: bool, seed: int = 0) -> Any:
    """Return a model; `model.learn(setting.batch, reset_num_timesteps=False)` collects a batch and learns from it."""
    own = [lambda: gymnasium.make(setting.env)] * setting.num_envs
    envs: VecEnv = Pool(setting.env, setting.num_envs, seed) if pool else DummyVecEnv(own)
    if setting.scale_rewards:
        envs = VecNormalize(envs, norm_obs=False, gamma=0.99)
    features = {"encoder": setting.encoder, "hidden": setting.hidden}
    return stable_baselines3.PPO(
        "CnnPolicy" if setting.image else "MlpPolicy",
        envs,
        n_steps=setting.horizon,
        batch_size=setting.minibatch,
        n_epochs=setting.epochs,
        learning_rate=setting.lr,
        ent_coef=0.01,
        device="cpu",
        seed=seed,
        policy_kwargs={"net_arch": [], "features_extractor_class": Features, "features_extractor_kwargs": features},
    )


def learner(setting: Any, seed: int) -> tuple[Any, Any]:
    """Return a function that collects and learns from a batch of EnvPool's, and one of the most probable actions."""
    model = make(setting, True, seed)

    def update() -> None:
        if setting.total:
            lr = 0.5 * setting.lr * (1 + math.cos(math.pi * min(model.num_timesteps / setting.total, 1.0)))
            model.lr_schedule = lambda _: lr
        model.learn(setting.batch, reset_num_timesteps=False)

    return update, lambda obs: model.predict(obs, deterministic=True)[0]
