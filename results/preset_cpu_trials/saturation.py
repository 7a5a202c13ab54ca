"""How fast does DrQ-v2's actor saturate? Updates on stored episodes of random actions, for cartpole_balance_sparse.

    MUJOCO_GL=egl python results/preset_cpu_trials/saturation.py hidden_dim=256 lr=1e-4 batch_size=64

Prints after some updates, over 64 states of the episodes: mean and standard deviation of the policy's output before
tanh, mean slope of tanh there, and mean and standard deviation over states of Q(s, 1) - Q(s, -1).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
from dm_control import suite

from drqv2.agents.drqv2 import DrQV2Agent

SEED, STACK, DISCOUNT = 2, 3, 0.99


def collect(episodes: int, image_size: int, action_repeat: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return frames [E, T + 1, 3, H, W], actions [E, T, 1] and rewards [E, T] of random episodes."""
    env = suite.load("cartpole", "balance_sparse", {"random": SEED})
    rng = np.random.default_rng(SEED)
    frames: list[list[np.ndarray]] = []
    actions: list[list[np.ndarray]] = []
    rewards: list[list[float]] = []
    for _ in range(episodes):
        time_step = env.reset()
        frames.append([env.physics.render(image_size, image_size, camera_id=0)])
        actions.append([])
        rewards.append([])
        while not time_step.last():
            action, reward = rng.uniform(-1, 1, 1).astype(np.float32), 0.0
            for _ in range(action_repeat):
                time_step = env.step(action)
                reward += time_step.reward
                if time_step.last():
                    break
            frames[-1].append(env.physics.render(image_size, image_size, camera_id=0))
            actions[-1].append(action)
            rewards[-1].append(reward)
    return np.array(frames).transpose(0, 1, 4, 2, 3), np.array(actions), np.array(rewards, np.float32)


def main(
    hidden_dim: int = 256,
    feature_dim: int = 50,
    lr: float = 1e-4,
    batch_size: int = 64,
    image_size: int = 64,
    action_repeat: int = 4,
    nstep: int = 5,
    episodes: int = 4,
    updates: int = 400,
) -> None:
    """Train and print."""
    frames, actions, rewards = collect(episodes, image_size, action_repeat)
    steps = actions.shape[1]
    rng = np.random.default_rng(SEED + 1)
    obs_shape = (3 * STACK, image_size, image_size)
    agent = DrQV2Agent(
        obs_shape, (1,), "cpu", lr, feature_dim, hidden_dim, 0.01, 0, 1, 0.98, 0.3, False, precision="bf16", seed=SEED
    )

    def observe(episode: np.ndarray, step: np.ndarray) -> torch.Tensor:
        stacks = [frames[e, np.maximum(0, [t - 2, t - 1, t])] for e, t in zip(episode, step, strict=True)]
        return torch.from_numpy(np.array(stacks).reshape(-1, *obs_shape))

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        discount = torch.full((batch_size, 1), DISCOUNT**nstep)
        while True:
            e, t = rng.integers(0, episodes, batch_size), rng.integers(0, steps - nstep + 1, batch_size)
            reward = np.stack([DISCOUNT**k * rewards[e, t + k] for k in range(nstep)]).sum(0, keepdims=True).T
            yield (
                observe(e, t),
                torch.from_numpy(actions[e, t]),
                torch.from_numpy(reward),
                discount,
                observe(e, t + nstep),
            )

    print("updates  before tanh  over states  slope  Q(1)-Q(-1)  over states")
    batch = batches()
    for update in range(1, updates + 1):
        agent.update(batch, 0)
        if update % 100:
            continue
        obs = observe(rng.integers(0, episodes, 64), rng.integers(0, steps, 64))
        with torch.no_grad():
            features = agent.encoder(obs)
            out = agent.actor.policy(agent.actor.trunk(features))
            left, right = (torch.min(*agent.critic(features, torch.full((64, 1), a))) for a in (-1.0, 1.0))
        slope = 1 - torch.tanh(out) ** 2
        gain = right - left
        print(
            f"{update:7d}  {out.mean():11.2f}  {out.std():11.3f}  {slope.mean():5.3f}  {gain.mean():10.3f}  "
            f"{gain.std():11.3f}",
            flush=True,
        )


if __name__ == "__main__":
    given = {key: float(value) for key, value in (arg.split("=") for arg in sys.argv[1:])}
    main(**{key: value if key == "lr" else int(value) for key, value in given.items()})  # type: ignore[arg-type]
