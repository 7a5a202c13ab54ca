"""Ends of a run that are no bugs, with their exit codes. Imports nothing heavy: typing errors are answered at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's: one or two lines that say what was got, what is allowed and how to mend it.

    The entry scripts print it without a traceback and exit with `code`.
    """

    code = 2


class DiskError(UserError):
    """The disk is full or fails, for good."""

    code = 74  # EX_IOERR of sysexits.h


class NotFiniteError(UserError):
    """A reward, a loss, an action or a parameter is NaN or infinite: there is nothing left to learn."""

    code = 76


class ProcessError(UserError, RuntimeError):
    """A background process dies or hangs again and again."""

    code = 71  # EX_OSERR


class Stopped(BaseException):
    """The process was told to leave, and the run is where it can be gone on with.

    Args:
        message: says how.
        code: the exit code: 130 after ctrl-C, else 75 (EX_TEMPFAIL: try again later).
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def not_installed(package: str, extra: str) -> str:
    """Return what to say where a package of an optional extra is missing."""
    return f'{package} is not installed. Install it: pip install -e ".[{extra}]"'


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of `names` that look most like `name`, best first."""
    return difflib.get_close_matches(str(name), [str(n) for n in names], n=3, cutoff=0.5)
