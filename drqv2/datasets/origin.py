"""Which task a data set's actions were for, and for how many frames each was held, where that is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from drqv2.errors import UserError

ABOUT = "dataset.json"  # in a data set that was written here: where its episodes are from
_KEPT = ("task", "action_repeat")


def origin(place: str) -> dict[str, Any]:
    """Return `task` and `action_repeat` of the episodes of a run's directory or of a data set, as far as it says so.

    Raises:
        UserError: the file that says so cannot be read.
    """
    path = next((path for name in ("config.yaml", ABOUT) if (path := Path(place) / name).is_file()), None)
    if path is None:
        return {}
    try:
        told = yaml.safe_load(path.read_text())  # JSON is YAML as well
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())[:150]})") from error
    if not isinstance(told, dict) or told.get("tasks"):  # each of several tasks may have its own
        return {}
    if "task_name" in told:  # a run's
        told["task"] = told["task_name"]
    return {key: told[key] for key in _KEPT if told.get(key) is not None}


def common_origin(places: Iterable[str]) -> dict[str, Any]:
    """Return what all of several data sets say alike."""
    first, *others = (origin(place) for place in places)
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}


def require_fit(data: str, cfg: Mapping[str, Any]) -> None:
    """Print that the data are of another task than a run's.

    Raises:
        UserError: their actions were held for another number of frames.
    """
    told = origin(data)
    repeat, task = told.get("action_repeat"), told.get("task")
    if repeat not in (None, cfg["action_repeat"]):
        raise UserError(
            f"data={data}: its actions were held for {repeat} frames, those of the run are for "
            f"{cfg['action_repeat']}; set action_repeat={repeat}"
        )
    if task not in (None, cfg["task_name"]):
        print(f"warning: the data are of {task}, the run is of {cfg['task_name']}")
