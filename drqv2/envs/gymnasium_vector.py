"""A gymnasium.vector.VectorEnv: as a `VectorEnv` of this project, or, of one environment, as a gymnasium.Env.

Gymnasium's environments begin their next episodes by themselves, in one of two modes (`metadata["autoreset_mode"]`): at
the step after an episode's last (NEXT_STEP), or within it (SAME_STEP), where `info` has the last observation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from dm_env import TimeStep, specs
from gymnasium.vector import AutoresetMode

from drqv2.envs.cameras import ObservationCamera
from drqv2.envs.faults import explained
from drqv2.envs.gymnasium import GymnasiumEnvironment
from drqv2.envs.images import NUMERIC, described, find_image
from drqv2.envs.info import is_kept, numbers, stacked
from drqv2.envs.vector import VectorEnv, VectorStep, require_finite
from drqv2.envs.wrappers import StateWrapper
from drqv2.errors import EnvError, UserError

_FINAL_OBS = ("final_obs", "final_observation")  # the second before Gymnasium 1.0


def make_vector_env(factory: Callable[..., Any], num_envs: int, **offered: Any) -> Any:
    """Return the gymnasium.vector.VectorEnv that a function makes; None if it makes single environments.

    Args:
        factory: its signature names num_envs; it gets that and those of `offered` that it names, unless they are bound.
        num_envs: environments wanted.
        offered: further arguments.

    Raises:
        UserError: it has made another number of environments.
    """
    parameters, bound = inspect.signature(factory).parameters, getattr(factory, "keywords", {})
    given = {key: value for key, value in {**offered, "num_envs": num_envs}.items() if key in parameters}
    with explained(f"{_name(factory)}()"):
        made = factory(**{key: value for key, value in given.items() if key not in bound})
    if not isinstance(made, gymnasium.vector.VectorEnv):
        made.close()
        return None
    if made.num_envs != num_envs:
        made.close()
        raise UserError(
            f"{_name(factory)} returned {made.num_envs} environments for num_envs={num_envs}\n"
            "It must make as many as it is asked for; leave env.num_envs out"
        )
    return made


def only_environment(vector: Any, name: str) -> GymnasiumEnvironment:
    """Return the environment in a gymnasium.vector.VectorEnv of one; `name` is that of the function that has made it.

    Raises:
        UserError: the vector has several.
    """
    if vector.num_envs != 1:
        vector.close()
        raise UserError(
            f"{name} returned {vector.num_envs} environments at once: only regime=ppo with vector=auto trains with "
            "these\nElsewhere, and to evaluate, it is asked for num_envs=1: let its signature name num_envs, leave "
            "env.num_envs out, or return a single gymnasium.Env"
        )
    env = GymnasiumEnvironment(_OnlyEnvironment(vector))
    env.label = name
    return env


class _OnlyEnvironment(gymnasium.Env[Any, Any]):
    """The environment in a gymnasium.vector.VectorEnv of one. To be reset after each episode."""

    def __init__(self, vector: Any) -> None:
        self._vector = vector
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self.metadata, self.render_mode = vector.metadata, vector.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, _ = self._vector.reset(seed=seed, options=options)
        return _row(observation, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; the last observation of an episode is its own, not the next one's first."""
        observation, reward, terminated, truncated, infos = self._vector.step(np.asarray(action)[None])
        seen = _row(observation, 0)
        if (terminated[0] or truncated[0]) and autoreset_mode(self._vector) == AutoresetMode.SAME_STEP:
            seen, infos = _final(infos, 0), infos.get("final_info", {})
        known = (key for key, x in infos.items() if np.shape(x) == (1,) and not _is_mask(key, infos))
        info = {key: infos[key][0] for key in known if infos.get(f"_{key}", [True])[0]}
        return seen, float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Any:
        """Return the current frame."""
        frames = self._vector.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Free the environment."""
        self._vector.close()


class GymnasiumVector(VectorEnv):
    """A gymnasium.vector.VectorEnv, stepped as it is. It cannot be returned to a state within an episode.

    In the mode SAME_STEP a step that ends episodes is followed by one that holds nothing but the first observations of
    the next ones: Gymnasium's environments all step at once, and the agent has not seen these yet.

    Args:
        env: N environments with Box, Discrete or MultiDiscrete actions; observations are a Box or a Dict of Boxes.
        seed: of the first reset: environment i gets seed + i.
        obs_type: "pixels", the images of the observations; or "state", their other arrays, flattened and joined.
        image_size: height and width of an image; others are resized by area averaging.
        image_key: which part of a Dict is the image, see `images`.
        channels: "first" or "last" axis of that image; "auto": what its shape tells.

    Raises:
        UserError: the mode is another, or the spaces cannot be used.
    """

    name = "a gymnasium.vector.VectorEnv"

    def __init__(
        self,
        env: Any,
        seed: int,
        obs_type: str,
        image_size: int,
        image_key: str | None = None,
        channels: str = "auto",
    ) -> None:
        self._env, self._label = env, type(env).__name__
        self._seed: int | None = seed % 2**31
        self._same_step = _require_mode(env) == AutoresetMode.SAME_STEP
        one = GymnasiumEnvironment(_Spaces(env))
        declared, self._camera = one.observation_spec(), None
        if obs_type == "pixels":
            image = find_image(declared, image_key, channels)
            if image is None:
                raise UserError(
                    f"obs_type=pixels: the vector's observations have no image: {described(declared)}\n"
                    "The frames of its render() are for videos alone: use obs_type=state, or return images"
                )
            self._camera, keys = ObservationCamera(image, image_size), [image.key]
            height, width, depth = self._camera.shape
            spec: specs.Array = specs.BoundedArray((depth, height, width), np.uint8, 0, 255, "observation")
        else:
            state = StateWrapper(one)
            keys, spec = state._keys, state.observation_spec()
        self._declared = {key: declared if key is None else declared[key] for key in keys}  # what the agent sees
        self._scale, action_spec = _scaled(one.action_spec(), env)
        super().__init__(env.num_envs, spec, action_spec)
        self._actions = np.zeros((self.num_envs, *action_spec.shape), action_spec.dtype)  # the newest of each
        self._rows = np.arange(self.num_envs)  # of the last step
        self._first: tuple[np.ndarray, np.ndarray] | None = None  # rows and observations that begin episodes
        self._over = np.zeros(self.num_envs, bool)

    def _reset(self) -> VectorStep:
        seed, self._seed = self._seed, None
        with explained(f"{self._label}: reset()"):
            observation, _ = self._env.reset(seed=seed)
        self._first, self._over = None, np.zeros(self.num_envs, bool)
        return self._begun(np.arange(self.num_envs), self._observe(observation))

    def _send(self, actions: np.ndarray) -> None:
        self._actions[self._rows] = actions

    def _recv(self) -> VectorStep:
        if self._first is not None:
            rows, seen = self._first
            self._first = None
            return self._begun(rows, seen)
        actions = self._scale(self._actions)
        with explained(f"{self._label}: step()"):
            observation, *numbers_of_step, infos = self._env.step(actions)
        reward, terminated, truncated = self._flat(*numbers_of_step)
        ended, first, seen = terminated | truncated, self._over, self._observe(observation)
        self._rows = np.arange(self.num_envs)
        if self._same_step:
            info = _vector_numbers(infos, ~ended)
            if ended.any():
                self._first = self._rows[ended], seen[ended]
                seen[ended] = self._observe(_stacked([_final(infos, i) for i in self._rows[ended]]))
                for key, x in _final_numbers(infos, ended).items():
                    info[key] = np.where(ended, x, info.get(key, np.nan))
        else:
            self._over, info = ended, _vector_numbers(infos, ~first)
        reward[first] = 0
        step = VectorStep(seen, reward, terminated, truncated & ~terminated, first, self._rows, info or None)
        require_finite(step, self._label)
        return step

    def _begun(self, rows: np.ndarray, seen: np.ndarray) -> VectorStep:
        """Return a step that begins the episodes of some environments."""
        self._rows, none = rows, np.zeros(len(rows), bool)
        step = VectorStep(seen, np.zeros(len(rows), np.float32), none, none, ~none, rows)
        require_finite(step, self._label)
        return step

    def _flat(self, *numbers_of_step: Any) -> list[np.ndarray]:
        """Return rewards and both kinds of ends, new arrays [N].

        Raises:
            EnvError: they are not one for each environment.
        """
        shapes = [np.shape(x) for x in numbers_of_step]
        if shapes != [(self.num_envs,)] * 3:
            raise EnvError(
                f"{self._label}: step() returned rewards, terminated, truncated of shapes {shapes}: must be "
                f"({self.num_envs},) each"
            )
        return [np.array(x, dtype) for x, dtype in zip(numbers_of_step, (np.float32, bool, bool), strict=True)]

    def _observe(self, observation: Any) -> np.ndarray:
        """Return observations [K, ...] of Gymnasium as one array, a new one: some vectors reuse theirs.

        Raises:
            EnvError: they are not what the space declares.
        """
        parts = {key: np.asarray(observation if key is None else observation[key]) for key in self._declared}
        for key, part in parts.items():
            spec = self._declared[key]
            converted = part.dtype.kind == spec.dtype.kind == "f" or (
                self._camera is None and part.dtype.kind in NUMERIC
            )
            if part.shape[1:] != spec.shape or not (part.dtype == spec.dtype or converted):
                name = "the observation" if key is None else f"the observation {key!r}"
                raise EnvError(
                    f"{self._label}: {name} is {part.dtype} {list(part.shape)}: declared {spec.dtype} "
                    f"[{', '.join(map(str, (self.num_envs, *spec.shape)))}]"
                )
        if self._camera is None:
            flat = [part.reshape(len(part), -1) for part in parts.values()]
            return np.concatenate(flat, axis=1, dtype=np.float32)
        (image,) = parts.values()
        (key,) = parts
        steps = (TimeStep(None, None, None, row if key is None else {key: row}) for row in image)
        return np.stack([self._camera(step).transpose(2, 0, 1) for step in steps])

    def close(self) -> None:
        """Close the vector."""
        self._env.close()


class _Spaces(gymnasium.Env[Any, Any]):
    """What one environment of a vector takes and returns."""

    def __init__(self, vector: Any) -> None:
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space


def autoreset_mode(vector: Any) -> AutoresetMode | None:
    """Return how a vector begins new episodes; None if it does not say."""
    mode = vector.metadata.get("autoreset_mode")
    return next((known for known in AutoresetMode if mode in (known, known.value, known.name)), None)


def _require_mode(vector: Any) -> AutoresetMode:
    mode = autoreset_mode(vector)
    if mode not in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        told = "missing" if mode is None else mode
        raise UserError(
            f'{type(vector).__name__}: metadata["autoreset_mode"] is {told}\n'
            "It must be gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP, and say how episodes follow each other"
        )
    return mode


def _scaled(spec: Any, env: Any) -> tuple[Callable[[np.ndarray], np.ndarray], specs.Array]:
    """Return what maps an agent's actions [N, ...] to the vector's, as for single environments, and their spec."""
    start = getattr(env.single_action_space, "start", 0)
    if np.issubdtype(getattr(spec, "dtype", object), np.integer):
        return (lambda actions: actions + np.asarray(start, np.int64)), spec
    vector = isinstance(spec, specs.BoundedArray) and len(spec.shape) == 1
    if not vector or not (np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all()):
        raise UserError(
            f"the environment's actions are {spec}: must be one vector of shape (A,) with finite bounds, or discrete"
        )
    bounds = (np.broadcast_to(bound, spec.shape).astype(np.float32) for bound in (spec.minimum, spec.maximum))
    low, high = (bound.astype(np.float64) for bound in bounds)

    def scale(actions: np.ndarray) -> np.ndarray:
        share = (actions.astype(np.float64) + 1.0) * 0.5
        scaled = (low + share * (high - low)).astype(np.float32).astype(spec.dtype)
        return np.clip(scaled, spec.minimum, spec.maximum)

    return scale, specs.BoundedArray(spec.shape, np.float32, -1.0, 1.0, "action")


def _row(observation: Any, i: int) -> Any:
    return {key: x[i] for key, x in observation.items()} if isinstance(observation, Mapping) else observation[i]


def _stacked(rows: list[Any]) -> Any:
    if isinstance(rows[0], Mapping):
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


def _final(infos: Mapping[str, Any], i: int) -> Any:
    """Return the last observation of an episode that has ended in environment i, in the mode SAME_STEP."""
    for key in _FINAL_OBS:
        if infos.get(key) is not None and (found := _row(infos[key], i)) is not None:
            return found
    raise UserError(
        f"environment {i} of the vector ended an episode, and its info has no final_obs\n"
        "In the mode SAME_STEP the last observation of an episode must be there: the observation is the next one's"
    )


def _is_mask(key: Any, infos: Any) -> bool:
    """Return whether a key of a vector's info says which environments have another one."""
    return isinstance(key, str) and key[:1] == "_" and key[1:] in infos


