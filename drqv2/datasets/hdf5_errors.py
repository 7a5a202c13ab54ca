"""Make a full disk an ordinary error for whoever writes .hdf5 files."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SPARE = 2**24  # bytes: what the library may hold back


@contextmanager
def disk_errors(folder: Path) -> Iterator[Callable[[int], None]]:
    """Context in which a write that fails raises an OSError.

    The library keeps writes back until its objects are deleted, where Python can only print an error; after several, it
    may crash. So there must be room for each part before it is written.

    Args:
        folder: in which the file is.

    Yields:
        A function to be called with the bytes of each part before it is written; it raises the OSError.
    """
    lost: list[Any] = []

    def require_room(nbytes: int) -> None:
        if lost:
            raise _as_os_error(lost[0])
        if shutil.disk_usage(folder).free < 2 * nbytes + _SPARE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    usual = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: lost.append(unraisable.exc_value)
    try:
        yield require_room
    except RuntimeError as error:  # from closing the file
        raise _as_os_error(error) from error
    finally:
        sys.unraisablehook = usual
    if lost:
        raise _as_os_error(lost[0])


def _as_os_error(error: Exception) -> OSError:
    """Return an error of h5py's, which may only mention the system's, as that one."""
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, os.strerror(error.errno))
    if (told := re.search(r"errno = (\d+)", str(error))) is not None:
        return OSError(int(told[1]), os.strerror(int(told[1])))
    return OSError(str(error))
