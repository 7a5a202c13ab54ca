"""`load`: a task of dm_control's suite or one of its manipulation tasks, and the camera to see it with.

Importing this imports neither mujoco nor dm_control, since `choose_backend` has to be called before.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import dm_env

from drqv2.errors import UserError, nearest

# Of the suite's domains, where it is not 0, as it is in most published work. Camera 0 of dog_fetch lies on the ball and
# does not see the dog; that of lqr loses sight of the masses.
_CAMERAS: dict[str, int | str] = {"quadruped": 2, "dog": "y-axis", "lqr": "cam1"}
_MANIPULATION_CAMERA = "front_close"  # of the variants that show pictures
_MANIPULATION_SECONDS = 10.0
# lqr has neither a time limit nor limits of its actions: 1000 frames, and about what its optimal policy needs.
_LQR_SECONDS, _LQR_ACTION = 30.0, 1.0


def load(
    name: str, seed: int, obs_type: str = "pixels", options: Mapping[str, Any] | None = None, endless: bool = False
) -> tuple[dm_env.Environment, int | str]:
    """Return dm_control's own environment for a task, and the camera to see it with.

    Args:
        name: `domain_task` of dm_control's suite, cup_catch, or one of its manipulation tasks without the ending
            `_features` or `_vision`, such as reach_duplo.
        seed: for what is drawn once, when the task is built (such as the stiffness in `lqr`).
        obs_type: pixels or state; the state of a manipulation task is that of its `_features`.
        options: arguments of the suite's function that makes the task, such as time_limit (seconds).
        endless: without the task's own time limit.

    Raises:
        UserError: there is no such task, which names the nearest; or it takes no such option.
    """
    from dm_control import suite

    tasks = {f"{domain}_{task}": (domain, task) for domain, task in suite.ALL_TASKS}
    tasks["cup_catch"] = ("ball_in_cup", "catch")
    if name in tasks:
        domain, task = tasks[name]
        return _suite_task(name, getattr(suite, domain).SUITE[task], domain, seed, options or {}, endless)
    from dm_control import manipulation

    arms = [full.removesuffix("_features") for full in manipulation.ALL if full.endswith("_features")]
    if name not in arms:
        near = nearest(name, [*arms, *tasks])
        raise UserError(
            f"unknown task {name!r}; {'nearest' if near else 'there are'}: {', '.join(near or [*tasks, *arms])}"
        )
    if options:
        raise UserError(f"env.{next(iter(options))}: {name} is one of the manipulation tasks, which take no arguments")
    return _manipulation_task(name, seed, obs_type == "pixels", endless), _MANIPULATION_CAMERA


def _manipulation_task(name: str, seed: int, unseen: bool, endless: bool) -> dm_env.Environment:
    """Return what `manipulation.load` returns, which takes no time limit; without observations if they are `unseen`."""
    from dm_control import composer
    from dm_control.manipulation.shared import registry

    task = registry.get_constructor(f"{name}_features")()
    if unseen:  # before the environment is made, whose specs would still have them
        for observable in task.observables.values():
            observable.enabled = False
    limit = float("inf") if endless else _MANIPULATION_SECONDS
    env: dm_env.Environment = composer.Environment(task, time_limit=limit, random_state=seed)
    return env


def _suite_task(
    name: str, make: Callable[..., Any], domain: str, seed: int, options: Mapping[str, Any], endless: bool
) -> tuple[dm_env.Environment, int | str]:
    _check_options(name, inspect.signature(make).parameters, options)
    if endless and "time_limit" in options:
        raise UserError(f"env.time_limit={options['time_limit']} and max_episode_steps: give only one of them")
    limit = {"time_limit": float("inf")} if endless else {"time_limit": _LQR_SECONDS} if domain == "lqr" else {}
    given = limit | dict(options)
    logging.getLogger("absl").addFilter(_is_wanted)  # dm_control passes MuJoCo's warnings to it
    try:
        env: Any = make(random=seed, **given)
    except (TypeError, ValueError) as error:
        if not options:
            raise
        shown = ", ".join(f"env.{key}={value}" for key, value in options.items())
        raise UserError(f"{shown}: dm_control cannot make {name} with this ({error})") from error
    env.task.visualize_reward = False  # it would colour the picture
    if domain == "lqr":
        model = env.physics.model
        model.actuator_ctrllimited[:], model.actuator_ctrlrange[:] = True, (-_LQR_ACTION, _LQR_ACTION)
    return env, _CAMERAS.get(domain, 0)


def _is_wanted(record: logging.LogRecord) -> bool:
    # Of dm_control's cheetah.xml, which no user can change.
    return "'settotalmass' is deprecated" not in record.getMessage()


def _check_options(name: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    allowed = [parameter for parameter in parameters if parameter != "random"]
    for key, value in options.items():
        if key == "random":
            raise UserError("env.random: is set by seed; leave it out")
        if key not in allowed:
            raise UserError(f"env.{key}: {name} takes no such argument; allowed: {', '.join(allowed)}")
        default, number = parameters[key].default, isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise UserError(f"env.{key}={value}: must be true or false")
        if isinstance(default, int | float) and not isinstance(default, bool) and not (number and value > 0):
            raise UserError(f"env.{key}={value}: must be a number above 0")
