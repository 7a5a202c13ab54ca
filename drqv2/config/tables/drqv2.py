"""Keys of DrQ-v2; their defaults are in cfgs/regime/drqv2.yaml and cfgs/agent/."""

from __future__ import annotations

from drqv2.config.kinds import Bool, Choice, Device, Float, Int, Key, Name, Schedule, Shape
from drqv2.config.tables import shared
from drqv2.config.tables.shared import fixed, free

LENGTH = (
    free("num_train_frames", Int(1), "Length of the run.", "frames"),
    Key("num_seed_frames", Int(0), "Frames collected before the first update.", "frames"),
)
RECORDS = (
    *shared.RECORDS,
    free("save_train_video", Bool(), "Film training episodes as the agent sees them."),
    free("train_video_every_frames", Int(1), "Interval between training videos; at least action_repeat.", "frames"),
    free(
        "diagnostics_every_frames",
        Int(1),
        "Interval between gradient norms, dormant units, Q against returns; at least action_repeat.",
        "frames",
    ),
)
REPLAY = (
    Key("replay_buffer_size", Int(1), "Capacity, of all tasks together; at least one episode of each.", "transitions"),
    free("replay_buffer_num_workers", Int(0, 8), "Processes that load batches; 0 loads them in the main process."),
    free(
        "replay_device",
        Choice("auto", "disk", "cuda"),
        "Where batches are gathered from: episode files through the page cache, or a copy of their frames in GPU "
        "memory. auto: GPU memory, if the learner is on the GPU and the frames take at most 60 % of what is free.",
    ),
    Key("nstep", Int(1), "Rewards summed before the bootstrap.", "agent steps"),
    Key("batch_size", Int(1), "Transitions in one update, or segments for an agent that asks for them.", "transitions"),
    Key(
        "replay_fading",
        Float(0, 1, above=True),
        "Factor on a transition's probability for each newer one, down to a tenth.",
        null="uniform",
        legacy=None,
    ),
    free("keep_replay", Bool(), "Keep the stored episodes when the run has reached its end."),
)
LEARNER = (
    Key(
        "steps_per_collect",
        Int(1),
        "Agent steps collected between two rounds of updates.",
        "agent steps",
        null="one per environment",
        legacy=None,
    ),
    Key(
        "episodes_per_collect",
        Int(1),
        "Episodes collected between two rounds of updates.",
        "episodes",
        null="as steps_per_collect",
        legacy=None,
    ),
    Key(
        "lr",
        Float(0, above=True),
        "Learning rate of Adam, for encoder, actor and critic; agent=spq: not encoder.",
    ),
    Key("feature_dim", Int(1), "Width of the trunks behind the encoder.", "units"),
    Key("stddev_schedule", Schedule(), "Standard deviation of the exploration noise; durations in agent steps."),
    Key("updates_per_step", Float(0, above=True), "Calls of agent.update for each agent step, on average.", "calls"),
    Key(
        "seed_updates",
        Int(0),
        "Calls of agent.update made at once when the agent first learns.",
        "calls",
        legacy=0,
    ),
)
AGENT = (
    Key("agent._target_", Name(), "Class of the agent."),
    Key("agent.obs_shape", Shape(), "Shape of an observation.", null="that of the environment"),
    Key("agent.action_shape", Shape(), "Shape of an action.", null="that of the environment"),
    free("agent.device", Device(), "As device."),
    Key("agent.lr", Float(0, above=True), "As lr."),
    Key("agent.critic_target_tau", Float(0, 1, above=True), "Fraction of the critic mixed into its target."),
    Key("agent.update_every_steps", Int(1), "Interval between updates.", "agent steps"),
    free("agent.use_tb", Bool(), "As use_tb: whether update returns metrics."),
    Key("agent.num_expl_steps", Int(0), "Uniformly random actions at the start.", "agent steps"),
    Key(
        "agent.hidden_dim",
        Int(1),
        "Width of hidden layers; agent=spq: of latents, too.",
        "units",
    ),
    fixed(
        "agent.encoder",
        Choice("drqv2", "strided"),
        "Convolutions: the paper's, or fewer, with an eighth of the multiplications. For DrQV2Agent and its "
        "subclasses.",
        legacy="drqv2",
    ),
    fixed(
        "agent.critic_layer_norm",
        Bool(),
        "Normalise the critic's hidden layers (RLPD, arXiv 2302.02948); the paper does not. For DrQV2Agent and its "
        "subclasses.",
        legacy=False,
    ),
    Key("agent.feature_dim", Int(1), "As feature_dim.", "units"),
    Key("agent.stddev_schedule", Schedule(), "As stddev_schedule."),
    Key("agent.stddev_clip", Float(0, above=True), "Bound on the noise in updates.", null="no bound"),
)
SPQ = (
    Key("agent.model_lr", Float(0, above=True), "Learning rate of encoder and model. For agent=spq."),
    Key("agent.target_tau", Float(0, 1, above=True), "Fraction of networks mixed into targets. For agent=spq."),
    Key("agent.embed_dim", Int(1), "Width of an action's embedding. For agent=spq.", "units"),
    fixed("agent.pad", Int(0, 24), "Greatest random shift of images. For agent=spq.", "pixels"),
    fixed(
        "agent.convolutions",
        Choice("patch", "strided"),
        "The encoder's convolutions, with 4 or 10 million multiplications an image. For agent=spq.",
    ),
    fixed("agent.horizon", Int(1), "As nstep: transitions of a segment and of a return. For agent=spq.", "agent steps"),
    Key("agent.infonce", Float(0), "Weight of the contrastive loss. For agent=spq."),
    Key("agent.model_warmup", Int(0), "Updates of encoder and model before all others. For agent=spq.", "updates"),
    fixed("agent.hold", Int(1), "Longest time for which exploration noise is held. For agent=spq.", "agent steps"),
)

GROUPS = {  # by title, in the order in which they are shown
    "Task": shared.TASK,
    "Length": LENGTH,
    "Evaluation": shared.EVALUATION,
    "Replay": REPLAY,
    "Learner": LEARNER,
    "Run": shared.RUN,
    "Snapshots": shared.SNAPSHOTS,
    "Records": RECORDS,
    "Agent": (*AGENT, *SPQ),
}
