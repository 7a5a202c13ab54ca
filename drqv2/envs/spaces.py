"""Spaces of Gymnasium as specs of dm_env: of observations, in which discrete values become one-hot, and of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dm_env import specs

from drqv2.envs.checks import shown
from drqv2.envs.images import in_a_line, named
from drqv2.errors import EnvError, UserError

_MOST_VALUES = 100_000  # of a discrete space, as one-hot vectors


class ObservationSpace:
    """A space of observations: a Box, a discrete space, or a Dict of them.

    Discrete becomes a one-hot vector, MultiDiscrete several of them, joined; MultiBinary stays an array of 0 and 1.

    Args:
        space: Gymnasium's.

    Attributes:
        spec: of an array, or a dict of specs.
        left_out: parts of a Dict that are other spaces, and what they are.

    Raises:
        UserError: there is no space that can be used.
    """

    def __init__(self, space: Any) -> None:
        from gymnasium import spaces

        self._is_dict = isinstance(space, spaces.Dict)
        parts = space.spaces if self._is_dict else {None: space}
        self._discrete = {key: OneHot(part, key) for key, part in parts.items() if OneHot.takes(part)}
        found = {key: one.spec for key, one in self._discrete.items()}
        for key, part in parts.items():
            name = "observation" if key is None else key
            if isinstance(part, spaces.Box):
                found[key] = specs.BoundedArray(part.shape, part.dtype, part.low, part.high, name)
            elif isinstance(part, spaces.MultiBinary):
                found[key] = specs.BoundedArray(part.shape, part.dtype, 0, 1, name)
        if not found:
            raise UserError(
                f"the environment's observations are {in_a_line(space)}: must be a Box, discrete (up to "
                f"{_MOST_VALUES:,}) or a Dict of such\nReturn one, or wrap the environment: "
                "gymnasium.wrappers.FlattenObservation (for a vector, that in gymnasium.wrappers.vector) makes a Box "
                "of most spaces"
            )
        self.left_out = {str(key): type(part).__name__ for key, part in parts.items() if key not in found}
        self.spec: Any = {key: found[key] for key in parts if key in found} if self._is_dict else found[None]

    def encoded(self, key: Any, value: Any) -> Any:
        """Return an array of an observation, or of a batch, as its spec describes it; `key` is that of a Dict or None.

        Raises:
            EnvError: a value is not in its discrete space.
        """
        return self._discrete[key](value) if key in self._discrete else value

    def __call__(self, observation: Any) -> Any:
        """Return an observation, or a batch, as the spec describes it: without what is left out.

        Raises:
            EnvError: a value is not in its discrete space.
        """
        if not self._is_dict:
            return self.encoded(None, observation)
        if not isinstance(observation, Mapping):
            return observation  # which is refused later, as anything that is not what was declared
        return {key: self.encoded(key, value) for key, value in observation.items() if key not in self.left_out}


class OneHot:
    """Discrete values as one-hot vectors, joined where there are several.

    Args:
        space: Gymnasium's Discrete or MultiDiscrete.
        key: of the values in a Dict; None where they are the observation.

    Attributes:
        spec: of the vector, float32 [sum of the numbers of values].
    """

    def __init__(self, space: Any, key: str | None) -> None:
        self._space, self._key = space, key
        self._numbers = np.ravel(getattr(space, "nvec", getattr(space, "n", 0)))
        self._starts, ends = np.ravel(space.start), np.cumsum(self._numbers)
        self._places = ends - self._numbers  # of the values' first elements in the vector
        name = "observation" if key is None else key
        self.spec = specs.BoundedArray((int(ends[-1]),), np.float32, 0, 1, name)

    @staticmethod
    def takes(space: Any) -> bool:
        """Return whether a space is discrete, and not too large."""
        from gymnasium import spaces

        if isinstance(space, spaces.Discrete):
            return int(space.n) <= _MOST_VALUES
        return isinstance(space, spaces.MultiDiscrete) and space.nvec.size > 0 and space.nvec.sum() <= _MOST_VALUES

    def __call__(self, value: Any) -> np.ndarray:
        """Return one-hot vectors, float32 [..., N], of integers [..., *shape of the space].

        Raises:
            EnvError: a value is not in the space.
        """
        shape = self._space.shape
        values = np.asarray(value)
        batch = values.shape[: values.ndim - len(shape)]
        fits = values.dtype.kind in "iu" and values.shape == (*batch, *shape)
        places = values.reshape(*batch, len(self._numbers)).astype(np.int64) - self._starts if fits else np.array([-1])
        if not fits or (places < 0).any() or (places >= self._numbers).any():
            raise EnvError(f"{named(self._key)} is {shown(value)}: declared {in_a_line(self._space)}")
        vectors = np.zeros((*batch, *self.spec.shape), np.float32)
        np.put_along_axis(vectors, places + self._places, 1.0, -1)
        return vectors


def action_spec(space: Any) -> Any:
    """Return the spec of a Box of actions, or of (several) discrete ones from 0; any other space as it is."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return specs.DiscreteArray(int(space.n), np.int64, "action")
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
        return specs.BoundedArray(space.shape, np.int64, 0, space.nvec - 1, "action")
    if isinstance(space, spaces.Box):
        return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, "action")
    return space


def is_discrete(spec: Any) -> bool:
    """Return whether actions are (several) discrete ones.

    Raises:
        UserError: they are not, nor are they a vector with finite bounds.
    """
    if isinstance(spec, specs.DiscreteArray):
        return True
    vector = isinstance(spec, specs.BoundedArray) and len(spec.shape) == 1
    if vector and np.isfinite(spec.minimum).all() and np.isfinite(spec.maximum).all():
        return bool(np.issubdtype(spec.dtype, np.integer))
    shown = in_a_line(spec)
    if isinstance(spec, specs.Array):
        low, high = (getattr(spec, name, None) for name in ("minimum", "maximum"))
        bounds = "" if low is None or high is None or len(f"{low}{high}") > 60 else f" from {low} to {high}"
        shown = f"{np.dtype(spec.dtype)} {list(spec.shape)}{bounds}"
    raise UserError(
        f"the environment's actions are {shown}: must be one vector of shape (A,) with finite bounds, or discrete"
    )
