"""What an agent sees of an observation: one image, one vector, or a dict of parts, images first.

Parts have the environment's own keys. An image that is drawn, or that is the whole observation, is `pixels`; those of
several cameras are `pixels_CAMERA`; a vector that is the whole observation is `state`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dm_env import specs

from drqv2.envs.cameras import fit
from drqv2.envs.images import FORMAT, PIXELS, Image, described, image_keys, is_image, state_keys
from drqv2.envs.notices import notice, tell_left_out
from drqv2.errors import UserError, nearest

BOTH = "pixels+state"
OBS_TYPES = ("pixels", "state", BOTH)
_STATE, _WHOLE = "state", "observation"


def parts_of(observation: Any) -> dict[str, Any]:
    """Return the parts of an observation, or of its spec, by name; one that is no dict is called observation."""
    return dict(observation) if isinstance(observation, Mapping) else {_WHOLE: observation}


@dataclass(frozen=True)
class Choice:
    """What is chosen of an observation.

    Args:
        obs_type: "pixels", images; "state", all other numbers in one vector; "pixels+state", both, as a dict.
        image_key: the only image; None: with "pixels" the one called so, or else all.
        channels: "first", "last" or "auto", see `Image`.
        parts: names of the only parts; None: all.
    """

    obs_type: str = "pixels"
    image_key: str | None = None
    channels: str = "auto"
    parts: Sequence[str] | None = None

    def images(self, declared: Any) -> dict[str, Any]:
        """Return the keys of the images in an observation that may be seen, by the names of their parts."""
        if self.obs_type == "state":
            return {}
        several = self.obs_type == BOTH or self.parts is not None
        return _named(image_keys(declared, self.image_key, several), PIXELS)

    def numbers(self, declared: Any) -> dict[str, Any]:
        """Return the keys of the arrays of numbers that may be seen, by the names of their parts."""
        return {} if self.obs_type == "pixels" else _named(state_keys(declared), _STATE)

    def kept(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the parts that may be seen that are chosen."""
        return {name: part for name, part in parts.items() if self.parts is None or name in self.parts}


class Seen:
    """What an agent sees of an environment's observation.

    Args:
        declared: spec of the observation: of an array, or a dict of them.
        choice: what is chosen of it.
        drawn: names of the images that are drawn, instead of images in the observation.

    Attributes:
        images: by the names of their parts; None for those that are drawn.
        vectors: keys of the arrays that are joined in each vector.
        is_dict: whether the agent sees a dict.
        left_out: keys of parts of the observation that the agent does not see.
        offered: those of them that obs_type=pixels+state adds.

    Raises:
        UserError: there is no such part, there are no numbers, or an image's axes are not clear.
    """

    def __init__(self, declared: Any, choice: Choice, drawn: Sequence[str] = ()) -> None:
        arrays = declared if isinstance(declared, Mapping) else {None: declared}
        drawn = () if choice.obs_type == "state" else drawn
        images, numbers = dict.fromkeys(drawn) or choice.images(declared), choice.numbers(declared)
        if drawn and (same := images.keys() & numbers.keys()):
            raise UserError(f"obs_type={BOTH}: {min(same)} is an array of the observation and the image that is drawn")
        _require_parts(choice, [*images, *numbers], declared)
        self.images = {
            name: None if drawn else Image(arrays[key], key, choice.channels)
            for name, key in choice.kept(images).items()
        }
        kept = choice.kept(numbers)
        self.vectors = {name: [key] for name, key in kept.items() if math.prod(arrays[key].shape)}
        if choice.obs_type != "pixels" and not self.vectors and not (choice.parts and self.images):
            has_images = any(map(is_image, arrays.values()))
            why = "images only; use obs_type=pixels" if has_images else "no numbers to learn from"
            what = f"obs_type={choice.obs_type}: the environment's observations are {described(declared)}"
            raise UserError(f"{what}: {why}")
        if choice.obs_type == "state":
            self.vectors = {_WHOLE: list(kept.values())}
        self.is_dict = choice.obs_type == BOTH or len(self.images) > 1
        self._sizes = {name: sum(math.prod(arrays[key].shape) for key in keys) for name, keys in self.vectors.items()}
        used = {image.key for image in self.images.values() if image} | set(itertools.chain(*self.vectors.values()))
        self.left_out = [key for key in arrays if key is not None and key not in used]
        more: list[Any] = []
        if self.left_out and choice.parts is None and choice.obs_type != BOTH:
            both = Choice(BOTH, choice.image_key if choice.obs_type == "pixels" else None)
            more = [*both.images(declared).values(), *both.numbers(declared).values()]
        self.offered = [key for key in self.left_out if key in more]

    def spec(self, images: Mapping[str, tuple[int, int, int]], frames: int = 1) -> Any:
        """Return the spec of what the agent sees: of an array, or a dict of them.

        Args:
            images: (H, W, C) of each image.
            frames: stacked into one observation.
        """
        found: dict[str, specs.Array] = {}
        for part in self.images:
            height, width, channels = images[part]
            name, shape = part if self.is_dict else _WHOLE, (frames * channels, height, width)
            found[part] = specs.BoundedArray(shape, np.uint8, 0, 255, name)
        for part, size in self._sizes.items():
            found[part] = specs.Array((size,), np.float32, part)
        return self.shown(found)

    def shown(self, parts: dict[str, Any]) -> Any:
        """Return the parts as the agent sees them: as a dict, or the only one."""
        return parts if self.is_dict else next(iter(parts.values()))

    def joined(self, observation: Any) -> dict[str, np.ndarray]:
        """Return the vectors, float32 [N], of an observation."""
        return {
            name: np.concatenate([np.ravel(_array(observation, key)) for key in keys], dtype=np.float32)
            for name, keys in self.vectors.items()
        }

    def joined_rows(self, observation: Any) -> dict[str, np.ndarray]:
        """Return the vectors, float32 [B, N], of a batch; they may be the environments' own arrays."""
        found = {}
        for name, keys in self.vectors.items():
            arrays = [_array(observation, key) for key in keys]
            flat = [array.reshape(len(array), -1) for array in arrays]
            one = flat[0].astype(np.float32, copy=False) if len(flat) == 1 else None
            found[name] = np.concatenate(flat, 1, dtype=np.float32) if one is None else one
        return found

    def tell(self, name: str, spec: Any, others: Mapping[str, str]) -> None:
        """Report what the agent sees where that is not what one would expect, and what it does not see.

        Args:
            name: of the environment.
            spec: of what the agent sees.
            others: parts that are no arrays, and what they are.
        """
        if self.is_dict:
            seen = self.images.items()
            notes = {part: f" ({'; '.join(image.notes)})" for part, image in seen if image and image.notes}
            shown = (f"{part} {described(one)}{notes.get(part, '')}" for part, one in spec.items())
            notice(f"{name}: the agent sees {', '.join(shown)}")
        for image in () if self.is_dict else self.images.values():
            if image is None:
                return  # what draws it has said so
            if image.notes or image.key not in (None, PIXELS):
                how = f" ({'; '.join(image.notes)})" if image.notes else ""
                height, width, channels = image.shape
                what = "observations" if image.key is None else f"the observation {image.key!r}"
                notice(f"{name}: the agent sees {what} as images of {height}x{width} with {channels} channels{how}")
        tell_left_out(name, self.left_out, others, self.offered)


