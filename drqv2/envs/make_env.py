"""`make`: the tasks of DeepMind Control by name, or your own environment.

Importing this imports neither mujoco nor dm_control, since `choose_backend` has to be called before.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import dm_env

from drqv2.envs.cameras import Camera, ObservationCamera, PhysicsCamera, RenderCamera, check_camera
from drqv2.envs.checks import FAULTS, declared_spec, explain, explained, name_of_factory, offered_arguments
from drqv2.envs.dm_control import load
from drqv2.envs.episode import IF_LONG, LONG_EPISODE, Environment
from drqv2.envs.images import FORMAT, PIXELS, described, state_keys
from drqv2.envs.notices import notice
from drqv2.envs.observed import OBS_TYPES, Choice, Seen
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


def _drawn(env: Any, name: str, spec: Any, choice: Choice, cameras: Sequence[int | str], render: str) -> list[str]:
    """Return the names of the images that are drawn since the observations of your own environment have none.

    Raises:
        UserError: nothing can be drawn, or only if render=rgb_array asks for it.
    """
    if choice.obs_type == "state" or (choice.images(spec) and len(cameras) < 2):
        return []
    if hasattr(env, "physics"):
        return _names(cameras)
    if hasattr(env, "picture") and render == "rgb_array":
        return [PIXELS]
    advice = "\nUse obs_type=state." * bool(state_keys(spec))
    if hasattr(env, "picture"):
        advice = "\nUse obs_type=state, or render=rgb_array to learn from what its render() returns."
    raise UserError(f"obs_type={choice.obs_type}: {_no_image(env, name)}{advice}")


def _no_image(env: Any, name: str) -> str:
    others = "".join(f", {key}: a {kind}" for key, kind in getattr(env, "left_out", {}).items())
    return f"the observations of {name} have no image, {FORMAT}: {described(env.observation_spec())}{others}"


def _names(cameras: Sequence[int | str]) -> list[str]:
    """Return what images are called that MuJoCo's cameras show."""
    return [f"{PIXELS}_{camera}" for camera in cameras] if len(cameras) > 1 else [PIXELS]


def _cameras(
    env: Any, name: str, image_size: int, cameras: Sequence[int | str], seen: Seen, fast: bool
) -> Sequence[Camera]:
    """Return the cameras of the images that an agent sees of your own environment, or one for videos; say so."""
    images, chosen = list(seen.images.values()), cameras
    if not cameras:  # dm_control's own pixels wrapper knows which camera the pixels are from
        own = getattr(env, "_render_kwargs", {}).get("camera_id")
        chosen = [] if own is None else [own]
    hint = "; obs_type=pixels+state adds their numbers" if state_keys(env.observation_spec()) else ""
    if any(images):
        film: Camera | None = None
        if chosen and hasattr(env, "physics"):
            film = PhysicsCamera(env, image_size, chosen[0])
        elif getattr(env, "render_mode", None) == "rgb_array":
            film = RenderCamera(env, image_size)
        return [ObservationCamera(image, image_size, film) for image in images if image]
    if hasattr(env, "picture"):
        if not images:
            return [RenderCamera(env, image_size)]
        drawn = RenderCamera(env, image_size, f"render=rgb_array: {name} draws nothing, since its")
        if not seen.is_dict:
            what = "what render() returns; its observations have no image and are left out"
            notice(f"{name}: the agent sees {what}{hint}")
        return [drawn]
    if hasattr(env, "physics"):
        if images and not seen.is_dict:
            camera = (chosen or [0])[0] or 0
            notice(f"{name}: the agent sees camera {camera} of the simulation; its observations have no image{hint}")
        return _simulated(env, image_size, chosen or [0], seen, fast)
    raise UserError(
        f"{name} cannot be filmed: it is neither dm_control's nor a gymnasium.Env, and {_no_image(env, name)}"
    )


def _simulated(
    env: Any, image_size: int, cameras: Sequence[int | str], seen: Seen, fast: bool, own: bool = False
) -> Sequence[Camera]:
    """Return the cameras of a simulation whose images an agent sees, or the first, for videos, where it sees none."""
    names = _names(cameras)
    shown = [camera for name, camera in zip(names, cameras, strict=True) if name in seen.images] or cameras[:1]
    return [PhysicsCamera(env, image_size, camera, fast, own) for camera in shown]


def _check_choices(
    render: str,
    obs_type: str,
    channels: str,
    camera: int | str | None,
    cameras: Sequence[int | str] | None,
    observation_parts: Sequence[str] | None,
) -> None:
    lists: Any = {"cameras": (cameras, "cameras"), "observation_parts": (observation_parts, "names")}
    for key, (given, what) in lists.items():
        if given is not None and (isinstance(given, int | str) or not 0 < len(given) == len(set(given))):
            raise UserError(f"{key}={given!r}: must be a list of one or several different {what}")
    allowed = {
        "render": (render, ("exact", "fast", "rgb_array")),
        "obs_type": (obs_type, OBS_TYPES),
        "channels": (channels, ("auto", "first", "last")),
    }
    for key, (choice, choices) in allowed.items():
        if choice not in choices:
            raise UserError(f"{key}={choice!r}: must be one of {', '.join(choices)}")
    if cameras is not None and camera is not None:
        raise UserError(f"camera={camera!r} and cameras={[*cameras]}: give only one of them")
    if cameras is not None and obs_type == "state":
        raise UserError(f"cameras={[*cameras]}: with obs_type=state nothing is seen; camera=NAME is that of videos")


