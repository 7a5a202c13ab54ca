"""What the user is told about errors that an environment's code raises."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drqv2.errors import EnvError, UserError

_PROJECT = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Context of calls of an environment's code.

    Raises:
        EnvError: the code raised an error: names it and the last line of the user's own code.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise explain(error, where) from error


def explain(error: Exception, where: str) -> EnvError:
    """Return what to tell the user about an error that an environment's code has raised.

    Args:
        error: what was raised.
        where: the environment, and what it was doing.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)] or frames
    first_line, *_ = str(error).strip().splitlines() or [""]
    told = f"{where} raised {type(error).__name__}: {first_line[:200]}"
    last = own[-1]
    line = f": {last.line}" if last.line else ""
    return EnvError(f"{told}\n{last.filename}, line {last.lineno}, in {last.name}{line}")


def _is_own(filename: str) -> bool:
    """Return whether a file is the user's own: neither of a library nor of this project."""
    return not filename.startswith("<") and not str(Path(filename).resolve()).startswith((str(_PROJECT), *_LIBRARIES))
