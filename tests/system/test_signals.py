"""Stopping on signals, in real processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from drqv2.system import signals
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
CODES = [pytest.param(number, 130 if number == signal.SIGINT else 75, id=number.name) for number in signals.SIGNALS]
# argv: how long until a safe point, and how long it may be; "nohup" where SIGHUP stays as it is.
BUSY = """
import signal, sys, time
from pathlib import Path
from drqv2.system import signals
from drqv2.errors import Stopped
if "nohup" not in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
seconds, signals._SECONDS = map(float, sys.argv[1:3])
try:
    with signals.StopSignals(Path("run")) as stop:
        print("ready", flush=True)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(seconds)
            stop.raise_if_requested()
except Stopped as stopped:
    print(stopped)
    sys.exit(stopped.code)
"""


def busy(seconds: float, deadline: float = 20.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUSY, str(seconds), str(deadline)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_waits_for_the_safe_point(number, code):
    process = busy(0.2)
    process.send_signal(number)
    assert process.communicate()[0] == f"stopped by {signal.Signals(number).name}\n"
    assert process.returncode == code


def test_nohup_ignores_a_closed_terminal():
    command = ["nohup", sys.executable, "-c", BUSY, "0.1", "20", "nohup"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)  # several safe points
    process.send_signal(signal.SIGUSR1)
    assert process.communicate()[0] == "stopped by SIGUSR1\n"
    assert process.returncode == 75


TALKING = """
import fcntl, os, signal, sys, termios, time
from pathlib import Path
from drqv2.system import signals
from drqv2.errors import Stopped
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if sys.argv[1] == "terminal":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # the terminal that sends SIGHUP when it is closed
try:
    with signals.StopSignals(Path("run")) as stop:
        print("ready", flush=True)
        while not stop.requested:
            time.sleep(0.01)
        for line in range(30):  # before the safe point
            print(line, flush=True)
            print(line, file=sys.stderr, flush=True)
            time.sleep(0.01)
        stop.raise_if_requested()
except Stopped as stopped:
    print(stopped, flush=True)
    Path(sys.argv[2]).write_text(str(stopped))
    sys.exit(stopped.code)
"""


@pytest.mark.parametrize("output", ["terminal", "pipe"])  # python train.py, and python train.py | tee log
def test_output_may_go_with_the_terminal(output, tmp_path):
    result = tmp_path / "result"
    ours, theirs = pty.openpty() if output == "terminal" else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", TALKING, output, str(result)],
        cwd=ROOT,
        stdin=theirs if output == "terminal" else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    assert os.read(ours, 5) == b"ready"
    if output == "pipe":
        process.send_signal(signal.SIGHUP)
        time.sleep(0.1)  # tee ends a little later
    os.close(ours)
    assert process.wait(PATIENCE) == 75
    assert result.read_text() == "stopped by SIGHUP"


def test_exits_without_a_safe_point():
    process = busy(PATIENCE, 0.2)
    process.send_signal(signal.SIGTERM)
    assert re.search(r"no safe point within 0 s, the main thread was at .*<string>:\d+", process.communicate()[0])
    assert process.returncode == 75


def test_a_second_interrupt_exits_immediately():
    process = busy(PATIENCE)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert "stopped immediately" in process.communicate()[0]
    assert process.returncode == 130


FORKED = """
import multiprocessing, sys, time
from pathlib import Path
from drqv2.system import signals
from drqv2.errors import Stopped
signals._FORK_SECONDS = 1
try:
    with signals.StopSignals(Path("run")) as stop:  # as gymnasium.vector.AsyncVectorEnv does
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        child = context.Process(target=lambda: [ready.set(), time.sleep(300)], daemon=True)
        child.start()
        ready.wait()
        print("ready", flush=True)
        while not stop.requested:
            time.sleep(0.01)
        time.sleep(0.5)
        print(child.is_alive(), flush=True)
        child.terminate()
        child.join()
        stop.raise_if_requested()
except Stopped as stopped:
    print(stopped)
    sys.exit(stopped.code)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), CODES[:3])
def test_a_signal_to_forked_processes_too_counts_once_and_they_survive_it(number, code):
    process = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL){FORKED}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, number)
    assert process.communicate(timeout=PATIENCE)[0] == f"True\nstopped by {signal.Signals(number).name}\n"
    assert process.returncode == code


def test_repeated_signals_count_once():
    process = busy(1.0)
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
        time.sleep(0.1)
    assert process.communicate()[0] == "stopped by SIGUSR2\n"
    assert process.returncode == 75


