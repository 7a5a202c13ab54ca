"""key=value command lines of the tools beside train.py, checked like its configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drqv2.config.checks import checked
from drqv2.config.messages import did_you_mean
from drqv2.config.schema import Key, show
from drqv2.errors import UserError
from drqv2.launch.exits import plain_ends


def run_tool(
    run: Callable[[list[str], dict[str, Any]], None], head: str | None, keys: Mapping[Key, Any], argv: Sequence[str]
) -> None:
    """Call `run` with what stands without a key and with the value of every key; --help prints `usage`.

    Raises:
        SystemExit: with the code of a UserError, which is printed without a traceback, or 130 after ctrl-C.
    """
    with plain_ends():
        if {"-h", "--help"} & set(argv):
            print(usage(head or "", keys))
        else:
            run(*parse(argv, keys))


def parse(argv: Sequence[str], keys: Mapping[Key, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return what stands without a key, and the value of every key.

    Args:
        argv: words such as "episodes=20".
        keys: with their defaults.

    Raises:
        UserError: an unknown key, or a value that is not allowed.
    """
    known = {key.name: key for key in keys}
    values = {key.name: default for key, default in keys.items()}
    plain = []
    for word in argv:
        name, equals, text = word.partition("=")
        if not equals or "/" in name:
            plain.append(word)
            continue
        if name not in known:
            raise UserError(f"{name}={text}: there is no such key{did_you_mean(name, known)} (see --help)")
        values[name] = checked(known[name], _value(text, known[name].kind))
    return plain, values


def _value(text: str, kind: str) -> Any:
    if text == "null":
        return None
    if kind in ("int", "float"):
        try:
            number = float(text)
            return int(number) if number.is_integer() else number
        except ValueError:
            return text
    return text == "true" if kind == "bool" and text in ("true", "false") else text


def usage(head: str, keys: Mapping[Key, Any]) -> str:
    """Return what --help prints: `head`, then each key with its meaning, what it takes and its default."""
    lines = [head.strip(), ""]
    for key, default in keys.items():
        unit = f", {key.unit}" if key.unit else ""
        text = f"  {key.name:<16} {key.meaning} [{key.allowed}{unit}; default {show(default)}]"
        lines += textwrap.wrap(text, 118, subsequent_indent=" " * 19, break_on_hyphens=False)
    return "\n".join(lines)
