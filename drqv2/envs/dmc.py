"""DeepMind Control: the tasks by name, and `make`.

Importing this imports neither mujoco nor dm_control, so that a wrong name is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import dm_env

from drqv2.envs import custom
from drqv2.envs.cameras import Camera, ObservationCamera, PhysicsCamera, RenderCamera, has_pixels
from drqv2.envs.episode import Environment
from drqv2.envs.render import choose_backend, require_backend
from drqv2.envs.wrappers import (
    ActionDTypeWrapper,
    ActionRepeatWrapper,
    ExtendedTimeStep,
    ExtendedTimeStepWrapper,
    FrameStackWrapper,
)
from drqv2.errors import UserError, nearest
from drqv2.utils import TRAIN_ENV, spawn_seed

__all__ = [
    "TASKS",
    "ActionDTypeWrapper",
    "ActionRepeatWrapper",
    "ExtendedTimeStep",
    "ExtendedTimeStepWrapper",
    "FrameStackWrapper",
    "check_task",
    "make",
]

TASKS = (
    "acrobot_swingup",
    "cartpole_balance",
    "cartpole_balance_sparse",
    "cartpole_swingup",
    "cartpole_swingup_sparse",
    "cheetah_run",
    "cup_catch",
    "finger_spin",
    "finger_turn_easy",
    "finger_turn_hard",
    "hopper_hop",
    "hopper_stand",
    "humanoid_run",
    "humanoid_stand",
    "humanoid_walk",
    "pendulum_swingup",
    "quadruped_run",
    "quadruped_walk",
    "reach_duplo",
    "reacher_easy",
    "reacher_hard",
    "walker_run",
    "walker_stand",
    "walker_walk",
)
"""The tasks of the paper's table. Every other task of dm_control's suite goes by `domain_task` too."""

RENDERS = ("exact", "fast")
"""The ways to render, see `make`."""

OBS_TYPES = ("pixels", "state")
"""What is observed, see `make`."""

_DOMAIN_OF = {"cup": "ball_in_cup"}
_CAMERA_OF = {"quadruped": 2}


def _suite_tasks() -> dict[str, tuple[str, str]]:
    """Return every task of dm_control's suite by its name here, as (domain, task)."""
    from dm_control import suite

    short = {domain: name for name, domain in _DOMAIN_OF.items()}
    tasks = {f"{domain}_{task}": (domain, task) for domain, task in suite.ALL_TASKS}
    return tasks | {f"{short[domain]}_{task}": (domain, task) for domain, task in suite.ALL_TASKS if domain in short}


def check_task(name: str) -> None:
    """Check that there is a task of this name, without making it.

    Raises:
        UserError: there is none; names the nearest.
    """
    if name in TASKS:
        return
    known = sorted({*TASKS, *_suite_tasks()})
    if name not in known:
        near = nearest(name, known)
        hint = f"nearest: {', '.join(near)}" if near else f"there are {', '.join(TASKS)}"
        raise UserError(f"unknown task {name!r}; {hint}")


def load(name: str, seed: int, obs_type: str = "pixels") -> tuple[dm_env.Environment, int | str]:
    """Return dm_control's own environment for a task, and the camera to see it with.

    Args:
        name: a name that `check_task` accepts.
        seed: for what is drawn once, when the task is built (such as the masses of `lqr`).
        obs_type: pixels or state.
    """
    if name == "reach_duplo":
        from dm_control import manipulation

        if obs_type == "state":
            return manipulation.load("reach_duplo_features", seed=seed), "front_close"
        env = manipulation.load("reach_duplo_vision", seed=seed)
        # Its camera observation is one render for each repeat of an action; the pixels wrapper draws the same picture
        # with the same camera, once.
        for observable in env.task.observables.values():
            observable.enabled = False
        return env, "front_close"
    from dm_control import suite

    domain, task = _suite_tasks()[name]
    env = suite.load(domain, task, task_kwargs={"random": seed}, visualize_reward=False)
    return env, _CAMERA_OF.get(domain, 0)


