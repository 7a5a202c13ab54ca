"""Exit codes of the command-line tools other than train.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from drqv2.errors import UserError


@contextmanager
def clean_exit() -> Iterator[None]:
    """Context of a tool in which anything but a bug ends the process without a traceback.

    Raises:
        SystemExit: with the code of a UserError, whose message is printed; 130 after ctrl-C; 141 when the reader of the
            output has closed it (`| head`).
    """
    try:
        yield
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at exit
        sys.exit(141)
