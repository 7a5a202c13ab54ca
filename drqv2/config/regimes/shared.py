"""Keys of every regime; their defaults are in cfgs/config.yaml."""

from __future__ import annotations

from drqv2.config.keys import fixed, free, key, table
from drqv2.config.kinds import (
    FRACTION,
    POSITIVE,
    Bool,
    Camera,
    Choice,
    Device,
    EnvId,
    EvenInt,
    Float,
    Folder,
    Int,
    Name,
    Names,
    Several,
    Text,
    Weights,
)

LARGEST_RENDER = 2048  # pixels: OpenGL drivers can be relied on to draw this much off-screen
SMALLEST_IMAGE = 15  # pixels: of which the encoder's four convolutions leave one

_OWN_ENVIRONMENT = key(
    Name(),
    "Your own environment: a function or class that returns a dm_env or gymnasium environment, or with regime=ppo "
    "a gymnasium.vector.VectorEnv, in a module on the Python path or in the current directory; +env.x=1 passes it "
    "an argument, as it does to a dm_control task (+env.time_limit=5).",
    null="the dm_control task task_name",
)
TASK = table(
    regime=fixed(Text("the name of a regime"), "How the agent learns, set by regime=NAME.", legacy="drqv2"),
    task_name=fixed(Text(), "Task, set by task=NAME."),
    env_id=fixed(
        EnvId(),
        "An environment of another library, instead of a task; +env.x=1 passes it an option.",
        null="the task task_name",
        legacy=None,
    ),
    obs_type=fixed(
        Choice("auto", "pixels", "state", "pixels+state"),
        "Images, or a vector of the environment's state, or a dict of both; auto: what observations have, both if they "
        "are a dict with both; for dm_control's tasks images, with regime=ppo and impala the state.",
        legacy="pixels",
    ),
    frame_stack=fixed(Int(1), "Images stacked into one observation, newest last.", "images"),
    action_repeat=fixed(Int(1), "Environment frames for which each action is held.", "frames"),
    image_size=fixed(Int(SMALLEST_IMAGE, LARGEST_RENDER), "Side of the agent's square images.", "pixels"),
    camera=fixed(
        Camera(),
        "MuJoCo camera of a dm_control task, for the agent's images and for videos.",
        null="the task's own",
        legacy=None,
    ),
    cameras=fixed(
        Several(Camera(), "a list of different cameras ([0,wrist])"),
        "Several MuJoCo cameras, instead of camera: the agent sees a dict of their images; the first films videos.",
        null="one camera",
        legacy=None,
    ),
    render=key(
        Choice("exact", "fast", "rgb_array"),
        "How dm_control's tasks are rendered: exactly as dm_control does, or faster with coarser shadows, which "
        "changes up to 0.3 % of the pixels, averaged over a task. rgb_array: learn from what a Gymnasium environment's "
        "render() returns, where its observations have no image.",
    ),
    image_key=fixed(
        Text(), "Which part of a dict of observations is the image.", null="pixels, or all images", legacy=None
    ),
    observation_parts=fixed(
        Several(Text(), "a list of different names ([pixels,position])"),
        "The only parts of a dict of observations that the agent sees; with obs_type=state, those that are joined.",
        null="all that obs_type has",
        legacy=None,
    ),
    channels=fixed(
        Choice("auto", "first", "last"),
        "Which axis of your environment's images holds the channels; auto: inferred from the shape.",
        legacy="auto",
    ),
    max_episode_steps=key(
        Int(1),
        "Truncate episodes after this many steps, and bootstrap there; replaces the time limit of dm_control's tasks "
        "and of gymnasium: and envpool: environments. A gymnasium.vector of your own ends its training episodes "
        "itself.",
        "agent steps",
        null="the environment's own limit",
        legacy=None,
    ),
    discount=key(FRACTION, "Discount (gamma) of one agent step."),
    **{"env._target_": _OWN_ENVIRONMENT},
    num_envs=fixed(
        Int(1),
        "Environments stepped in parallel. The number affects learning: with more, an update sees fewer of the newest "
        "steps.",
        "environments",
        legacy=1,
    ),
    overlap=free(
        Bool(),
        "Step environments in processes of their own while the agent learns, or in the main process; same results. In "
        "training, regime=ppo follows it with vector=auto; IMPALA's are always in its actors.",
    ),
    env_timeout_seconds=free(
        POSITIVE,
        "Time that a reset or a step of an environment in its own process may take before the process is replaced. "
        "Where environments share a process, each has this time, and one that hangs is noticed after at most twice "
        "as long. IMPALA's actors have actor_hang_seconds.",
        "seconds",
        legacy=300.0,
    ),
)
EVALUATION = table(
    eval_every_frames=free(
        Int(1), "Interval between evaluations; at least action_repeat.", "frames", null="no evaluations"
    ),
    eval_at_start=free(Bool(), "Evaluate before the first epoch, too.", legacy=True),
    num_eval_episodes=free(Int(1), "Episodes of one evaluation.", "episodes"),
    num_eval_envs=free(
        Int(1),
        "Environments that play episodes of an evaluation in parallel; policies of regime=ppo and impala act on all of "
        "them at once, which may round differently.",
        "environments",
    ),
    epoch_frames=free(
        Int(1),
        "Length of an epoch, at whose end there is an evaluation if one is due; at most eval_every_frames.",
        "frames",
        null="eval_every_frames",
        legacy=None,
    ),
    stop_return=free(
        Float(), "End the run once an evaluation's mean return reaches this value.", null="never", legacy=None
    ),
    test_in_train=free(
        Bool(), "Evaluate once a training return has reached stop_return; that evaluation decides.", legacy=False
    ),
    save_best=free(Bool(), "Keep the weights of the best evaluation so far as best.pt.", legacy=False),
)
RUN = table(
    seed=key(Int(0, 2**32 - 1), "Seed from which every random stream of the run is spawned."),
    device=free(Device(), "Where the agent computes; auto takes the GPU if there is one."),
    precision=free(
        Choice("auto", "fp32", "bf16"),
        "Precision of matrix products in updates; auto takes bf16 where the hardware multiplies it faster. Passed to "
        "agents whose signature names it.",
    ),
    compile=free(
        Choice("auto", True, False),
        "On a GPU, replay updates as one CUDA graph; on a CPU, compile the networks, which needs a C++ compiler. "
        "auto: true on a GPU, except with regime=ppo, impala and multitask, which compile nothing there; false on a "
        "CPU, where it was measured to gain nothing (agent=spq and agent=drq_sac have nothing to compile there).",
    ),
    experiment=free(Text(), "A label of your own, stored with the run."),
    objective=free(
        Text(),
        "What a run returns to a sweep: a column of eval.csv, at the last evaluation (environment/distance), or of "
        "train.csv, its mean after the first fifth of the run (train/fps).",
        null="the mean return of the last evaluation; in regime=ppo train/episode_reward",
        legacy=None,
    ),
    regime_dir=free(
        Folder(), "Directory of your regime, in a file NAME.py.", null="regime is one of this project's", legacy=None
    ),
    agent_dir=free(Folder(), "Directory of your agent files; agent._target_ is looked up there first.", null="none"),
    init_from=free(
        Weights(),
        "Snapshot, exported weights or a run's directory, from which a new run takes the weights and nothing else.",
        null="new weights",
    ),
    init_parts=free(
        Names(),
        "Parts of the agent that take their weights from init_from, by the names of attributes: encoder, actor, "
        "critic, policy.encoder.",
        null="all",
        legacy=None,
    ),
    resume=free(
        Text(),
        "Run directory to resume, or latest. Its stored config.yaml replaces the defaults, task and preset; other "
        "key=value arguments override it.",
        null="a new run",
    ),
    resume_force=free(Bool(), "Resume a run even if changed keys affect what it learns."),
)
SNAPSHOTS = table(
    save_snapshot=free(Bool(), "Write snapshot.pt while training, so that the run can be resumed."),
    snapshot_every_seconds=free(Float(0), "Seconds of training between two snapshots.", "seconds"),
    snapshot_keep=free(Int(0), "Evenly spaced weights_FRAME.pt to keep, besides the initial weights.", "files"),
    snapshot_keep_last=free(
        Int(-1), "Weights of the last evaluations to keep as weights_FRAME.pt; -1: of all.", "files", legacy=0
    ),
)
RECORDS = table(
    console=free(
        Choice("auto", "rich", "plain", "off"),
        "A dashboard (rich), a line for each row of the logs (plain; docs/metrics.md explains its letters), or neither "
        "(off); auto: a dashboard on a terminal, lines elsewhere.",
    ),
    use_tb=free(Bool(), "Write TensorBoard events."),
    use_wandb=free(
        Bool(), "Log to Weights & Biases, seeds in groups (pip install wandb; WANDB_MODE=offline without a server)."
    ),
    save_video=free(
        Choice(True, False, "last"),
        "Film the first episode of each evaluation; last: only at the run's last frame, so not where "
        "stop_return ends it earlier.",
    ),
    render_size=free(
        EvenInt(16, LARGEST_RENDER),
        "Side of the square videos, in which pictures keep their proportions.",
        "pixels",
    ),
    video_fps=free(
        POSITIVE,
        "Pictures per second of simulated time in evaluation videos; fewer take less time to render.",
        "pictures",
        null="one for each agent step",
        legacy=None,
    ),
)
GROUPS = {"Task": TASK, "Evaluation": EVALUATION, "Run": RUN, "Snapshots": SNAPSHOTS, "Records": RECORDS}
