"""Keys of IMPALA; their defaults are in cfgs/regime/impala.yaml."""

from __future__ import annotations

from drqv2.config.kinds import Bool, Choice, Float, Int, Key, Text
from drqv2.config.tables import shared
from drqv2.config.tables.ppo import LENGTH
from drqv2.config.tables.shared import fixed, free

ROLLOUT = (
    free("num_actors", Int(1), "Processes that act, each in num_envs / num_actors environments.", "processes"),
    fixed("unroll_length", Int(1), "Steps of an environment in a rollout.", "agent steps"),
    Key("batch_size", Int(1), "Rollouts of one environment each in a batch.", "rollouts"),
    free(
        "num_buffers",
        Int(1),
        "Buffers, each for a rollout of all environments of an actor; with fewer, the policy lag is smaller.",
        "buffers",
        null="2 for each actor, and two batches",
    ),
    free(
        "num_learner_threads",
        Int(1),
        "Threads that copy rollouts into batches, each one batch ahead of the updates.",
        "threads",
    ),
    Key(
        "max_policy_lag",
        Int(0),
        "Maximum number of updates between the weights that a rollout began with and the update that learns from it; "
        "older rollouts are dropped, and counted.",
        "updates",
        null="no bound",
    ),
    free(
        "actor_hang_seconds",
        Float(1),
        "Time that an actor's step or reset may take before the actor is replaced.",
        "seconds",
    ),
    free(
        "batched_inference",
        Bool(),
        "Choose actions in the learner's process, on its device, for all actors that wait at once; or in the actors.",
    ),
    free("cluster", Choice("local", "ray"), "Where the actors are: on this machine, or on a Ray cluster."),
    free("cluster_address", Text(), "The Ray cluster's address, or auto.", null="RAY_ADDRESS, or else a new one"),
    fixed(
        "deterministic",
        Bool(),
        "One actor, in the learner's process, in turn with it: the same seed gives the same bits.",
    ),
)
RECORDS = (
    *shared.RECORDS,
    free("log_every_seconds", Float(0), "Minimum time between two rows of train.csv.", "seconds"),
)
AGENT = (
    *shared.POLICY,
    Key("agent.lr", Float(0, above=True), "Initial learning rate; decays linearly to 0."),
    fixed("agent.rms_alpha", Float(0, 1), "Decay of RMSprop's mean of squares."),
    fixed("agent.rms_eps", Float(0, above=True), "RMSprop's epsilon."),
    fixed("agent.rms_momentum", Float(0, 1), "Momentum of RMSprop."),
    free("agent.total_steps", Int(1), "As total_timesteps."),
    Key("agent.discount", Float(0, 1, above=True), "As discount."),
    Key(
        "agent.reward_scale",
        Float(0, above=True),
        "Factor of rewards, before they are clipped. Values near 1 take fewer updates to learn than values near 100.",
    ),
    Key(
        "agent.reward_clipping",
        Choice("none", "abs_one", "soft_asymmetric"),
        "Rewards unchanged, clipped to [-1, 1], or 5 tanh(r / 5), times 0.3 where negative.",
    ),
    Key(
        "agent.rho_clip",
        Float(0, above=True),
        "Clip of the importance ratio in V-trace's temporal differences (rho-bar).",
    ),
    Key("agent.pg_rho_clip", Float(0, above=True), "Clip of the importance ratio in the policy gradient."),
    Key("agent.baseline_cost", Float(0), "Weight of the value loss."),
    Key("agent.entropy_cost", Float(0), "Weight of the entropy."),
    Key(
        "agent.loss_reduction",
        Choice("sum", "batch_mean", "mean"),
        "Loss of a batch: the sum over its rollouts and their steps, as in TorchBeast; the mean over rollouts of the "
        "sum over steps, as in RTFM; or the mean over steps.",
    ),
    Key("agent.max_grad_norm", Float(0, above=True), "Maximum gradient norm."),
    Key(
        "agent.truncation",
        Choice("bootstrap", "ignore"),
        "At a time limit, bootstrap from the last observation, or treat it as a termination.",
    ),
    fixed("agent.normalize_observations", Bool(), "Normalise vectors by their running mean and deviation."),
)

GROUPS = {  # by title, in the order in which they are shown
    "Task": shared.TASK,
    "Length": LENGTH,
    "Evaluation": shared.EVALUATION,
    "Rollout": ROLLOUT,
    "Run": shared.RUN,
    "Snapshots": shared.SNAPSHOTS,
    "Records": RECORDS,
    "Agent": AGENT,
}