class VectorObservations:
    """Turns observations [N, ...] of many environments into what agents see: images uint8 [N, C, H, W], vectors [N, K].

    Args:
        declared: spec of one observation: of an array, or a dict of them.
        name: of the environment, for messages.
        choice: what is chosen of it.
        image_size: height and width of images: others are resized by area averaging. None leaves them as they are.

    Attributes:
        seen: what the agent sees.
        spec: of one observation that it sees: of an array, or a dict of them.
    """

    def __init__(self, declared: Any, name: str, choice: Choice, image_size: int | None = None) -> None:
        if choice.obs_type != "state" and not choice.images(declared):
            raise UserError(
                f"obs_type={choice.obs_type}: the observations of {name} have no image, {FORMAT}: "
                f"{described(declared)}\nUse obs_type=state: what its render() shows is for videos alone."
            )
        self.seen, self._size = Seen(declared, choice), image_size
        shapes = {part: image.shape for part, image in self.seen.images.items() if image}
        self._shapes = {part: (image_size or h, image_size or w, c) for part, (h, w, c) in shapes.items()}
        self.spec = self.seen.spec(self._shapes)
        self._is_vector = not self.seen.is_dict and not isinstance(declared, Mapping) and len(declared.shape) == 1

    def __call__(self, observation: Any) -> Any:
        """Return what the agent sees of a batch: an array, or a dict of them; they may be the environments' own."""
        if self._is_vector:
            return observation.astype(np.float32, copy=False)
        images = {part: self._image(part, image, observation) for part, image in self.seen.images.items() if image}
        return self.seen.shown(images | self.seen.joined_rows(observation))

    def _image(self, part: str, image: Image, observation: Any) -> np.ndarray:
        images = image.read(observation)  # [N, H, W, C]
        size = self._shapes[part][:2]
        if images.shape[1:3] != size:
            images = np.stack([fit(each, *size) for each in images])
        return np.ascontiguousarray(np.moveaxis(images, -1, 1))


def _array(observation: Any, key: Any) -> Any:
    return observation if key is None else observation[key]


def _named(keys: Sequence[Any], whole: str) -> dict[str, Any]:
    """Return keys by the names of their parts; `whole` is that of an array that is the whole observation."""
    return {whole if key is None else str(key): key for key in keys}


def _require_parts(choice: Choice, offered: Sequence[str], declared: Any) -> None:
    """Raise UserError, which lists the parts that there are, if one is chosen that an agent cannot see."""
    both = Choice(BOTH)
    for part in choice.parts or ():
        if part not in offered:
            near = nearest(part, offered)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            has = f"obs_type={choice.obs_type} has {', '.join(offered) or 'none'}"
            if part in both.images(declared) | both.numbers(declared):
                has += f"; obs_type={BOTH} has {part}, too"
            raise UserError(f"observation_parts: there is no part {part!r}{hint}\n{has}")
