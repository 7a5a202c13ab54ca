"""Overrides (key=value) as people type them, made readable for Hydra's grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from drqv2.config.kinds import Schedule
from drqv2.config.schema import every_key

_PATHS = ("agent_dir", "init_from", "hydra.run.dir", "hydra.sweep.dir")
_READABLE_PATH = re.compile(r"""(?a:[\w./:%-]|\$\{[^}]*\})*|'.*'|".*\"""")  # Hydra's grammar reads these unquoted
_SCHEDULE = re.compile(r"""(?<!["'\w])(?:step_)?linear\([^()]*\)(?!["'])""")


def quote(text: str) -> str:
    """Quote `text` for Hydra's grammar, which unescapes only quotes, and backslashes before a quote."""
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def unquote(value: str) -> str:
    """Return `value` without the quotes around it, if there are any."""
    return value[1:-1].replace("\\" + value[0], value[0]) if re.fullmatch(r"'.*'|\".*\"", value, re.DOTALL) else value


def readable(override: str, multirun: bool) -> str:
    """Quote what Hydra's grammar would misread: schedules, which look like calls, and paths with =, commas, spaces.

    Args:
        override: key=value as typed.
        multirun: several runs, where a comma separates values. Relative paths become absolute, since a launcher's
            processes may start in another directory.
    """
    name, equals, value = override.partition("=")
    key = every_key().get(name.lstrip("+~"))
    if key is not None and isinstance(key.kind, Schedule):
        value = _SCHEDULE.sub(lambda match: quote(match[0]), value)
    elif name in _PATHS and multirun and re.fullmatch(r"[\w.~-][\w./~-]*", value) and value != "null":
        value = str(Path(value).expanduser().absolute())
    elif name.lstrip("+~") in _PATHS and not multirun and not _READABLE_PATH.fullmatch(value):
        value = quote(value)
    return name + equals + value


def value_of(name: str, overrides: Sequence[str]) -> str | None:
    """Return the value that the last override of `name` gives it, without quotes; None where there is none."""
    given = [value for key, _, value in (override.partition("=") for override in overrides) if key == name]
    return unquote(given[-1]) if given else None