def _vector_numbers(infos: Any, known: np.ndarray) -> dict[str, np.ndarray]:
    """Return the numbers in a vector's info, float64 [N], NaN in rows that have none or are not `known`."""
    found = {}
    for key, x in infos.items():
        if not isinstance(x, np.ndarray) or x.shape != known.shape or _is_mask(key, infos) or not is_kept(key):
            continue
        if x.dtype == object:  # flags of numpy are kept so
            x = np.array([(numbers({key: value}) or {}).get(key, np.nan) for value in x])
        if x.dtype.kind in "biuf":
            values = x.astype(np.float64)
            values[~(known & np.asarray(infos.get(f"_{key}", True)) & np.isfinite(values))] = np.nan
            if not np.isnan(values).all():
                found[key] = values
    return found


def _final_numbers(infos: Mapping[str, Any], ended: np.ndarray) -> dict[str, np.ndarray]:
    """Return the numbers of the steps that ended episodes, in the mode SAME_STEP, where `info` is the reset's."""
    final = infos.get("final_info")
    if isinstance(final, Mapping):
        return _vector_numbers(final, ended)
    rows = [numbers(final[i]) if over else None for i, over in enumerate(ended)] if final is not None else []
    return stacked(rows) or {}


def _name(factory: Callable[..., Any]) -> str:
    function = getattr(factory, "func", factory)  # functools.partial's
    return getattr(function, "__qualname__", None) or repr(function)
