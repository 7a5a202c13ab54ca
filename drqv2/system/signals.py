"""Leaving when told to: SIGTERM and SIGUSR2 (a scheduler's), SIGINT (ctrl-C).

The main thread sees to it at its next safe point, where the run's state is whole. A thread counts the seconds
meanwhile, since the main one may be in a long computation, where no Python code of it runs: with no safe point in time
the process leaves on its last snapshot. A scheduler that started the process may have a handler of its own for a
signal, to requeue the job: that one is called at the safe point, with a snapshot under way, and no seconds are counted.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeGuard

from drqv2.errors import Stopped
from drqv2.system.files import has_snapshot

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
_SECONDS = 8.0  # to the safe point, and for the snapshot there
_WORDS = 0.5  # seconds for the last words


class StopSignals:
    """Context in which the signals are only noted, in `requested`; a second ctrl-C leaves at once.

    Args:
        run_dir: the run's directory, to say how to go on with it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._come: list[signal.Signals] = []

    def __enter__(self) -> StopSignals:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no signals
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            # The interpreter's own handler writes the number there, whatever the main thread is busy with.
            self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._before = {s: signal.signal(s, lambda *_: None) for s in SIGNALS}
            self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._before:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._fd_before)
            os.write(self._write, b"\0")
            self._thread.join()
            os.close(self._read)
            os.close(self._write)

    def raise_if_requested(self) -> None:
        """Leave, if a signal has come: by what a scheduler's own handler raises, or by `Stopped`.

        Raises:
            Stopped: with the exit code of the signal.
        """
        while self._come:
            number = self._come[0]
            if not _is_handler(handler := self._before[number]):
                raise Stopped(f"stopped by {number.name}", self._code)
            del self._come[0]
            handler(number, None)  # it comes back where the run is to go on: submitit's, of SIGTERM before SIGUSR2

    @property
    def requested(self) -> bool:
        """Whether a signal waits for the safe point."""
        return bool(self._come)

    @property
    def _code(self) -> int:
        return 130 if signal.SIGINT in self._come else 75

    def _watch(self) -> None:
        leave_at = float("inf")
        while True:
            patience = max(0.0, leave_at - time.monotonic()) if leave_at < float("inf") else None
            if not select.select([self._read], [], [], patience)[0]:
                self._leave(f"no safe point within {_SECONDS:.0f} s: the run is left as its last snapshot has it")
            number = os.read(self._read, 1)[0]
            if number == 0:
                return
            if number not in SIGNALS:
                continue
            counted = not _is_handler(self._before[number])
            if leave_at < float("inf"):
                if number == signal.SIGINT:
                    self._leave("left at once, on the last snapshot")
                continue
            self._come.append(signal.Signals(number))
            if counted:
                leave_at = time.monotonic() + _SECONDS

    def _leave(self, how: str) -> None:
        # Nobody may be reading what is said (a paused pager, a terminal stopped by ctrl-S), or the disk may hang.
        last = threading.Timer(_WORDS, os._exit, (self._code,))
        last.daemon = True
        last.start()
        try:
            print(f"\n{how}; {resume_hint(self._run_dir)}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            if os.isatty(1):
                os.write(1, b"\033[?25h")  # a dashboard has hidden the cursor
        finally:  # whoever read that may be gone
            os._exit(self._code)


def exit_on_signal_before_run() -> None:
    """Leave with the code of a run that is told to leave while there is nothing to save yet."""
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, _exit_quietly)
    exit_quietly_on_ctrl_c()


def exit_quietly_on_ctrl_c() -> None:
    """Leave without a traceback, also while modules are being imported; a background job goes on ignoring ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_quietly)


def _exit_quietly(number: int, frame: Any) -> None:
    raise SystemExit(130 if number == signal.SIGINT else 75)


def _is_handler(handler: Any) -> TypeGuard[Callable[[int, None], Any]]:
    return callable(handler) and handler not in (signal.default_int_handler, _exit_quietly)


def resume_hint(run_dir: Path, soon: bool = False) -> str:
    """Return what to type to go on with the run in `run_dir`, in words; `soon`: it will have a snapshot by then."""
    if not soon and not has_snapshot(run_dir):
        return f"there is no snapshot in {run_dir} to go on from"
    near = run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir
    return f"go on with: python {sys.argv[0]} {shlex.quote(f'resume={near}')}"


def ignore_signals() -> None:
    """Leave the signals to the main process: they reach all processes of a terminal or a cluster's job."""
    if threading.current_thread() is threading.main_thread():
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Context for starting a process that the signals shall not reach: a new program inherits that it is blocked.

    What comes meanwhile reaches this process at the end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
