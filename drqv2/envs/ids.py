"""Environments of other libraries by name: `gymnasium:CartPole-v1`, `envpool:Pong-v5`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from drqv2.errors import UserError, nearest, not_installed

LIBRARIES = {"gymnasium": "gym", "envpool": "envpool"}  # each with the extra that installs it


def split(env_id: str) -> tuple[str, str]:
    """Return the library and the name of an id.

    Raises:
        UserError: it names no library that is known.
    """
    library, colon, name = env_id.partition(":")
    if not colon or library not in LIBRARIES:
        allowed = " or ".join(f"{known}:NAME" for known in LIBRARIES)
        raise UserError(f"env_id={env_id}: must be {allowed}, such as gymnasium:CartPole-v1")
    return library, name


def unknown(env_id: str, names: list[str]) -> UserError:
    """Return the error for a name that a library does not have."""
    library, name = split(env_id)
    near = nearest(name, names)
    return UserError(
        f"env_id={env_id}: {library} has no such environment" + (f"; nearest: {', '.join(near)}" if near else "")
    )


def gymnasium_factory(name: str) -> Callable[[], Any]:
    """Return what makes a Gymnasium environment by its registered name; it renders pictures.

    Raises:
        UserError: Gymnasium is not installed or has no such environment.
    """
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise UserError(not_installed("gymnasium", LIBRARIES["gymnasium"])) from error
    if name not in gymnasium.registry:
        raise unknown(f"gymnasium:{name}", list(gymnasium.registry))
    return partial(gymnasium.make, name, render_mode="rgb_array")
