"""Other libraries learn on this project's tasks through Gymnasium; skipped where they are not installed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import drqv2.envs.as_gymnasium  # noqa: F401 (registers the tasks)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what those libraries warn of


def test_stable_baselines3_learns_from_pixels() -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    env = gymnasium.make("drqv2/cartpole_balance-v0", action_repeat=4, channels_last=True, render="fast")
    model = sb3.PPO("CnnPolicy", env, n_steps=500, batch_size=100, n_epochs=2, seed=1, device="cpu")
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(2000)
    assert model.num_timesteps == 2000
    assert len(model.ep_info_buffer) == 8, "episodes of 250 steps"
    assert all(0 < episode["r"] <= 1000 for episode in model.ep_info_buffer)
    changed = [not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True)]
    assert sum(changed) > len(changed) / 2
    action, _ = model.predict(env.reset(seed=1)[0], deterministic=True)
    assert env.action_space.contains(action)
    env.close()


def test_tianshou_learns_from_the_state() -> None:
    pytest.importorskip("tianshou")
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

    def make() -> Any:
        return gymnasium.make("drqv2/cartpole_balance-v0", obs_type="state", action_repeat=4)

    envs: Any = DummyVectorEnv([make, make])
    space, actions = envs.observation_space[0], envs.action_space[0]

    def net() -> Net:
        return Net(state_shape=space.shape, hidden_sizes=[32, 32])

    policy = ProbabilisticActorPolicy(
        actor=ContinuousActorProbabilistic(preprocess_net=net(), action_shape=actions.shape),
        dist_fn=lambda parts: torch.distributions.Independent(torch.distributions.Normal(*parts), 1),
        action_space=actions,
    )
    algorithm = PPO(policy=policy, critic=ContinuousCritic(preprocess_net=net()), optim=AdamOptimizerFactory(lr=1e-3))
    collector: Any = Collector(policy, envs, VectorReplayBuffer(2000, 2))
    result = algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=2,
            epoch_num_steps=2000,
            collection_step_num_env_steps=1000,
            batch_size=100,
            update_step_num_repetitions=2,
        )
    )
    assert result.timing.total_time > 0
    assert collector.collect_step >= 4000
    assert np.isfinite([parameter.detach().abs().max().item() for parameter in policy.parameters()]).all()
    envs.close()
