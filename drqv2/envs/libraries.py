"""One environment of another library: how it is made, and what it shows."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from drqv2.envs.checks import explained, own_frames
from drqv2.envs.ids import LIBRARIES, pool_name, split, unknown, uses_envpool
from drqv2.envs.make_env import call
from drqv2.envs.observed import BOTH, Choice
from drqv2.envs.pool import PoolEnvironment
from drqv2.envs.render import choose_backend
from drqv2.errors import EnvError, UserError, not_installed
from drqv2.seeds import spawn_seed


def factory(env_id: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what makes one environment, a gymnasium.Env that draws pictures or a dm_env.Environment.

    Args:
        env_id: `gymnasium:NAME`, `envpool:NAME` or `metaworld:NAME`.
        options: of `gymnasium.make` or `envpool.make`.

    Raises:
        UserError: the library is not installed or has no such environment.
    """
    if uses_envpool(env_id):
        return partial(PoolEnvironment, pool_name(env_id), **options)
    _, name = split(env_id)
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise UserError(not_installed("gymnasium", LIBRARIES["gymnasium"])) from error
    if name not in gymnasium.registry and ":" not in name:  # module:NAME imports the module, which registers NAME
        raise unknown(env_id, list(gymnasium.registry))
    return partial(_gymnasium_env, name, dict(options))


def of_length(env_id: str, options: Mapping[str, Any], frames: int | None) -> dict[str, Any]:
    """Return `options` in which a library's own limit does not end an episode before `frames`; None leaves them."""
    if frames is None or "max_episode_steps" in options:
        return dict(options)
    return {**options, "max_episode_steps": frames if uses_envpool(env_id) else -1}


def _gymnasium_env(name: str, options: dict[str, Any]) -> Any:
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory; without a display it would complain
    try:
        module, _, plain_name = name.rpartition(":")
        if module:
            importlib.import_module(module)  # it registers the name
        entry = gymnasium.spec(plain_name).entry_point
        creator = load_env_creator(entry) if isinstance(entry, str) else entry
        modes = getattr(creator, "metadata", {}).get("render_modes", ["rgb_array"])  # a function does not say
        drawing = {"render_mode": "rgb_array"} if "rgb_array" in modes else {}
        # What an environment returns is checked here already, see `checks`.
        return gymnasium.make(name, **{"disable_env_checker": True} | drawing | options)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        if own_frames(error):  # of the environment's own code
            raise
        raise UserError(f"gymnasium:{name}: {' '.join(str(error).split())[:200]}") from error


def natural_obs_type(
    factory: Callable[..., Any],
    name: str,
    seed: int,
    image_key: str | None = None,
    parts: Sequence[str] | None = None,
    render: str = "exact",
    cameras: Sequence[int | str] | None = None,
) -> str:
    """Return which obs_type shows all of an environment's observations; raises as `make`.

    Args:
        factory: makes the environment.
        name: of the task.
        seed: the run's.
        image_key: as of `Choice`.
        parts: as of `Choice`.
        render: as of `make`.
        cameras: as of `make`.

    Returns:
        "pixels" if there are images, "state" if there are other numbers, "pixels+state" if there are both.
    """
    choose_backend()
    env = call(factory, task_name=name, image_size=84, seed=spawn_seed(seed), camera=None)
    with explained(f"{name}: observation_spec()"):
        spec, choice = env.observation_spec(), Choice(BOTH, image_key, parts=parts)
        images, numbers = choice.kept(choice.images(spec)), choice.kept(choice.numbers(spec))
    drawn = (render == "rgb_array" and hasattr(env, "picture")) or (cameras and hasattr(env, "physics"))
    with suppress(EnvError), explained(f"{name}: close()"):  # the run's own environment reports it, too
        env.close()
    if images and numbers:
        return BOTH
    return "pixels" if images or drawn else "state"
