"""What a run should know about an environment, reported once, whichever process notices it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)
_said: set[str] = set()
_kept: list[str] | None = None  # in a process whose messages another one says


def notice(message: str) -> None:
    """Log a message as a warning, the first time in this process or since `forget`."""
    if message in _said:
        return
    _said.add(message)
    if _kept is None:
        _log.warning("%s", message)
    else:
        _kept.append(message)


def tell_left_out(name: str, parts: Iterable[str], others: Mapping[str, str], offered: Iterable[str] = ()) -> None:
    """Report the parts of a dict of observations that an agent does not see.

    Args:
        name: of the environment.
        parts: keys of arrays.
        others: keys of what is no array, and what it is.
        offered: those of the arrays that obs_type=pixels+state adds.
    """
    if left_out := [*map(str, parts), *(f"{key} ({kind})" for key, kind in others.items())]:
        added = ", ".join(map(str, offered))
        hint = f"; obs_type=pixels+state adds {added}" if added else ""
        notice(f"{name}: left out of the observation: {', '.join(left_out)}{hint}")


def take() -> list[str]:
    """Return the messages since the last call, for another process, which says them: from the first call on."""
    global _kept
    taken, _kept = _kept or [], []
    return taken


def mute(muted: bool = True) -> None:
    """Report nothing in this process, since another one does; or report again."""
    _log.disabled = muted


def forget() -> None:
    """Report every notice anew: another run begins."""
    _said.clear()
