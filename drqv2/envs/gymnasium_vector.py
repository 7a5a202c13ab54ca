"""A gymnasium.vector.VectorEnv that your own function makes: as a `VectorEnv` of this project, or as one environment.

Gymnasium's environments begin their next episodes by themselves, in one of two modes (`metadata["autoreset_mode"]`): at
the step after an episode's last (NEXT_STEP), or within it (SAME_STEP), where `info` has the last observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
from dm_env import specs
from gymnasium.vector import AutoresetMode

from drqv2.envs.checks import explained, is_within_unit, name_of_factory, offered_arguments, require_held, shown
from drqv2.envs.gymnasium import GymnasiumEnvironment
from drqv2.envs.images import NUMERIC, named
from drqv2.envs.observed import Choice, VectorObservations
from drqv2.envs.spaces import ObservationSpace, action_spec, is_discrete
from drqv2.envs.vector import VectorEnv, VectorStep, require_finite
from drqv2.envs.vector_returns import (
    as_array,
    close_vector,
    final_observation,
    final_observations,
    info_of,
    process_deaths_told,
    put,
    reset_parts,
    row,
    step_parts,
    vector_numbers,
)
from drqv2.errors import EnvError, UserError
from drqv2.parts import each


def make_vector_env(factory: Callable[..., Any], num_envs: int, **offered: Any) -> Any:
    """Return the gymnasium.vector.VectorEnv that a function makes; None if it makes single environments.

    Args:
        factory: its signature names num_envs; it gets that and those of `offered` that it names, unless they are bound.
        num_envs: environments wanted.
        offered: further arguments.

    Raises:
        UserError: it has made another number of environments, or something else.
    """
    name = name_of_factory(factory)
    with explained(f"{name}()"):
        made = factory(**offered_arguments(factory, {**offered, "num_envs": num_envs}))
    if not hasattr(made, "reset") or not hasattr(made, "step"):
        raise UserError(
            f"{name} returned {shown(made)}\n"
            "It must return a gymnasium.vector.VectorEnv, a gymnasium.Env or a dm_env.Environment"
        )
    is_vector = isinstance(made, gymnasium.vector.VectorEnv)
    if is_vector and made.num_envs == num_envs:
        return made
    if hasattr(made, "close"):
        close_vector(made, name)
    if is_vector:
        raise UserError(
            f"num_envs={num_envs}: {name} returned {made.num_envs}\n"
            "It must make as many as it is asked for; leave env.num_envs out"
        )
    return None


class GymnasiumVector(VectorEnv):
    """A gymnasium.vector.VectorEnv, stepped as it is. It cannot be returned to a state within an episode.

    In the mode SAME_STEP a step that ends episodes is followed by one that holds nothing but the first observations of
    the next ones: Gymnasium's environments all step at once, and the agent has not seen these yet.

    Args:
        env: N environments with Box, Discrete or MultiDiscrete actions; observations are an `ObservationSpace`.
        seed: of the first reset: environment i gets seed + i.
        choice: what the agent sees of observations.
        image_size: height and width of images.

    Raises:
        UserError: the mode is another, or the spaces cannot be used.
    """

    name = "a gymnasium.vector.VectorEnv"

    def __init__(
        self,
        env: Any,
        seed: int,
        choice: Choice,
        image_size: int,
    ) -> None:
        self._env, self._label = env, type(env).__name__
        self._seed: int | None = seed % 2**31
        self._who, self._failed = f"{self._label}: ", False
        mode = _autoreset_mode(env)
        if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
            raise UserError(
                f'{self._label}: metadata["autoreset_mode"] is {"missing" if mode is None else mode}\n'
                "It must be gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP, and say how episodes follow each "
                "other"
            )
        self._same_step = mode == AutoresetMode.SAME_STEP
        observed, acted = _single_spaces(env)
        self._space = ObservationSpace(observed)
        declared = self._space.spec
        self._seen = VectorObservations(declared, self._label, choice, image_size)
        seen = self._seen.seen
        self._images = {image.key for image in seen.images.values() if image}
        keys = [*self._images, *chain(*seen.vectors.values())]
        self._declared = {key: declared if key is None else declared[key] for key in keys}
        self._scale, spec = _scaled(action_spec(acted), getattr(acted, "start", 0))
        super().__init__(env.num_envs, self._seen.spec, spec)
        self._actions = np.zeros((self.num_envs, *spec.shape), spec.dtype)  # the newest of each
        self._rows = np.arange(self.num_envs)  # of the last step
        self._first: tuple[np.ndarray, Any] | None = None  # rows and observations that begin episodes
        self._over = np.zeros(self.num_envs, bool)

    def _reset(self) -> VectorStep:
        seed, self._seed = self._seed, None
        with self._calling("reset"):
            returned = self._env.reset(seed=seed)
        self._first, self._over, rows = None, np.zeros(self.num_envs, bool), np.arange(self.num_envs)
        return self._begun(rows, self._observe(reset_parts(returned, self._who), rows))

    def _send(self, actions: np.ndarray) -> None:
        self._actions[self._rows] = actions

    def _recv(self) -> VectorStep:
        if self._first is not None:
            rows, seen = self._first
            self._first = None
            return self._begun(rows, seen)
        actions = self._scale(self._actions)
        with self._calling("step"):
            returned = self._env.step(actions)
        observation, reward, terminated, truncated, infos = step_parts(returned, self.num_envs, self._who)
        self._rows = rows = np.arange(self.num_envs)
        ended, first, seen = terminated | truncated, self._over, self._observe(observation, rows)
        with explained(f"{self._label}: the infos of step()"):
            if self._same_step:
                info = vector_numbers(infos, ~ended)
                if ended.any():
                    self._first = rows[ended], each(lambda x: x[ended], seen)
                    last = final_observations(infos, rows[ended])
                    each(partial(put, ended), seen, self._observe(last, rows[ended]))
                    for key, x in vector_numbers(infos.get("final_info") or {}, ended).items():
                        info[key] = np.where(ended, x, info.get(key, np.nan))
            else:
                self._over, info = ended, vector_numbers(infos, ~first)
        reward = reward.astype(np.float32)
        reward[first] = 0
        step = VectorStep(seen, reward, terminated, truncated & ~terminated, first, rows, info or None)
        require_finite(step, self._label)
        return step

    def _begun(self, rows: np.ndarray, seen: Any) -> VectorStep:
        """Return a step that begins the episodes of some environments."""
        self._rows, none = rows, np.zeros(len(rows), bool)
        step = VectorStep(seen, np.zeros(len(rows), np.float32), none, none, ~none, rows)
        require_finite(step, self._label)
        return step

    def _observe(self, observation: Any, rows: np.ndarray) -> Any:
        """Return what the agent sees of environments `rows`, [K, ...], as new arrays: some vectors reuse theirs."""
        parts: Any = {key: self._part(observation, key, len(rows)) for key in self._declared}
        for key, images in ((key, parts[key]) for key in self._images):
            if images.dtype.kind == "f" and not is_within_unit(images):
                for i, image in zip(rows, images, strict=True):
                    where = partial("{}, environment {}".format, self._label, i)
                    require_held(image, named(key), where, is_unit_image=True)
        with np.errstate(over="ignore"):  # `require_finite` refuses what float32 does not hold
            seen = self._seen(parts.get(None, parts))
        return each(lambda x: x if x.base is None else x.copy(), seen)

    def _part(self, observation: Any, key: str | None, rows: int) -> np.ndarray:
        """Return an array of observations, as it was declared; `key` is that of a Dict."""
        if key is not None and not (isinstance(observation, Mapping) and key in observation):
            has = f"has {', '.join(observation)}" if isinstance(observation, Mapping) else f"is {shown(observation)}"
            raise EnvError(f"{self._who}{named(key)} is declared and not there: the observation {has}")
        part = as_array(observation if key is None else observation[key], f"{self._who}{named(key)} is")
        part, spec = self._space.encoded(key, part), self._declared[key]
        is_image = key in self._images
        converted = part.dtype.kind == spec.dtype.kind == "f" or (not is_image and part.dtype.kind in NUMERIC)
        if part.shape != (rows, *spec.shape) or not (part.dtype == spec.dtype or converted):
            declared = f"declared {spec.dtype} {[rows, *spec.shape]}"
            raise EnvError(f"{self._who}{named(key)} is {part.dtype} {list(part.shape)}: {declared}")
        return part

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        self._failed = True
        with explained(f"{self._label}: {method}()"), process_deaths_told(self._env, self._who):
            yield
        self._failed = False

    def close(self) -> None:
        """Close the vector."""
        close_vector(self._env, self._label, self._failed)


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
        self.observation_space, self.action_space = _single_spaces(vector)
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
        if (terminated or truncated) and _autoreset_mode(self._vector) == AutoresetMode.SAME_STEP:
            seen, info = final_observation(infos, 0), info_of(infos.get("final_info") or {}, 0)
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


def _single_spaces(vector: Any) -> tuple[Any, Any]:
    names = "single_observation_space", "single_action_space"
    if lacking := [name for name in names if getattr(vector, name, None) is None]:
        raise UserError(
            f"{type(vector).__name__} has no {' and no '.join(lacking)}\n"
            "A gymnasium.vector.VectorEnv must have both: the spaces of one of its environments"
        )
    return vector.single_observation_space, vector.single_action_space


def _autoreset_mode(vector: Any) -> AutoresetMode | None:
    mode = (vector.metadata or {}).get("autoreset_mode")
    return next((known for known in AutoresetMode if mode in (known, known.value, known.name)), None)


def _scaled(spec: Any, start: Any) -> tuple[Callable[[np.ndarray], np.ndarray], specs.Array]:
    """Return what maps an agent's actions [N, ...] to the vector's, as for single environments, and their spec."""
    if is_discrete(spec):
        return (lambda actions: actions + np.asarray(start, np.int64)), spec
    bounds = (np.broadcast_to(bound, spec.shape).astype(np.float32) for bound in (spec.minimum, spec.maximum))
    low, high = (bound.astype(np.float64) for bound in bounds)

    def scale(actions: np.ndarray) -> np.ndarray:
        share = (actions.astype(np.float64) + 1.0) * 0.5
        scaled = (low + share * (high - low)).astype(np.float32).astype(spec.dtype)
        return np.clip(scaled, spec.minimum, spec.maximum)

    return scale, specs.BoundedArray(spec.shape, np.float32, -1.0, 1.0, "action")
