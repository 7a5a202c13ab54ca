"""Observations that are dicts: which of their parts are read, and whether each stays a part of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from drqv2.datasets.episodes import Episode, is_observed
from drqv2.datasets.options import ReadOptions
from drqv2.envs.images import PIXELS
from drqv2.errors import UserError


class Chosen(NamedTuple):
    """Parts that are read.

    Attributes:
        images, vectors: their names.
        apart: whether the observation stays a dict; otherwise it is one image, or all vectors joined.
    """

    images: list[str]
    vectors: list[str]
    apart: bool

    @property
    def names(self) -> list[str]:
        """Names of both, images first."""
        return [*self.images, *self.vectors]


def choose(
    place: str, images: Sequence[str], vectors: Sequence[str], options: ReadOptions, others: Sequence[str] = ()
) -> Chosen:
    """Choose parts as an environment does by the same keys.

    Args:
        place: the data set, for messages.
        images: names of its parts that are images.
        vectors: names of those that are vectors.
        options: see `formats.read`.
        others: names of what is neither.

    Raises:
        UserError: there is no part of a name given.
    """
    kind, wanted = options.obs_type, options.observation_parts
    key = None if kind == "state" else options.image_key
    names = [*images, *vectors, *others]
    if key is not None and key not in names:
        raise UserError(f"image_key={key}: the observations of {place} are {', '.join(names)}")
    offered = {"pixels": images, "state": vectors}.get(kind) or names
    if unknown := [name for name in wanted or () if name not in offered]:
        shown = f"{', '.join(offered)} with obs_type={kind}"
        raise UserError(f"observation_parts={unknown[0]}: the observations of {place} are {shown}")
    if wanted is not None:
        images, vectors = ([name for name in some if name in wanted] for some in (images, vectors))
    if key is not None and key not in images:
        raise UserError(f"image_key={key}: is not among the images of {place}, {', '.join(images) or 'none'}")
    if kind == "state":
        images = []
    elif key is not None:
        images = [key]
    elif PIXELS in images and wanted is None and (kind == "pixels" or (kind == "auto" and not vectors)):
        images = [PIXELS]
    if images and kind == "pixels":
        vectors = []
    apart = kind == "pixels+state" or len(images) > 1 or bool(images and vectors)
    return Chosen(list(images), list(vectors), apart)


def of_file(episode: Episode, place: str, options: ReadOptions, announce: Callable[[str], None]) -> Episode:
    """Return an episode of a file, of whose observations some parts are left out; with obs_type=auto, none.

    Args:
        episode: its observations may be a dict.
        place: the data set, for messages.
        options: see `formats.read`.
        announce: called with a line on what is left out.

    Raises:
        UserError: there is no such part; or vectors would be joined, whose order is not stored.
    """
    stored = {name.partition(".")[2]: name for name in sorted(episode.arrays) if is_observed(name) and "." in name}
    images = [key for key, name in stored.items() if name.startswith("frame.")]
    vectors = [key for key in stored if key not in images]
    unchanged = options.obs_type == "auto" and options.observation_parts is None and options.image_key is None
    if not stored or unchanged or (options.obs_type == "pixels" and not images):
        return episode
    if options.obs_type == "auto":
        options = replace(options, obs_type="pixels+state")
    chosen = choose(place, images, vectors, options)
    if not chosen.apart and len(chosen.vectors) > 1:
        names = ", ".join(chosen.vectors)
        raise UserError(
            f"obs_type=state: the observations of {place} hold {names}, and not their order in one vector\n"
            f"Choose one with observation_parts=[NAME], or use obs_type=pixels+state "
            f"observation_parts=[{','.join(chosen.vectors)}], which keeps each of them apart."
        )
    tell_left_out(chosen.names, list(stored), announce)
    named = {stored[key]: stored[key] if chosen.apart else stored[key].partition(".")[0] for key in chosen.names}
    if len(named) == len(stored) and chosen.apart:
        return episode
    arrays = {named.get(name, name): array for name, array in episode.arrays.items() if _is_kept(name, named)}
    return episode._replace(arrays=arrays, as_stored=False)


def _is_kept(name: str, named: Mapping[str, str]) -> bool:
    return name in named or not is_observed(name)


def tell_left_out(names: Sequence[str], available: Sequence[str], announce: Callable[[str], None]) -> None:
    """Announce the parts of observations that are not read."""
    if others := [name for name in available if name not in names]:
        announce(f"observations are {', '.join(names)}; left out: {', '.join(others)}")
