"""One configuration key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from drqv2.config.formatting import show
from drqv2.config.kinds import Kind
from drqv2.errors import UserError


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Args:
        name: dotted name.
        kind: what values it takes.
        meaning: one line for `--help`.
        unit: what a number counts.
        null: null is allowed, with this meaning.
        resume: what a resumed run may do with the key. free: change it, learning is not affected but for the last bits
            of its numbers; force: change it with resume_force=true; fixed: keep it, the run's state depends on it.
        legacy: value of a stored configuration that lacks the key, because it was written before the key existed.
    """

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    null: str = ""
    resume: Literal["free", "force", "fixed"] = "force"
    legacy: Any = None

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        return self.kind.allowed + (" or null" if self.null else "")

    def check(self, value: Any) -> Any:
        """Return `value` in the key's type.

        Raises:
            UserError: it is not allowed.
        """
        if value == "???" and not self.kind.may_be_unset:
            raise UserError(not_set(self.name))
        if value == "???" or (value is None and self.null):
            return value
        try:
            return self.kind.check(value)
        except ValueError as error:
            reason = str(error) or f"must be {self.allowed}" + (f" ({self.unit})" if self.unit else "")
            raise UserError(f"{self.name}={show(value)}: {reason}") from None


def not_set(name: str) -> str:
    """Say that a mandatory key has no value."""
    return "task_name is not set: give task=NAME" if name == "task_name" else f"{name} is not set: give {name}=VALUE"
