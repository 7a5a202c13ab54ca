"""Kinds of values in plans of benchmarks.screen."""

from __future__ import annotations

import re
from typing import Any

from drqv2.config.keys import Key
from drqv2.config.kinds import POSITIVE, Kind, Text


class Name(Text):
    """The name of a folder."""

    allowed = "a name of letters, digits and _ . + -"

    def check(self, value: Any) -> str:
        """Return the value; raises ValueError if it is not allowed."""
        if not isinstance(value, str) or not re.fullmatch(r"\w[\w.+-]*", value):
            raise ValueError
        return value


class Override(Text):
    """One override of train.py."""

    def check(self, value: Any) -> str:
        """Return the value; raises ValueError if it is not allowed."""
        if not isinstance(value, str) or not re.fullmatch(r"[^\s=-][^\s=]*=.*|~\S+", value, re.DOTALL):
            raise ValueError
        return value


class List(Kind):
    """A list, in which nothing occurs twice."""

    def __init__(self, item: Kind, allowed: str, empty: bool = False) -> None:
        self._item, self.allowed, self._empty = item, allowed, empty

    def check(self, value: Any) -> list[Any]:
        """Return the value; raises ValueError if it is not allowed."""
        if not isinstance(value, list) or not (value or self._empty):
            raise ValueError
        found = [self._item.check(item) for item in value]
        if len(set(found)) < len(found):
            raise ValueError(f"holds something twice; must be {self.allowed}")
        return found


class Speeds(Kind):
    """Positive numbers by the name of a method."""

    allowed = "methods with frames per second ({drqv2: 4.2})"

    def check(self, value: Any) -> dict[str, float]:
        """Return the value; raises ValueError if it is not allowed."""
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise ValueError
        return {name: POSITIVE.check(own) for name, own in value.items()}


class Arms(Kind):
    """Overrides by the name of the arm."""

    allowed = "one or more arms, each a name and a list of key=value ([] for none)"

    def check(self, value: Any) -> dict[str, list[str]]:
        """Return the value; raises ValueError if it is not allowed."""
        if not isinstance(value, dict) or not value:
            raise ValueError
        return {_ARM.check(name): Key(f"arms.{name}", OVERRIDES, "").check(own) for name, own in value.items()}


_ARM = Key("arms", Name(), "Name of an arm.")
OVERRIDES = List(Override(), "a list of key=value", empty=True)
