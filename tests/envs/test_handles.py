"""Environments in processes: the same as in this one, also when a process dies or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drqv2 import envs
from drqv2.envs.handles import InProcess, Worker
from drqv2.errors import UserError
from drqv2.evaluation.episodes import play
from tests import short_env

ROOT = Path(__file__).resolve().parents[2]

make = partial(envs.make, "short", 3, 2, seed=1, image_size=32, factory=short_env.make)
ROOM = 9 * 32 * 32


class Hanging(envs.Environment):
    """Hangs at its fifth step, unless a file says that it has hung before."""

    flag: Path

    def step(self, action: Any) -> Any:
        if len(self._actions) == 4 and not self.flag.exists():
            self.flag.touch()
            time.sleep(60)
        return super().step(action)


def make_hanging(flag: Path) -> envs.Environment:
    env = make()
    env.__class__ = Hanging
    env.flag = flag
    return env


def fail() -> Any:
    raise UserError("there is no such camera")


class Broken(envs.Environment):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("in the user's own step")


def make_broken() -> envs.Environment:
    env = make()
    env.__class__ = Broken
    return env


def actions(seed: int = 0) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    while True:
        yield rng.uniform(-1, 1, 1).astype(np.float32)


def assert_same_steps(ours: Any, theirs: Any) -> None:
    assert ours.step_type == theirs.step_type
    assert (ours.reward, ours.discount) == (theirs.reward, theirs.discount)
    np.testing.assert_array_equal(ours.observation, theirs.observation)
    np.testing.assert_array_equal(ours.action, theirs.action)


def play_both(worker: Worker, steps: int = 50, disturb: Any = lambda step: None) -> None:
    here, draw = InProcess(make), actions()
    assert worker.observation_spec() == here.observation_spec()
    assert worker.step_seconds == here.step_seconds
    ours, theirs = worker.call("reset"), here.call("reset")
    for step in range(steps):  # into the second episode
        assert_same_steps(ours, theirs)
        if theirs.last():
            ours, theirs = worker.call("reset"), here.call("reset")
            continue
        action = next(draw)
        worker.start("step", action)
        disturb(step)
        ours, theirs = worker.finish(), here.call("step", action)
    np.testing.assert_array_equal(worker.render(32, 32), here.render(32, 32))
    assert {**worker.state(), "actions": 0} == {**here.state(), "actions": 0}
    np.testing.assert_array_equal(worker.state()["actions"], here.state()["actions"])
    here.close()
    worker.close()


@pytest.mark.parametrize("room", [ROOM, 10])  # through shared memory, through the pipe
def test_the_same_as_in_this_process(room: int) -> None:
    play_both(Worker(make, room))


def test_a_dead_process_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(make, ROOM)

    def kill(step: int) -> None:
        if step in (7, 40):
            os.kill(worker._process.pid or 0, signal.SIGKILL)
            worker._process.join()

    play_both(worker, disturb=kill)
    assert caplog.text.count("is replaced") == 2


def test_a_hanging_process_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    play_both(Worker(partial(make_hanging, tmp_path / "hung"), ROOM, patience=3.0))
    assert "has not answered for 3 seconds" in caplog.text


def test_one_that_dies_again_and_again_is_given_up() -> None:
    worker = Worker(make, ROOM)
    worker.call("reset")
    worker._make = exit_at_once
    os.kill(worker._process.pid or 0, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="3 processes"):
        worker.call("step", np.zeros(1, np.float32))

    with pytest.raises(RuntimeError, match="its start; overlap=false"):
        Worker(exit_at_once, ROOM)


def test_one_that_dies_at_its_start_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    play_both(Worker(partial(make_at_second_try, tmp_path / "tried"), ROOM))
    assert caplog.text.count("is replaced") == 1


def make_at_second_try(tried: Path) -> Any:
    if not tried.exists():
        tried.touch()
        os._exit(3)
    return make()


def test_asking_twice_is_refused() -> None:
    for env in (Worker(make, ROOM), InProcess(make)):
        env.start("reset")
        with pytest.raises(AssertionError, match="has not been fetched"):
            env.start("reset")
        assert env.finish().first()
        env.close()


def exit_at_once() -> Any:
    os._exit(3)


def test_errors_come_back() -> None:
    with pytest.raises(UserError, match="no such camera"):
        Worker(fail, ROOM)
    worker = Worker(make_broken, ROOM)
    worker.call("reset")
    with pytest.raises(RuntimeError, match=r"test_worker\.py(.|\n)*ZeroDivisionError: in the user's own step"):
        worker.call("step", np.zeros(1, np.float32))
    worker.call("reset")  # it goes on
    worker.close()


def test_restore() -> None:
    worker, here, draw = Worker(make, ROOM), InProcess(make), actions()
    here.call("reset")
    for _ in range(9):
        here.call("step", next(draw))
    assert_same_steps(worker.call("restore", here.state()), InProcess(make).call("restore", here.state()))
    assert worker.state()["episode"] == 0
    action = next(draw)
    assert_same_steps(worker.call("step", action), here.call("step", action))
    worker.close()


@pytest.mark.parametrize("count", [2, 5])
def test_evaluation_does_not_depend_on_how_many_play(count: int) -> None:
    def act(obs: np.ndarray) -> np.ndarray:
        return np.array([np.cos(obs.sum())], np.float32)

    def results(environments: list[Any]) -> tuple[list[tuple[float, int]], list[tuple[int, int]]]:
        seen: dict[int, int] = {}
        found = play(environments, 7, 4, act, lambda j, env, ts: seen.update({j: hash(ts.observation.tobytes())}))
        for env in environments:
            env.close()
        return found, sorted(seen.items())

    one = results([InProcess(make)])
    assert one == results([InProcess(make) for _ in range(count)])
    assert len({value for _, value in one[1]}) == 4  # four different episodes
    assert all(steps == 30 for _, steps in one[0])


@pytest.mark.slow
def test_processes_leave_with_a_killed_parent() -> None:
    code = (
        "from tests.envs.test_worker import *; w = Worker(make, ROOM); w.call('reset'); "
        "print(w._process.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the environment's process lives on")


def test_a_program_that_closes_nothing_ends() -> None:
    code = "from tests.envs.test_worker import ROOM, Worker, make; worker = Worker(make, ROOM); raise SystemExit(3)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, check=False).returncode == 3
