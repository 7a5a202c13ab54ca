"""Kinds of values that a key can take: each says in words what it allows, and checks a value."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from drqv2.config.formatting import show
from drqv2.errors import UserError


def _require(holds: bool, message: str = "") -> None:
    if not holds:
        raise ValueError(message)


class Kind:
    """What a key takes.

    `check(value)` returns the value in the kind's own type, or raises ValueError: without a message where "must be
    ALLOWED" says it all. `parse(text)` returns what a text on a tool's command line stands for, allowed or not.

    Attributes:
        allowed: the allowed values, in words.
        is_text: a value on Hydra's command line may need quotes.
        needs_torch: checking a value may import torch, which takes seconds.
        may_be_unset: the mark `???` for a missing value is allowed.
    """

    allowed: str
    is_text = False
    needs_torch = False
    may_be_unset = False

    def check(self, value: Any) -> Any:
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        return text


class Float(Kind):
    """A finite number.

    Args:
        low: least allowed value, or the bound that it must be above if `above`.
        high: greatest allowed value.
        above: `low` itself is not allowed.
    """

    noun = "a number"

    def __init__(self, low: float = -math.inf, high: float = math.inf, above: bool = False) -> None:
        self.low, self.high, self.above = low, high, above
        self.allowed = self.noun
        if low > -math.inf:
            self.allowed += f" above {low}" if above else f" of at least {low}"
        if high < math.inf:
            self.allowed += f" and at most {high}"

    def check(self, value: Any) -> float:
        _require(isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
        _require(self.low <= value <= self.high and not (self.above and value == self.low))
        return float(value)

    def parse(self, text: str) -> Any:
        try:
            number = float(text)
        except ValueError:
            return text
        return int(number) if number.is_integer() else number


class Int(Float):
    """A whole number; 1e6 is one. Bounds as of Float."""

    noun = "a whole number"

    def check(self, value: Any) -> int:
        _require(super().check(value) == int(value))
        return int(value)


class EvenInt(Int):
    """An even whole number, as video encoders need."""

    noun = "an even whole number"

    def check(self, value: Any) -> int:
        _require(super().check(value) % 2 == 0)
        return int(value)


class Bool(Kind):
    """True or false; not 0 or 1."""

    allowed = "true or false"

    def check(self, value: Any) -> bool:
        _require(isinstance(value, bool))
        return value

    def parse(self, text: str) -> Any:
        return {"true": True, "false": False}.get(text, text)


class Text(Kind):
    """Any text but the empty one; numbers become text, as in experiment=7."""

    allowed = "text"
    is_text = True

    def check(self, value: Any) -> str:
        _require(isinstance(value, int | float | str) and not isinstance(value, bool) and value != "")
        return str(value)


class Name(Kind):
    """The dotted name of something in a Python module."""

    allowed = "a dotted Python name such as module.name"

    def check(self, value: Any) -> str:
        _require(isinstance(value, str) and bool(re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value)))
        return str(value)


class File(Kind):
    """The path of an existing file."""

    noun = "file"
    exists = staticmethod(Path.is_file)
    allowed = "a file that exists"
    is_text = True

    def check(self, value: Any) -> str:
        _require(isinstance(value, str) and value != "")
        _require(self.exists(Path(value)), f"there is no such {self.noun} (relative paths start at {Path.cwd()})")
        return str(value)


class Folder(File):
    """The path of an existing directory."""

    noun = "directory"
    exists = staticmethod(Path.is_dir)
    allowed = "a directory that exists"


class Device(Kind):
    """A device of torch's that this machine has, or auto."""

    allowed = "auto, cpu, cuda or cuda:N"
    needs_torch = True

    def check(self, value: Any) -> str:
        match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", value) if isinstance(value, str) else None
        if match is None:
            raise ValueError
        if value.startswith("cuda"):
            import torch

            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            _require(count > 0, f"torch {torch.__version__} sees no GPU here; use device=cpu or device=auto")
            seen = ", ".join(f"cuda:{i}" for i in range(count))
            _require(int(match[1] or 0) < count, f"there is no such GPU here; torch sees {seen}")
        return str(value)


class Schedule(Kind):
    """A standard deviation that may change with the agent step; see `drqv2.utils.schedule`."""

    allowed = "a number, linear(init,final,duration) or step_linear(init,final1,duration1,final2,duration2)"
    is_text = True
    needs_torch = True

    def check(self, value: Any) -> int | float | str:
        _require(isinstance(value, int | float | str) and not isinstance(value, bool))
        from drqv2.utils import schedule

        try:
            start = schedule(value, 0)
        except UserError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        negative = re.search(r"(^|[(,])\s*-", str(value))
        _require(math.isfinite(start) and not negative, "a standard deviation must be 0 or above, and finite")
        return value


class Shape(Kind):
    """The shape of an array. The environment defines it; configurations leave it unset."""

    allowed = "left unset: it is taken from the environment"
    may_be_unset = True

    def check(self, value: Any) -> list[int] | tuple[int, ...]:
        _require(isinstance(value, list | tuple) and all(type(n) is int and n > 0 for n in value))
        return value


class Choice(Kind):
    """One of a few texts and bools; 1 is not true."""

    def __init__(self, *choices: str | bool) -> None:
        self.choices = choices
        *others, last = map(show, choices)
        self.allowed = f"{', '.join(others)} or {last}" if others else last

    def check(self, value: Any) -> str | bool:
        _require(any(type(value) is type(choice) and value == choice for choice in self.choices))
        return value
