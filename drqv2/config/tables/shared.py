"""Keys of every regime; their defaults are in cfgs/config.yaml."""

from __future__ import annotations

from functools import partial

from drqv2.config.kinds import (
    Bool,
    Camera,
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
    Names,
    Text,
)

REGIMES = {  # each has cfgs/regime/NAME.yaml and a table beside this one
    "drqv2": "DrQ-v2, off-policy learning from pixels",
    "impala": "IMPALA, actors in processes and a learner that corrects for their older policies",
    "multitask": "DrQ-v2 on several tasks at once, with one agent",
    "offline": "DrQ+BC, BC, CQL or DrQ-v2 from stored episodes",
    "ppo": "PPO, on-policy learning from many environments at once",
}
FIRST_REGIME = "drqv2"  # of configurations stored before the key `regime` existed
LARGEST_RENDER = 2048  # pixels: OpenGL drivers can be relied on to draw this much off-screen
SMALLEST_IMAGE = 15  # pixels: of which the encoder's four convolutions leave one

free, fixed = partial(Key, resume="free"), partial(Key, resume="fixed")  # what a resume may do with the key

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
        "Images, or a vector of the environment's state; auto: images where observations have one; for "
        "dm_control's tasks images, with regime=ppo and impala the state.",
        legacy="pixels",
    ),
    fixed("frame_stack", Int(1), "Images stacked into one observation, newest last.", "images"),
    fixed("action_repeat", Int(1), "Environment frames for which each action is held.", "frames"),
    fixed("image_size", Int(SMALLEST_IMAGE, LARGEST_RENDER), "Side of the agent's square images.", "pixels"),
    fixed(
        "camera",
        Camera(),
        "MuJoCo camera of a dm_control task, for the agent's images and for videos.",
        null="the task's own",
        legacy=None,
    ),
    Key(
        "render",
        Choice("exact", "fast", "rgb_array"),
        "How dm_control's tasks are rendered: exactly as dm_control does, or faster with coarser shadows, which "
        "changes up to 0.3 % of the pixels, averaged over a task. rgb_array: learn from what a Gymnasium environment's "
        "render() returns, where its observations have no image.",
    ),
    fixed(
        "image_key",
        Text(),
        "Which part of a dict of observations is the image.",
        null="pixels, or the only image",
        legacy=None,
    ),
    fixed(
        "channels",
        Choice("auto", "first", "last"),
        "Which axis of your environment's images holds the channels; auto: inferred from the shape.",
        legacy="auto",
    ),
    Key(
        "max_episode_steps",
        Int(1),
        "Truncate episodes after this many steps, and bootstrap there; replaces the time limit of dm_control's tasks "
        "and of gymnasium: and envpool: environments. A gymnasium.vector of your own ends its training episodes "
        "itself.",
        "agent steps",
        null="the environment's own limit",
        legacy=None,
    ),
    Key("discount", Float(0, 1, above=True), "Discount (gamma) of one agent step."),
    Key(
        "env._target_",
        Name(),
        "Your own environment: a function or class that returns a dm_env or gymnasium environment, or with regime=ppo "
        "a gymnasium.vector.VectorEnv, in a module on the Python path or in the current directory; +env.x=1 passes it "
        "an argument, as it does to a dm_control task (+env.time_limit=5).",
        null="the dm_control task task_name",
    ),
    fixed(
        "num_envs",
        Int(1),
        "Environments stepped in parallel, each in its own process unless overlap=false. The number affects learning: "
        "with more, an update sees fewer of the newest steps.",
        "environments",
        legacy=1,
    ),
    free(
        "overlap",
        Bool(),
        "Step environments in processes of their own while the agent learns, or in the main process; same results.",
    ),
    free(
        "env_timeout_seconds",
        Float(0, above=True),
        "Time that a reset or a step of an environment in its own process may take before the process is replaced. "
        "Where environments share a process, each has this time, and one that hangs is noticed after at most twice "
        "as long. IMPALA's actors have actor_hang_seconds.",
        "seconds",
        legacy=300.0,
    ),
)
EVALUATION = (
    free(
        "eval_every_frames",
        Int(1),
        "Interval between evaluations; at least action_repeat.",
        "frames",
        null="no evaluations",
    ),
    free("eval_at_start", Bool(), "Evaluate before the first epoch, too.", legacy=True),
    free("num_eval_episodes", Int(1), "Episodes of one evaluation.", "episodes"),
    free(
        "num_eval_envs",
        Int(1),
        "Environments that play episodes of an evaluation in parallel; policies of regime=ppo and impala act on all of "
        "them at once, which may round differently.",
        "environments",
    ),
    free(
        "epoch_frames",
        Int(1),
        "Length of an epoch, at whose end there is an evaluation if one is due; at most eval_every_frames.",
        "frames",
        null="eval_every_frames",
        legacy=None,
    ),
    free(
        "stop_return",
        Float(),
        "End the run once an evaluation's mean return reaches this value.",
        null="never",
        legacy=None,
    ),
    free(
        "test_in_train",
        Bool(),
        "Evaluate once a training return has reached stop_return; that evaluation decides.",
        legacy=False,
    ),
    free("save_best", Bool(), "Keep the weights of the best evaluation so far as best.pt.", legacy=False),
)
RUN = (
    Key("seed", Int(0, 2**32 - 1), "Seed from which every random stream of the run is spawned."),
    free("device", Device(), "Where the agent computes; auto takes the GPU if there is one."),
    free(
        "precision",
        Choice("auto", "fp32", "bf16"),
        "Precision of matrix products in updates; auto takes bf16 where the hardware multiplies it faster. Passed to "
        "agents whose signature names it.",
    ),
    free(
        "compile",
        Choice("auto", True, False),
        "On a GPU, replay updates as one CUDA graph; on a CPU, compile the networks, which needs a C++ compiler. "
        "auto: true on a GPU, except with regime=ppo, impala and multitask, which compile nothing there; false on a "
        "CPU, where it was measured to gain nothing (agent=spq has nothing to compile there).",
    ),
    free("experiment", Text(), "A label of your own, stored with the run."),
    free(
        "objective",
        Text(),
        "What a run returns to a sweep: a column of eval.csv, at the last evaluation (environment/distance), or of "
        "train.csv, its mean after the first fifth of the run (train/fps).",
        null="the mean return of the last evaluation; in regime=ppo train/episode_reward",
        legacy=None,
    ),
    free("agent_dir", Folder(), "Directory of your agent files; agent._target_ is looked up there first.", null="none"),
    free(
        "init_from",
        File(),
        "Snapshot, or exported weights, from which a new run takes the weights and nothing else.",
        null="new weights",
    ),
    free(
        "init_parts",
        Names(),
        "Parts of the agent that take their weights from init_from, by the names of attributes: encoder, actor, "
        "critic, policy.encoder.",
        null="all",
        legacy=None,
    ),
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
    free(
        "snapshot_keep_last",
        Int(-1),
        "Weights of the last evaluations to keep as weights_FRAME.pt; -1: of all.",
        "files",
        legacy=0,
    ),
)
RECORDS = (
    free(
        "console",
        Choice("auto", "rich", "plain", "off"),
        "A dashboard (rich), a line for each row of the logs (plain; docs/metrics.md explains its letters), or neither "
        "(off); auto: a dashboard on a terminal, lines elsewhere.",
    ),
    free("use_tb", Bool(), "Write TensorBoard events."),
    free(
        "use_wandb",
        Bool(),
        "Log to Weights & Biases, seeds in groups (pip install wandb; WANDB_MODE=offline without a server).",
    ),
    free(
        "save_video",
        Choice(True, False, "last"),
        "Film the first episode of each evaluation; last: only at the run's last frame, so not where "
        "stop_return ends it earlier.",
    ),
    free(
        "render_size",
        EvenInt(16, LARGEST_RENDER),
        "Side of the square videos, in which pictures keep their proportions.",
        "pixels",
    ),
    free(
        "video_fps",
        Float(0, above=True),
        "Pictures per second of simulated time in evaluation videos; fewer take less time to render.",
        "pictures",
        null="one for each agent step",
        legacy=None,
    ),
)

# Of the agents that learn from their own policy's segments; their defaults are in the regime's file.
POLICY = (
    Key("agent._target_", Name(), "Class of the agent."),
    free("agent.device", Device(), "As device."),
    fixed(
        "agent.encoder",
        Choice("auto", "mlp", "small", "nature", "impala"),
        "Network of observations: mlp for vectors; for images the convolutions of arXiv 1312.5602 (small), of Nature "
        "518 (nature) or of IMPALA's residual network (arXiv 1802.01561); auto: mlp or nature.",
    ),
    fixed("agent.hidden_dim", Int(1), "Width of the layers behind the encoder, and of the LSTM.", "units"),
    fixed("agent.lstm", Bool(), "A recurrent policy."),
)
