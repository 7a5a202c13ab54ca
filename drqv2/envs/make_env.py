"""`make`: the tasks of DeepMind Control by name, or your own environment.

Importing this imports neither mujoco nor dm_control, since `choose_backend` has to be called before.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dm_env

from drqv2.envs.cameras import Camera, ObservationCamera, PhysicsCamera, RenderCamera, check_camera
from drqv2.envs.checks import FAULTS, explain, explained, name_of_factory, offered_arguments
from drqv2.envs.dm_control import load
from drqv2.envs.episode import IF_LONG, LONG_EPISODE, Environment
from drqv2.envs.images import FORMAT, PIXELS, Image, described, find_image, state_keys
from drqv2.envs.notices import notice, tell_left_out
from drqv2.envs.render import choose_backend
from drqv2.envs.spaces import is_discrete
from drqv2.errors import UserError, not_installed
from drqv2.seeds import TRAIN_ENV, spawn_seed


def call(factory: Callable[..., Any], **offered: Any) -> dm_env.Environment:
    """Return the factory's environment; a gymnasium.Env comes back under its adapter.

    The factory gets those of `offered` that its signature names and that are not bound yet; and num_envs=1, for one
    that makes a gymnasium.vector.VectorEnv.
    """
    name = name_of_factory(factory)
    try:
        env: Any = factory(**offered_arguments(factory, offered | {"num_envs": 1}))
        gymnasium = sys.modules.get("gymnasium")  # without which there is no vector either
        if gymnasium is not None and isinstance(env, gymnasium.vector.VectorEnv):
            from drqv2.envs.gymnasium_vector import only_environment

            env = only_environment(env, name)
        elif hasattr(env, "action_space") and not hasattr(env, "action_spec"):
            from drqv2.envs.gymnasium import GymnasiumEnvironment

            env = GymnasiumEnvironment(env)
    except UserError:
        raise
    except FAULTS as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "gymnasium":
            raise UserError(not_installed("gymnasium", "gym")) from error
        raise explain(error, f"{name}()") from error
    if not hasattr(env, "action_spec"):
        raise UserError(f"{name} returned {type(env).__name__}: must be a dm_env.Environment or a gymnasium.Env")
    return env


def _camera(
    env: Any, name: str, image_size: int, camera: int | str | None, render: str, obs_type: str, image: Image | None
) -> Camera:
    """Return the camera of your own environment, whose observation has `image`, if any; say what the agent sees."""
    others = "".join(f", {key}: a {kind}" for key, kind in getattr(env, "left_out", {}).items())
    spec = env.observation_spec()
    no_image = f"the observations of {name} have no image, {FORMAT}: {described(spec)}{others}"
    if camera is None:  # dm_control's own pixels wrapper knows which camera the pixels are from
        camera = getattr(env, "_render_kwargs", {}).get("camera_id")
    if image is not None and obs_type == "pixels":
        _tell_image(env, name, image)
        film: Camera | None = None
        if camera is not None and hasattr(env, "physics"):
            film = PhysicsCamera(env, image_size, camera)
        elif getattr(env, "render_mode", None) == "rgb_array":
            film = RenderCamera(env, image_size)
        return ObservationCamera(image, image_size, film)
    if hasattr(env, "picture"):
        if obs_type != "pixels":
            return RenderCamera(env, image_size)
        if render != "rgb_array":
            raise UserError(
                f"obs_type=pixels: {no_image}\n"
                "Use obs_type=state, or render=rgb_array to learn from what its render() returns."
            )
        drawn = RenderCamera(env, image_size, f"render=rgb_array: {name} draws nothing, since its")
        notice(f"{name}: the agent sees what render() returns; its observations have no image and are left out")
        return drawn
    if hasattr(env, "physics"):
        if obs_type == "pixels":
            notice(f"{name}: the agent sees camera {camera or 0} of the simulation; its observations have no image")
        return PhysicsCamera(env, image_size, 0 if camera is None else camera, render == "fast")
    if obs_type == "pixels":
        raise UserError(f"obs_type=pixels: {no_image}" + "\nUse obs_type=state." * bool(state_keys(spec)))
    raise UserError(f"{name} cannot be filmed: it is neither dm_control's nor a gymnasium.Env, and {no_image}")


def _tell_image(env: Any, name: str, image: Image) -> None:
    spec = env.observation_spec()
    if image.notes or image.key not in (None, PIXELS):
        part = "observations" if image.key is None else f"the observation {image.key!r}"
        how = f" ({'; '.join(image.notes)})" if image.notes else ""
        height, width, channels = image.shape
        notice(f"{name}: the agent sees {part} as images of {height}x{width} with {channels} channels{how}")
    others = [key for key in spec if key != image.key] if image.key is not None else []
    tell_left_out(name, others, getattr(env, "left_out", {}))


def _check_choices(render: str, obs_type: str, channels: str) -> None:
    allowed = {
        "render": (render, ("exact", "fast", "rgb_array")),
        "obs_type": (obs_type, ("pixels", "state")),
        "channels": (channels, ("auto", "first", "last")),
    }
    for key, (choice, choices) in allowed.items():
        if choice not in choices:
            raise UserError(f"{key}={choice!r}: must be one of {', '.join(choices)}")


def _check_no_image_chosen(name: str, render: str, image_key: str | None, channels: str) -> None:
    """Raise UserError if the image of a dm_control task, which this project draws, is chosen otherwise."""
    if render == "rgb_array":
        raise UserError(f"render=rgb_array: {name} is drawn by this project; use render=exact or render=fast")
    if image_key is not None or channels != "auto":
        given = f"image_key={image_key}" if image_key is not None else f"channels={channels}"
        raise UserError(f"{given}: {name} is a task of dm_control, whose images need no choice; leave it out")


def make(
    name: str,
    frame_stack: int,
    action_repeat: int,
    seed: int,
    *,
    image_size: int = 84,
    camera: int | str | None = None,
    factory: Callable[..., Any] | None = None,
    options: Mapping[str, Any] | None = None,
    stream: int = TRAIN_ENV,
    index: int = 0,
    render: str = "exact",
    obs_type: str = "pixels",
    image_key: str | None = None,
    channels: str = "auto",
    max_episode_steps: int | None = None,
    long_episode: int = LONG_EPISODE,
    if_long: str = IF_LONG,
) -> Environment:
    """Make an environment, observed as pixels (DrQ-v2, arXiv 2107.09645, section 4) or as a state vector.

    Args:
        name: a task that `load` knows; with a factory, whatever the factory makes of it.
        frame_stack: frames in one observation of pixels.
        action_repeat: environment frames in one agent step.
        seed: the run's seed; episode e is seeded from (seed, stream, index, e).
        image_size: height and width of a frame, pixels.
        camera: MuJoCo camera, number or name; None for the task's own (2 for quadruped, y-axis for dog, cam1 for lqr,
            front_close for manipulation tasks, else 0). Where the pixels come with the observation it is used for
            videos only.
        factory: returns your own dm_env.Environment or gymnasium.Env; of task_name, image_size, seed and camera it is
            given those that its signature names. Its pixels are resized to image_size by area averaging; a dm_control
            environment without a pixels observation is rendered.
        options: arguments of dm_control's task, see `load`; those of a factory are its own.
        stream: stream of random numbers (drqv2.utils): training and evaluation see different episodes.
        index: the environment's number in its stream.
        obs_type: "pixels", or "state": the arrays of the task's own observation, flattened and joined. Then nothing is
            rendered but videos.
        render: "exact": MuJoCo's images are those of dm_control's `physics.render`, to the last bit. "fast": a shadow
            map of 3/8 the width and height, which software OpenGL renders faster. In the worst task, reach_duplo, 0.25
            % of the pixels differ on average, 0.5 % in single images. "rgb_array": what your own gymnasium.Env's
            `render()` returns, where its observations have no image.
        image_key: which part of a dict of your own environment's observations is the image, see `images`.
        channels: "first" or "last" axis of that image; "auto": inferred from its shape.
        max_episode_steps: agent steps after which an episode is truncated; None: the environment's own limit.
        long_episode: agent steps after which a notice reports an episode that has not ended, without max_episode_steps.
        if_long: the last sentence of that notice.

    Returns:
        A dm_env.Environment of ExtendedTimeStep: observation uint8 [frame_stack * C, image_size, image_size], newest
        frame last, or float32 [N]; actions float32 [A] in [-1, 1], or discrete, int64 [] or [A].

    Raises:
        UserError: unknown task or camera, or an environment that cannot be used. Where there is no OpenGL, the first
            episode of pixels raises it: a process that has opened OpenGL cannot be forked into others that render.
    """
    _check_choices(render, obs_type, channels)
    choose_backend()  # in case the program has not
    make_camera: Callable[[], Camera]
    if factory is None:
        _check_no_image_chosen(name, render, image_key, channels)
        env, own_camera = load(name, spawn_seed(seed), obs_type, options, max_episode_steps is not None)
        shown = own_camera if camera is None else camera
        make_camera = partial(PhysicsCamera, env, image_size, shown, render == "fast", own=True)
    else:
        own_seed = spawn_seed(seed, stream, index)
        env = call(factory, task_name=name, image_size=image_size, seed=own_seed, camera=camera)
        kind = type(env)
        name = str(env.label) if hasattr(env, "picture") else f"{kind.__module__}.{kind.__qualname__}"
        with explained(f"{name}: its specs"):
            spec = env.observation_spec()
            if spec is None:
                raise UserError(f"{name}: observation_spec() returned None: must be a spec, or a dict of specs")
            image = find_image(spec, image_key, channels) if obs_type == "pixels" else None
            is_discrete(env.action_spec())  # or the error that they cannot be used
        make_camera = partial(_camera, env, name, image_size, camera, render, obs_type, image)
    if camera is not None and hasattr(env, "physics"):
        check_camera(env.physics, camera, name)
    elif camera is not None and factory is not None and "camera" not in inspect.signature(factory).parameters:
        raise UserError(f"camera={camera}: {name} is not a MuJoCo simulation of dm_control's; leave it out")
    stack = frame_stack if obs_type == "pixels" else None
    own = seed, stream, index
    ends = max_episode_steps, long_episode, if_long
    return Environment(env, make_camera, stack, action_repeat, *own, name, *ends)
