"""EnvPool's environments (arXiv 2206.10558), stepped by threads in C++: a vector of them, or one for dm_env."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Mapping
from typing import Any

import dm_env
import numpy as np
from dm_env import TimeStep, specs

from drqv2.envs.ids import LIBRARIES, env_id, split, unknown
from drqv2.envs.images import image_keys
from drqv2.envs.metaworld import CAMERAS, models_without_shadows
from drqv2.envs.observed import Choice, VectorObservations
from drqv2.envs.spaces import ObservationSpace, action_spec, is_discrete
from drqv2.envs.vector import VectorEnv, VectorStep, require_finite
from drqv2.errors import UserError, not_installed

_ZERO = np.float32(0)
_OPENGL = ("libEGL.so.1", "libGL.so.1")  # MuJoCo within EnvPool ends the process when it draws without one of them


def _open(name: str, num_envs: int, seed: int, options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return a pool, its space of observations and its space of actions.

    Meta-World's observations have the goal, as in its multi-task benchmarks, unless the options hide it; its option
    `shadows` is this project's, see `models_without_shadows`.

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
        _check_pictures(options)
        if not options.pop("shadows", True):
            own = options.get("base_path") or envpool.make_spec(name).config.base_path
            options["base_path"] = models_without_shadows(own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, that bounds are float64
        try:  # it takes seeds of 31 bits
            pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=seed % 2**31, **options)
            return pool, pool.observation_space, pool.action_space
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:
            text = " ".join(str(error).split())[:200] or "options that it does not take"
            raise UserError(f"{wanted}: {text}") from error


def _check_pictures(options: Mapping[str, Any]) -> None:
    """Raise UserError if Meta-World's pictures cannot be drawn as the options say."""
    shadows, camera = options.get("shadows", True), options.get("render_camera_id", -1)
    if not isinstance(shadows, bool):
        raise UserError(f"+env.shadows={shadows!r}: must be true or false")
    if type(camera) is not int or not -1 <= camera < len(CAMERAS):
        numbered = ", ".join(f"{i} ({name})" for i, name in enumerate(CAMERAS))
        raise UserError(f"+env.render_camera_id={camera!r}: must be {numbered} or -1 (from behind the robot)")


class _Actions:
    """Turns actions as agents give them into those of a pool: discrete as they are, vectors in [-1, 1] scaled.

    Raises:
        UserError: the space is neither discrete nor one vector of floats with finite bounds.
    """

    def __init__(self, space: Any) -> None:
        self._dtype, self._scale = space.dtype, None
        self.spec: specs.Array = action_spec(space)
        low, high = (0, self.spec.maximum) if is_discrete(self.spec) else (space.low, space.high)
        self.own_spec = specs.BoundedArray(self.spec.shape, self._dtype, low, high, "action")
        if not np.issubdtype(self.spec.dtype, np.integer):
            self.spec = specs.BoundedArray(space.shape, np.float32, -1.0, 1.0, "action")
            self._scale = (low + high) / 2, (high - low) / 2

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        if self._scale is not None:
            actions = self._scale[0] + np.clip(actions, -1, 1) * self._scale[1]
        return np.ascontiguousarray(actions, self._dtype)


class PoolVector(VectorEnv):
    """Environments of one EnvPool name. They cannot be returned to a state within an episode.

    Args:
        name: of `envpool.list_all_envs()`.
        num_envs: N.
        seed: environment i is seeded by seed + i; the same seeds and actions give the same episodes.
        batch_size: rows of one `recv`: with fewer than N, `send` and `recv` hand over those environments that are
            ready first, and results differ from run to run. None: all of them.
        num_threads: that step them; 0 leaves that to EnvPool.
        choice: what the agent sees of observations; None: images, or the state where there are none.
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
        choice: Choice | None = None,
        **options: Any,
    ) -> None:
        sizes = {"batch_size": batch_size or num_envs, "num_threads": num_threads}
        self._pool, observed, acted = _open(name, num_envs, seed, sizes | options)
        label = env_id(name)
        self._space, self._actions = ObservationSpace(observed), _Actions(acted)
        declared = self._space.spec
        self._seen = VectorObservations(
            declared, label, choice or Choice("pixels" if image_keys(declared) else "state")
        )
        self._seen.seen.tell(label, self._seen.spec, self._space.left_out)
        super().__init__(num_envs, self._seen.spec, self._actions.spec)
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
        seen = self._seen(self._space(observation))
        step = VectorStep(seen, reward, terminated, truncated > terminated, first, index)
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
        left_out: parts of a Dict of observations that no agent can see, and what they are.
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
        self._space = ObservationSpace(observed)
        self.left_out = self._space.left_out
        self._actions = _Actions(acted)

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
        declared, seen = self._space.spec, self._space(observation)
        return {key: seen[key][0] for key in declared} if isinstance(declared, Mapping) else seen[0]

    def observation_spec(self) -> Any:
        """Return the spec of an array, or a dict of specs."""
        return self._space.spec

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
        try:
            frame: np.ndarray = self._pool.render()[0]
        except (IndexError, TypeError, ValueError) as error:  # such as render_camera_id=99
            raise UserError(f"EnvPool cannot render {self.label}: {error}; check the options +env.render_*") from error
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
