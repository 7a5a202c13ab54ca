"""PPO beside two others: `pip install -e ".[peers]"`, then `python -m benchmarks.ppo [--json]`.

The sides have the same environment, network, batch, minibatches and epochs, and take turns of some updates each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.alternation import alternate
from benchmarks.common import Row, main, quartiles

ABOUT = "environment steps a second, learning included; ratio: this project's over the side's, in each round"


@dataclass
class Setting:
    """What all sides share.

    Attributes:
        env: of EnvPool; for CartPole Gymnasium has it under the same name.
        encoder: mlp, small or nature.
        hidden: units behind the encoder: of both layers of an MLP, or behind the convolutions.
        num_envs: environments.
        horizon: steps of each in a batch.
        minibatch: steps in a minibatch.
        epochs: passes over a batch.
        lr: learning rate at the start.
        total: steps until it is 0, along a cosine; None: it stays.
        scale_rewards: by the running deviation of their discounted sum.
    """

    env: str
    encoder: str
    hidden: int
    num_envs: int
    horizon: int
    minibatch: int = 256
    epochs: int = 4
    lr: float = 2.5e-4
    total: int | None = None
    scale_rewards: bool = False

    @property
    def image(self) -> bool:
        """Whether observations are images."""
        return self.encoder != "mlp"

    @property
    def batch(self) -> int:
        """Steps of a batch."""
        return self.num_envs * self.horizon


SETTINGS = (Setting("CartPole-v1", "mlp", 64, 32, 32), Setting("Pong-v5", "nature", 512, 16, 64))


def rates(update: Callable[[], Any], steps: int, seconds: float) -> Iterator[float]:
    """Yield steps a second, over turns of about `seconds`."""
    update()
    while True:
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            update()
            count += 1
        yield count * steps / (time.perf_counter() - begin)


def here(setting: Setting, cpp: bool, seconds: float) -> Iterator[float]:
    """Measure this project, with its C++ code where that fits or without."""
    from drqv2.agents import ppo_mlp
    from drqv2.agents.ppo import PPOAgent
    from drqv2.envs.pool import PoolVector
    from drqv2.rollout.collector import Collector
    from drqv2.system import machine, torch_settings

    torch_settings.keep_freed_memory()  # as train.py does
    vector = PoolVector(setting.env, setting.num_envs, 0)
    shape, spec = tuple(vector.observation_spec().shape), vector.action_spec()
    precision = machine.resolve_precision("auto", "cpu")
    agent: Any = PPOAgent(
        shape,
        spec,
        device="cpu",
        encoder=setting.encoder,
        hidden_dim=setting.hidden,
        lstm=False,
        optimizer="adam",
        lr=setting.lr,
        total_steps=10**9,
        update_epochs=setting.epochs,
        minibatch_size=setting.minibatch,
        accumulate_minibatches=1,
        prio_alpha=0.8,
        prio_beta0=0.2,
        precision=precision,
        discount=0.99,
        gae_lambda=0.95,
        rho_clip=1.0,
        c_clip=1.0,
        clip_coef=0.2,
        vf_coef=0.5,
        vf_clip=100.0,
        ent_coef=0.01,
        max_grad_norm=0.5,
        advantage="full_batch",
        adam_beta1=0.95,
        adam_eps=1e-8,
        normalize_observations=False,
        normalize_rewards=False,
    )
    agent = ppo_mlp.fast(agent) if cpp else agent
    segments = Collector(vector, agent.step, None, setting.num_envs, setting.horizon, 0.99)
    segments.start(vector.reset())
    return rates(lambda: agent.update(segments, 0), setting.batch, seconds)


def stable_baselines3(setting: Setting, pool: bool, seconds: float) -> Iterator[float]:
    """Measure Stable-Baselines3, on EnvPool or on its own vector of Gymnasium environments."""
    from benchmarks.peers import sb3

    model = sb3.make(setting, pool)
    return rates(lambda: model.learn(setting.batch, reset_num_timesteps=False), setting.batch, seconds)


def tianshou(setting: Setting, seconds: float) -> Iterator[float]:
    """Measure Tianshou, on EnvPool."""
    from benchmarks.peers import tianshou as peer

    return rates(peer.make(setting)[0], setting.batch, seconds)


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each side of each setting.

    Raises:
        SystemExit: the others are not installed.
    """
    if missing := [name for name in ("stable_baselines3", "tianshou") if find_spec(name) is None]:
        sys.exit(f"not installed: {', '.join(missing)}; install what this compares with: pip install -e '.[peers]'")
    seconds, turn = (0.0, 0.1) if quick else (60.0, 4.0)
    rows: list[Row] = []
    for setting in SETTINGS[: 1 if quick else None]:
        turn = turn * (3 if setting.image and not quick else 1)
        sides = {
            "here": partial(here, setting, True, turn),
            "Stable-Baselines3 on EnvPool": partial(stable_baselines3, setting, True, turn),
            "Tianshou on EnvPool": partial(tianshou, setting, turn),
        }
        if not setting.image:
            sides["here, without C++"] = partial(here, setting, False, turn)
            sides["Stable-Baselines3"] = partial(stable_baselines3, setting, False, turn)
        found = alternate(sides, seconds * len(sides) / 3)
        for name, values in found.items():
            ratios = [ours / theirs for ours, theirs in zip(found["here"], values, strict=True)]
            row = {"env": setting.env, "side": name, **quartiles(values, "SPS"), **quartiles(ratios, "ratio")}
            rows.append(row | {"repetitions": len(values)})
    return rows


if __name__ == "__main__":
    main("ppo", ABOUT, measure)
