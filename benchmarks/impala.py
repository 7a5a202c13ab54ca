"""IMPALA, whole runs and its learner alone: `python -m benchmarks.impala [--json]`. Takes half an hour on two cores.

Whole runs have 1, 2, 4 and 8 actors. Beside each stands a run of PPO with the settings of its preset, on as many
environments, with the same network and as many steps in a batch. The learner updates from one batch in memory, beside
one that is written out plainly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from dm_env import specs

from benchmarks import runs
from benchmarks.alternation import Side, alternate
from benchmarks.baseline.impala import PlainImpala, PlainPolicy
from benchmarks.common import Row, main, quartiles
from drqv2.agents.impala import ImpalaAgent
from drqv2.agents.segments import Segments
from drqv2.config.formatting import counted
from drqv2.system import machine, torch_settings

ABOUT = (
    "agent steps a second; ratio: to PPO's run, or to the plain learner, in each round; policy_lag: updates; "
    "learner_waits, actors_wait: shares of their time without a rollout to learn from, or to fill"
)
ACTORS: Sequence[int] = (1, 2, 4, 8)


@dataclass
class Setting:
    """What the runs of both regimes share.

    Attributes:
        env: of EnvPool.
        preset: of PPO.
        envs: environments of an actor.
        rollouts: of a batch, each of one environment.
        unroll_length: steps of a rollout.
        network: settings of the agent.
    """

    env: str
    preset: str
    envs: int
    rollouts: int
    unroll_length: int
    network: tuple[str, ...]

    @property
    def batch(self) -> int:
        """Steps of a batch."""
        return self.rollouts * self.unroll_length

    def impala(self, actors: int) -> list[str]:
        """Return the arguments of train.py for IMPALA."""
        words = f"regime=impala num_actors={actors} batch_size={self.rollouts} unroll_length={self.unroll_length}"
        return [f"env_id=envpool:{self.env}", f"num_envs={actors * self.envs}", *words.split(), *self.network]

    def ppo(self, actors: int) -> list[str]:
        """Return the arguments of train.py for PPO with the environments of this many actors."""
        envs = actors * self.envs
        words = f"regime=ppo preset={self.preset} num_envs={envs} horizon={self.batch // envs}"
        return [*words.split(), *self.network]


SETTINGS: Sequence[Setting] = (
    Setting("CartPole-v1", "cartpole", 8, 64, 32, ("agent.hidden_dim=64",)),
    Setting("Pong-v5", "pong", 8, 64, 32, ("agent.encoder=small", "agent.hidden_dim=256")),
)


@dataclass
class Learner:
    """An update's sizes.

    Attributes:
        name: of the row.
        obs_shape: (N,) or (C, H, W).
        encoder: mlp, small or nature.
        hidden: units.
        lstm: whether there is one.
        actions: choices.
        rollouts: B.
        unroll_length: T.
    """

    name: str
    obs_shape: tuple[int, ...]
    encoder: str
    hidden: int
    lstm: bool = False
    actions: int = 6
    rollouts: int = 32
    unroll_length: int = 20


IMAGE = (4, 84, 84)
LEARNERS: Sequence[Learner] = (
    Learner("mlp", (4,), "mlp", 64, actions=2),
    Learner("small", IMAGE, "small", 256),
    Learner("nature", IMAGE, "nature", 512),
    Learner("small, LSTM", IMAGE, "small", 256, lstm=True),
)


def make_agent(sizes: Learner, precision: str) -> ImpalaAgent:
    """Return this project's agent, with the defaults of regime=impala."""
    return ImpalaAgent(
        sizes.obs_shape,
        specs.DiscreteArray(sizes.actions, np.int64, "action"),
        device="cpu",
        encoder=sizes.encoder,
        hidden_dim=sizes.hidden,
        lstm=sizes.lstm,
        lr=5e-4,
        rms_alpha=0.99,
        rms_eps=0.01,
        rms_momentum=0.0,
        total_steps=10**9,
        discount=0.99,
        reward_scale=1.0,
        reward_clipping="abs_one",
        rho_clip=1.0,
        pg_rho_clip=1.0,
        baseline_cost=0.5,
        entropy_cost=6e-4,
        loss_reduction="sum",
        max_grad_norm=40.0,
        precision=precision,
    )


def make_plain(sizes: Learner) -> PlainImpala:
    """Return the plain learner."""
    return PlainImpala(PlainPolicy(sizes.obs_shape, sizes.actions, sizes.encoder, sizes.hidden, sizes.lstm))


