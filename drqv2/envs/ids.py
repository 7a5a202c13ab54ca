"""Names of environments of other libraries: `gymnasium:CartPole-v1`, `envpool:Pong-v5`."""

from __future__ import annotations

from drqv2.errors import UserError, nearest

LIBRARIES = {"gymnasium": "gym", "envpool": "envpool"}  # each with the extra that installs it


def split(env_id: str) -> tuple[str, str]:
    """Return the library and the name of an id.

    Raises:
        UserError: it names no library that is known.
    """
    library, _, name = env_id.partition(":")
    if not name or library not in LIBRARIES:
        allowed = " or ".join(f"{known}:NAME" for known in LIBRARIES)
        raise UserError(f"env_id={env_id}: must be {allowed}, such as gymnasium:CartPole-v1")
    return library, name


def unknown(env_id: str, names: list[str]) -> UserError:
    """Return the error for a name that a library does not have."""
    library, name = split(env_id)
    near = nearest(name, names)
    hint = f"nearest: {', '.join(near)}" if near else f"it has {len(names):,}, such as {', '.join(sorted(names)[:3])}"
    return UserError(f"env_id={env_id}: {library} has no such environment; {hint}")
