"""Names of dm_control's tasks, without importing it, which takes half a second and settles which OpenGL is used."""

from __future__ import annotations

from functools import cache

from hydra.core.config_store import ConfigStore

from drqv2.config.cfgs import CFGS, tasks
from drqv2.config.formatting import did_you_mean

# By domain, those of dm_control.suite.ALL_TASKS; tests/envs/test_every_task.py compares them.
_SUITE = {
    "acrobot": "swingup swingup_sparse",
    "ball_in_cup": "catch",
    "cartpole": "balance balance_sparse swingup swingup_sparse two_poles three_poles",
    "cheetah": "run",
    "dog": "stand walk trot run fetch",
    "finger": "spin turn_easy turn_hard",
    "fish": "upright swim",
    "hopper": "stand hop",
    "humanoid": "stand walk run run_pure_state",
    "humanoid_CMU": "stand walk run",
    "lqr": "lqr_2_1 lqr_6_2",
    "manipulator": "bring_ball bring_peg insert_ball insert_peg",
    "pendulum": "swingup",
    "point_mass": "easy hard",
    "quadruped": "walk run escape fetch",
    "reacher": "easy hard",
    "stacker": "stack_2 stack_4",
    "swimmer": "swimmer6 swimmer15",
    "walker": "stand walk run",
}
SUITE = tuple(f"{domain}_{task}" for domain, names in _SUITE.items() for task in names.split())
# Those of dm_control.manipulation.ALL without the ending _features or _vision, in place of which there is obs_type.
MANIPULATION = (
    "stack_2_bricks",
    "stack_2_bricks_moveable_base",
    "stack_3_bricks",
    "stack_3_bricks_random_order",
    "stack_2_of_3_bricks_random_order",
    "reassemble_3_bricks_fixed_order",
    "reassemble_5_bricks_random_order",
    "lift_brick",
    "lift_large_box",
    "place_brick",
    "place_cradle",
    "reach_duplo",
    "reach_site",
)
_SAME = {"ball_in_cup_catch": "cup_catch"}  # dm_control's name, and the paper's
_ENDINGS = {"features": "state", "vision": "pixels"}  # of dm_control's manipulation tasks: what they show
_NO_VISION = "stack_3_bricks_random_order"  # the only one of MANIPULATION without it


def every_task() -> list[str]:
    """Return the names that `task_name` may have: of the tasks in cfgs/task, and of dm_control's."""
    return sorted({*tasks(), *SUITE, *MANIPULATION})


def other_tasks() -> list[str]:
    """Return the names of dm_control's tasks that have no file in cfgs/task, under any name."""
    known = {*tasks(), *_SAME}
    return [name for name in every_task() if name not in known]


def unknown_task(given: str, name: str) -> str:
    """Return the message for `given`, KEY=NAME, which names no task: the nearest, and what is allowed."""
    return (
        f"{given}: there is no such task{did_you_mean(name, every_task())}\nallowed: dm_control's tasks, listed in "
        "docs/configuration.md; env_id=gymnasium:NAME or env_id=envpool:NAME; or your own environment with "
        "env._target_=module.function"
    )


def episode_frames(task: str) -> int:
    """Return the environment frames of an episode of one of dm_control's tasks: 10 s at 25 Hz of its manipulation."""
    return 250 if task in MANIPULATION else 1000


@cache
def offer_tasks() -> None:
    """Let Hydra compose `task=NAME` for every task: with the settings of cfgs/task/medium.yaml where it has no file.

    dm_control's own names for a manipulation task also choose what it shows: reach_site_features sets obs_type=state.
    """
    for name in {*SUITE, *MANIPULATION} - _with_file():
        _offer(name, _SAME.get(name, "medium"), {} if name in _SAME else {"task_name": name})
    for name in MANIPULATION:
        for ending, obs_type in _ENDINGS.items():
            if (name, ending) != (_NO_VISION, "vision"):
                base, own = (name, {}) if name in _with_file() else ("medium", {"task_name": name})
                _offer(f"{name}_{ending}", base, own | {"obs_type": obs_type})


def _with_file() -> set[str]:
    return {path.stem for path in CFGS.glob("task/*.yaml")}


def _offer(name: str, base: str, values: dict[str, str]) -> None:
    node = {"defaults": [base, "_self_"]} | values
    ConfigStore.instance().store(name, node, group="task", package="_global_", provider="drqv2")
