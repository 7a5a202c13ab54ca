"""Stopping on request: by a scheduler (SIGTERM, SIGUSR1, SIGUSR2), ctrl-C (SIGINT) or a closed terminal (SIGHUP).

A pipe whose reader has ended (`| head`, `| tee` on a lost connection) is treated like a closed terminal.

The main thread stops at its next safe point, where the run's state is consistent. Since it may be in a long computation
that runs no Python code, a second thread enforces a deadline: without a safe point in time the process exits, and its
last snapshot counts. If a scheduler has installed a handler for a signal, say to requeue the job, that handler is
called at the safe point, after a snapshot has been started, and there is no deadline.
"""

from __future__ import annotations

import io
import os
import select
import shlex
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from drqv2.errors import Stopped
from drqv2.system.files import has_snapshot

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SECONDS = 8.0  # to reach the safe point and write the snapshot there
_MESSAGE_SECONDS = 0.5  # to print the last message
_CALLS = 5  # that the last message names
_FORK_SECONDS = 12  # that a forked process outlives a SIGTERM: longer than the run that needs it for its last step


class StoppedEarly(SystemExit):
    """A signal that arrived before there was anything to save."""


class StopSignals:
    """Context that defers the signals to the next safe point; a second ctrl-C exits immediately."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir  # for the message on how to resume
        self._pending: list[signal.Signals] = []
        self._entered = 0  # how often: a run may be entered within the process's own

    def __enter__(self) -> StopSignals:
        self._entered += 1
        if self._entered > 1:
            return self
        self._before: dict[int, Any] = {}
        self._streams: dict[str, Any] = {}
        if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
            self._read, self._write = socket.socketpair()
            self._write.setblocking(False)
            # The interpreter's C handler writes the number there, even while the main thread is busy.
            self._fd_before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
            self._before = {s: signal.signal(s, _wait_for_safe_point) for s in _to_handle()}
            self._streams = hang_up_with_readers()
            self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._entered -= 1
        if kind is not None and issubclass(kind, Stopped) and not self._entered:
            self._pending.clear()  # the run can be continued in the same process
        if self._before and not self._entered:
            for name, stream in self._streams.items():
                getattr(sys, name).flush()
                setattr(sys, name, stream)
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._fd_before)
            self._write.shutdown(socket.SHUT_WR)  # seen by the thread although forked processes have a copy
            self._thread.join()
            self._write.close()
            self._read.close()

    def raise_if_requested(self) -> None:
        """Stop if a signal has arrived. A scheduler's handler is called and may raise its own exception.

        Raises:
            Stopped: with the exit code of the signal.
        """
        while self._pending:
            number = self._pending[0]
            if not _is_handler(handler := self._before[number]):
                raise Stopped(f"stopped by {number.name}", self._code)
            del self._pending[0]
            handler(number, None)  # returns if the run shall continue: submitit's does on a SIGTERM before SIGUSR2

    @property
    def requested(self) -> bool:
        """Whether a signal is pending."""
        return bool(self._pending)

    @property
    def _code(self) -> int:
        return 130 if signal.SIGINT in self._pending else 75

    def _watch(self) -> None:
        deadline: float | None = None
        while True:
            self._read.settimeout(None if deadline is None else max(1e-3, deadline - time.monotonic()))
            try:
                received = self._read.recv(1)
            except TimeoutError:
                busy = f"the main thread was at {_place()}"
                self._exit(f"no safe point within {_SECONDS:.0f} s, {busy}: stopped without a new snapshot")
            if not received:
                return
            number = received[0]
            if deadline is not None and number == signal.SIGINT:
                self._exit("stopped immediately, without a new snapshot")
            if deadline is None and number in SIGNALS:
                self._pending.append(signal.Signals(number))
                if not _is_handler(self._before[number]):
                    deadline = time.monotonic() + _SECONDS

    def _exit(self, reason: str) -> NoReturn:
        # Printing may block (a paused pager, a terminal stopped by ctrl-S, a hanging disk), so exit on a timer, too.
        threading.Timer(_MESSAGE_SECONDS, os._exit, (self._code,)).start()
        try:
            print(f"\n{reason}; {resume_hint(self._run_dir)}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            if os.isatty(1):
                os.write(1, b"\033[?25h")  # show the cursor, which the dashboard hides
        finally:  # the reader of the pipe may be gone
            os._exit(self._code)


def _place() -> str:
    """Return where the main thread is, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    calls = reversed(traceback.extract_stack(frame)[-_CALLS:])
    return " < ".join(f"{Path(call.filename).name}:{call.lineno} ({call.name})" for call in calls)


def exit_on_signal_before_run() -> None:
    """Exit with a preempted run's exit code on a signal that arrives before there is anything to save."""
    for number in _to_handle():
        if number != signal.SIGINT:
            signal.signal(number, _exit_quietly)
    exit_quietly_on_ctrl_c()
    hang_up_with_readers()


