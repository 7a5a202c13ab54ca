"""Names and values in messages and columns: a value as you would type it, the names closest to a mistyped one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from drqv2.errors import nearest


def show(value: Any) -> str:
    """Return `value` as you would type it on the command line; text that looks like another type is quoted."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(show, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{show(item)}" for name, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and re.fullmatch(r"|null|true|false|[-+\d.][-+\w.]*", value, re.IGNORECASE):
        return repr(value)
    return str(value)


def column_name(task: str) -> str:
    """Return a task's name in the columns of train.csv and eval.csv, without a library and without slashes."""
    return task.rpartition(":")[2].replace("/", "_")


def rewards_of(tasks: Iterable[str]) -> str:
    """Return which rewards Meta-World's tasks have, for tables of returns; an empty string without such a task."""
    return "Meta-World v3 with rewards of version 2" if any(task.startswith("metaworld:") for task in tasks) else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; nearest: a, b`, or an empty string if nothing in `names` resembles `name` or contains it."""
    names = list(names)
    containing = [candidate for candidate in names if len(name) > 2 and name in candidate]
    found = list(dict.fromkeys(containing + nearest(name, names)))[:3]
    return "; nearest: " + ", ".join(found) if found else ""


def unknown(group: str, option: str, options: Iterable[str]) -> str:
    """Return the message that a configuration group has no such option, and which ones it has."""
    options = list(options)
    separator = "\n" if len(options) > 6 else "; "
    near = did_you_mean(option, options)
    return f"{group}={option}: there is no such {group}{near}{separator}allowed: {', '.join(options)}"
