"""IMPALA: its keys, whose defaults are in cfgs/regime/impala.yaml, and its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drqv2.config.keys import fixed, free, key, table
from drqv2.config.kinds import Bool, Choice, Float, Int, Text
from drqv2.config.regime import Agent, Regime
from drqv2.config.regimes.ppo import LENGTH
from drqv2.errors import UserError

ROLLOUT = table(
    num_actors=free(Int(1), "Processes that act, each in num_envs / num_actors environments.", "processes"),
    unroll_length=fixed(Int(1), "Steps of an environment in a rollout.", "agent steps"),
    batch_size=key(Int(1), "Rollouts of one environment each in a batch.", "rollouts"),
    num_buffers=free(
        Int(1),
        "Buffers, each for a rollout of all environments of an actor; with fewer, the policy lag is smaller.",
        "buffers",
        null="2 for each actor, and two batches",
    ),
    num_learner_threads=free(
        Int(1), "Threads that copy rollouts into batches, each one batch ahead of the updates.", "threads"
    ),
    max_policy_lag=key(
        Int(0),
        "Maximum number of updates between the weights that a rollout began with and the update that learns from it; "
        "older rollouts are dropped, and counted.",
        "updates",
        null="no bound",
    ),
    actor_hang_seconds=free(
        Float(1), "Time that a step of an actor, or a reset, may take; then the actor is replaced.", "seconds"
    ),
    batched_inference=free(
        Bool(),
        "Choose actions in the learner's process, on its device, for all actors that wait at once; or in the actors.",
    ),
    cluster=free(Choice("local", "ray"), "Where the actors are: on this machine, or on a Ray cluster."),
    cluster_address=free(Text(), "The Ray cluster's address, or auto.", null="RAY_ADDRESS, or else a new one"),
    deterministic=fixed(
        Bool(), "One actor, in the learner's process, in turn with it: the same seed gives the same bits."
    ),
)
RECORDS = table(log_every_seconds=free(Float(0), "Minimum time between two rows of train.csv.", "seconds"))


def check(cfg: Mapping[str, Any]) -> None:
    """Check the sizes of a regime whose actors fill rollouts."""
    actors, envs, batch = cfg["num_actors"], cfg["num_envs"], cfg["batch_size"]
    if cfg["compile"] is True:
        raise UserError("compile=true: regime=impala has nothing to compile; use auto")
    if cfg["deterministic"] and actors != 1:
        raise UserError(f"deterministic=true with num_actors={actors}: only one acts in turn; set num_actors=1")
    if cfg["cluster"] == "ray" and (cfg["batched_inference"] or cfg["deterministic"]):
        wrong = "batched_inference" if cfg["batched_inference"] else "deterministic"
        raise UserError(f"cluster=ray with {wrong}=true: {wrong} applies only to cluster=local")
    if cfg["deterministic"] and cfg["batched_inference"]:
        raise UserError("deterministic=true with batched_inference=true: the only actor acts in the learner's process")
    if envs % actors:
        raise UserError(f"num_envs={envs}: must be a multiple of num_actors={actors}, so that each has as many")
    if batch % (envs // actors):
        raise UserError(
            f"batch_size={batch}: must be a multiple of {envs // actors}, the environments of an actor, each of which "
            "fills one of the rollouts (num_envs / num_actors)"
        )
    least = batch // (envs // actors) + actors
    if cfg["num_buffers"] is not None and cfg["num_buffers"] < least:
        raise UserError(
            f"num_buffers={cfg['num_buffers']}: too few; must be at least {least}, one for each actor and a batch"
        )


REGIME = Regime(
    name="impala",
    purpose="IMPALA, actors in processes and a learner that corrects for their older policies",
    workspace="drqv2.regimes.impala:ImpalaWorkspace",
    agents={"impala": Agent("drqv2.agents.impala.ImpalaAgent")},
    keys={"Length": LENGTH, "Rollout": ROLLOUT, "Records": RECORDS},
    passes={"device": "device", "total_steps": "total_timesteps", "discount": "discount"},
    check=check,
    obs_type="state",
    compiles=False,
    whole_episodes=False,
)
