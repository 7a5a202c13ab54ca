"""Keys of PPO; their defaults are in cfgs/regime/ppo.yaml."""

from __future__ import annotations

from drqv2.config.kinds import Bool, Choice, Float, Int, Key
from drqv2.config.tables import shared
from drqv2.config.tables.shared import fixed, free

LENGTH = (
    free(
        "total_timesteps",
        Int(1),
        "Length of the run; another length also stretches the schedule of the learning rate.",
        "agent steps",
    ),
)
ROLLOUT = (
    free(
        "vector",
        Choice("auto", "processes", "serial"),
        "How environments are stepped: in processes, all in this one (for debugging), or auto: by the threads of "
        "EnvPool or by your own gymnasium.vector.VectorEnv where they are theirs, else in processes.",
    ),
    free(
        "envs_per_process",
        Int(1),
        "Environments that share a process; the results are the same.",
        "environments",
        null="so many that there is a process for each core",
        legacy=None,
    ),
    free("envs_per_recv", Int(1), "EnvPool only: act on those that are ready first.", "environments", null="all"),
    fixed("horizon", Int(2), "Consecutive steps of one environment in a segment.", "agent steps"),
    fixed("segments", Int(1), "Segments collected for one update.", "segments", null="from steps_per_collect"),
    fixed(
        "steps_per_collect",
        Int(1),
        "The same in agent steps, a multiple of horizon.",
        "agent steps",
        null="num_envs segments",
        legacy=None,
    ),
    Key(
        "repeat_per_collect",
        Float(0, above=True),
        "Passes over the batch per update, unless agent.update_epochs is given.",
        legacy=1.0,
    ),
    Key("minibatch_size", Int(1), "Steps of a minibatch.", "agent steps", null="the batch, up to 256"),
)
SNAPSHOTS = (
    *shared.SNAPSHOTS,
    free("snapshot_every_updates", Int(1), "Updates between two snapshots at most.", "updates"),
)
RECORDS = (*shared.RECORDS, free("log_every_seconds", Float(0), "Least time between two rows of train.csv.", "seconds"))
AGENT = (
    *shared.POLICY,
    fixed(
        "agent.optimizer",
        Choice("adam", "muon"),
        "Adam for all parameters; or Muon for matrices (torch.optim.Muon), with Adam for the rest.",
    ),
    Key("agent.lr", Float(0, above=True), "Learning rate, at the start of the run if agent.anneal_lr."),
    Key(
        "agent.adam_lr",
        Float(0, above=True),
        "Learning rate of Adam beside Muon; agent.optimizer=muon only.",
        null="as agent.lr",
        legacy=None,
    ),
    Key(
        "agent.anneal_lr",
        Bool(),
        "Let learning rates decay to 0 along a cosine over total_timesteps, or keep them constant.",
        legacy=True,
    ),
    fixed("agent.adam_beta1", Float(0, 0.999), "Adam's decay of the mean of gradients."),
    fixed("agent.adam_beta2", Float(0, 0.99999), "Adam's decay of the mean of squared gradients.", legacy=0.999),
    fixed("agent.adam_eps", Float(0, above=True), "Adam's epsilon; larger: smaller steps where gradients are small."),
    free("agent.total_steps", Int(1), "As total_timesteps."),
    Key("agent.discount", Float(0, 1, above=True), "As discount."),
    Key("agent.gae_lambda", Float(0, 1), "Lambda of the advantages."),
    Key(
        "agent.rho_clip",
        Float(0, above=True),
        "Clip of the importance ratio in the differences of the advantages (rho-bar).",
    ),
    Key("agent.c_clip", Float(0, above=True), "Clip of the importance ratio in the trace of the advantages (c-bar)."),
    Key("agent.update_epochs", Float(0, above=True), "Passes over the batch per update."),
    Key(
        "agent.target_kl",
        Float(0, above=True),
        "End an update after the first pass over the batch whose mean approximate KL divergence exceeds this.",
        null="make all passes",
        legacy=None,
    ),
    Key("agent.minibatch_size", Int(1), "As minibatch_size.", null="as minibatch_size"),
    Key("agent.accumulate_minibatches", Int(1), "Minibatches before a step of the optimizer.", "minibatches"),
    Key("agent.clip_coef", Float(0, above=True), "PPO's clipping range around a ratio of 1."),
    Key("agent.vf_coef", Float(0), "Weight of the value loss."),
    Key("agent.vf_clip", Float(0, above=True), "Clipping range of values around the old ones."),
    Key("agent.ent_coef", Float(0), "Weight of the entropy bonus."),
    Key("agent.max_grad_norm", Float(0, above=True), "Maximum gradient norm."),
    Key("agent.prio_alpha", Float(0), "Exponent of the segments' priorities; 0 draws uniformly."),
    Key("agent.prio_beta0", Float(0, 1), "Exponent of the importance weights at the start."),
    Key(
        "agent.truncation",
        Choice("bootstrap", "ignore"),
        "At a time limit, bootstrap from the last observation; or treat it as an end.",
    ),
    Key(
        "agent.advantage",
        Choice("full_batch", "minibatch", "once"),
        "Advantages of the whole batch before each minibatch; or again of the minibatch, with its own ratios; or once, "
        "with minibatches of shuffled steps and prio_alpha=0, as in the paper.",
    ),
    fixed("agent.normalize_observations", Bool(), "Normalise vectors by their running mean and deviation."),
    fixed("agent.normalize_rewards", Bool(), "Divide rewards by the running deviation of their discounted sum."),
)

GROUPS = {  # by title, in the order in which they are shown
    "Task": shared.TASK,
    "Length": LENGTH,
    "Evaluation": shared.EVALUATION,
    "Rollout": ROLLOUT,
    "Run": shared.RUN,
    "Snapshots": SNAPSHOTS,
    "Records": RECORDS,
    "Agent": AGENT,
}
