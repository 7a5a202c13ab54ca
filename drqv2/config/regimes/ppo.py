"""PPO: its keys, whose defaults are in cfgs/regime/ppo.yaml, and its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drqv2.config.keys import fixed, free, key, table
from drqv2.config.kinds import POSITIVE, Choice, Float, Int
from drqv2.config.regime import Agent, Regime
from drqv2.errors import UserError

LENGTH = table(
    total_timesteps=free(
        Int(1), "Length of the run; another length also stretches the schedule of the learning rate.", "agent steps"
    ),
)
ROLLOUT = table(
    vector=free(
        Choice("auto", "processes", "serial"),
        "How environments are stepped: in processes, all in this one (for debugging), or auto: by the threads of "
        "EnvPool or by your own gymnasium.vector.VectorEnv where they are theirs, else in processes, with "
        "overlap=false in this one.",
    ),
    envs_per_process=free(
        Int(1),
        "Environments that share a process; the results are the same.",
        "environments",
        null="so many that there is a process for each core",
        legacy=None,
    ),
    envs_per_recv=free(Int(1), "EnvPool only: act on those that are ready first.", "environments", null="all"),
    horizon=fixed(Int(2), "Consecutive steps of one environment in a segment.", "agent steps"),
    segments=fixed(Int(1), "Segments collected for one update.", "segments", null="from steps_per_collect"),
    steps_per_collect=fixed(
        Int(1),
        "The same in agent steps, a multiple of horizon.",
        "agent steps",
        null="num_envs segments",
        legacy=None,
    ),
    repeat_per_collect=key(POSITIVE, "Passes over the batch per update.", legacy=1.0),
    minibatch_size=key(Int(1), "Steps of a minibatch.", "agent steps", null="the batch, up to 256"),
)
SNAPSHOTS = table(snapshot_every_updates=free(Int(1), "Updates between two snapshots at most.", "updates"))
RECORDS = table(log_every_seconds=free(Float(0), "Least time between two rows of train.csv.", "seconds"))


def check(cfg: Mapping[str, Any]) -> None:
    """Check the sizes of a regime that learns from segments of `horizon` steps."""
    horizon, envs, steps = cfg["horizon"], cfg["num_envs"], cfg["steps_per_collect"]
    if steps is not None and cfg["segments"] not in (None, steps / horizon):
        raise UserError(f"steps_per_collect={steps} and segments={cfg['segments']}: give only one of them")
    if steps is not None and steps % horizon:
        raise UserError(f"steps_per_collect={steps}: must be a multiple of horizon={horizon}, the steps of a segment")
    segments, minibatch = cfg["segments"] or (steps or envs * horizon) // horizon, cfg["minibatch_size"]
    if cfg["compile"] is True:
        raise UserError("compile=true: regime=ppo has nothing to compile, its small policies use C++ code; use auto")
    batch = segments * horizon
    if envs > segments:
        raise UserError(f"num_envs={envs}: more environments than segments={segments}; set at least {envs} segments")
    if segments % envs and cfg["envs_per_recv"] in (None, envs):
        raise UserError(
            f"segments={segments}: must be a multiple of num_envs={envs}, so that each environment fills as many"
        )
    if minibatch is not None and minibatch % horizon:
        raise UserError(f"minibatch_size={minibatch}: must be a multiple of horizon={horizon}, the steps of a segment")
    if minibatch is not None and minibatch > batch:
        raise UserError(f"minibatch_size={minibatch}: larger than {batch}, the steps of segments={segments}")
    minibatch = minibatch or default_minibatch(segments, horizon)
    if int((epochs := cfg["repeat_per_collect"]) * batch / minibatch) == 0:
        raise UserError(f"repeat_per_collect={epochs}: less than one minibatch of {minibatch} steps")
    if cfg.get("agent.advantage") == "once" and cfg.get("agent.prio_alpha"):
        raise UserError(
            f"agent.prio_alpha={cfg['agent.prio_alpha']}: agent.advantage=once has no priorities; set it to 0"
        )
    for name in ("envs_per_recv", "envs_per_process"):
        if cfg[name] is not None and cfg[name] > envs:
            raise UserError(f"{name}={cfg[name]}: more than num_envs={envs}")
    here = {"serial": "vector=serial", "auto": None if cfg["overlap"] else "overlap=false"}.get(cfg["vector"])
    if cfg["envs_per_process"] is not None and here:
        raise UserError(f"envs_per_process={cfg['envs_per_process']}: {here} has no such processes; leave it out")


def default_minibatch(segments: int, horizon: int) -> int:
    """Return the steps of a minibatch where none are set: the batch, or as many whole segments as 256 steps hold."""
    return min(segments, max(1, 256 // horizon)) * horizon


REGIME = Regime(
    name="ppo",
    purpose="PPO, on-policy learning from many environments at once",
    workspace="drqv2.regimes.ppo:PPOWorkspace",
    agents={"ppo": Agent("drqv2.agents.ppo.PPOAgent")},
    keys={"Length": LENGTH, "Rollout": ROLLOUT, "Snapshots": SNAPSHOTS, "Records": RECORDS},
    passes={
        "device": "device",
        "total_steps": "total_timesteps",
        "discount": "discount",
        "update_epochs": "repeat_per_collect",
        "minibatch_size": "minibatch_size",
    },
    renamed={"snapshot_every_epochs": "snapshot_every_updates"},
    check=check,
    obs_type="state",
    compiles=False,
    whole_episodes=False,
    objective="train/episode_reward",
)
