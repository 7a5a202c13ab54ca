"""What your own function makes: a gymnasium.vector.VectorEnv, or, of one environment, a gymnasium.Env."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from drqv2.envs.checks import shown
from drqv2.envs.faults import explained
from drqv2.envs.gymnasium import GymnasiumEnvironment
from drqv2.envs.vector_returns import (
    autoreset_mode,
    close_vector,
    final_info,
    final_observation,
    info_of,
    process_deaths_told,
    reset_parts,
    row,
    single_spaces,
    step_parts,
)
from drqv2.errors import UserError


def make_vector_env(factory: Callable[..., Any], num_envs: int, **offered: Any) -> Any:
    """Return the gymnasium.vector.VectorEnv that a function makes; None if it makes single environments.

    Args:
        factory: its signature names num_envs; it gets that and those of `offered` that it names, unless they are bound.
        num_envs: environments wanted.
        offered: further arguments.

    Raises:
        UserError: it has made another number of environments, or something else.
    """
    parameters, bound = inspect.signature(factory).parameters, getattr(factory, "keywords", {})
    given = {key: value for key, value in {**offered, "num_envs": num_envs}.items() if key in parameters}
    name = _name(factory)
    with explained(f"{name}()"):
        made = factory(**{key: value for key, value in given.items() if key not in bound})
    if not isinstance(made, gymnasium.vector.VectorEnv):
        if not hasattr(made, "reset") or not hasattr(made, "step"):
            raise UserError(
                f"{name} returned {shown(made)}\n"
                "It must return a gymnasium.vector.VectorEnv, a gymnasium.Env or a dm_env.Environment"
            )
        if hasattr(made, "close"):
            close_vector(made, name)
        return None
    if (number := getattr(made, "num_envs", None)) != num_envs:
        close_vector(made, name)
        raise UserError(
            f"num_envs={num_envs}: {name} returned {number}\n"
            "It must make as many as it is asked for; leave env.num_envs out"
        )
    return made


def only_environment(vector: Any, name: str) -> GymnasiumEnvironment:
    """Return the environment in a gymnasium.vector.VectorEnv of one; `name` is that of the function that has made it.

    Raises:
        UserError: the vector has several.
    """
    if vector.num_envs != 1:
        close_vector(vector, name)
        raise UserError(
            f"{name} returned {vector.num_envs} environments at once: only regime=ppo with vector=auto trains with "
            "these\nElsewhere, and to evaluate, it is asked for num_envs=1: let its signature name num_envs, leave "
            "env.num_envs out, or return a single gymnasium.Env"
        )
    env = GymnasiumEnvironment(_OnlyEnvironment(vector, name))
    env.label = name
    return env


class _OnlyEnvironment(gymnasium.Env[Any, Any]):
    """The environment in a gymnasium.vector.VectorEnv of one. To be reset after each episode."""

    def __init__(self, vector: Any, name: str) -> None:
        self._vector, self._name, self._failed = vector, name, False
        self.observation_space, self.action_space = single_spaces(vector)
        self.metadata, self.render_mode = vector.metadata or {}, vector.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        with self._calling():
            returned = self._vector.reset(seed=seed, options=options)
        return row(reset_parts(returned), 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; the last observation of an episode is its own, not the next one's first."""
        with self._calling():
            returned = self._vector.step(np.asarray(action)[None])
        observation, (reward,), (terminated,), (truncated,), infos = step_parts(returned, 1)
        if (terminated or truncated) and autoreset_mode(self._vector) == AutoresetMode.SAME_STEP:
            seen, info = final_observation(infos, 0), dict(final_info(infos, 0))
        else:
            seen, info = row(observation, 0), info_of(infos, 0)
        return seen, float(reward), bool(terminated), bool(truncated), info

    def render(self) -> Any:
        """Return the current frame."""
        frames = self._vector.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Free the environment."""
        close_vector(self._vector, self._name, self._failed)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        self._failed = True
        with process_deaths_told(self._vector):
            yield
        self._failed = False


def _name(factory: Callable[..., Any]) -> str:
    function = getattr(factory, "func", factory)  # functools.partial's
    return getattr(function, "__qualname__", None) or repr(function)
