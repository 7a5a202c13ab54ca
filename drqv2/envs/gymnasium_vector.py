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

from drqv2.envs.cameras import ObservationCamera, has_pixels
from drqv2.envs.gymnasium import GymnasiumEnvironment
from drqv2.envs.info import is_kept, numbers, stacked
from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.envs.wrappers import StateWrapper
from drqv2.errors import NotFiniteError, UserError

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


class OnlyEnvironment(gymnasium.Env[Any, Any]):
    """The environment in a gymnasium.vector.VectorEnv of one. To be reset after each episode.

    Args:
        vector: has one environment.
        factory: what has made it, for messages.

    Raises:
        UserError: it has several.
    """

    def __init__(self, vector: Any, factory: Callable[..., Any]) -> None:
        if vector.num_envs != 1:
            vector.close()
            raise UserError(
                f"{_name(factory)} returned {vector.num_envs} environments at once: only regime=ppo with vector=auto "
                "trains with these\nElsewhere, and to evaluate, it is asked for num_envs=1: let its signature name "
                "num_envs, leave env.num_envs out, or return a single gymnasium.Env"
            )
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

    Raises:
        UserError: the mode is another, or the spaces cannot be used.
    """

    name = "a gymnasium.vector.VectorEnv"

    def __init__(self, env: Any, seed: int, obs_type: str, image_size: int) -> None:
        self._env = env
        self._seed: int | None = seed % 2**31
        self._same_step = _require_mode(env) == AutoresetMode.SAME_STEP
        one = GymnasiumEnvironment(_Spaces(env))
        self._camera, self._keys, spec = _observed(one, obs_type, image_size)
        self._scale, action_spec = _scaled(one.action_spec(), env)
        super().__init__(env.num_envs, spec, action_spec)
        self._actions = np.zeros((self.num_envs, *action_spec.shape), action_spec.dtype)  # the newest of each
        self._rows = np.arange(self.num_envs)  # of the last step
        self._first: tuple[np.ndarray, np.ndarray] | None = None  # rows and observations that begin episodes
        self._over = np.zeros(self.num_envs, bool)

    def _reset(self) -> VectorStep:
        seed, self._seed = self._seed, None
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
        observation, reward, terminated, truncated, infos = self._env.step(self._scale(self._actions))
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
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
        reward = np.where(first, np.float32(0), np.asarray(reward, np.float32))
        return VectorStep(seen, reward, terminated, truncated & ~terminated, first, self._rows, info or None)

    def _begun(self, rows: np.ndarray, seen: np.ndarray) -> VectorStep:
        """Return a step that begins the episodes of some environments."""
        self._rows, none = rows, np.zeros(len(rows), bool)
        return VectorStep(seen, np.zeros(len(rows), np.float32), none, none, ~none, rows)

    def _observe(self, observation: Any) -> np.ndarray:
        """Return observations [K, ...] of Gymnasium as one array, a new one: some vectors reuse theirs.

        Raises:
            NotFiniteError: a number is NaN or infinite.
        """
        if self._camera is not None:
            count = len(next(iter(observation.values())) if isinstance(observation, Mapping) else observation)
            steps = (TimeStep(None, None, None, _row(observation, i)) for i in range(count))
            return np.stack([self._camera(step).transpose(2, 0, 1) for step in steps])
        parts = [observation if key is None else observation[key] for key in self._keys]
        joined = np.concatenate([np.reshape(part, (len(part), -1)) for part in parts], axis=1, dtype=np.float32)
        if not np.isfinite(joined).all():
            row = int(np.argmin(np.isfinite(joined).all(axis=1)))
            raise NotFiniteError(f"an observation has a number that is not finite, row {row} of a step: fix the vector")
        return joined

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


def _observed(
    one: GymnasiumEnvironment, obs_type: str, image_size: int
) -> tuple[ObservationCamera | None, list[Any], specs.Array]:
    """Return the camera for images, the keys of the arrays that make a state vector, and the spec of either."""
    if obs_type == "state":
        state = StateWrapper(one)
        return None, state._keys, state.observation_spec()
    if not has_pixels(one):
        raise UserError(
            f"obs_type=pixels: the vector's observations are {one.observation_spec()}: no image\n"
            "The frames of its render() are for videos alone: use obs_type=state, or return images"
        )
    camera = ObservationCamera(one, image_size)
    height, width, channels = camera.shape
    return camera, [], specs.BoundedArray((channels, height, width), np.uint8, 0, 255, "observation")


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
    return getattr(function, "__name__", None) or repr(function)
