"""Several tasks at once: DrQ-v2's keys, and which tasks; their defaults are in cfgs/regime/multitask.yaml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from drqv2.config.dm_control import episode_frames, every_task
from drqv2.config.formatting import did_you_mean, show
from drqv2.config.keys import fixed, free, key, table
from drqv2.config.kinds import FRACTION, Camera, Choice, Int, Settings, Tasks
from drqv2.config.regime import Agent, Regime
from drqv2.config.regimes import drqv2
from drqv2.errors import UserError

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

TASKS = table(
    tasks=fixed(
        Tasks(TASK_GROUPS),
        "Tasks that one agent learns: dm_control's, metaworld:NAME, envpool:NAME, gymnasium:NAME. Keys that count "
        "frames or steps count those of one task.",
        null="the task task_name alone",
    ),
    envs_per_task=fixed(Int(1), "Environments of each task.", "environments"),
    exclude_tasks=fixed(
        Tasks(TASK_GROUPS), "Tasks that are played and logged but not stored: the agent does not learn from them."
    ),
    per_task=fixed(
        Settings(action_repeat=Int(1), discount=FRACTION, camera=Camera()),
        "Settings of individual tasks, as in 'per_task={cheetah_run:{action_repeat:4}}'; frames are counted with the "
        "action_repeat of the others.",
        null="no task has settings of its own",
    ),
    task_sampling=key(
        Choice("uniform", "proportional"),
        "How a batch is divided: equally among the tasks, or as their transitions in replay.",
    ),
    metric_names=free(
        Choice("task", "env_index"),
        "Names of a task's metrics: success/walker_walk, or success_env_index_1 as in mtrl.",
    ),
)


def check(cfg: Mapping[str, Any]) -> None:
    """Check a list of tasks and what refers to it, besides what DrQ-v2 needs."""
    drqv2.check_learning(cfg)
    names = [cfg["env_id"] or cfg["task_name"]] if cfg["tasks"] is None else cfg["tasks"]
    if not names:
        raise UserError("tasks=[]: give at least one task, or tasks=null for the task alone")
    short: dict[str, str] = {}
    for name in names:
        other = short.setdefault(name.rpartition(":")[2], name)
        if other != name:
            raise UserError(f"tasks: {other} and {name} would have the same name in the metrics; give only one of them")
        if ":" not in name and cfg["env._target_"] is None and name not in every_task():
            near = did_you_mean(name, [*TASK_GROUPS, *every_task()])
            raise UserError(f"tasks: {show(name)}: unknown task{near}; others are LIBRARY:NAME")
    for list_of, given in (("exclude_tasks", cfg["exclude_tasks"]), ("per_task", cfg["per_task"] or ())):
        for name in given:
            if name not in names:
                raise UserError(f"{list_of}: {name} is not among tasks={show(names)}{did_you_mean(name, names)}")
    if set(names) == set(cfg["exclude_tasks"]):
        raise UserError(f"exclude_tasks={show(cfg['exclude_tasks'])}: at least one of tasks={show(names)} must be left")
    if cfg["tasks"] is not None and cfg["env_id"] is not None:
        raise UserError(f"env_id={cfg['env_id']} and tasks={show(names)}: give only one of them")
    if cfg["num_envs"] != cfg["envs_per_task"]:
        raise UserError(
            f"num_envs={cfg['num_envs']}: regime=multitask has envs_per_task={cfg['envs_per_task']} instead"
        )
    size, least = cfg["replay_buffer_size"], sum(_episode(cfg, name) for name in names)
    if size < least:
        raise UserError(f"replay_buffer_size={size}: smaller than an episode of each task; must be at least {least}")


def _episode(cfg: Mapping[str, Any], task: str) -> int:
    """Return the transitions of an episode of one of several tasks; 0 where its length is not known here."""
    if task in cfg["exclude_tasks"] or any(cfg.get(name) is not None for name in drqv2.OTHER_LENGTH):
        return 0
    own = (cfg["per_task"] or {}).get(task, {})
    frames = {"": episode_frames(task), "metaworld": 500}.get(task.rpartition(":")[0], 0)
    return math.ceil(frames / own.get("action_repeat", cfg["action_repeat"]))


REGIME = Regime(
    name="multitask",
    purpose="DrQ-v2 on several tasks at once, with one agent",
    workspace="drqv2.regimes.multitask:MultitaskWorkspace",
    agents={
        "multitask": Agent("drqv2.agents.multitask.MultiTaskAgent", compiles=("cpu",), continuous=True),
        "drqv2": drqv2.DRQV2,
    },
    keys={"Tasks": TASKS} | drqv2.KEYS,
    check=check,
)
