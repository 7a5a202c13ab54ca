"""Kinds of values of configuration keys."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from drqv2.config.formatting import show
from drqv2.errors import UserError


def _require(holds: bool, message: str = "") -> None:
    if not holds:
        raise ValueError(message)


class Kind:
    """What a key takes.

    Attributes:
        allowed: the allowed values, in words.
        is_text: values are text, which may need quotes on Hydra's command line.
    """

    allowed: str
    is_text = False

    def check(self, value: Any) -> Any:
        """Return `value` in the kind's own type.

        Raises:
            ValueError: it is not allowed; without a message where "must be ALLOWED" is enough.
        """
        raise NotImplementedError


class Anything(Kind):
    """Any value."""

    allowed = "anything"

    def check(self, value: Any) -> Any:
        return value


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


class Int(Float):
    """A whole number; 1e6 is one. Bounds as of Float."""

    noun = "a whole number"

    def check(self, value: Any) -> int:
        _require(super().check(value) == int(value))
        return int(value)


POSITIVE = Float(0, above=True)
FRACTION = Float(0, 1, above=True)


class Auto(Kind):
    """What another kind takes, or auto, which a run resolves when it starts.

    Args:
        kind: the other one.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.allowed = f"auto or {kind.allowed}"

    def check(self, value: Any) -> Any:
        return value if value == "auto" else self.kind.check(value)


class EvenInt(Int):
    """An even whole number, as video encoders need."""

    noun = "an even whole number"

    def check(self, value: Any) -> int:
        _require(super().check(value) % 2 == 0)
        return int(value)


class Choice(Kind):
    """One of a few texts and bools; 1 is not true."""

    def __init__(self, *choices: str | bool) -> None:
        self.choices = choices
        *others, last = map(show, choices)
        self.allowed = f"{', '.join(others)} or {last}" if others else last

    def check(self, value: Any) -> str | bool:
        _require(any(type(value) is type(choice) and value == choice for choice in self.choices))
        return value


Bool = partial(Choice, True, False)


class Text(Kind):
    """Any text but the empty one; numbers become text, as in experiment=7."""

    allowed = "text"
    is_text = True

    def __init__(self, allowed: str | None = None) -> None:
        self.allowed = allowed or self.allowed

    def check(self, value: Any) -> str:
        _require(isinstance(value, int | float | str) and not isinstance(value, bool) and value != "")
        return str(value)


class EnvId(Kind):
    """An environment of another library."""

    allowed = "gymnasium:NAME, envpool:NAME or metaworld:NAME"
    is_text = True

    def check(self, value: Any) -> str:
        found = isinstance(value, str) and re.fullmatch(r"(gymnasium|envpool|metaworld):.+", value)
        if not found and re.fullmatch(r"[\w/-]+-v\d+", str(value)):
            module = "ale_py:" if str(value).startswith("ALE/") else ""  # which registers them
            raise ValueError(f"the library is missing; for Gymnasium's write gymnasium:{module}{value}")
        _require(bool(found))
        return str(value)


class Camera(Kind):
    """A MuJoCo camera. Text of digits is a number, as on a command line."""

    allowed = "a camera's name or number, -1 for the free camera"
    is_text = True

    def check(self, value: Any) -> int | str:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
            value = int(value)
        _require(value != "" and isinstance(value, int | str) and not isinstance(value, bool))
        _require(isinstance(value, str) or value >= -1)
        return value


class Several(Kind):
    """A list of different values of another kind; one value alone is a list of one.

    Args:
        kind: of each.
        allowed: the allowed lists, in words.
    """

    is_text = True

    def __init__(self, kind: Kind, allowed: str) -> None:
        self.kind, self.allowed = kind, allowed

    def check(self, value: Any) -> list[Any]:
        given = value if isinstance(value, list) else [value]
        _require(bool(given))
        found = [self.kind.check(item) for item in given]
        repeated = [item for i, item in enumerate(found) if item in found[:i]]
        _require(not repeated, f"{', '.join(map(show, repeated))} is listed more than once; list each once")
        return found


