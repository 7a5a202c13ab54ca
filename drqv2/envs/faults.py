"""What the user is told about errors that an environment's code raises."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drqv2.errors import EnvError, UserError
from drqv2.system.signals import StoppedEarly

_PROJECT = Path(__file__).resolve().parents[1]
_LIBRARIES = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
FAULTS = (Exception, SystemExit)  # what an environment's code may raise; SystemExit would end the run silently


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
    except FAULTS as error:
        raise explain(error, where) from error


def explain(error: BaseException, where: str) -> EnvError:
    """Return what to tell the user about an error that an environment's code has raised.

    Args:
        error: what was raised.
        where: the environment, and what it was doing.
    """
    if isinstance(error, StoppedEarly):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    own = own_frames(error) or frames
    first_line, *_ = str(error).strip().splitlines() or [""]
    told = f"{where} raised {type(error).__name__}: {first_line[:200]}"
    last = own[-1]
    line = f": {last.line}" if last.line else ""
    return EnvError(f"{told}\n{last.filename}, line {last.lineno}, in {last.name}{line}")


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an error that are the user's own code: neither of a library nor of this project."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PROJECT, *_LIBRARIES))
