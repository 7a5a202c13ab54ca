"""Which environment a data set's actions were for, and for how many frames each was held, where that is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from drqv2.config.formatting import counted
from drqv2.datasets import hdf5, minari
from drqv2.datasets.formats import files_of
from drqv2.errors import UserError

ABOUT = "dataset.json"  # in a data set that was written here: where its episodes are from
DM_CONTROL = "dm_control"  # as `env`: the task is one of its own
GYMNASIUM = "gymnasium:"  # before the name of an environment of Gymnasium's
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
    # Older data sets name a task without its library.
    same = told.get("task") in (own["task"], cfg["task_name"]) and told.get("env") in (None, own.get("env"))
    if "task" in told and not same:
        print(f"warning: data={data} comes from {described(told)}, the run uses {described(own)}")
    repeat = told.get("action_repeat")
    if repeat not in (None, cfg["action_repeat"]):
        raise UserError(
            f"data={data}: its actions were held for {counted(repeat, 'frame')}, those of the run are for "
            f"{cfg['action_repeat']}; set action_repeat={repeat}"
        )