def _camera(env: Any, image_size: int, camera: int | str | None, fast: bool, own: bool, obs_type: str) -> Camera:
    if not own and has_pixels(env):
        if camera is None:  # dm_control's own pixels wrapper knows which camera the pixels are from
            camera = getattr(env, "_render_kwargs", {}).get("camera_id")
        if obs_type == "pixels":
            film = None if camera is None or not hasattr(env, "physics") else PhysicsCamera(env, image_size, camera)
            return ObservationCamera(env, image_size, film)
    if hasattr(env, "picture"):
        return RenderCamera(env, image_size)
    if hasattr(env, "physics"):
        return PhysicsCamera(env, image_size, 0 if camera is None else camera, fast, own)
    if obs_type == "state":
        raise UserError(f"{type(env).__name__} cannot be filmed: it is neither dm_control's nor a gymnasium.Env")
    raise UserError(
        f"the observations of {type(env).__name__} are {env.observation_spec()}: must be a uint8 image "
        "[height, width, channels], or a dict that has one as `pixels`"
    )


def make(
    name: str,
    frame_stack: int,
    action_repeat: int,
    seed: int,
    *,
    image_size: int = 84,
    camera: int | str | None = None,
    factory: Callable[..., Any] | None = None,
    stream: int = TRAIN_ENV,
    index: int = 0,
    render: str = "exact",
    obs_type: str = "pixels",
) -> Environment:
    """Make an environment, observed as pixels (DrQ-v2, arXiv 2107.09645, section 4) or as a state vector.

    Args:
        name: one of TASKS, or `domain_task` of dm_control's suite; with a factory, whatever the factory makes of it.
        frame_stack: frames in one observation of pixels.
        action_repeat: environment frames in one agent step.
        seed: the run's seed; episode e is seeded from (seed, stream, index, e).
        image_size: height and width of a frame, pixels.
        camera: MuJoCo camera, number or name; None for the task's own (2 for quadruped, front_close for reach_duplo,
            else 0). Where the pixels come with the observation it is used for videos only.
        factory: returns your own dm_env.Environment or gymnasium.Env; of task_name, image_size, seed and camera it is
            given those that its signature names. Its pixels are resized to image_size by area averaging; a dm_control
            environment without a pixels observation is rendered.
        stream: stream of random numbers (drqv2.utils): training and evaluation see different episodes.
        index: the environment's number in its stream.
        obs_type: "pixels", or "state": the arrays of the task's own observation, flattened and joined. Then nothing is
            rendered but videos.
        render: "exact": MuJoCo's images are those of dm_control's `physics.render`, to the last bit. "fast": a shadow
            map of 3/8 the width and height, which software OpenGL renders faster. In the worst task, reach_duplo, 0.25
            % of the pixels differ on average, 0.5 % in single images.

    Returns:
        A dm_env.Environment of ExtendedTimeStep: observation uint8 [frame_stack * C, image_size, image_size], newest
        frame last, or float32 [N]; actions float32 [A] in [-1, 1], or discrete, int64 [].

    Raises:
        UserError: unknown task or camera, no OpenGL for pixels, or an environment that cannot be used (see `custom`).
    """
    for key, value in (("frame_stack", frame_stack), ("action_repeat", action_repeat), ("image_size", image_size)):
        if value < 1:
            raise UserError(f"{key}={value}: must be at least 1")
    for key, choice, choices in (("render", render, RENDERS), ("obs_type", obs_type, OBS_TYPES)):
        if choice not in choices:
            raise UserError(f"{key}={choice!r}: must be one of {', '.join(choices)}")
    choose_backend()  # in case the program has not
    if factory is None:
        check_task(name)
        if obs_type == "pixels":
            require_backend()
        env, own_camera = load(name, spawn_seed(seed), obs_type)
        camera = own_camera if camera is None else camera
    else:
        own_seed = spawn_seed(seed, stream, index)
        env = custom.build(factory, task_name=name, image_size=image_size, seed=own_seed, camera=camera)
    custom.check_action_spec(env.action_spec())
    make_camera = partial(_camera, env, image_size, camera, render == "fast", factory is None, obs_type)
    stack = frame_stack if obs_type == "pixels" else None
    return Environment(env, make_camera, stack, action_repeat, seed, stream, index)
