"""How programs end and warn: exit codes of the tools other than train.py, and warnings of one line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drqv2.errors import UserError
from drqv2.launch.agent_errors import explain_agent
from drqv2.programs import as_here
from drqv2.system import files


@contextmanager
def clean_exit() -> Iterator[None]:
    """Context of a tool in which anything but a bug ends the process without a traceback.

    Raises:
        SystemExit: with the code of a UserError, whose message is printed; 1 after an error in an agent's files; 130
            after ctrl-C; 141 when the reader of the output has closed it (`| head`); 74 when the disk has no space for
            the output.
    """
    try:
        try:
            with plain_warnings():
                yield
        except SystemExit:  # argparse's, after its help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except UserError as error:
        print(as_here(f"error: {error}"), file=sys.stderr)
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
    except Exception as error:
        told = explain_agent(error)
        if told is None:
            raise
        print(as_here(f"error: {told}"), file=sys.stderr)
        sys.exit(told.code)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Context in which each warning is printed once, as one line without the source line that raised it."""
    usual, seen = warnings.formatwarning, set[str]()

    def one_line(message: Warning | str, *_: Any, **__: Any) -> str:
        text = f"warning: {' '.join(str(message).split())}\n"
        repeated = text in seen
        seen.add(text)
        return "" if repeated else text

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = usual
