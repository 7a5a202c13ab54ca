"""Keys of several tasks at once: those of DrQ-v2, and which tasks; their defaults are in cfgs/regime/multitask.yaml."""

from __future__ import annotations

from drqv2.config.kinds import Bool, Camera, Choice, Float, Int, Key, Settings, Tasks
from drqv2.config.tables import drqv2, shared
from drqv2.config.tables.shared import fixed, free

# Meta-World's benchmarks (arXiv 1910.10897), in the order of its package.
_MT10 = (
    "reach push pick-place door-open drawer-open drawer-close button-press-topdown peg-insert-side window-open "
    "window-close"
)
_MT50 = (
    "assembly basketball bin-picking box-close button-press-topdown button-press-topdown-wall button-press "
    "button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble door-close door-lock door-open "
    "door-unlock hand-insert drawer-close drawer-open faucet-open faucet-close hammer handle-press-side handle-press "
    "handle-pull-side handle-pull lever-pull pick-place-wall pick-out-of-hole pick-place plate-slide plate-slide-side "
    "plate-slide-back plate-slide-back-side peg-insert-side peg-unplug-side soccer stick-push stick-pull push "
    "push-wall push-back reach reach-wall shelf-place sweep-into sweep window-open window-close"
)
TASK_GROUPS = {
    name: [f"metaworld:{task}-v3" for task in tasks.split()] for name, tasks in (("mt10", _MT10), ("mt50", _MT50))
}

TASKS = (
    fixed(
        "tasks",
        Tasks(TASK_GROUPS),
        "Tasks that one agent learns: dm_control's, metaworld:NAME, envpool:NAME, gymnasium:NAME. Keys that count "
        "frames or steps count those of one task.",
        null="only the task task_name",
    ),
    fixed("envs_per_task", Int(1), "Environments of each task.", "environments"),
    fixed(
        "exclude_tasks",
        Tasks(TASK_GROUPS),
        "Tasks that are played and logged but not stored: the agent does not learn from them.",
    ),
    fixed(
        "per_task",
        Settings(action_repeat=Int(1), discount=Float(0, 1, above=True), camera=Camera()),
        "Settings of individual tasks, as in per_task={cheetah_run:{action_repeat:4}}; frames are counted with the "
        "action_repeat of the others.",
        null="no task has settings of its own",
    ),
    Key(
        "task_sampling",
        Choice("uniform", "proportional"),
        "How a batch is divided: equally among the tasks, or as their transitions in replay.",
    ),
    free(
        "metric_names",
        Choice("task", "env_index"),
        "Names of a task's metrics: success/walker_walk, or success_env_index_1 as in mtrl.",
    ),
)
AGENT = (
    *drqv2.AGENT,
    fixed("agent.task_dim", Int(0), "Size of a task's embedding; 0: the agent does not see the task.", "numbers"),
    fixed(
        "agent.critic",
        Choice("drqv2", "residual"),
        "The critic's layers: DrQ-v2's, or residual blocks with layer normalisation (BRC, arXiv 2505.23150).",
    ),
    fixed("agent.critic_dim", Int(1), "Width of the residual blocks.", "units"),
    fixed("agent.critic_blocks", Int(1), "Residual blocks of each value.", "blocks"),
    fixed(
        "agent.value",
        Choice("scalar", "two_hot", "hl_gauss"),
        "A value: a number; or a distribution over bins, learnt by cross-entropy from two neighbouring bins, or from a "
        "Gaussian's share of each (HL-Gauss, arXiv 2403.03950).",
    ),
    fixed("agent.value_bins", Int(3), "Number of bins, with value=two_hot or hl_gauss.", "bins"),
    fixed(
        "agent.value_max",
        Float(0, above=True),
        "Largest value that the bins cover; the smallest is its negative. Values beyond are clipped, so use "
        "normalize_rewards with bins.",
    ),
    fixed(
        "agent.normalize_rewards",
        Bool(),
        "Divide a task's rewards by its greatest discounted return so far over value_max.",
    ),
    fixed(
        "agent.critic_heads",
        Choice("shared", "task"),
        "One output layer of the critic for all tasks, or one for each task.",
    ),
)

# By title, in the order in which they are shown.
GROUPS = {"Task": shared.TASK, "Tasks": TASKS} | drqv2.GROUPS | {"Agent": AGENT}
