"""Where the programs, their configuration and the published curves are: in the repository, or in a wheel's copy."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from pathlib import Path
from types import ModuleType

from drqv2.errors import UserError

_HERE = Path(__file__).resolve().parent
IN_WHEEL = "program"  # folder of the package that a wheel has in place of the repository
INSTALLED = (_HERE / IN_WHEEL).is_dir()
ROOT = _HERE / IN_WHEEL if INSTALLED else _HERE.parent


def as_here(text: str) -> str:
    """Return a message or a help text with the commands that work where it is read.

    They are written as in the repository, `python train.py`, `python -m drqv2.play`, `pip install -e ".[EXTRA]"`. For
    users of a wheel and of the command `drqv2`, they become `drqv2 train`, `drqv2 play` and `pip install` with the
    packages of its extras.
    """
    if INSTALLED:
        extras = r"pip install -e ([\"'])\.\[([\w,]+)\]\1"
        text = re.sub(extras, lambda found: f"pip install {_packages(found[2])}", text)
    if INSTALLED or sys.argv[0].startswith("drqv2 "):
        text = re.sub(r"python (?:(train|eval|report)\.py|-m drqv2\.(\w+))", r"drqv2 \1\2", text)
    return text


def _packages(extras: str) -> str:
    """Return the packages of extras, `a,b`, as arguments for pip."""
    lines = [line.partition(";") for line in importlib.metadata.requires("drqv2-workspace") or []]
    needed = [["extra", "==", f'"{extra}"'] for extra in extras.split(",")]
    return " ".join(f'"{name}"' for name, _, when in lines if when.split() in needed)


def load(name: str) -> ModuleType:
    """Import a program, such as `train`, as a module of this name.

    A wheel does not offer such common names to every program: only those that ask for them, here, see them.

    Raises:
        UserError: a module of that name is there already, which is not this project's.
    """
    sys.path.insert(0, str(ROOT))
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT))
    if module.__file__ is None or Path(module.__file__).resolve().parent != ROOT:
        raise UserError(f"{module.__file__} takes the name of drqv2's module {name}; give it another name")
    return module
