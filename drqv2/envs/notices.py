"""What a run should know about an environment, reported once, whichever process notices it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)
_said: set[str] = set()


class Forwarded(logging.Handler):
    """Keeps messages for another process, which reports them; install it with `install`.

    Attributes:
        messages: since they were last taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.messages.append(record.getMessage())

    def install(self) -> None:
        """Take the messages of this process from now on, in place of its log."""
        _log.handlers[:], _log.propagate = [self], False

    def take(self) -> list[str]:
        """Return the messages since the last call."""
        taken, self.messages = self.messages, []
        return taken


def notice(message: str) -> None:
    """Log a message as a warning, the first time in this process or since `forget`."""
    if message not in _said:
        _said.add(message)
        _log.warning("%s", message)


def tell_left_out(name: str, parts: Iterable[str], others: Mapping[str, str]) -> None:
    """Report the parts of a dict of observations that an agent does not see.

    Args:
        name: of the environment.
        parts: keys of arrays.
        others: keys of what is no array, and what it is.
    """
    if left_out := [*map(str, parts), *(f"{key} ({kind})" for key, kind in others.items())]:
        notice(f"{name}: left out of the observation: {', '.join(left_out)}")


def mute(muted: bool = True) -> None:
    """Report nothing in this process, since another one does; or report again."""
    _log.disabled = muted


def forget() -> None:
    """Report every notice anew: another run begins."""
    _said.clear()
