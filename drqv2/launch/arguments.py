"""key=value command lines of the tools other than train.py, checked like its configuration."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drqv2.config.formatting import did_you_mean, show
from drqv2.config.help import key_text
from drqv2.config.key import Key
from drqv2.errors import UserError
from drqv2.launch.exits import clean_exit


def run_tool(
    run: Callable[[list[str], dict[str, Any]], None], head: str | None, keys: Mapping[Key, Any], argv: Sequence[str]
) -> None:
    """Call `run` with the positional arguments and the value of every key; --help prints `head` and the keys.

    Raises:
        SystemExit: with the code of a UserError, which is printed without a traceback, or 130 after ctrl-C.
    """
    with clean_exit():
        if {"-h", "--help"} & set(argv):
            print((head or "").strip() + "\n")
            for key, default in keys.items():
                text = key_text(key, show(default), 16)
                print(textwrap.fill(text, 118, subsequent_indent=" " * 19, break_on_hyphens=False))
        else:
            run(*parse(argv, keys))


def parse(argv: Sequence[str], keys: Mapping[Key, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the positional arguments, and the value of every key; `keys` gives the defaults.

    Raises:
        UserError: an unknown key, or a value that is not allowed.
    """
    known = {key.name: key for key in keys}
    values = {key.name: default for key, default in keys.items()}
    positional = []
    for word in argv:
        name, equals, text = word.partition("=")
        if not equals or "/" in name:
            positional.append(word)
            continue
        if name not in known:
            raise UserError(f"{name}={text}: there is no such key{did_you_mean(name, known)} (see --help)")
        key = known[name]
        values[name] = key.check(None if text == "null" else key.kind.parse(text))
    return positional, values
