"""DrQ-v2's own groups of keys; their defaults are in cfgs/regime/drqv2.yaml."""

from __future__ import annotations

from drqv2.config.key import Key
from drqv2.config.kinds import Bool, Choice, Device, Float, Int, Name, Schedule, Shape

LENGTH = (
    Key("num_train_frames", Int(1), "Length of the run.", "frames", resume="free"),
    Key("num_seed_frames", Int(0), "Frames collected before the first update.", "frames"),
)
REPLAY = (
    Key("replay_buffer_size", Int(1), "Capacity; at least one episode.", "transitions"),
    Key(
        "replay_buffer_num_workers",
        Int(0, 8),
        "Processes that load batches; 0 loads them in the main process.",
        resume="free",
    ),
    Key(
        "replay_device",
        Choice("auto", "disk", "cuda"),
        "Where batches are gathered from: episode files through the page cache, or a copy of their frames in GPU "
        "memory. auto: GPU memory, if the learner is on the GPU and the frames take at most 60 % of what is free.",
        resume="free",
    ),
    Key("nstep", Int(1), "Rewards summed before the bootstrap.", "agent steps"),
    Key("batch_size", Int(1), "Transitions in one update.", "transitions"),
    Key("keep_replay", Bool(), "Keep the stored episodes when the run has reached its end.", resume="free"),
)
LEARNER = (
    Key("lr", Float(0, above=True), "Learning rate of Adam, for encoder, actor and critic."),
    Key("feature_dim", Int(1), "Width of the trunks behind the encoder.", "units"),
    Key("stddev_schedule", Schedule(), "Standard deviation of the exploration noise; durations in agent steps."),
    Key("updates_per_step", Int(1), "Calls of agent.update for each agent step.", "calls"),
)
AGENT = (
    Key("agent._target_", Name(), "Class of the agent."),
    Key("agent.obs_shape", Shape(), "Shape of an observation, filled in from the environment."),
    Key("agent.action_shape", Shape(), "Shape of an action, filled in from the environment."),
    Key("agent.device", Device(), "As device.", resume="free"),
    Key("agent.lr", Float(0, above=True), "As lr."),
    Key("agent.critic_target_tau", Float(0, 1, above=True), "Fraction of the critic mixed into its target."),
    Key("agent.update_every_steps", Int(1), "Interval between updates.", "agent steps"),
    Key("agent.use_tb", Bool(), "As use_tb: whether update returns metrics.", resume="free"),
    Key("agent.num_expl_steps", Int(0), "Uniformly random actions at the start.", "agent steps"),
    Key("agent.hidden_dim", Int(1), "Width of the hidden layers of actor and critic.", "units"),
    Key("agent.feature_dim", Int(1), "As feature_dim.", "units"),
    Key("agent.stddev_schedule", Schedule(), "As stddev_schedule."),
    Key("agent.stddev_clip", Float(0, above=True), "Bound on the noise in updates.", null="no bound"),
)
