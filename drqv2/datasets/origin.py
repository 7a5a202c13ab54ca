"""Which environment a data set's actions were for, and for how many frames each was held, where that is known.

`env_spec` says it as Minari keeps it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from drqv2.config.dm_control import every_task
from drqv2.config.formatting import counted
from drqv2.datasets import hdf5, minari
from drqv2.datasets.episodes import Episode
from drqv2.datasets.formats import files_of
from drqv2.envs.images import PIXELS
from drqv2.errors import UserError
from drqv2.replay.observations import stored_in

ABOUT = "dataset.json"  # in a data set that was written here: where its episodes are from
DM_CONTROL = "dm_control"  # as `env`: the task is one of its own
GYMNASIUM = "gymnasium:"  # before the name of an environment of Gymnasium's
_CAMERA = "pixels_"  # before a camera, in the name of the image that it gives
_OWN_TASKS = "drqv2/"  # before a task's name, in that of its Gymnasium environment, see `drqv2.envs.as_gymnasium`
_KINDS = {"task": str, "env": str, "action_repeat": int}


def origin(place: str, task: int | None = None) -> dict[str, Any]:
    """Return where the episodes of a run's directory or of a data set come from, as far as that is recorded.

    `task` is a task, or an environment of another library with its name (gymnasium:HalfCheetah-v5). `env` is
    where the task is from: dm_control, or the name of your own function. `action_repeat` is in frames.

    Args:
        place: see `formats.read`.
        task: which task of a run of several; without it, such a run has no single origin.

    Raises:
        UserError: the file with the origin cannot be read.
    """
    files = [path for name in ("config.yaml", ABOUT) if (path := Path(place) / name).is_file()]
    if place.startswith(minari.MINARI):
        told = _told_by_minari(place)
    elif files:
        told = _told_by_file(files[0], task)
    else:
        told = _told_by_hdf5(place)
    return {key: told[key] for key, kind in _KINDS.items() if type(told.get(key)) is kind}


def _told_by_file(path: Path, task: int | None) -> Mapping[str, Any]:
    try:
        told = yaml.safe_load(path.read_text())  # JSON is YAML as well
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())[:150]})") from error
    if not isinstance(told, dict):
        return {}
    if names := told.get("tasks"):
        return {} if task is None or task >= len(names) else origin_of_run(told, names[task])
    return origin_of_run(told) if "task_name" in told else told


def _told_by_minari(place: str) -> Mapping[str, Any]:
    try:
        told = minari.metadata(place)
    except ModuleNotFoundError:  # the reader of the episodes reports it
        return {}
    own = told.get(minari.OWN)
    return own if isinstance(own, dict) else _told_by_spec(told.get("env_spec"))


def _told_by_spec(env_spec: Any) -> Mapping[str, Any]:
    """Return what the JSON text of a Gymnasium environment's spec says."""
    try:
        spec = json.loads(env_spec)
        name, arguments = str(spec["id"]), spec["kwargs"]
    except (TypeError, ValueError, KeyError):  # there is none
        return {}
    if not name.startswith(_OWN_TASKS):
        return {"task": f"{GYMNASIUM}{name}"}
    task = name.removeprefix(_OWN_TASKS).rpartition("-v")[0]
    return {"task": task, "env": DM_CONTROL, "action_repeat": arguments.get("action_repeat")}


def _told_by_hdf5(place: str) -> Mapping[str, Any]:
    """Return what the attributes of all .hdf5 files of a data set agree on."""
    try:
        paths, _ = files_of(Path(place))
        return _common([hdf5.attributes(path) for path in paths if path.suffix == ".hdf5"])
    except (UserError, ModuleNotFoundError):  # the reader of the episodes reports it
        return {}


def origin_of_run(cfg: Mapping[str, Any], task: str | None = None) -> dict[str, Any]:
    """Return the origin of the episodes of a run from its configuration; of one of several tasks by its name."""
    name = str(task or cfg.get("env_id") or cfg["task_name"])
    own = (cfg.get("per_task") or {}).get(name, {})
    told = {"task": name, "action_repeat": own.get("action_repeat", cfg.get("action_repeat"))}
    if isinstance(env := cfg.get("env"), Mapping) and ":" not in name:
        told["env"] = env.get("_target_") or DM_CONTROL
    return told


def common_origin(places: Iterable[str], task: int | None = None) -> dict[str, Any]:
    """Return what all data sets agree on; see `origin`."""
    return _common([origin(place, task) for place in places])


def _common(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = told or [{}]
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def described(told: Mapping[str, Any]) -> str:
    """Return an environment in words: cheetah_run (dm_control)."""
    return f"{told['task']} ({told['env']})" if "env" in told else str(told["task"])


def require_fit(data: str, cfg: Mapping[str, Any]) -> None:
    """Print that the data come from another environment than a run's.

    Raises:
        UserError: their actions were held for another number of frames.
    """
    told, own = origin(data), origin_of_run(cfg)
    same = told.get("task") == own["task"] and told.get("env") in (None, own.get("env"))
    if "task" in told and not same:
        print(f"warning: data={data} comes from {described(told)}, the run uses {described(own)}")
    repeat = told.get("action_repeat")
    if repeat not in (None, cfg["action_repeat"]):
        raise UserError(
            f"data={data}: its actions were held for {counted(repeat, 'frame')}, those of the run are for "
            f"{cfg['action_repeat']}; set action_repeat={repeat}"
        )


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

    seen = _seen(episode)
    if seen is None:
        return None
    repeat = {"action_repeat": told["action_repeat"]} if "action_repeat" in told else {}
    spec = gymnasium.spec(f"drqv2/{task}-v0")
    return dataclasses.replace(spec, kwargs={**spec.kwargs, **seen, **repeat})


def _seen(episode: Episode) -> dict[str, Any] | None:
    """Return the arguments with which a task of dm_control's shows what an episode holds; None where none do."""
    observed = stored_in(episode.arrays)
    images = {stored.key: episode.arrays[stored.tensor].shape[1:] for stored in observed if stored.stacked}
    names = [stored.key for stored in observed if stored.key is not None]
    cameras = [_number_or_name(key.removeprefix(_CAMERA)) for key in images if key and key.startswith(_CAMERA)]
    several: dict[str, Any] = {"observation_parts": names} if names else {}
    several |= {"cameras": cameras} if cameras else {}
    if not images:
        return {"obs_type": "pixels+state" if names else "state"} | several
    (channels, height, width), *others = set(images.values())
    if channels != 3 or height != width or others or not (cameras or images.keys() <= {None, PIXELS}):
        return None
    both = len(names) > len(images) or len(names) == 1
    return {"obs_type": "pixels+state" if both else "pixels", "image_size": height, "frame_stack": 1} | several


def _number_or_name(camera: str) -> int | str:
    return int(camera) if camera.removeprefix("-").isdigit() else camera  # -1 is the free camera
