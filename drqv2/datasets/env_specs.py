"""The Gymnasium environment that a data set comes from, as Minari keeps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from drqv2.config.dm_control import every_task
from drqv2.datasets import minari
from drqv2.datasets.episodes import Episode
from drqv2.datasets.origin import DM_CONTROL, GYMNASIUM


def env_spec(sources: Sequence[str], told: Mapping[str, Any], episode: Episode) -> Any:
    """Return gymnasium's EnvSpec of the environment that episodes come from; None where it is not known.

    It takes actions in [-1, 1], as they are stored. It does not change observations as a run may have done: the data
    set's own spaces say what these are.

    Args:
        sources: data sets with the episodes; those of Minari's that agree on a spec keep it.
        told: the episodes' origin, see `drqv2.datasets.origin`.
        episode: the first of them.
    """
    if all(place.startswith(minari.MINARI) for place in sources):
        first, *others = (_of_minari(place) for place in sources)
        return first if all(other == first for other in others) else None
    task = str(told.get("task"))
    if task.startswith(GYMNASIUM):
        return _registered(task.removeprefix(GYMNASIUM))
    known = task in every_task() and told.get("env", DM_CONTROL) == DM_CONTROL
    return _of_task(task, told, episode) if known else None


def _of_minari(place: str) -> Any:
    dataset = minari.load(place)
    space, spec = dataset.action_space, dataset.spec.env_spec
    in_unit = np.all(getattr(space, "low", 0) == -1) and np.all(getattr(space, "high", 0) == 1)
    return spec if in_unit or spec is None else _with_unit_actions(spec)


def _registered(name: str) -> Any:
    """Return the spec of an environment that Gymnasium knows without importing anything for it."""
    import gymnasium

    spec = gymnasium.registry.get(name)
    return None if spec is None else _with_unit_actions(spec)


def _with_unit_actions(spec: Any) -> Any:
    """Return a spec whose environment takes actions in [-1, 1], which are scaled to its own bounds."""
    from gymnasium.envs.registration import WrapperSpec

    bounds = {"min_action": -1.0, "max_action": 1.0}
    scaled = WrapperSpec("RescaleAction", "gymnasium.wrappers:RescaleAction", bounds)
    return dataclasses.replace(spec, additional_wrappers=(*spec.additional_wrappers, scaled))


def _of_task(task: str, told: Mapping[str, Any], episode: Episode) -> Any:
    """Return the spec of a task of dm_control's, which shows what the episodes hold; None where it shows no such."""
    import gymnasium

    import drqv2.envs.as_gymnasium  # noqa: F401 (it registers the tasks)

    seen: dict[str, Any] = {"obs_type": "state"}
    if "frame" in episode.arrays:
        channels, height, width = episode.arrays["frame"].shape[1:]
        if channels != 3 or height != width:
            return None
        seen = {"obs_type": "pixels", "image_size": height, "frame_stack": 1}
    repeat = {"action_repeat": told["action_repeat"]} if "action_repeat" in told else {}
    spec = gymnasium.spec(f"drqv2/{task}-v0")
    return dataclasses.replace(spec, kwargs={**spec.kwargs, **seen, **repeat})
