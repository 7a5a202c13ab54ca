"""A command with a time limit, whose lines of JSON are read as they come and of which nothing is left running."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

_TICK = 0.2  # seconds between two looks at the process and at `stopped`
_PR_SET_PDEATHSIG = 1


class Outcome(NamedTuple):
    """How a command ended.

    Attributes:
        status: done, failed (another exit status than 0), cut (the time limit) or stopped (from outside).
        seconds: it took.
        code: its exit status, a signal's as a negative number.
    """

    status: str
    seconds: float
    code: int


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    seconds: float,
    grace: float,
    on_row: Callable[[dict[str, Any]], None],
    on_text: Callable[[str], None],
    stopped: Callable[[], bool],
) -> Outcome:
    """Run a command in a process group of its own, which gets SIGTERM at the time limit, and SIGKILL in the end.

    The group also gets SIGTERM if this process dies.

    Args:
        command: program and arguments.
        env: its environment variables.
        folder: its working directory.
        seconds: the time limit.
        grace: seconds between SIGTERM and SIGKILL.
        on_row: gets each line of its stdout that is a JSON object.
        on_text: gets all other lines, and those of stderr.
        stopped: whether this process was asked to stop; then the command is, too.
    """
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        env=dict(env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    status, limit = "", begin + seconds
    with _Lines({process.stdout: lambda line: _deliver(line, on_row, on_text), process.stderr: on_text}) as lines:
        while process.poll() is None:
            lines.read(_TICK)
            if time.monotonic() >= limit or (stopped() and not status):
                if status:
                    break
                status, limit = "stopped" if stopped() else "cut", time.monotonic() + grace
                _signal(process.pid, signal.SIGTERM)
        _signal(process.pid, signal.SIGKILL)  # also what it has left behind
        code = process.wait()
        while lines.read(0.0):
            pass
    return Outcome(status or ("failed" if code else "done"), time.monotonic() - begin, code)


class _Lines:
    """Reads several pipes and hands over their lines."""

    def __init__(self, readers: Mapping[IO[bytes], Callable[[str], None]]) -> None:
        self._selector = selectors.DefaultSelector()
        self._rests = dict.fromkeys(readers, b"")
        self._readers = readers
        for pipe in readers:
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)

    def read(self, seconds: float) -> bool:
        """Wait this long for output, hand over its lines, and return whether there was some."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return False
        ready = self._selector.select(seconds)
        for key, _ in ready:
            pipe: Any = key.fileobj
            data = os.read(pipe.fileno(), 1 << 16)
            *lines, self._rests[pipe] = (self._rests[pipe] + data).split(b"\n")
            if not data:
                self._selector.unregister(pipe)
                lines = [self._rests[pipe]] if self._rests[pipe] else []
            for line in lines:
                self._readers[pipe](line.decode(errors="replace"))
        return bool(ready)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        self._selector.close()
        for pipe in self._readers:
            pipe.close()


def _deliver(line: str, on_row: Callable[[dict[str, Any]], None], on_text: Callable[[str], None]) -> None:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if isinstance(row, dict):
        on_row(row)
    else:
        on_text(line)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of it has ended
        os.killpg(group, number)


def end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
