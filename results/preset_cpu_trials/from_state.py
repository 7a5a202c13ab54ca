"""DrQ-v2's actor and critic on cartpole_balance_sparse's state instead of its pixels: a run takes one or two minutes.

    python results/preset_cpu_trials/from_state.py action_repeat=4 nstep=5 batch_size=128

Prints the setting, the seed, the number of updates and the evaluation return at every 2,500 frames. It leaves out
the encoder, and with it everything that smaller images do.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from dm_control import suite

from drqv2 import utils
from drqv2.networks import Actor, Critic

EPISODE = 1000  # frames
STATE = 5


def main(
    seed: int,
    action_repeat: int = 2,
    update_every_steps: int = 2,
    batch_size: int = 256,
    nstep: int = 3,
    decay_steps: int = 100_000,
    lr: float = 1e-4,
    tau: float = 0.01,
    hidden_dim: int = 256,
    num_train_frames: int = 40_000,
    num_seed_frames: int = 4000,
    num_expl_steps: int = 2000,
    discount: float = 0.99,
) -> tuple[int, list[int]]:
    """Return the number of updates and the evaluations' returns. Exploration noise goes from 1.0 to 0.1."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    env, eval_env = (suite.load("cartpole", "balance_sparse", {"random": s}) for s in (seed, seed + 100))
    actor = Actor(STATE, (1,), 50, hidden_dim)
    critic, target = (Critic(STATE, (1,), 50, hidden_dim) for _ in range(2))
    target.load_state_dict(critic.state_dict())
    actor_opt, critic_opt = (torch.optim.Adam(m.parameters(), lr=lr, fused=True) for m in (actor, critic))

    steps, length = num_train_frames // action_repeat, EPISODE // action_repeat
    obs = np.zeros((steps + 1, STATE), np.float32)
    actions, rewards = (np.zeros((steps + 1, 1), np.float32) for _ in range(2))
    returns, updates = [], 0
    time_step = env.reset()
    for step in range(steps + 1):
        if step * action_repeat % 2500 == 0:
            returns.append(int(evaluate(eval_env, actor, action_repeat)))
        std = 1.0 - 0.9 * min(1.0, step / decay_steps)
        now = state(time_step)
        if step < num_expl_steps:
            action = rng.uniform(-1, 1)
        else:
            with torch.no_grad():
                action = actor(torch.tensor(now)[None], std).sample().item()
        time_step, reward = advance(env, action, action_repeat)
        obs[step], actions[step], rewards[step] = now, action, reward
        if time_step.last():
            time_step = env.reset()
        if step * action_repeat < num_seed_frames or step % update_every_steps:
            continue

        finished = (step + 1) // length * length  # transitions of whole episodes
        first = rng.integers(0, finished, 2 * batch_size)
        first = first[first % length < length - nstep][:batch_size]
        o, a, next_o = (torch.tensor(x) for x in (obs[first], actions[first], obs[first + nstep]))
        r = torch.tensor(sum(discount**j * rewards[first + j] for j in range(nstep)))
        with torch.no_grad():
            next_a = actor(next_o, std).sample(clip=0.3)
            target_q = r + discount**nstep * torch.min(*target(next_o, next_a))
        q1, q2 = critic(o, a)
        critic_opt.zero_grad()
        (F.mse_loss(q1, target_q) + F.mse_loss(q2, target_q)).backward()
        critic_opt.step()
        actor_loss = -torch.min(*critic(o, actor(o, std).sample(clip=0.3))).mean()
        actor_opt.zero_grad()
        actor_loss.backward(inputs=list(actor.parameters()))
        actor_opt.step()
        utils.soft_update_params(critic, target, tau)
        updates += 1
    return updates, returns


def state(time_step: Any) -> np.ndarray:
    """Return position and velocity, float32 [STATE]."""
    return np.concatenate(list(time_step.observation.values())).astype(np.float32)


def advance(env: Any, action: float, repeat: int) -> tuple[Any, float]:
    """Repeat an action; return the last time step and the sum of rewards."""
    reward = 0.0
    for _ in range(repeat):
        time_step = env.step([action])
        reward += time_step.reward
        if time_step.last():
            break
    return time_step, reward


def evaluate(env: Any, actor: Actor, repeat: int) -> float:
    """Return the mean return of two episodes of mean actions."""
    total = 0.0
    for _ in range(2):
        time_step = env.reset()
        while not time_step.last():
            with torch.no_grad():
                action = actor(torch.tensor(state(time_step))[None], 0.1).mean.item()
            time_step, reward = advance(env, action, repeat)
            total += reward
    return total / 2


if __name__ == "__main__":
    torch.set_num_threads(1)
    given = {key: float(value) for key, value in (arg.split("=") for arg in sys.argv[1:])}
    setting: dict[str, Any] = {key: int(value) if value == int(value) else value for key, value in given.items()}
    for seed in (1, 2):
        print(*sys.argv[1:], "seed", seed, *main(seed, **setting), flush=True)