def _check_cameras(env: Any, name: str, cameras: Sequence[int | str]) -> None:
    if cameras and not hasattr(env, "physics"):
        shown = f"cameras=[{','.join(map(str, cameras))}]" if len(cameras) > 1 else f"camera={cameras[0]}"
        raise UserError(f"{shown}: {name} is not a MuJoCo simulation of dm_control's; leave it out")
    numbers: dict[int, int | str] = {}
    for camera in cameras:
        number = check_camera(env.physics, camera, name)
        if number in numbers:
            shown = ",".join(map(str, cameras))
            raise UserError(
                f"cameras=[{shown}]: {numbers[number]} and {camera} are the same camera of {name}; list it once"
            )
        numbers[number] = camera


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
    cameras: Sequence[int | str] | None = None,
    factory: Callable[..., Any] | None = None,
    options: Mapping[str, Any] | None = None,
    stream: int = TRAIN_ENV,
    index: int = 0,
    render: str = "exact",
    obs_type: str = "pixels",
    image_key: str | None = None,
    channels: str = "auto",
    observation_parts: Sequence[str] | None = None,
    max_episode_steps: int | None = None,
    long_episode: int = LONG_EPISODE,
    if_long: str = IF_LONG,
) -> Environment:
    """Make an environment, observed as pixels (DrQ-v2, arXiv 2107.09645, section 4), as a state vector, or both.

    Args:
        name: a task that `load` knows; with a factory, whatever the factory makes of it.
        frame_stack: frames in one observation of pixels.
        action_repeat: environment frames in one agent step.
        seed: the run's seed; episode e is seeded from (seed, stream, index, e).
        image_size: height and width of a frame, pixels.
        camera: MuJoCo camera, number or name; None for the task's own (2 for quadruped, y-axis for dog, cam1 for lqr,
            front_close for manipulation tasks, else 0). Where the pixels come with the observation it is used for
            videos only.
        cameras: several of them instead, each a part of the observation, `pixels_CAMERA`, in place of its own images;
            the first films videos.
        factory: returns your own dm_env.Environment or gymnasium.Env; of task_name, image_size, seed and camera it is
            given those that its signature names. Its pixels are resized to image_size by area averaging; a dm_control
            environment without a pixels observation is rendered.
        options: arguments of dm_control's task, see `load`; those of a factory are its own.
        stream: stream of random numbers (drqv2.utils): training and evaluation see different episodes.
        index: the environment's number in its stream.
        obs_type: "pixels"; "state": the arrays of the task's own observation, flattened and joined, and nothing is
            rendered but videos; "pixels+state": a dict of images and arrays, see `observed`.
        render: "exact": MuJoCo's images are those of dm_control's `physics.render`, to the last bit. "fast": a shadow
            map of 3/8 the width and height, which software OpenGL renders faster. In the worst task, reach_duplo, 0.25
            % of the pixels differ on average, 0.5 % in single images. "rgb_array": what your own gymnasium.Env's
            `render()` returns, where its observations have no image.
        image_key: which part of a dict of your own environment's observations is the image, see `images`.
        channels: "first" or "last" axis of that image; "auto": inferred from its shape.
        observation_parts: names of the only parts that the agent sees; None: all.
        max_episode_steps: agent steps after which an episode is truncated; None: the environment's own limit.
        long_episode: agent steps after which a notice reports an episode that has not ended, without max_episode_steps.
        if_long: the last sentence of that notice.

    Returns:
        A dm_env.Environment of ExtendedTimeStep: observation uint8 [frame_stack * C, image_size, image_size], newest
        frame last, or float32 [N], or a dict of such parts; actions float32 [A] in [-1, 1], or discrete, int64 [] or
        [A].

    Raises:
        UserError: unknown task or camera, or an environment that cannot be used. Where there is no OpenGL, the first
            episode of pixels raises it: a process that has opened OpenGL cannot be forked into others that render.
    """
    _check_choices(render, obs_type, channels, camera, cameras, observation_parts)
    choose_backend()  # in case the program has not
    choice = Choice(obs_type, image_key, channels, observation_parts)
    chosen: Sequence[int | str] = cameras or ([] if camera is None else [camera])
    make_cameras: Callable[[], Sequence[Camera]]
    if factory is None:
        _check_no_image_chosen(name, render, image_key, channels)
        env, own_camera = load(name, spawn_seed(seed), obs_type, options, max_episode_steps is not None)
        shown = chosen or [own_camera]
        _check_cameras(env, name, chosen)
        seen = Seen(env.observation_spec(), choice, _names(shown))
        make_cameras = partial(_simulated, env, image_size, shown, seen, render == "fast", own=True)
    else:
        own_seed = spawn_seed(seed, stream, index)
        env = call(factory, task_name=name, image_size=image_size, seed=own_seed, camera=camera)
        kind = type(env)
        name = str(env.label) if hasattr(env, "picture") else f"{kind.__module__}.{kind.__qualname__}"
        spec = declared_spec(env, name)
        with explained(f"{name}: its specs"):
            is_discrete(env.action_spec())  # or the error that they cannot be used
        if hasattr(env, "physics") or cameras or "camera" not in inspect.signature(factory).parameters:
            _check_cameras(env, name, chosen)
        seen = Seen(spec, choice, _drawn(env, name, spec, choice, chosen, render))
        make_cameras = partial(_cameras, env, name, image_size, chosen, seen, render == "fast")
    own, ends = (seed, stream, index), (max_episode_steps, long_episode, if_long)
    return Environment(env, seen, make_cameras, frame_stack, action_repeat, *own, name, *ends)
