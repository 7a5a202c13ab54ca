"""EnvPool's environments (arXiv 2206.10558): thousands of ids, stepped by threads in C++, as a VectorEnv."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from dm_env import specs

from drqv2.envs.ids import LIBRARIES, unknown
from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.errors import UserError, not_installed


class PoolVector(VectorEnv):
    """Environments of one EnvPool id. They cannot be returned to a state within an episode.

    Args:
        name: of `envpool.list_all_envs()`.
        num_envs: N.
        seed: environment i is seeded by seed + i; the same seeds and actions give the same episodes.
        batch_size: rows of one `recv`: with fewer than N, `send` and `recv` hand over those environments that are
            ready first, and results differ from run to run. None: all of them.
        num_threads: that step them; 0 leaves that to EnvPool.

    Raises:
        UserError: EnvPool is not installed, the id is unknown, or its spaces are others than arrays, or an array of
            floats with finite bounds or a discrete action.
    """

    def __init__(
        self, name: str, num_envs: int, seed: int, batch_size: int | None = None, num_threads: int = 0
    ) -> None:
        try:
            import envpool
        except ModuleNotFoundError as error:
            raise UserError(not_installed("envpool", LIBRARIES["envpool"])) from error
        known = envpool.list_all_envs()
        if name not in known:
            raise unknown(f"envpool:{name}", known)
        sizes = {"num_envs": num_envs, "batch_size": batch_size or num_envs, "num_threads": num_threads}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's, that bounds are float64
            # EnvPool takes seeds of 31 bits.
            self._pool: Any = envpool.make(name, env_type="gymnasium", seed=seed % 2**31, **sizes)
            space, self._observed = self._pool.action_space, _Observation(self._pool.observation_space)
        self._scale: tuple[Any, Any] | None = None
        if hasattr(space, "n"):
            action: specs.Array = specs.DiscreteArray(int(space.n), np.int64, "action")
        elif hasattr(space, "low") and np.isfinite(space.low).all() and np.isfinite(space.high).all():
            action = specs.BoundedArray(space.shape, np.float32, -1.0, 1.0, "action")
            self._scale = (space.low + space.high) / 2, (space.high - space.low) / 2
        else:
            raise UserError(f"the actions of {name} are {space}: must be discrete, or one vector with finite bounds")
        super().__init__(num_envs, self._observed.spec, action)
        self._dtype = space.dtype
        self._over = np.zeros(num_envs, bool)
        self._rows = np.arange(num_envs)

    def _reset(self) -> VectorStep:
        self._over[:] = True
        self._pool.async_reset()
        return self._recv()

    def _send(self, actions: np.ndarray) -> None:
        if self._scale is not None:
            actions = self._scale[0] + np.clip(actions, -1, 1) * self._scale[1]
        self._pool.send(np.ascontiguousarray(actions, self._dtype), self._rows)

    def _recv(self) -> VectorStep:
        observation, reward, terminated, truncated, info = self._pool.recv()
        self._rows = rows = info["env_id"]
        first = self._over[rows]
        self._over[rows] = terminated | truncated
        index = rows.astype(np.int64)
        return VectorStep(
            self._observed(observation), reward.astype(np.float32), terminated, truncated & ~terminated, first, index
        )

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()


class _Observation:
    """Turns what EnvPool observes into one array: an image as it is, or all vectors and numbers, joined, float32."""

    def __init__(self, space: Any) -> None:
        if space.__class__.__name__ == "Box" and space.dtype == np.uint8 and len(space.shape) == 3:
            self._keys = None
            self.spec: specs.Array = specs.BoundedArray(space.shape, np.uint8, 0, 255, "observation")
            return
        parts = space.spaces if hasattr(space, "spaces") else {"": space}
        self._keys = [key for key, part in parts.items() if hasattr(part, "low")]
        size = sum(math.prod(parts[key].shape) for key in self._keys)
        if not size:
            raise UserError(f"the observations are {space}: must be arrays")
        self.spec = specs.Array((size,), np.float32, "observation")

    def __call__(self, observation: Any) -> np.ndarray:
        if self._keys is None:
            image: np.ndarray = observation
            return image
        parts = [observation[key] for key in self._keys] if isinstance(observation, Mapping) else [observation]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1, dtype=np.float32)
