"""Groups of keys that every regime has; their defaults are in cfgs/config.yaml."""

from __future__ import annotations

from drqv2.config.key import Key
from drqv2.config.kinds import Bool, Choice, Device, EvenInt, File, Float, Folder, Int, Name, Text

REGIMES = {"drqv2": "DrQ-v2, off-policy learning from pixels"}  # each has cfgs/regime/NAME.yaml and a table of its own
FIRST_REGIME = "drqv2"  # of configurations stored before the key `regime` existed
LARGEST_RENDER = 2048  # pixels: OpenGL drivers can be relied on to draw this much off-screen


def encoder_side(image_size: int) -> int:
    """Return the side of the encoder's last feature map: four 3x3 convolutions with strides 2, 1, 1, 1."""
    return (image_size - 3) // 2 + 1 - 3 * 2


SMALLEST_IMAGE = next(size for size in range(3, 99) if encoder_side(size) >= 1)

TASK = (
    Key("regime", Choice(*REGIMES), "How the agent learns, set by regime=NAME.", resume="fixed", legacy=FIRST_REGIME),
    Key("task_name", Text(), "Task, set by task=NAME.", resume="fixed"),
    Key(
        "obs_type",
        Choice("pixels", "state"),
        "What the agent observes: rendered images, or the task's state vector.",
        resume="fixed",
        legacy="pixels",
    ),
    Key("frame_stack", Int(1), "Images stacked into one observation, newest last.", "images", resume="fixed"),
    Key("action_repeat", Int(1), "Environment frames for which each action is held.", "frames", resume="fixed"),
    Key("image_size", Int(SMALLEST_IMAGE), "Side of the square images that the agent sees.", "pixels", resume="fixed"),
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
    Key(
        "num_envs",
        Int(1),
        "Environments stepped in parallel, each in its own process. The number affects learning: with more, an update "
        "sees fewer of the newest steps.",
        "environments",
        resume="fixed",
        legacy=1,
    ),
    Key(
        "overlap",
        Bool(),
        "Step a single environment in its own process while the agent learns; the results are the same.",
        resume="free",
    ),
)
EVALUATION = (
    Key("eval_every_frames", Int(1), "Interval between evaluations; at least action_repeat.", "frames", resume="free"),
    Key("num_eval_episodes", Int(1), "Episodes of one evaluation.", "episodes", resume="free"),
    Key(
        "num_eval_envs",
        Int(1),
        "Environments that play evaluation episodes in parallel; the number does not affect the results.",
        "environments",
        resume="free",
    ),
)
RUN = (
    Key("seed", Int(0, 2**32 - 1), "Seed from which every random stream of the run is spawned."),
    Key("device", Device(), "Where the agent computes; auto takes the GPU if there is one.", resume="free"),
    Key(
        "precision",
        Choice("auto", "fp32", "bf16"),
        "Precision of matrix products in updates; auto takes bf16 where the hardware multiplies it natively. Passed to "
        "agents whose signature names it.",
        resume="free",
    ),
    Key(
        "compile",
        Choice("auto", True, False),
        "On a GPU, replay updates as one CUDA graph; on a CPU, compile the networks, which needs a C++ compiler. "
        "auto: true on a GPU, false on a CPU, where it was measured to gain nothing.",
        resume="free",
    ),
    Key("experiment", Text(), "A label of your own, stored with the run.", resume="free"),
    Key(
        "agent_dir",
        Folder(),
        "Directory with your own agent files, in which agent._target_ is looked up first.",
        null="none",
        resume="free",
    ),
    Key(
        "init_from",
        File(),
        "Snapshot from which a new run takes the weights and nothing else.",
        null="fresh weights",
        resume="free",
    ),
    Key(
        "resume",
        Text(),
        "Run directory to resume, or latest. Its stored config.yaml replaces the defaults, task and preset; other "
        "key=value arguments override it.",
        null="a new run",
        resume="free",
    ),
    Key("resume_force", Bool(), "Resume a run even if changed keys affect what it learns.", resume="free"),
)
SNAPSHOTS = (
    Key(
        "save_snapshot",
        Bool(),
        "Write snapshot.pt while training, at each evaluation, at the end and when asked to stop, so that the run can "
        "be resumed.",
        resume="free",
    ),
    Key("snapshot_every_seconds", Float(0), "Seconds of training between two snapshots.", "seconds", resume="free"),
    Key(
        "snapshot_keep",
        Int(0),
        "Evenly spaced points of the run at which weights_FRAME.pt is written and kept, in addition to the initial "
        "weights.",
        "files",
        resume="free",
    ),
)
RECORDS = (
    Key(
        "console",
        Choice("auto", "rich", "plain", "off"),
        "A dashboard (rich), a line for each row of the logs (plain), or neither (off); auto: a dashboard on a "
        "terminal, lines elsewhere.",
        resume="free",
    ),
    Key("use_tb", Bool(), "Write TensorBoard events.", resume="free"),
    Key(
        "use_wandb",
        Bool(),
        "Log to Weights & Biases too (pip install wandb; WANDB_MODE=offline without a server).",
        resume="free",
    ),
    Key("save_video", Bool(), "Film the first episode of each evaluation.", resume="free"),
    Key("save_train_video", Bool(), "Film training episodes as the agent sees them.", resume="free"),
    Key(
        "train_video_every_frames",
        Int(1),
        "Interval between training videos; at least action_repeat.",
        "frames",
        resume="free",
    ),
    Key("render_size", EvenInt(16), "Side of the square videos.", "pixels", resume="free"),
    Key(
        "diagnostics_every_frames",
        Int(1),
        "Interval between gradient norms, dormant units, Q against returns; at least action_repeat.",
        "frames",
        resume="free",
    ),
)
GROUPS = (TASK, EVALUATION, RUN, SNAPSHOTS, RECORDS)