def exit_quietly_on_ctrl_c() -> None:
    """Exit on ctrl-C without a traceback, even during imports. A background job continues to ignore ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_quietly)


def hang_up_with_readers() -> dict[str, Any]:
    """Treat the end of the program that reads standard output from a pipe like a closed terminal: a SIGHUP.

    Printing does not raise then. The end of the reader of standard error only loses what is written from then on.

    Returns:
        The streams of `sys` that were replaced, by name.
    """
    before = {}
    for name, fd in ("stdout", 1), ("stderr", 2):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and _is_pipe(stream, fd):
            pipe = _Pipe(fd, "wb", closefd=False)
            buffer = io.BufferedWriter(pipe) if hasattr(stream.buffer, "raw") else pipe  # as with `python -u`
            new = io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
            new.reconfigure(write_through=stream.write_through)
            before[name] = stream
            setattr(sys, name, new)
    return before


def _is_pipe(stream: io.TextIOWrapper, fd: int) -> bool:
    """Return whether a stream is a pipe at a file descriptor that has a reader, and not yet a `_Pipe`."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
        raw = getattr(stream.buffer, "raw", stream.buffer)
        if stream.fileno() != fd or isinstance(raw, _Pipe) or not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            return False
        stream.flush()
    except (OSError, ValueError):  # not a file, closed, or without a reader already: left as it is
        return False
    return True


class _Pipe(io.FileIO):
    """Standard output or standard error, see `hang_up_with_readers`."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # it would end the process without more ado
                raise
            _discard(self.fileno())
            if self.fileno() == 1 and not sys.is_finalizing():  # then threads cannot be started
                os.kill(os.getpid(), signal.SIGHUP)
            return super().write(data)


def _to_handle() -> list[signal.Signals]:
    """Return the signals to handle: all but SIGHUP where it is ignored, as it is under nohup."""
    return [s for s in SIGNALS if s != signal.SIGHUP or signal.getsignal(s) is not signal.SIG_IGN]


def _exit_quietly(number: int, frame: Any) -> None:
    if number == signal.SIGHUP:
        _survive_hangup()
    raise StoppedEarly(130 if number == signal.SIGINT else 75)


def _wait_for_safe_point(number: int, frame: Any) -> None:
    if number == signal.SIGHUP:  # here in the main thread, before it prints anything else
        _survive_hangup()


def _survive_hangup() -> None:
    """Discard output from when its terminal, or the program that it is piped to, is gone: printing would raise."""
    poll = select.poll()
    for fd in (1, 2):
        poll.register(fd, 0)  # a hang-up is reported in any case

    def discard(timeout: float | None) -> None:
        for fd, _ in poll.poll(timeout):
            poll.unregister(fd)
            _discard(fd)

    def watch() -> None:
        while True:
            discard(None)

    discard(0.0)
    threading.Thread(target=watch, name="hang-up", daemon=True).start()


def _discard(fd: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def _is_handler(handler: Any) -> TypeGuard[Callable[[int, None], Any]]:
    """Return whether a handler is a scheduler's, not another run's in this process."""
    ours = signal.default_int_handler, _exit_quietly, _wait_for_safe_point
    return callable(handler) and handler not in ours


def resume_hint(run_dir: Path, soon: bool = False) -> str:
    """Return how to resume the run in `run_dir`, for the user; `soon`: it has no snapshot yet, but will have one."""
    if not soon and not has_snapshot(run_dir):
        return f"there is no snapshot in {run_dir} to resume from"
    path = run_dir.relative_to(Path.cwd()) if run_dir.is_relative_to(Path.cwd()) else run_dir
    program = f"python {sys.argv[0]}" if sys.argv[0].endswith(".py") else sys.argv[0]  # or the command `drqv2 train`
    return f"resume with: {program} {shlex.quote(f'resume={path}')}"


def ignore_signals() -> None:
    """Ignore the signals in a child process: a terminal or scheduler sends them to all processes of a job."""
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _after_fork() -> None:
    """In a process that other code forks from a run's, such as a worker of gymnasium.vector.AsyncVectorEnv.

    It inherits the handlers, which do nothing, and the socket on which the run gets its signals, to which it would also
    write: a terminal sends ctrl-C to both, and the run would count it twice. A scheduler also sends SIGTERM to
    both, and the run is to reach its safe point; but the code that has forked the process may want to end it.
    """
    if signal.getsignal(signal.SIGTERM) is _wait_for_safe_point:
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGHUP) is _wait_for_safe_point:
            signal.signal(signal.SIGHUP, lambda *_: None)  # without the thread that discards output
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_FORK_SECONDS))


os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals while starting a child process, which inherits the mask; afterwards they reach this process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