def random_batch(sizes: Learner, ends_at: float = 0.02) -> dict[str, Any]:
    """Return the fields of `Segments`, [B, T + 1, ...], as if the policy had changed since; some episodes end."""
    shape = sizes.rollouts, sizes.unroll_length + 1
    if len(sizes.obs_shape) == 3:
        obs = torch.randint(0, 256, (*shape, *sizes.obs_shape), dtype=torch.uint8)
    else:
        obs = torch.randn(*shape, *sizes.obs_shape)
    ended = torch.rand(shape) < ends_at
    ended[:, 1:] &= ~ended[:, :-1].clone()
    terminated = ended & (torch.rand(shape) < 0.5)
    first = torch.zeros(shape, dtype=torch.bool)
    first[:, 1:] = ended[:, :-1]
    state = torch.randn(sizes.rollouts, sizes.hidden), torch.randn(sizes.rollouts, sizes.hidden)
    return Segments(
        obs,
        actions=torch.randint(0, sizes.actions, shape),
        log_probs=0.3 * torch.randn(shape) - float(np.log(sizes.actions)),
        values=torch.zeros(shape),
        rewards=2 * torch.randn(shape) * ~first,
        terminated=terminated,
        truncated=ended & ~terminated,
        first=first,
        state=state if sizes.lstm else None,
    )._asdict()


def time_major(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch as [T + 1, B, ...]; the state of the LSTM stays."""
    turned = {name: x.transpose(0, 1).contiguous() for name, x in batch.items() if isinstance(x, torch.Tensor)}
    return batch | turned


def plain_rates(sizes: Learner, seconds: float) -> Iterator[float]:
    """Yield steps a second of the plain learner, over turns of about `seconds`."""
    learner, batch = make_plain(sizes), time_major(random_batch(sizes))
    return _rates(lambda: learner.update(batch, 0), sizes, seconds)


def own_rates(sizes: Learner, precision: str, seconds: float) -> Iterator[float]:
    """Yield steps a second of this project's learner, over turns of about `seconds`."""
    torch_settings.keep_freed_memory()  # as train.py does
    agent, batch = make_agent(sizes, precision), random_batch(sizes)
    return _rates(lambda: agent.update(iter([batch]), 0), sizes, seconds)


def _rates(update: Callable[[], Any], sizes: Learner, seconds: float) -> Iterator[float]:
    update()
    while True:
        begin, count = time.perf_counter(), 0
        while count == 0 or time.perf_counter() - begin < seconds:
            update()
            count += 1
        yield count * sizes.rollouts * sizes.unroll_length / (time.perf_counter() - begin)


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each side of each setting, first whole runs, then the learner alone."""
    first = slice(1 if quick else None)
    whole = [row for setting in SETTINGS[first] for row in _whole_runs(setting, ACTORS[first], quick)]
    return whole + [row for sizes in LEARNERS[first] for row in _learner(sizes, quick)]


def _whole_runs(setting: Setting, actors: Sequence[int], quick: bool) -> list[Row]:
    warm_up, seconds, least = (0.0, 0.5, 2) if quick else (5.0, 10.0, 3)
    names = {n: (f"impala, {counted(n, 'actor')}", f"ppo for {n}") for n in actors}
    sides: dict[str, Side] = {}
    for n, (own, ppo) in names.items():
        sides[own] = partial(runs.speeds, setting.impala(n), warm_up, seconds)
        sides[ppo] = partial(runs.speeds, setting.ppo(n), warm_up, seconds)
    found = alternate(sides, 0.0, warm_up=0, least=least)
    rows = []
    for n, (own, ppo) in names.items():
        case = f"{setting.env}, {counted(n * setting.envs, 'environment')}"
        beside = [one["SPS"] for one in found[ppo]]
        for name, side in ((own, own), (ppo, "ppo")):
            row = _row(case, side, [x["SPS"] for x in found[name]], beside)
            rows.append(row | {wait: _mean([x[wait] for x in found[name]]) for wait in runs.WAITS})
    return rows


def _learner(sizes: Learner, quick: bool) -> list[Row]:
    turn, seconds = (0.0, 0.0) if quick else (1.0, 20.0)
    sides: dict[str, Side] = {"plain": partial(plain_rates, sizes, turn)}
    bf16 = len(sizes.obs_shape) == 3 and machine.processor()[1] != "emulated"
    for precision in ("fp32", "bf16") if bf16 else ("fp32",):
        sides[precision] = partial(own_rates, sizes, precision, turn)
    found = alternate(sides, seconds)
    nothing: Row = dict.fromkeys(runs.WAITS)
    return [_row(f"an update, {sizes.name}", side, rates, found["plain"]) | nothing for side, rates in found.items()]


def _row(what: str, side: str, rates: Sequence[float], beside: Sequence[float]) -> Row:
    ratios = [own / other for own, other in zip(rates, beside, strict=True)]
    speeds = quartiles(rates, "SPS") | quartiles(ratios, "ratio")
    return {"what": what, "side": side, **speeds, "repetitions": len(rates)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


if __name__ == "__main__":
    main("impala", ABOUT, measure)
