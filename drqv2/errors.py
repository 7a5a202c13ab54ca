"""Errors that are not bugs, with their exit codes. Imports nothing heavy, so that typos are reported without delay."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """An invalid input. One or two lines say what was given, what is allowed and how to fix it.

    The entry scripts print it without a traceback and exit with `code`.
    """

    code = 2


class DiskError(UserError):
    """The disk is full or failing, and retrying did not help."""

    code = 74  # EX_IOERR of sysexits.h


class NotFiniteError(UserError):
    """A reward, loss, action or parameter is NaN or infinite."""

    code = 76


class EnvError(UserError):
    """An environment returned something other than it declared, or raised an error."""


class EnvNotFiniteError(EnvError, NotFiniteError):
    """An environment returned an observation, a reward or a discount that is NaN or infinite."""


class ProcessError(UserError, RuntimeError):
    """A background process keeps dying or hanging."""

    code = 71  # EX_OSERR


class Stopped(BaseException):
    """The process was asked to stop, and the run can be resumed.

    Args:
        message: the reason.
        code: exit code: 130 after ctrl-C, else 75 (EX_TEMPFAIL: try again later).
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def not_installed(package: str, extra: str) -> str:
    """Return the message for a missing package of an optional extra; or for several, `a and b`, of extras `c,d`."""
    return f'{package} must be installed: pip install -e ".[{extra}]"'


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of `names` that are most similar to `name`, best first."""
    return difflib.get_close_matches(str(name), [str(n) for n in names], n=3, cutoff=0.5)
