"""A gymnasium.vector.VectorEnv as a `VectorEnv` of this project.

Gymnasium's environments begin their next episodes by themselves, in one of two modes (`metadata["autoreset_mode"]`): at
the step after an episode's last (NEXT_STEP), or within it (SAME_STEP), where `info` has the last observation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from dm_env import TimeStep, specs
from gymnasium.vector import AutoresetMode

from drqv2.envs.cameras import ObservationCamera
from drqv2.envs.checks import is_within_unit, require_held
from drqv2.envs.dmc import described_actions
from drqv2.envs.faults import explained
from drqv2.envs.images import NUMERIC, described, find_image
from drqv2.envs.vector import VectorEnv, VectorStep, require_finite
from drqv2.envs.vector_returns import (
    autoreset_mode,
    close_vector,
    declared_by,
    final_numbers,
    final_observation,
    part_of,
    process_deaths_told,
    reset_parts,
    stacked_rows,
    step_parts,
    vector_numbers,
)
from drqv2.envs.wrappers import StateWrapper
from drqv2.errors import EnvError, UserError


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
        channels: "first" or "last" axis of that image; "auto": inferred from its shape.

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
        self._who, self._failed = f"{self._label}: ", False
        self._same_step = _require_mode(env) == AutoresetMode.SAME_STEP
        one = declared_by(env)
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
                    self._first = rows[ended], seen[ended]
                    final = stacked_rows([final_observation(infos, i) for i in rows[ended]])
                    seen[ended] = self._observe(final, rows[ended])
                    for key, x in final_numbers(infos, ended).items():
                        info[key] = np.where(ended, x, info.get(key, np.nan))
            else:
                self._over, info = ended, vector_numbers(infos, ~first)
        reward = reward.astype(np.float32)
        reward[first] = 0
        step = VectorStep(seen, reward, terminated, truncated & ~terminated, first, rows, info or None)
        require_finite(step, self._label)
        return step

    def _begun(self, rows: np.ndarray, seen: np.ndarray) -> VectorStep:
        """Return a step that begins the episodes of some environments."""
        self._rows, none = rows, np.zeros(len(rows), bool)
        step = VectorStep(seen, np.zeros(len(rows), np.float32), none, none, ~none, rows)
        require_finite(step, self._label)
        return step

    def _observe(self, observation: Any, rows: np.ndarray) -> np.ndarray:
        """Return the observations of some environments as one array, a new one: some vectors reuse theirs.

        Args:
            observation: of Gymnasium, [K, ...].
            rows: the numbers of the environments, [K].

        Raises:
            EnvError: they are not what the space declares.
        """
        parts = {key: part_of(observation, key, self._who) for key in self._declared}
        for key, part in parts.items():
            spec = self._declared[key]
            converted = part.dtype.kind == spec.dtype.kind == "f" or (
                self._camera is None and part.dtype.kind in NUMERIC
            )
            shape = len(rows), *spec.shape
            if part.shape != shape or not (part.dtype == spec.dtype or converted):
                raise EnvError(
                    f"{self._who}{_named(key)} is {part.dtype} {list(part.shape)}: declared {spec.dtype} {list(shape)}"
                )
        if self._camera is None:
            flat = [part.reshape(len(part), -1) for part in parts.values()]
            with np.errstate(over="ignore"):  # `require_finite` refuses what float32 does not hold
                return np.concatenate(flat, axis=1, dtype=np.float32)
        ((key, images),) = parts.items()
        if images.dtype.kind == "f" and not is_within_unit(images):
            for i, image in zip(rows, images, strict=True):
                require_held(image, _named(key), partial("{}, environment {}".format, self._label, i), True)
        steps = (TimeStep(None, None, None, image if key is None else {key: image}) for image in images)
        return np.stack([self._camera(step).transpose(2, 0, 1) for step in steps])

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        self._failed = True
        with explained(f"{self._label}: {method}()"), process_deaths_told(self._env, self._who):
            yield
        self._failed = False

    def close(self) -> None:
        """Close the vector."""
        close_vector(self._env, self._label, self._failed)


def _named(key: str | None) -> str:
    return "the observation" if key is None else f"the observation {key!r}"


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
            f"the environment's actions are {described_actions(spec)}: must be one vector of shape (A,) with finite "
            "bounds, or discrete"
        )
    bounds = (np.broadcast_to(bound, spec.shape).astype(np.float32) for bound in (spec.minimum, spec.maximum))
    low, high = (bound.astype(np.float64) for bound in bounds)

    def scale(actions: np.ndarray) -> np.ndarray:
        share = (actions.astype(np.float64) + 1.0) * 0.5
        scaled = (low + share * (high - low)).astype(np.float32).astype(spec.dtype)
        return np.clip(scaled, spec.minimum, spec.maximum)

    return scale, specs.BoundedArray(spec.shape, np.float32, -1.0, 1.0, "action")