def test_exits_although_the_pipe_is_full():
    process = busy(PATIENCE, 0.2)
    assert process.stdout is not None
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    blocked = os.open(f"/proc/{process.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(blocked, b"x" * 4096)  # a pager is paused, say
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 75
    os.close(blocked)


SCHEDULED = """
import signal, sys, time
from pathlib import Path
from drqv2.system import signals
signal.signal(signal.SIGTERM, lambda *_: print("goes on", flush=True))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(7))
signals._SECONDS = 0.3
with signals.StopSignals(Path("run")) as stop:
    print("ready", flush=True)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(float(sys.argv[1]))
        stop.raise_if_requested()
"""


@pytest.mark.parametrize("seconds", [0.1, 0.8])  # sooner and later than the deadline that there is otherwise
def test_scheduler_handlers_take_precedence(seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", SCHEDULED, str(seconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "goes on\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGUSR2)  # while the other waits for its safe point
    process.communicate()
    assert process.returncode == 7


@pytest.mark.parametrize(("number", "code"), CODES)
def test_exit_codes_before_there_is_a_run(number, code):
    setting_up = (
        "import signal, time\nfrom drqv2.system import signals\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job's children ignore it
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "signals.exit_on_signal_before_run()\n"
    )
    command = [sys.executable, "-c", f"{setting_up}print('ready', flush=True)\ntime.sleep(20)"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.communicate()[0] == ""
    assert process.returncode == code


def hung_up() -> None:
    """In a new process: the tests may run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["--help", "--cfg job", "--info", "-m preset=debug seed=1,2 hydra.sweep.dir=DIR"])
def test_training_with_a_closed_pipe(words, unbuffered, tmp_path):
    command = [sys.executable, "-m", "drqv2", "train", *words.replace("DIR", str(tmp_path)).split()]
    reading, writing = os.pipe()
    os.close(reading)
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    told = subprocess.run(
        command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=hung_up, timeout=300
    )
    os.close(writing)
    assert told.returncode == 75
    if "debug" in words:
        assert len(list(tmp_path.glob("*/snapshot.pt"))) <= 1  # the second job has not begun
    else:
        assert told.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("ignored", [False, True], ids=["", "nohup"])
def test_training_whose_reader_ends(ignored, unbuffered, tmp_path):
    keys = f"preset=debug num_train_frames=10000 eval_every_frames=null hydra.run.dir={tmp_path}".split()
    command = [sys.executable, "train.py", *keys]
    process = subprocess.Popen(
        ["nohup", *command] if ignored else command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        preexec_fn=hung_up,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert any(line.startswith("| train") for line in process.stdout)
    process.stdout.close()
    told = process.stderr.read()
    assert process.wait() == (0 if ignored else 75)
    assert told == ("" if ignored else f"\nstopped by SIGHUP; resume with: python train.py resume={tmp_path}\n")
    newest = int((tmp_path / "train.csv").read_text().splitlines()[-1].split(",")[0])
    assert (newest == 10_000) == ignored
    saved = torch.load(tmp_path / "snapshot.pt", weights_only=False)
    assert saved["frame"] >= newest


def test_streams_come_back_with_the_signals():
    program = (
        "import sys\nfrom pathlib import Path\nfrom drqv2.system import signals\n"
        "before = sys.stdout\n"
        "with signals.StopSignals(Path()):\n    assert sys.stdout is not before\n    print('ready')\n"
        "assert sys.stdout is before\n"
        "sys.stdin.read()\n"  # until the reader is gone
        "try:\n    print('x', flush=True)\nexcept BrokenPipeError:\n    sys.exit(7)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.close()
    process.stdin.close()
    assert process.wait() in (7, 120)  # 120: its exit flushes in vain


@pytest.mark.slow
@pytest.mark.parametrize("words", ["eval.py --help", "report.py --help", "-m drqv2 --help", "-m drqv2.snapshot WHOLE"])
def test_tools_with_a_closed_pipe(words, tmp_path):
    for name in ("snapshot.pt", "snapshot_previous.pt", "weights_0.pt"):
        (tmp_path / name).write_bytes(b"")
    command = [sys.executable, *words.replace("WHOLE", str(tmp_path)).split()]
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    with open("/dev/full", "w") as device:
        full = subprocess.Popen(command, cwd=ROOT, stdout=device, stderr=subprocess.PIPE, text=True)
    assert process.communicate()[1] == ""
    assert process.returncode == 141
    assert full.communicate()[1] == "error: standard output cannot be written (No space left on device)\n"
    assert full.returncode == 74
