"""What a person who made a mistake is told. Imports nothing heavy, so that a typing error is answered at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake of the user's: one or two lines that say what was got, what is allowed and how to mend it.

    The entry scripts print it without a traceback and exit with code 2.
    """


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three of `names` that look most like `name`, best first."""
    return difflib.get_close_matches(str(name), [str(n) for n in names], n=3, cutoff=0.5)
