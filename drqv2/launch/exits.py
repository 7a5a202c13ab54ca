"""How the tools beside train.py end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from drqv2.errors import UserError
from drqv2.system import files


@contextmanager
def plain_ends() -> Iterator[None]:
    """Context of a tool: what is no fault of the program's ends it without a traceback.

    Raises:
        SystemExit: with the code of a UserError, whose words are printed; 130 after ctrl-C; 141 where nobody reads on
            (`| head`); 74 where standard output finds no room.
    """
    try:
        yield
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        full = error.errno in files.DISK_ERRNOS and error.filename is None  # no file's: it is standard output's
        if not isinstance(error, BrokenPipeError) and not full:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
        if isinstance(error, BrokenPipeError):
            sys.exit(141)
        print(f"error: standard output cannot be written ({error.strerror})", file=sys.stderr)
        sys.exit(74)
