"""Your own environment: makes a dm_env.Environment of what your factory returns, for `make` to wrap."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from drqv2.errors import UserError, not_installed


def build(factory: Callable[..., Any], **offered: Any) -> dm_env.Environment:
    """Call `factory` and return its environment; a gymnasium.Env comes back under its adapter.

    Args:
        factory: it is given those of `offered` that its signature names and that are not bound yet.
        offered: task_name, image_size, seed, camera.

    Raises:
        UserError: the result is neither a dm_env.Environment nor a gymnasium.Env, or gymnasium is missing.
    """
    parameters = inspect.signature(factory).parameters
    bound = getattr(factory, "keywords", {})  # functools.partial's
    given = {name: value for name, value in offered.items() if name in parameters and name not in bound}
    try:
        env: Any = factory(**given)
    except ModuleNotFoundError as error:
        if error.name == "gymnasium":
            raise UserError(not_installed("gymnasium", "gym")) from error
        raise
    if hasattr(env, "action_spec") and hasattr(env, "observation_spec"):
        made: dm_env.Environment = env
        return made
    if hasattr(env, "action_space") and hasattr(env, "observation_space"):
        from drqv2.envs.gymnasium import GymnasiumEnvironment

        return GymnasiumEnvironment(env)
    name = getattr(factory, "__name__", None) or repr(factory)
    raise UserError(f"{name} returned {type(env).__name__}: must be a dm_env.Environment or a gymnasium.Env")


def check_action_spec(spec: Any) -> None:
    """Check that actions are one vector of numbers between finite bounds, or discrete.

    Raises:
        UserError: they are neither.
    """
    if isinstance(spec, specs.DiscreteArray):
        return
    if (
        not isinstance(spec, specs.BoundedArray)
        or not np.issubdtype(spec.dtype, np.floating)
        or len(spec.shape) != 1
        or not (np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all())
    ):
        raise UserError(
            f"the environment's actions are {spec}: must be one vector of shape (A,) with finite bounds, or discrete"
        )
