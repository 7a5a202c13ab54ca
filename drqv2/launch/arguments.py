"""Command lines of the tools other than train.py (key=value, --key=value, --key value), checked like its keys."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from drqv2 import programs
from drqv2.config.formatting import did_you_mean, show
from drqv2.config.help import key_text
from drqv2.config.keys import Key
from drqv2.config.kinds import Kind, Several
from drqv2.errors import UserError
from drqv2.launch.exits import clean_exit
from drqv2.system.machine import limit_openmp_spinning
from drqv2.system.signals import exit_quietly_on_ctrl_c


def run_tool(
    run: Callable[[list[str], dict[str, Any]], None], head: str | None, keys: Mapping[Key, Any], argv: Sequence[str]
) -> None:
    """Call `run` with the positional arguments and the value of every key; --help prints `head` and the keys.

    Raises:
        SystemExit: with the code of a UserError, which is printed without a traceback, or 130 after ctrl-C.
    """
    with clean_exit():
        if {"-h", "--help"} & set(argv):
            print(programs.as_here((head or "").strip()) + "\n")
            print("\n".join(key_text(key, show(default), 16) for key, default in keys.items()))
        else:
            run(*_parse(argv, keys))


def start_tool(
    module: str, head: str | None, keys: Mapping[Key, Any], check: Callable[[Sequence[str]], Any]
) -> NoReturn:
    """Run the program whose `run` is in a module, and exit; the module is imported after its command line is checked.

    See `run_tool`. `run` gets the positional arguments, for which `check` raises UserError if they are wrong, and the
    values.
    """

    def run(words: list[str], values: dict[str, Any]) -> None:
        check(words)
        programs.load(module).run(words, values)

    limit_openmp_spinning()  # before torch is loaded
    exit_quietly_on_ctrl_c()
    run_tool(run, head, keys, sys.argv[1:])
    sys.exit()


def _parse(argv: Sequence[str], keys: Mapping[Key, Any]) -> tuple[list[str], dict[str, Any]]:
    known = {key.name: key for key in keys}
    values = {key.name: default for key, default in keys.items()}
    positional, words = [], deque(argv)
    while words:
        word = words.popleft()
        name, equals, text = word.removeprefix("--").partition("=")
        option = word.startswith("--")
        if not option and (not equals or "/" in name):
            positional.append(word)
            continue
        if name not in known:
            raise UserError(f"{word}: there is no such key{did_you_mean(name, known)} (see --help)")
        alone = isinstance(values[name], bool) and not (words and words[0] in ("true", "false"))
        if not equals and not alone:  # --out FILE, --watch true; a --watch alone is true
            text = words.popleft() if words else ""
            if not text or text.startswith("--"):
                raise UserError(f"{word}: a value is missing, which must be {known[name].allowed}")
        values[name] = known[name].check(value_of(text if equals or text else "true", known[name].kind))
    return positional, values


def value_of(text: str, kind: Kind) -> Any:
    """Return the value that a text on the command line stands for, whether or not the kind allows it."""
    if text == "null":
        return None
    if isinstance(kind, Several):
        listed = text.removeprefix("[").removesuffix("]")
        return [part.strip() for part in listed.split(",")] if listed.strip() else []
    if kind.is_text:
        return text
    if text in ("true", "false"):
        return text == "true"
    with suppress(ValueError):
        number = float(text)
        return int(number) if number.is_integer() else number
    return text
