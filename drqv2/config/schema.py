"""The configuration keys of each regime, in groups, and what cfgs/ offers: regimes, tasks, presets, defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from drqv2.config.formatting import show, unknown
from drqv2.config.kinds import (
    NO_LEGACY,
    Bool,
    Choice,
    Device,
    EnvId,
    EvenInt,
    File,
    Float,
    Folder,
    Int,
    Key,
    Name,
    Schedule,
    Shape,
    Text,
)
from drqv2.errors import UserError

CFGS = Path(__file__).resolve().parents[2] / "cfgs"
CHOSEN = ("regime", "task", "preset")  # each chooses a file of the folder of cfgs/ with its name
REGIMES = {  # each has cfgs/regime/NAME.yaml and an entry in GROUPS
    "drqv2": "DrQ-v2, off-policy learning from pixels",
    "ppo": "PPO, on-policy learning from many environments at once",
}
FIRST_REGIME = "drqv2"  # of configurations stored before the key `regime` existed
LARGEST_RENDER = 2048  # pixels: OpenGL drivers can be relied on to draw this much off-screen
SMALLEST_IMAGE = 15  # pixels: of which the encoder's four convolutions leave one

free, fixed = partial(Key, resume="free"), partial(Key, resume="fixed")  # what a resume may do with the key

# Groups of every regime; their defaults are in cfgs/config.yaml.
TASK = (
    fixed("regime", Choice(*REGIMES), "How the agent learns, set by regime=NAME.", legacy=FIRST_REGIME),
    fixed("task_name", Text(), "Task, set by task=NAME."),
    fixed(
        "env_id",
        EnvId(),
        "An environment of another library, instead of a task; +env.x=1 passes it an option.",
        null="the task task_name",
        legacy=None,
    ),
    fixed(
        "obs_type",
        Choice("auto", "pixels", "state"),
        "Images, or a vector of the environment's state; auto: images for tasks, else what the environment shows.",
        legacy="pixels",
    ),
    fixed("frame_stack", Int(1), "Images stacked into one observation, newest last.", "images"),
    fixed("action_repeat", Int(1), "Environment frames for which each action is held.", "frames"),
    fixed("image_size", Int(SMALLEST_IMAGE, LARGEST_RENDER), "Side of the agent's square images.", "pixels"),
    Key(
        "render",
        Choice("exact", "fast"),
        "How dm_control's tasks are drawn: exactly as dm_control draws them, or faster with coarser shadows, which "
        "changes up to 0.3 % of the pixels, averaged over a task.",
    ),
    Key("discount", Float(0, 1, above=True), "Discount (gamma) of one agent step."),
    Key(
        "env._target_",
        Name(),
        "Your own environment: a function or class that returns a dm_env or gymnasium environment; +env.x=1 passes it "
        "an argument.",
        null="the dm_control task task_name",
    ),
    fixed(
        "num_envs",
        Int(1),
        "Environments stepped in parallel, each in its own process. The number affects learning: with more, an update "
        "sees fewer of the newest steps.",
        "environments",
        legacy=1,
    ),
    free("overlap", Bool(), "Step a single environment in its own process while the agent learns; same results."),
)
EVALUATION = (
    free("eval_every_frames", Int(1), "Interval between evaluations; at least action_repeat.", "frames"),
    free("num_eval_episodes", Int(1), "Episodes of one evaluation.", "episodes"),
    free("num_eval_envs", Int(1), "Environments that play episodes of an evaluation in parallel.", "environments"),
)
RUN = (
    Key("seed", Int(0, 2**32 - 1), "Seed from which every random stream of the run is spawned."),
    free("device", Device(), "Where the agent computes; auto takes the GPU if there is one."),
    free(
        "precision",
        Choice("auto", "fp32", "bf16"),
        "Precision of matrix products in updates; auto takes bf16 where the hardware multiplies it natively. Passed to "
        "agents whose signature names it.",
    ),
    free(
        "compile",
        Choice("auto", True, False),
        "On a GPU, replay updates as one CUDA graph; on a CPU, compile the networks, which needs a C++ compiler. "
        "auto: true on a GPU, false on a CPU, where it was measured to gain nothing.",
    ),
    free("experiment", Text(), "A label of your own, stored with the run."),
    free("agent_dir", Folder(), "Directory of your agent files; agent._target_ is looked up there first.", null="none"),
    free("init_from", File(), "Snapshot from which a new run takes the weights and nothing else.", null="new weights"),
    free(
        "resume",
        Text(),
        "Run directory to resume, or latest. Its stored config.yaml replaces the defaults, task and preset; other "
        "key=value arguments override it.",
        null="a new run",
    ),
    free("resume_force", Bool(), "Resume a run even if changed keys affect what it learns."),
)
SNAPSHOTS = (
    free("save_snapshot", Bool(), "Write snapshot.pt while training, so that the run can be resumed."),
    free("snapshot_every_seconds", Float(0), "Seconds of training between two snapshots.", "seconds"),
    free("snapshot_keep", Int(0), "Evenly spaced weights_FRAME.pt to keep, besides the initial weights.", "files"),
)
RECORDS = (
    free(
        "console",
        Choice("auto", "rich", "plain", "off"),
        "A dashboard (rich), a line for each row of the logs (plain), or neither (off); auto: a dashboard on a "
        "terminal, lines elsewhere.",
    ),
    free("use_tb", Bool(), "Write TensorBoard events."),
    free("use_wandb", Bool(), "Log to Weights & Biases (pip install wandb; WANDB_MODE=offline without a server)."),
    free("save_video", Bool(), "Film the first episode of each evaluation."),
    free("render_size", EvenInt(16, LARGEST_RENDER), "Side of the square videos.", "pixels"),
)
SHARED = (TASK, EVALUATION, RUN, SNAPSHOTS, RECORDS)

# Groups of DrQ-v2; their defaults are in cfgs/regime/drqv2.yaml.
DRQV2_LENGTH = (
    free("num_train_frames", Int(1), "Length of the run.", "frames"),
    Key("num_seed_frames", Int(0), "Frames collected before the first update.", "frames"),
)
DRQV2_RECORDS = (
    *RECORDS,
    free("save_train_video", Bool(), "Film training episodes as the agent sees them."),
    free("train_video_every_frames", Int(1), "Interval between training videos; at least action_repeat.", "frames"),
    free(
        "diagnostics_every_frames",
        Int(1),
        "Interval between gradient norms, dormant units, Q against returns; at least action_repeat.",
        "frames",
    ),
)
DRQV2_REPLAY = (
    Key("replay_buffer_size", Int(1), "Capacity; at least one episode.", "transitions"),
    free("replay_buffer_num_workers", Int(0, 8), "Processes that load batches; 0 loads them in the main process."),
    free(
        "replay_device",
        Choice("auto", "disk", "cuda"),
        "Where batches are gathered from: episode files through the page cache, or a copy of their frames in GPU "
        "memory. auto: GPU memory, if the learner is on the GPU and the frames take at most 60 % of what is free.",
    ),
    Key("nstep", Int(1), "Rewards summed before the bootstrap.", "agent steps"),
    Key("batch_size", Int(1), "Transitions in one update.", "transitions"),
    free("keep_replay", Bool(), "Keep the stored episodes when the run has reached its end."),
)
DRQV2_LEARNER = (
    Key("lr", Float(0, above=True), "Learning rate of Adam, for encoder, actor and critic."),
    Key("feature_dim", Int(1), "Width of the trunks behind the encoder.", "units"),
    Key("stddev_schedule", Schedule(), "Standard deviation of the exploration noise; durations in agent steps."),
    Key("updates_per_step", Int(1), "Calls of agent.update for each agent step.", "calls"),
)
DRQV2_AGENT = (
    Key("agent._target_", Name(), "Class of the agent."),
    Key("agent.obs_shape", Shape(), "Shape of an observation.", null="that of the environment"),
    Key("agent.action_shape", Shape(), "Shape of an action.", null="that of the environment"),
    free("agent.device", Device(), "As device."),
    Key("agent.lr", Float(0, above=True), "As lr."),
    Key("agent.critic_target_tau", Float(0, 1, above=True), "Fraction of the critic mixed into its target."),
    Key("agent.update_every_steps", Int(1), "Interval between updates.", "agent steps"),
    free("agent.use_tb", Bool(), "As use_tb: whether update returns metrics."),
    Key("agent.num_expl_steps", Int(0), "Uniformly random actions at the start.", "agent steps"),
    Key("agent.hidden_dim", Int(1), "Width of the hidden layers of actor and critic.", "units"),
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

# Groups of PPO; their defaults are in cfgs/regime/ppo.yaml.
PPO_LENGTH = (
    free(
        "total_timesteps",
        Int(1),
        "Length of the run; another length also stretches the schedule of the learning rate.",
        "agent steps",
    ),
)
PPO_ROLLOUT = (
    free(
        "vector",
        Choice("auto", "processes", "serial"),
        "How environments are stepped: each in its own process, all in this one (for debugging), or auto: by the "
        "threads of EnvPool where it is theirs, else in processes.",
    ),
    free("envs_per_recv", Int(1), "EnvPool only: act on those that are ready first.", "environments", null="all"),
    fixed("horizon", Int(2), "Consecutive steps of one environment in a segment.", "agent steps"),
    fixed("segments", Int(1), "Segments collected for one update.", "segments", null="num_envs"),
    Key("minibatch_size", Int(1), "Steps of a minibatch.", "agent steps", null="the batch, up to 16,384"),
)
PPO_SNAPSHOTS = (*SNAPSHOTS, free("snapshot_every_epochs", Int(1), "Updates between two snapshots at most.", "updates"))
PPO_RECORDS = (*RECORDS, free("log_every_seconds", Float(0), "Least time between two rows of train.csv.", "seconds"))
PPO_AGENT = (
    Key("agent._target_", Name(), "Class of the agent."),
    free("agent.device", Device(), "As device."),
    fixed(
        "agent.encoder",
        Choice("auto", "mlp", "small", "nature", "impala"),
        "Network of observations: mlp for vectors; for images the convolutions of arXiv 1312.5602 (small), of Nature "
        "518 (nature) or of IMPALA's residual network (arXiv 1802.01561); auto: mlp or nature.",
    ),
    fixed("agent.hidden_dim", Int(1), "Width of the layers behind it, and of the LSTM.", "units"),
    fixed("agent.lstm", Bool(), "A recurrent policy."),
    fixed(
        "agent.optimizer",
        Choice("muon", "adam"),
        "Muon, for matrices, with Adam for the rest (torch.optim.Muon); or Adam for all.",
    ),
    Key("agent.lr", Float(0, above=True), "Learning rate at the start; it falls to 0 along a cosine."),
    free("agent.total_steps", Int(1), "As total_timesteps."),
    Key("agent.discount", Float(0, 1, above=True), "As discount."),
    Key("agent.gae_lambda", Float(0, 1), "Lambda of the advantages."),
    Key("agent.rho_clip", Float(0, above=True), "Greatest ratio in the differences of the advantages."),
    Key("agent.c_clip", Float(0, above=True), "Greatest ratio in their trace."),
    Key("agent.update_epochs", Float(0, above=True), "How often an update goes through its batch."),
    Key("agent.minibatch_size", Int(1), "As minibatch_size.", null="as minibatch_size"),
    Key("agent.accumulate_minibatches", Int(1), "Minibatches before a step of the optimizer.", "minibatches"),
    Key("agent.clip_coef", Float(0, above=True), "How far the ratio may leave 1."),
    Key("agent.vf_coef", Float(0), "Weight of the value loss."),
    Key("agent.vf_clip", Float(0, above=True), "How far values may leave the old ones."),
    Key("agent.ent_coef", Float(0), "Weight of the entropy."),
    Key("agent.max_grad_norm", Float(0, above=True), "To which the gradient's norm is clipped."),
    Key("agent.prio_alpha", Float(0), "Exponent of the segments' priorities; 0: all are drawn alike."),
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

# regime -> title -> keys, in the order in which they are shown
GROUPS: dict[str, dict[str, tuple[Key, ...]]] = {
    "drqv2": {
        "Task": TASK,
        "Length": DRQV2_LENGTH,
        "Evaluation": EVALUATION,
        "Replay": DRQV2_REPLAY,
        "Learner": DRQV2_LEARNER,
        "Run": RUN,
        "Snapshots": SNAPSHOTS,
        "Records": DRQV2_RECORDS,
        "Agent": DRQV2_AGENT,
    },
    "ppo": {
        "Task": TASK,
        "Length": PPO_LENGTH,
        "Evaluation": EVALUATION,
        "Rollout": PPO_ROLLOUT,
        "Run": RUN,
        "Snapshots": PPO_SNAPSHOTS,
        "Records": PPO_RECORDS,
        "Agent": PPO_AGENT,
    },
}


def groups(regime: str = FIRST_REGIME) -> Mapping[str, tuple[Key, ...]]:
    """Return the keys of a regime under the titles of their groups.

    Raises:
        UserError: there is no such regime.
    """
    if not isinstance(regime, str) or regime not in GROUPS:
        raise UserError(unknown("regime", show(regime), GROUPS))
    return GROUPS[regime]


def keys(regime: str = FIRST_REGIME) -> Mapping[str, Key]:
    """Return the keys of a regime by name; raises as `groups`."""
    return {key.name: key for group in groups(regime).values() for key in group}


def every_key() -> Mapping[str, Key]:
    """Return the keys of all regimes by name; where regimes define a name differently, one of the definitions."""
    return {name: key for regime in GROUPS for name, key in keys(regime).items()}


def length(config: Mapping[str, Any]) -> int | None:
    """Return the environment frames of a run from its configuration by dotted name; None if that does not tell."""
    steps = config.get("total_timesteps")
    frames = config.get("num_train_frames") if steps is None else steps * config["action_repeat"]
    return frames if isinstance(frames, int) else None


def legacy(regime: str = FIRST_REGIME) -> dict[str, Any]:
    """Return what a stored configuration means by lacking a key that did not exist when it was written."""
    return {key.name: key.legacy for key in keys(regime).values() if key.legacy is not NO_LEGACY}


def tasks() -> list[str]:
    """Return the names of the tasks in cfgs/task, sorted, without the tiers, which set no task_name."""
    found = (re.search(r"^task_name:\s*(\S+)", p.read_text(), re.M) for p in CFGS.glob("task/*.yaml"))
    return sorted(match[1] for match in found if match)


def presets() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in CFGS.glob("preset/*.yaml"))


def defaults(regime: str = FIRST_REGIME) -> dict[str, Any]:
    """Return a regime's configuration without task and preset, nested, interpolations unresolved."""
    groups(regime)
    merged = OmegaConf.merge(*(OmegaConf.load(CFGS / name) for name in ("config.yaml", f"regime/{regime}.yaml")))
    plain: Any = OmegaConf.to_container(merged)
    return {name: value for name, value in plain.items() if name not in ("defaults", "hydra")}
