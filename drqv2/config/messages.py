"""Errors of Hydra and OmegaConf in one or two lines: the key, the value, what is allowed, the nearest valid names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.schema import KEYS, tasks
from drqv2.errors import nearest

_TEXTS = ("text", "file", "folder", "schedule")  # kinds whose values may need quotes


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; nearest: a, b`, or an empty text when nothing in `names` looks like `name` or holds it."""
    names = list(names)
    holding = [candidate for candidate in names if len(name) > 2 and name in candidate]
    found = list(dict.fromkeys(holding + nearest(name, names)))[:3]
    return "; nearest: " + ", ".join(found) if found else ""


def not_set(name: str) -> str:
    """Say that a mandatory key has no value."""
    return "task_name is not set: give task=NAME" if name == "task_name" else f"{name} is not set: give {name}=VALUE"


def explain(error: Exception, groups: Mapping[str, Sequence[str]] | None = None) -> str:
    """Put an error of Hydra's or OmegaConf's for the person at the command line.

    Args:
        error: what was raised while a configuration was composed or read.
        groups: the configuration's groups and their options.

    Returns:
        one or two lines.
    """
    if isinstance(error, MissingConfigException) and "/" in (error.missing_cfg_file or ""):
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        options = tasks() if group == "task" else list(error.options or [])
        return (
            f"{group}={option}: there is no such {group}{did_you_mean(option, options)}\nallowed: {', '.join(options)}"
        )
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, OmegaConfBaseException):
        return _omegaconf(error)
    return _composition(error, [*KEYS, "agent", *(groups or {})])


def _unreadable(override: str) -> str:
    key, equals, _ = override.partition("=")
    known = KEYS.get(key.lstrip("+~"))
    if known is None or not equals:
        return f"{override}: cannot be read; write key=value{did_you_mean(key, KEYS)}"
    quotes = f"\nPut quotes around special characters: \"{key}='...'\""
    return f"{override}: cannot be read; must be {known.allowed}" + (quotes if known.kind in _TEXTS else "")


def _omegaconf(error: OmegaConfBaseException) -> str:
    reason = _first(error)
    if missing := re.search(r"[Mm]issing mandatory value: (\S+)", reason):
        return not_set(missing[1])
    quoted = re.search(r"'([^']+)'", reason)
    where = f"{error.full_key}: " if error.full_key else ""
    return where + reason + (did_you_mean(quoted[1], KEYS) if quoted else "")


def _composition(error: Exception, names: list[str]) -> str:
    text = str(error)
    if match := re.search(r"To append to your (?:config|default list) use \+(([^=]+)=.*)", text):
        override, key = match[1], match[2]
        hint = f"\nAn argument that your own agent takes is added with +{override}" if key.startswith("agent.") else ""
        return f"{override}: there is no such key{did_you_mean(key, names)} (see --help){hint}"
    if match := re.search(r"Could not delete from config. '(.+)' does not exist", text):
        return f"~{match[1]}: there is no such key{did_you_mean(match[1], names)}"
    if match := re.search(r"An item is already at '(.+)'", text):
        return f"+{match[1]}: this key exists; write {match[1]}=VALUE, without the plus"
    if match := re.search(r"Multiple values for (\S+)\.", text):
        return f"+{match[1]}: one is chosen already; write {match[1]}=NAME, without the plus"
    if match := re.search(r"Ambiguous value for argument '(.+)'", text):
        return f"{match[1]}: one value is expected; run one after another with -m, or write a list as [a,b]"
    if match := re.search(r"Sweep parameters '(.+)' requires", text):
        return f"{match[1]}: several runs need -m"
    if "Config group override must be a string" in text:
        return "a task or preset is chosen by one name, such as task=cheetah_run preset=cpu"
    if "does not support sweep type" in text:
        return "interval(...) needs a sweeper of its own; with the basic one list the values: seed=1,2,3"
    cause = f": {_first(error.__cause__)}" if error.__cause__ is not None else ""
    return _first(error) + cause


def _first(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
