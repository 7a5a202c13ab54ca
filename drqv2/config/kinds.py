"""Kinds of values that a key can take: each says in words what it allows, and checks a value.

`check` returns the value in the kind's own type and raises ValueError where it is not allowed: without a message, where
"must be ALLOWED" says it all.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from drqv2.config.formatting import show
from drqv2.errors import UserError


class Kind:
    """What a key takes. Subclasses define `noun` or `allowed`, and `check`.

    Attributes:
        noun: what is allowed, in words, bounds apart.
        is_text: a value on Hydra's command line may need quotes.
        needs_torch: checking a value may import torch, which takes seconds.
        may_be_unset: the mark `???` for a missing value is allowed.
    """

    noun: ClassVar[str] = ""
    is_text: ClassVar[bool] = False
    needs_torch: ClassVar[bool] = False
    may_be_unset: ClassVar[bool] = False

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return self.noun

    def check(self, value: Any) -> Any:
        """Return `value` in this kind's type.

        Raises:
            ValueError: it is not allowed; the message may be empty.
        """
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """Return the value that `text` on a tool's command line stands for; `check` decides whether it is allowed."""
        return text


@dataclass(frozen=True)
class Float(Kind):
    """A finite number.

    Args:
        low: least allowed value, or the bound that it must be above if `above`.
        high: greatest allowed value.
        above: `low` itself is not allowed.
    """

    low: float | None = None
    high: float | None = None
    above: bool = False
    noun: ClassVar[str] = "a number"

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        text = self.noun
        if self.low is not None:
            text += f" above {self.low}" if self.above else f" of at least {self.low}"
        return text if self.high is None else f"{text} and at most {self.high}"

    def check(self, value: Any) -> float:
        """Return `value` as a float if it lies within the bounds."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError
        too_low = self.low is not None and (value <= self.low if self.above else value < self.low)
        if too_low or (self.high is not None and value > self.high):
            raise ValueError
        return float(value)

    def parse(self, text: str) -> Any:
        """Return the number that `text` is, whole if it can be, or `text` itself."""
        try:
            number = float(text)
        except ValueError:
            return text
        return int(number) if number.is_integer() else number


class Int(Float):
    """A whole number; 1e6 is one. Bounds as of Float."""

    noun: ClassVar[str] = "a whole number"

    def check(self, value: Any) -> int:
        """Return `value` as an int if it is whole and lies within the bounds."""
        if super().check(value) != int(value):
            raise ValueError
        return int(value)


class EvenInt(Int):
    """An even whole number, as video encoders need."""

    noun: ClassVar[str] = "an even whole number"

    def check(self, value: Any) -> int:
        """Return `value` as an int if it is even and lies within the bounds."""
        if super().check(value) % 2:
            raise ValueError
        return int(value)


class Bool(Kind):
    """True or false; not 0 or 1."""

    noun: ClassVar[str] = "true or false"

    def check(self, value: Any) -> bool:
        """Return `value` if it is a bool."""
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> Any:
        """Return a bool for true and false, else `text` itself."""
        return {"true": True, "false": False}.get(text, text)


class Text(Kind):
    """Any text but the empty one; numbers become text."""

    is_text: ClassVar[bool] = True
    noun: ClassVar[str] = "text"

    def check(self, value: Any) -> str:
        """Return `value` as text."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)  # experiment=7
        if not isinstance(value, str) or not value:
            raise ValueError
        return value


class Name(Kind):
    """The dotted name of something in a Python module."""

    noun: ClassVar[str] = "a dotted Python name such as module.name"

    def check(self, value: Any) -> str:
        """Return `value` if it could be such a name."""
        if not isinstance(value, str) or not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value):
            raise ValueError
        return value


class File(Kind):
    """The path of an existing file."""

    is_text: ClassVar[bool] = True
    noun: ClassVar[str] = "a file that exists"

    def check(self, value: Any) -> str:
        """Return `value` if there is such a file."""
        if not isinstance(value, str) or not value:
            raise ValueError
        if not Path(value).is_file():
            raise ValueError(f"there is no such file (relative paths start at {Path.cwd()})")
        return value


class Folder(Kind):
    """The path of an existing directory."""

    is_text: ClassVar[bool] = True
    noun: ClassVar[str] = "a directory that exists"

    def check(self, value: Any) -> str:
        """Return `value` if there is such a directory."""
        if not isinstance(value, str) or not value:
            raise ValueError
        if not Path(value).is_dir():
            raise ValueError(f"there is no such directory (relative paths start at {Path.cwd()})")
        return value


class Device(Kind):
    """A device of torch's that this machine has, or auto."""

    needs_torch: ClassVar[bool] = True
    noun: ClassVar[str] = "auto, cpu, cuda or cuda:N"

    def check(self, value: Any) -> str:
        """Return `value` if torch sees such a device."""
        match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", value) if isinstance(value, str) else None
        if match is None:
            raise ValueError
        if value.startswith("cuda"):
            import torch

            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if count == 0:
                raise ValueError(f"torch {torch.__version__} sees no GPU here; use device=cpu or device=auto")
            if int(match[1] or 0) >= count:
                seen = ", ".join(f"cuda:{i}" for i in range(count))
                raise ValueError(f"there is no such GPU here; torch sees {seen}")
        return str(value)


class Schedule(Kind):
    """A standard deviation that may change with the agent step; see `drqv2.utils.schedule`."""

    is_text: ClassVar[bool] = True
    needs_torch: ClassVar[bool] = True
    noun: ClassVar[str] = "a number, linear(init,final,duration) or step_linear(init,final1,duration1,final2,duration2)"

    def check(self, value: Any) -> int | float | str:
        """Return `value` if it is a schedule of finite, non-negative numbers."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        from drqv2.utils import schedule

        try:
            start = schedule(value, 0)
        except UserError as error:
            raise ValueError(str(error).partition(": ")[2]) from None
        if not math.isfinite(start) or re.search(r"(^|[(,])\s*-", str(value)):
            raise ValueError("a standard deviation must be 0 or above, and finite")
        return value


class Shape(Kind):
    """The shape of an array. The environment defines it; configurations leave it unset."""

    may_be_unset: ClassVar[bool] = True
    noun: ClassVar[str] = "left unset: it is taken from the environment"

    def check(self, value: Any) -> list[int] | tuple[int, ...]:
        """Return `value` if it is a sequence of positive whole numbers."""
        if not isinstance(value, list | tuple) or not all(type(n) is int and n > 0 for n in value):
            raise ValueError
        return value


class Choice(Kind):
    """One of a few values.

    Args:
        choices: texts and bools.
    """

    def __init__(self, *choices: str | bool) -> None:
        self.choices = choices

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        *others, last = map(show, self.choices)
        return f"{', '.join(others)} or {last}" if others else last

    def check(self, value: Any) -> str | bool:
        """Return `value` if it is one of the choices; 1 is not true."""
        for choice in self.choices:
            if type(value) is type(choice) and value == choice:
                return choice
        raise ValueError
