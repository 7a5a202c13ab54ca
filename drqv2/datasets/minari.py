"""Read and write Minari's data sets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drqv2.datasets.columns import Announce, Columns, Layout
from drqv2.datasets.episodes import Episode
from drqv2.datasets.hdf5 import require_room
from drqv2.datasets.options import ReadOptions
from drqv2.datasets.parts import choose, tell_left_out
from drqv2.datasets.storable import ends, nbytes, observed, require_readable
from drqv2.envs.images import PIXELS, is_image
from drqv2.errors import UserError, not_installed
from drqv2.parts import each

MINARI = "minari:"
OWN = "drqv2"  # entry of the metadata of data sets written here: the episodes' origin, see `drqv2.datasets.origin`


def minari_episodes(place: str, options: ReadOptions, announce: Announce) -> Iterator[Columns]:
    """Yield the episodes of a data set of Minari's, with actions scaled from their bounds to [-1, 1].

    Args:
        place: minari:NAME.
        options: see `formats.read`.
        announce: called with lines on parts of a Dict that are left out.

    Raises:
        UserError: there is no such data set, or its observations or actions are of another kind.
    """
    dataset = load(place)
    space: Any = dataset.action_space
    for episode in dataset.iterate_episodes():
        taken = _to_unit(np.asarray(episode.actions), space)
        yield Columns(
            f"{place}, episode {episode.id}",
            _observed(place, dataset.observation_space, episode.observations, options, announce),
            np.concatenate([np.zeros((1, *space.shape)), taken]),
            np.concatenate([[0.0], episode.rewards]),
            np.concatenate([[1.0], 1.0 - np.asarray(episode.terminations, np.float32)]),
            first_rows=(0, -1),
            layout=Layout(options.channels),
        )


def load(place: str) -> Any:
    """Return a data set of Minari's.

    Raises:
        UserError: there is no such data set.
        ModuleNotFoundError: Minari is not installed.
    """
    import minari

    try:
        return minari.load_dataset(place.removeprefix(MINARI))
    except Exception as error:  # minari's own, of many kinds
        reason = " ".join(str(error).split())[:150]
        raise UserError(f"{place}: cannot be loaded ({reason}); see `minari list local`") from error


class _Part(NamedTuple):
    """One array of the observations, with its name in a Dict."""

    name: str
    space: Any
    values: Any

    @property
    def is_box(self) -> bool:
        return hasattr(self.space, "low") and hasattr(self.space, "high")

    @property
    def is_image(self) -> bool:
        """Whether it counts as an image, as in environments: uint8, or floats between bounds of 0 and 1."""
        return self.is_box and is_image(self.space)

    @property
    def may_be_image(self) -> bool:
        """Whether its numbers decide: bounds are not always declared."""
        return self.is_box and 3 <= len(self.space.shape) <= 4


def _observed(place: str, space: Any, values: Any, options: ReadOptions, announce: Announce) -> Any:
    """Return the images or vectors of an episode, or a dict of them.

    Without images, the Boxes of a Dict are joined to vectors, unless options say otherwise.
    """
    if not isinstance(values, dict):
        if not (part := _Part("", space, values)).is_box:
            raise UserError(f"{place}: observations {space}: must be a Box or a Dict with one")
        return _flat(part) if len(space.shape) == 2 and not part.is_image else np.asarray(values)
    parts = {part.name: part for part in _parts("", space, values)}
    images = [] if options.obs_type == "state" else _images(place, parts, options.image_key)
    vectors = [name for name, part in parts.items() if part.is_box and not part.is_image and name not in images]
    chosen = choose(place, images, vectors, options, [name for name in parts if name not in (*images, *vectors)])
    if not chosen.names:
        raise UserError(f"{place}: observations {space}: must have a Box, with obs_type=state one that is no image")
    tell_left_out(chosen.names, list(parts), announce)
    read = {name: np.asarray(parts[name].values) for name in chosen.images}
    read |= {name: _flat(parts[name]) for name in chosen.vectors}
    if chosen.apart:
        return read
    return read[chosen.images[0]] if chosen.images else np.concatenate(list(read.values()), axis=1)


def _images(place: str, parts: Mapping[str, _Part], image_key: str | None) -> list[str]:
    """Return the names of the parts of a Dict that are images; `image_key` and `pixels` must be."""
    images = [name for name, part in parts.items() if part.is_image]
    images = images or [name for name, part in parts.items() if part.may_be_image]
    for name in (image_key, PIXELS):
        if name is not None and name in parts and name not in images:
            if not parts[name].may_be_image:
                raise UserError(
                    f"{place}: {name} is {parts[name].space}: must be uint8, or floats between bounds of 0 and 1"
                )
            images.append(name)
    return images


def _flat(part: _Part) -> np.ndarray:
    values = np.asarray(part.values)
    return values.reshape(len(values), -1)


def _parts(name: str, space: Any, values: Any) -> Iterator[_Part]:
    if not isinstance(values, dict):
        yield _Part(name, space, values)
        return
    for key, part in space.spaces.items():
        yield from _parts(f"{name}.{key}" if name else key, part, values[key])


def _to_unit(action: np.ndarray, space: Any) -> np.ndarray:
    """Return actions of a Box scaled to [-1, 1], as agents here act; those outside the Box stay outside.

    Those that have these bounds already are not rounded.
    """
    bounded = hasattr(space, "low") and bool(np.all(np.isfinite(space.low) & np.isfinite(space.high)))
    if not bounded or not np.all(space.low < space.high):
        raise UserError(f"actions {space}: must be a Box with finite bounds")
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    scaled = 2 * (action - low) / (high - low) - 1
    return np.where((low == -1) & (high == 1), action, scaled)


def metadata(place: str) -> dict[str, Any]:
    """Return the metadata of a data set of Minari's, as its file has them; empty without such a data set.

    Raises:
        ModuleNotFoundError: minari is not installed.
    """
    from minari.storage import get_dataset_path

    path = get_dataset_path(place.removeprefix(MINARI)) / "data" / "metadata.json"
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError):  # `minari_episodes` reports it
        return {}
    return told if isinstance(told, dict) else {}


def folder_of(place: str) -> Path:
    """Return the directory of a data set that is to be written.

    Raises:
        UserError: Minari rejects its name, or Minari is not installed.
    """
    try:
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path
    except ModuleNotFoundError as error:
        raise UserError(not_installed("minari", "offline")) from error
    try:
        parse_dataset_id(place.removeprefix(MINARI))
    except (ValueError, TypeError) as error:  # TypeError: without a version
        raise UserError(
            f"{place}: must be {MINARI}NAME-vN or {MINARI}FOLDER/NAME-vN, of letters, digits, - and _, such as "
            f"{MINARI}cheetah/expert-v0"
        ) from error
    return Path(get_dataset_path(place.removeprefix(MINARI)))


def write_minari(
    episodes: Iterator[Episode],
    folder: Path,
    place: str,
    about: Mapping[str, Any],
    env_spec_of: Callable[[Episode], Any],
) -> None:
    """Write episodes as a data set of Minari's, with the spaces of what they hold.

    Args:
        episodes: of images and vectors, with actions in [-1, 1].
        folder: is made.
        place: minari:NAME.
        about: numbers and texts on the episodes' origin, which become part of the metadata.
        env_spec_of: returns gymnasium's EnvSpec of the environment that an episode comes from, or None.

    Raises:
        UserError: an episode does not fit the format.
        OSError: the disk is full.
    """
    import minari
    from gymnasium.spaces import Box, Dict
    from minari.dataset.minari_storage import MinariStorage

    first = next(episodes)
    actions = first.arrays["action"].shape[1:]
    spaces = each(lambda rows: _space(rows[0]), observed(first, "Minari"))
    if isinstance(spaces, dict) and (nested := [name for name in spaces if "/" in name]):
        raise UserError(
            f"{first.where}: its observations have {nested[0]}, and Minari cannot read names with a slash\n"
            "Leave such parts out with observation_parts=[...], or convert to a directory."
        )
    folder.mkdir()
    storage = MinariStorage.new(
        folder / "data",
        observation_space=Dict(spaces) if isinstance(spaces, dict) else spaces,
        action_space=Box(-1.0, 1.0, actions, np.float32),
        env_spec=env_spec_of(first),
        jpeg_encoding=False,  # it loses information
    )
    name = place.removeprefix(MINARI)
    storage.update_metadata({"dataset_id": name, "minari_version": minari.__version__, OWN: dict(about)})
    storage.update_episodes(_buffer(episode, folder) for episode in itertools.chain([first], episodes))


def _space(row: np.ndarray) -> Any:
    from gymnasium.spaces import Box

    image = row.ndim == 3
    return Box(0, 255, row.shape, np.uint8) if image else Box(-np.inf, np.inf, row.shape, np.float32)


def _buffer(episode: Episode, folder: Path) -> Any:
    """Return an episode in Minari's form, if there is room for it."""
    from minari.data_collector import EpisodeBuffer

    rows, arrays = observed(episode, "Minari"), episode.arrays
    require_room(folder, nbytes(rows))
    each(lambda part: require_readable(episode, part, part, Layout()), rows)
    if not np.issubdtype(arrays["action"].dtype, np.floating):
        raise UserError(
            f"{episode.where}: its actions are discrete, and Minari's are read with actions in [-1, 1] alone"
        )
    terminal, cut = ends(episode, "Minari")
    return EpisodeBuffer(
        observations=rows,
        actions=arrays["action"][1:],
        rewards=arrays["reward"][1:, 0],
        terminations=terminal,
        truncations=cut,
    )


def enter_namespace(name: str) -> None:
    """Make the directory, which Minari calls a namespace, that a data set is to appear in."""
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = parse_dataset_id(name)[0]
    if namespace is not None and namespace not in list_local_namespaces():
        create_namespace(namespace)
