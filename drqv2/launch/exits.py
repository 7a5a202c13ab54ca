"""Exit codes of the command-line tools other than train.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from drqv2.errors import UserError
from drqv2.system import files


@contextmanager
def clean_exit() -> Iterator[None]:
    """Context of a tool in which anything but a bug ends the process without a traceback.

    Raises:
        SystemExit: with the code of a UserError, whose message is printed; 130 after ctrl-C; 141 when the reader of the
            output has closed it (`| head`); 74 when the disk has no space for the output.
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
        full = error.errno in files.DISK_ERRNOS and error.filename is None  # of standard output, not of a file
        if not isinstance(error, BrokenPipeError) and not full:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at exit
        if full:
            print(f"error: standard output cannot be written ({error.strerror})", file=sys.stderr)
        sys.exit(74 if full else 141)
