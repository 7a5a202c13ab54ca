"""Configuration keys: name, kind of value, meaning, and what a resumed run may do with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from drqv2.config.formatting import show
from drqv2.config.kinds import Anything, Choice, Kind, Shape
from drqv2.errors import UserError

NO_LEGACY = object()


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Args:
        name: dotted name.
        kind: what values it takes.
        meaning: one line for `--help`.
        unit: what a number counts.
        null: null is allowed, with this meaning.
        resume: what a resumed run may do with the key. free: change it, which does not affect learning beyond
            rounding; force: change it with resume_force=true; fixed: keep it, the run's state depends on it.
        legacy: value of a configuration that lacks the key, as one that was stored before the key existed;
            NO_LEGACY: every configuration has the key.
        follows: the key whose value is the default, of an agent's key.
    """

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    null: str = ""
    resume: Literal["free", "force", "fixed"] = "force"
    legacy: Any = NO_LEGACY
    follows: str = ""

    def with_any_choice(self) -> Key:
        """Return the key of an agent from elsewhere, whose choices may have other names."""
        chosen = isinstance(self.kind, Choice) and isinstance(self.kind.choices[0], str)
        return replace(self, kind=Anything()) if chosen else self

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return self.kind.allowed + (" or null" if self.null else "")

    def allows(self, value: Any) -> bool:
        """Return whether a value is allowed."""
        try:
            self.check(value)
        except UserError:
            return False
        return True

    def check(self, value: Any) -> Any:
        """Return `value` in the key's type.

        Raises:
            UserError: it is not allowed.
        """
        if value == "???" and not isinstance(self.kind, Shape):
            raise UserError(not_set(self.name))
        if value == "???" or (value is None and self.null):
            return value
        try:
            return self.kind.check(value)
        except ValueError as error:
            reason = str(error) or f"must be {self.allowed}" + (f" ({self.unit})" if self.unit else "")
            raise UserError(f"{self.name}={show(value)}: {reason}") from None


# Descriptions of keys whose names stand beside them: in `table`, and at an agent's constructor (`signatures.py`), as in
# `pad: Annotated[int, fixed(Int(0, 24), "Greatest random shift of images.", "pixels")] = 4`.
key = partial(Key, "")
fixed, free = partial(Key, "", resume="fixed"), partial(Key, "", resume="free")


def table(**keys: Key) -> dict[str, Key]:
    """Return keys by name, with these names."""
    return {name: replace(one, name=name) for name, one in keys.items()}


def not_set(name: str) -> str:
    """Return the message that a mandatory key has no value."""
    return "task_name is not set: give task=NAME" if name == "task_name" else f"{name} is not set: give {name}=VALUE"
