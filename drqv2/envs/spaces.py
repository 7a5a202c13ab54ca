"""Spaces of Gymnasium as specs of dm_env; and what an agent sees of the observations of many environments at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from dm_env import specs

from drqv2.envs.cameras import fit
from drqv2.envs.images import FORMAT, described, find_image, in_a_line, is_image, state_keys
from drqv2.errors import UserError


def observation_specs(space: Any) -> tuple[Any, dict[str, str]]:
    """Return the spec of a Box, or those of the Boxes in a Dict; and what else is in it, which is left out.

    Raises:
        UserError: there is no Box.
    """
    from gymnasium import spaces

    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    boxes = {
        key: specs.BoundedArray(box.shape, box.dtype, box.low, box.high, key)
        for key, box in parts.items()
        if isinstance(box, spaces.Box)
    }
    if not boxes:
        raise UserError(
            f"the environment's observations are {in_a_line(space)}: must be a Box or a Dict of Boxes\n"
            "Return one, or wrap the environment: gymnasium.wrappers.FlattenObservation (for a vector, that in "
            "gymnasium.wrappers.vector) makes a Box of most spaces"
        )
    left_out = {key: type(part).__name__ for key, part in parts.items() if key not in boxes}
    return boxes if isinstance(space, spaces.Dict) else boxes["observation"], left_out


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


def state_spec(spec: Any) -> tuple[list[Any], specs.Array]:
    """Return which arrays of an observation make up the state, see `state_keys`, and its spec: float32 [N].

    Raises:
        UserError: there are no numbers but images'.
    """
    parts, keys = spec if isinstance(spec, Mapping) else {None: spec}, state_keys(spec)
    size = sum(math.prod(parts[key].shape) for key in keys)
    if not size:
        images = any(map(is_image, parts.values()))
        why = "images only; use obs_type=pixels" if images else "no numbers to learn from"
        raise UserError(f"obs_type=state: the environment's observations are {described(spec)}: {why}")
    return keys, specs.Array((size,), np.float32, "observation")


class VectorObservations:
    """Turns observations [N, ...] into one array: images uint8 [N, C, H, W]; or other arrays joined, float32 [N, K].

    Args:
        declared: spec of one observation: of an array, or a dict of them.
        name: of the environment, for messages.
        obs_type: "pixels" or "state"; None for images where there are some.
        image_key, channels: as of `make`.
        image_size: height and width of images: others are resized by area averaging. None leaves them as they are.

    Attributes:
        spec: of what the agent sees of one observation.
        keys: of the arrays that it is made of; [None] where the observation is one array.
    """

    def __init__(
        self,
        declared: Any,
        name: str,
        obs_type: str | None = None,
        image_key: str | None = None,
        channels: str = "auto",
        image_size: int | None = None,
    ) -> None:
        self._image = None if obs_type == "state" else find_image(declared, image_key, channels)
        if self._image is not None:
            height, width, depth = self._image.shape
            self._size = (image_size or height, image_size or width)
            self.spec: specs.Array = specs.BoundedArray((depth, *self._size), np.uint8, 0, 255, "observation")
            self.keys: list[Any] = [self._image.key]
        elif obs_type == "pixels":
            raise UserError(
                f"obs_type=pixels: the observations of {name} have no image, {FORMAT}: {described(declared)}\n"
                "Use obs_type=state: what its render() shows is for videos alone."
            )
        else:
            self.keys, self.spec = state_spec(declared)

    def __call__(self, observation: Any) -> np.ndarray:
        """Return the array of observations, or of a dict of them; it may be the environments' own."""
        if self._image is not None:
            images = self._image.read(observation)  # [N, H, W, C]
            if images.shape[1:3] != self._size:
                images = np.stack([fit(image, *self._size) for image in images])
            return np.ascontiguousarray(np.moveaxis(images, -1, 1))
        if self.keys == [None]:
            return observation.reshape(len(observation), -1).astype(np.float32, copy=False)
        flat = [observation[key].reshape(len(observation[key]), -1) for key in self.keys]
        return np.concatenate(flat, 1, dtype=np.float32)
