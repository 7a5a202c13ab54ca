"""EnvPool's environments (arXiv 2206.10558), stepped by threads in C++: a vector of them, or one for dm_env."""

from __future__ import annotations

import ctypes
import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import TimeStep, specs

from drqv2.envs.ids import LIBRARIES, env_id, split, unknown
from drqv2.envs.images import FORMAT, described, find_image, in_a_line, is_image, is_numeric
from drqv2.envs.notices import tell_left_out
from drqv2.envs.vector import VectorEnv, VectorStep, require_finite
from drqv2.errors import UserError, not_installed

_ZERO = np.float32(0)
_OPENGL = ("libEGL.so.1", "libGL.so.1")  # MuJoCo within EnvPool ends the process when it draws without one of them


def _open(name: str, num_envs: int, seed: int, options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return a pool, its space of observations and its space of actions.

    Meta-World's observations have the goal, as in its multi-task benchmarks, unless the options hide it.

    Raises:
        UserError: EnvPool is not installed, the name is unknown, or it does not take the options.
    """
    _load_opengl()
    wanted = env_id(name)
    library, _ = split(wanted)
    try:
        import envpool
    except ModuleNotFoundError as error:
        raise UserError(not_installed("envpool", LIBRARIES[library])) from error
    known = envpool.list_all_envs()
    if name not in known:
        raise unknown(wanted, [each for each in map(env_id, known) if each.startswith(f"{library}:")])
    if library == "metaworld":
        options = {"partially_observable": False, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, that bounds are float64
        try:  # it takes seeds of 31 bits
            pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=seed % 2**31, **options)
            return pool, pool.observation_space, pool.action_space
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:
            text = " ".join(str(error).split())[:200] or "options that it does not take"
            raise UserError(f"{wanted}: {text}") from error


class _Actions:
    """Turns actions as agents give them into those of a pool: discrete as they are, vectors in [-1, 1] scaled.

    Raises:
        UserError: the space is neither discrete nor one vector of floats with finite bounds.
    """

    def __init__(self, space: Any, name: str) -> None:
        self._scale: tuple[Any, Any] | None = None
        self._dtype = space.dtype
        if hasattr(space, "n"):
            self.spec: specs.Array = specs.DiscreteArray(int(space.n), np.int64, "action")
        elif hasattr(space, "nvec"):
            self.spec = specs.BoundedArray(space.shape, np.int64, 0, space.nvec - 1, "action")
        elif len(space.shape) == 1 and np.isfinite(space.low).all() and np.isfinite(space.high).all():
            self.spec = specs.BoundedArray(space.shape, np.float32, -1.0, 1.0, "action")
            self._scale = (space.low + space.high) / 2, (space.high - space.low) / 2
        else:
            must = "must be discrete, or one vector with finite bounds"
            raise UserError(f"the actions of {name} are {in_a_line(space)}: {must}")

        low, high = (0, self.spec.maximum) if self._scale is None else (space.low, space.high)
        self.own_spec = specs.BoundedArray(self.spec.shape, self._dtype, low, high, "action")

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        if self._scale is not None:
            actions = self._scale[0] + np.clip(actions, -1, 1) * self._scale[1]
        return np.ascontiguousarray(actions, self._dtype)


class _Parts:
    """What a pool's space of observations holds: an array, or a dict of them; anything else is left out.

    Attributes:
        spec: of the array, or a dict of specs.
        left_out: keys of what is no array, and what it is.

    Raises:
        UserError: it holds no array.
    """

    def __init__(self, space: Any, name: str) -> None:
        self._is_dict = hasattr(space, "spaces")
        parts = space.spaces if self._is_dict else {"observation": space}
        found = {key: _spec_of(part, key) for key, part in parts.items() if hasattr(part, "low")}
        if not found:
            raise UserError(f"the observations of {name} are {in_a_line(space)}: must be arrays\nUse another env_id")
        self.spec: Any = found if self._is_dict else found["observation"]
        self.left_out = {key: type(part).__name__ for key, part in parts.items() if key not in found}

    def __call__(self, observation: Any) -> Any:
        """Return the arrays of observations [N, ...]."""
        return {key: observation[key] for key in self.spec} if self._is_dict else observation


def _spec_of(box: Any, key: str) -> specs.BoundedArray:
    return specs.BoundedArray(box.shape, box.dtype, box.low, box.high, key)


class _Observations:
    """Turns observations [N, ...] of a pool into one array: images [N, C, H, W]; or other numbers joined, float32.

    Args:
        parts: of the observations.
        name: of the environment, for messages.
        chosen: obs_type, image_key and channels, as of `make`.
    """

    def __init__(self, parts: _Parts, name: str, chosen: Mapping[str, Any]) -> None:
        self._parts, spec = parts, parts.spec
        obs_type, how = chosen.get("obs_type"), (chosen.get("image_key"), chosen.get("channels", "auto"))
        self._image = None if obs_type == "state" else find_image(spec, *how)
        if obs_type == "pixels" and self._image is None:
            no_image = f"the observations of {name} have no image, {FORMAT}: {described(spec)}"
            raise UserError(f"obs_type=pixels: {no_image}\nUse obs_type=state.")
        named = spec if isinstance(spec, Mapping) else {None: spec}
        if self._image is not None:
            height, width, depth = self._image.shape
            self.spec: specs.Array = specs.BoundedArray((depth, height, width), np.uint8, 0, 255, "observation")
            self._keys: list[str | None] = [self._image.key]
        else:
            self._keys = [key for key, part in named.items() if is_numeric(part) and not is_image(part)]
            size = sum(math.prod(named[key].shape) for key in self._keys)
            if not size:
                raise UserError(f"obs_type=state: the observations of {name} are {described(spec)}: images only")
            self.spec = specs.Array((size,), np.float32, "observation")
        tell_left_out(name, [str(key) for key in named if key not in self._keys], parts.left_out)

    def __call__(self, observation: Any) -> np.ndarray:
        observation = self._parts(observation)
        if self._image is not None:
            return np.ascontiguousarray(np.moveaxis(self._image.read(observation), -1, 1))
        if self._keys == [None]:
            return observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        flat = [observation[key].reshape(len(observation[key]), -1) for key in self._keys]
        return np.concatenate(flat, 1, dtype=np.float32)


class PoolVector(VectorEnv):
    """Environments of one EnvPool name. They cannot be returned to a state within an episode.

    Args:
        name: of `envpool.list_all_envs()`.
        num_envs: N.
        seed: environment i is seeded by seed + i; the same seeds and actions give the same episodes.
        batch_size: rows of one `recv`: with fewer than N, `send` and `recv` hand over those environments that are
            ready first, and results differ from run to run. None: all of them.
        num_threads: that step them; 0 leaves that to EnvPool.
        chosen: obs_type, image_key and channels, see `drqv2.envs.make`; by default images where there are some.
        options: of `envpool.make` for this name, such as frame_skip.

    Raises:
        UserError: EnvPool is not installed, the name is unknown, or its spaces cannot be used.
        EnvNotFiniteError: from `reset` and `recv`: an observation or a reward is NaN or infinite.
    """

    name = "EnvPool"

    def __init__(
        self,
        name: str,
        num_envs: int,
        seed: int,
        batch_size: int | None = None,
        num_threads: int = 0,
        chosen: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        sizes = {"batch_size": batch_size or num_envs, "num_threads": num_threads}
        self._pool, observed, acted = _open(name, num_envs, seed, sizes | options)
        label = env_id(name)
        self._observations = _Observations(_Parts(observed, label), label, chosen or {})
        self._actions = _Actions(acted, name)
        super().__init__(num_envs, self._observations.spec, self._actions.spec)
        self._over, self._label = np.zeros(num_envs, bool), label
        self._rows = np.arange(num_envs)
        self._partial, self._in_flight = sizes["batch_size"] < num_envs, False

    def _reset(self) -> VectorStep:
        if self._in_flight:
            raise RuntimeError("reset() comes once where recv() does not return all environments")
        self._over = np.ones(self.num_envs, bool)
        self._in_flight = self._partial
        self._pool.async_reset()
        return self._recv()

    def _send(self, actions: np.ndarray) -> None:
        self._pool.send(self._actions(actions), self._rows)

    def _recv(self) -> VectorStep:
        observation, reward, terminated, truncated, info = self._pool.recv()
        self._rows = rows = info["env_id"]
        ended = terminated | truncated
        if self._partial:
            first = self._over[rows]
            self._over[rows] = ended
        else:  # then EnvPool returns the environments in their order
            first, self._over = self._over, ended
        reward = np.where(first, _ZERO, reward.astype(np.float32, copy=False))
        index = rows.astype(np.int64)
        step = VectorStep(self._observations(observation), reward, terminated, truncated > terminated, first, index)
        require_finite(step, self._label)
        return step

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()


class PoolEnvironment(dm_env.Environment):
    """One environment of EnvPool. A seed makes a new pool, so that the same seed and actions give the same episode.

    Args:
        name: of `envpool.list_all_envs()`.
        seed: of the first episode.
        options: of `envpool.make` for this name.

    Attributes:
        label: its name, for messages.
        left_out: parts of a dict of observations that are no arrays, and what they are.
        render_mode: always "rgb_array": EnvPool draws all of its environments.
        success: whether the last step succeeded, 0 or 1, where it is reported, as by Meta-World's; else None.

    Raises:
        UserError: as for `PoolVector`.
    """

    render_mode = "rgb_array"

    def __init__(self, name: str, seed: int = 0, **options: Any) -> None:
        self.success: float | None = None
        self._name, self.label = name, env_id(name)
        self._options = {"num_threads": 1, "render_mode": self.render_mode, **options}
        self._next_seed: int | None = None
        self._pool, observed, acted = _open(name, 1, seed, self._options)
        self._observations, self._actions = _Parts(observed, self.label), _Actions(acted, name)
        self.left_out = self._observations.left_out

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._next_seed = seed

    def reset(self) -> TimeStep:
        """Start the next episode."""
        if self._next_seed is not None:
            self._pool.close()
            self._pool, *_ = _open(self._name, 1, self._next_seed, self._options)
            self._next_seed = None
        observation, _ = self._pool.reset()
        self.success = None
        return dm_env.restart(self._observed(observation))

    def step(self, action: Any) -> TimeStep:
        """Take one step."""
        observation, reward, terminated, truncated, info = self._pool.step(self._actions(np.asarray(action)[None]))
        self.success = float(info["success"][0]) if "success" in info else None
        seen, number = self._observed(observation), float(reward[0])
        if terminated[0]:
            return dm_env.termination(number, seen)
        return dm_env.truncation(number, seen) if truncated[0] else dm_env.transition(number, seen)

    def _observed(self, observation: Any) -> Any:
        found = self._observations(observation)
        return {key: value[0] for key, value in found.items()} if isinstance(found, Mapping) else found[0]

    def observation_spec(self) -> Any:
        """Return the spec of an array, or a dict of specs."""
        return self._observations.spec

    def action_spec(self) -> specs.Array:
        """Return the spec of an action: discrete, several discrete ones, or a vector in [-1, 1]."""
        return self._actions.spec

    def own_action_spec(self) -> specs.BoundedArray:
        """Return the spec of EnvPool's own actions."""
        return self._actions.own_spec

    def control_timestep(self) -> float | None:
        """Return simulated seconds in one step, where they are known: Meta-World's step is 5 of 2.5 ms."""
        return 0.0125 if env_id(self._name).startswith("metaworld:") else None

    def picture(self) -> np.ndarray:
        """Return the current frame, uint8 [H, W, 3].

        Raises:
            UserError: MuJoCo would draw it, and there is no OpenGL.
        """
        if "mujoco" in type(self._pool).__mro__[1].__module__ and not _load_opengl():
            raise UserError(
                f"EnvPool cannot render here: none of {', '.join(_OPENGL)} is installed; run apt-get install libegl1"
            )
        frame: np.ndarray = self._pool.render()[0]
        return frame

    def close(self) -> None:
        """Stop the thread."""
        self._pool.close()


@functools.cache
def _load_opengl() -> bool:
    """Load OpenGL; return whether it is there. EnvPool does not do so itself, and needs it when it is imported."""
    for name in _OPENGL:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False
