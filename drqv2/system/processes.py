"""Starting processes that do a run's work beside it."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from drqv2.system.signals import signals_blocked

_STARTING = threading.Lock()  # a thread may replace an actor while another one starts
_preloaded: dict[str, None] = {}  # modules


def preload(*modules: str) -> None:
    """Have multiprocessing's forkserver import modules, once for all processes that it starts from then on.

    It imports them when it is started, with the first process; later calls have no effect.
    """
    _preloaded.update(dict.fromkeys(modules))
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_preloaded))


def start(process: Any) -> None:
    """Start a process of multiprocessing's forkserver, which leaves signals to this one and does not run its program.

    Otherwise each process would import the file that this one was started with, torch included, and a program without
    `if __name__ == "__main__"` would start itself again.
    """
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method(None, force=True)  # joblib's in its jobs; the new process does not know it
    with signals_blocked():  # multiprocessing's servers, too, leave signals to the main process
        resource_tracker.ensure_running()  # it lets SIGINT and SIGTERM through again, so it comes first and alone
    with signals_blocked(), _STARTING, _program_hidden():
        process.start()


def kill(pipe: Connection, process: Any) -> None:
    """End a process and close the pipe to it."""
    pipe.close()
    process.kill()
    process.join(5.0)  # one that hangs in a driver cannot be killed, and is left behind


@contextmanager
def _program_hidden() -> Iterator[None]:
    """Hide from multiprocessing where the program's file is."""
    program = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: program.pop(name) for name in ("__spec__", "__file__") if name in program}
    try:
        program["__spec__"] = None
        yield
    finally:
        program.update(hidden)