class Tasks(Kind):
    """A list of different tasks and groups of them, or the name of a group.

    Args:
        groups: lists of tasks by name.
    """

    is_text = True

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self.groups = groups
        self.allowed = f"a list of different tasks ([walker_stand,walker_walk]), or {' or '.join(groups)}"

    def check(self, value: Any) -> list[str]:
        given = [value] if isinstance(value, str) else value
        _require(isinstance(given, list) and all(isinstance(task, str) and task for task in given))
        tasks = [task for name in given for task in self.groups.get(name, [name])]
        repeated = sorted({task for task in tasks if tasks.count(task) > 1})
        _require(not repeated, f"{', '.join(repeated)} is listed more than once; list each task once")
        return tasks


class Settings(Kind):
    """Settings by task: a mapping from tasks to mappings from names to values of given kinds.

    Args:
        kinds: of the settings, by name.
    """

    def __init__(self, **kinds: Kind) -> None:
        self.kinds = kinds
        self.allowed = f"{{TASK: {{NAME: VALUE}}}} with the names {', '.join(kinds)}"

    def check(self, value: Any) -> dict[str, dict[str, Any]]:
        _require(isinstance(value, dict) and all(isinstance(own, dict) for own in value.values()))
        checked: dict[str, dict[str, Any]] = {}
        for task, own in value.items():
            for name, setting in own.items():
                _require(name in self.kinds, f"{task}.{name}: there is no such setting; must be {self.allowed}")
                try:
                    checked.setdefault(task, {})[name] = self.kinds[name].check(setting)
                except ValueError as error:
                    allowed = str(error) or f"must be {self.kinds[name].allowed}"
                    raise ValueError(f"{task}.{name}={show(setting)}: {allowed}") from None
        return checked


class Names(Kind):
    """A list of names, as text or as a list."""

    allowed = "a list of names ([a,b])"
    is_text = True

    def check(self, value: Any) -> list[str]:
        inner = value.removeprefix("[").removesuffix("]").split(",") if isinstance(value, str) else value
        _require(isinstance(inner, list) and all(isinstance(name, str) for name in inner))
        names = [name.strip() for name in inner]
        _require(all(re.fullmatch(r"[\w.+-]+", name) for name in names))
        return names


class Name(Kind):
    """The dotted name of something in a Python module."""

    allowed = "a dotted Python name such as module.name"

    def check(self, value: Any) -> str:
        _require(isinstance(value, str) and bool(re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value)))
        return str(value)


class File(Kind):
    """The path of an existing file."""

    noun = "file"
    allowed = "a file that exists"
    is_text = True

    def exists(self, path: Path) -> bool:
        """Return whether there is such a file."""
        return path.is_file()

    def check(self, value: Any) -> str:
        _require(isinstance(value, str) and value != "")
        path, missing = Path(value), f"there is no such {self.noun} (relative paths start at {Path.cwd()})"
        _require(self.exists(path), f"exists, but is no {self.noun}" if path.exists() else missing)
        return str(value)


class Weights(File):
    """The path of a file, or of a run's directory, which stands for the snapshot in it."""

    noun = "file, nor a run's directory with a snapshot"
    allowed = "a file, or a run's directory"

    def exists(self, path: Path) -> bool:
        """Return whether there are weights."""
        return path.is_file() or (path / "snapshot.pt").is_file()


class Folder(File):
    """The path of an existing directory."""

    noun = "directory"
    allowed = "a directory that exists"

    def exists(self, path: Path) -> bool:
        """Return whether there is such a directory."""
        return path.is_dir()


class Device(Kind):
    """A device of torch's that this machine has, or auto."""

    allowed = "auto, cpu, cuda or cuda:N"

    def check(self, value: Any) -> str:
        _require(isinstance(value, str) and bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", value)))
        if value.startswith("cuda"):
            import torch

            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            _require(count > 0, f"torch {torch.__version__} sees no GPU here; use device=cpu or device=auto")
            seen = [f"cuda:{i}" for i in range(count)]
            _require(value in ("cuda", *seen), f"there is no such GPU here; torch sees {', '.join(seen)}")
        return str(value)


class Schedule(Kind):
    """A standard deviation that may change with the agent step; see `drqv2.utils.schedule`."""

    allowed = "a number, linear(init,final,duration) or step_linear(init,final1,duration1,final2,duration2)"
    is_text = True

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
    """The shape of an array, or shapes by the names of an observation's parts.

    The environment defines it; configurations leave it unset (null, or the public `???`).
    """

    allowed = "unset"

    def check(self, value: Any) -> Any:
        for shape in value.values() if isinstance(value, dict) and value else [value]:
            _require(isinstance(shape, list | tuple) and all(type(n) is int and n > 0 for n in shape))
        return value
