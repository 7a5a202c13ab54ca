"""Environments in a process of their own: the same as in this one, also when the process dies or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drqv2 import envs
from drqv2.envs.env_process import ProcessEnv
from drqv2.envs.handles import EnvHandle, LocalEnv
from drqv2.errors import UserError
from drqv2.run.evaluation import play
from drqv2.run.stats import EpisodeResult
from tests.compare import assert_equal
from tests.envs.toys import Echo
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]

make = partial(envs.make, "toy", 3, 2, seed=1, image_size=8, factory=partial(Echo, length=60, shape=(8, 8, 3)))


def make_simulation() -> envs.Environment:
    return envs.make("cartpole_balance", 3, 2, seed=1, image_size=32)


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


def make_at_second_try(tried: Path) -> Any:
    if not tried.exists():
        tried.touch()
        exit_at_once()
    return make()


def exit_at_once() -> Any:
    os._exit(3)


def kill(env: ProcessEnv) -> None:
    os.kill(env.host.process.pid, signal.SIGKILL)
    env.host.process.join()


def actions(seed: int = 0) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    while True:
        yield rng.uniform(-1, 1, 2).astype(np.float32)


def assert_same_steps(ours: Any, theirs: Any) -> None:
    assert ours[:3] == theirs[:3]
    np.testing.assert_array_equal(ours.observation, theirs.observation)
    np.testing.assert_array_equal(ours.action, theirs.action)


def play_both(env: ProcessEnv, steps: int = 65, disturb: Any = lambda step: None) -> None:
    """Into the third episode, once with and once without a reset at the end of an episode."""
    local, draw = LocalEnv(make), actions()
    assert env.observation_spec() == local.observation_spec()
    assert env.step_seconds == local.step_seconds
    ours, theirs = env.call("reset"), local.call("reset")
    for step in range(steps):
        assert_same_steps(ours, theirs)
        request = ("reset",) if theirs.last() and step > 31 else ("step", next(draw))
        env.start(*request)
        disturb(step)
        ours, theirs = env.finish(), local.call(*request)
        assert_equal(env.state(), local.state())
    assert local.state()["episode"] == 2
    np.testing.assert_array_equal(env.render(32, 32), local.render(32, 32))
    assert_equal(env.state(), local.state())
    local.close()
    env.close()


def test_the_same_as_in_this_process() -> None:
    play_both(ProcessEnv(make))


@pytest.mark.slow
def test_a_simulation_in_a_process() -> None:
    env, local = ProcessEnv(make_simulation, threads=1), LocalEnv(make_simulation)
    requests: list[Any] = [("reset",), *(("step", np.array([x], np.float32)) for x in (0.3, -1, 1))]
    for request in requests:
        assert_same_steps(env.call(*request), local.call(*request))
    np.testing.assert_array_equal(env.render(64, 64), local.render(64, 64))
    env.close()
    local.close()


def test_a_dead_process_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    env, deaths = ProcessEnv(make), (7, 30, 52)  # 30: at the step past the end of the first episode
    play_both(env, disturb=lambda step: kill(env) if step in deaths else None)
    assert caplog.text.count("restarting it") == len(deaths)


@pytest.mark.slow
def test_a_hanging_process_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    play_both(ProcessEnv(partial(make_hanging, tmp_path / "hung"), reply_seconds=1.0))
    assert "has not replied for 1 s;" in caplog.text


@pytest.mark.slow
def test_one_that_dies_again_and_again_is_given_up() -> None:
    env = ProcessEnv(make)
    env.call("reset")
    env.make = exit_at_once
    kill(env)
    with pytest.raises(RuntimeError, match=r"3 processes .* at step.*: the last ended with status 3\nfix the"):
        env.call("step", np.zeros(2, np.float32))

    with pytest.raises(RuntimeError, match="at its start: the last ended with status 3"):
        ProcessEnv(exit_at_once)


@pytest.mark.slow
def test_one_that_dies_at_its_start_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    play_both(ProcessEnv(partial(make_at_second_try, tmp_path / "tried")))
    assert caplog.text.count("restarting it") == 1


def test_starting_twice_is_refused() -> None:
    handles: list[EnvHandle] = [ProcessEnv(make), LocalEnv(make)]
    for env in handles:
        env.start("reset")
        with pytest.raises(AssertionError, match="has not been fetched"):
            env.start("reset")
        assert env.finish().first()
        env.close()


@pytest.mark.slow
def test_errors_come_back() -> None:
    with pytest.raises(UserError, match="no such camera"):
        ProcessEnv(fail)
    env = ProcessEnv(make_broken)
    env.call("reset")
    with pytest.raises(RuntimeError, match=r"test_handles\.py(.|\n)*ZeroDivisionError: in the user's own step"):
        env.call("step", np.zeros(2, np.float32))
    env.call("reset")  # the process still works
    env.close()


def test_restore() -> None:
    env, local, draw = ProcessEnv(make), LocalEnv(make), actions()
    local.call("reset")
    for _ in range(9):
        local.call("step", next(draw))
    assert_same_steps(env.call("restore", local.state()), LocalEnv(make).call("restore", local.state()))
    kill(env)
    action = next(draw)
    assert_same_steps(env.call("step", action), local.call("step", action))
    assert_equal(env.state(), local.state())
    env.close()


@pytest.mark.parametrize(("count", "together"), [(2, False), (5, False), (2, True), (5, True)])
def test_evaluation_does_not_depend_on_how_many_play(count: int, together: bool) -> None:
    calls = []

    def act(time_steps: Sequence[Any], episodes: Sequence[int]) -> list[np.ndarray]:
        calls.append(len(time_steps))
        return [np.full(2, np.cos(time_step.observation.sum()), np.float32) for time_step in time_steps]

    def results(environments: list[Any]) -> tuple[list[EpisodeResult], list[tuple[int, int]]]:
        seen: dict[int, int] = {}
        found = play(
            environments,
            *(7, 4, act),
            lambda j, env, ts: seen.update({j: hash(ts.observation.tobytes())}),
            together=together,
        )
        for env in environments:
            env.close()
        return found, sorted(seen.items())

    one = results([LocalEnv(make)])
    assert max(calls) == 1
    assert one == results([LocalEnv(make) for _ in range(count)])
    assert max(calls) == (min(count, 4) if together else 1)
    assert len({value for _, value in one[1]}) == 4  # four different episodes
    assert all(result.steps == 30 for result in one[0])


def play_all(handles: Sequence[EnvHandle], disturb: Callable[[int], None] = lambda step: None) -> list[Any]:
    """Step environments of different episodes side by side, now and then only some; return all that they gave."""
    draw = actions()
    found: list[Any] = []
    for step in range(70):
        asked = [i for i in range(len(handles)) if step == 0 or (step + i) % 7]
        for i in asked:
            handles[i].start(*(("begin", i, 3) if step == 0 else ("step", next(draw))))
        disturb(step)
        found += [(i, *handles[i].finish()) for i in asked]
    found.append([handle.state() for handle in handles])
    for handle in handles:
        handle.close()
    return found


def assert_same_played(ours: list[Any], theirs: list[Any]) -> None:
    assert_equal(ours.pop(), theirs.pop())
    for (*a, obs, action, _, _, info), (*b, other_obs, other_action, _, _, other_info) in zip(
        ours, theirs, strict=True
    ):
        assert (a, info) == (b, other_info)
        np.testing.assert_array_equal(obs, other_obs)
        np.testing.assert_array_equal(action, other_action)


def test_environments_that_share_a_process_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    alone = play_all([LocalEnv(make) for _ in range(3)])
    shared = ProcessEnv.sharing([make] * 3)
    assert len({handle.host.process.pid for handle in shared}) == 1
    deaths = (5, 31, 48)
    assert_same_played(play_all(shared, lambda step: kill(shared[0]) if step in deaths else None), alone)
    assert caplog.text.count("restarting it and replaying the episodes of its 3") == len(deaths)


@pytest.mark.slow
def test_one_that_hangs_is_replaced_with_those_beside_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = play_all([LocalEnv(make) for _ in range(3)])
    makes = [make, partial(make_hanging, tmp_path / "hung"), make]
    assert_same_played(play_all(ProcessEnv.sharing(makes, reply_seconds=0.5)), alone)
    assert caplog.text.count("has not replied for 0.5 s;") == 1  # not the time of all three


@pytest.mark.slow
def test_an_error_in_one_is_not_one_in_those_beside_it() -> None:
    one, other = ProcessEnv.sharing([make_broken, make])
    local = LocalEnv(make)
    assert_same_steps(one.call("reset"), local.call("reset"))
    assert other.call("reset").first()
    for handle in (one, other, local):
        handle.start("step", np.zeros(2, np.float32))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        one.finish()
    assert_same_steps(other.finish(), local.finish())
    other.close()
    with pytest.raises(UserError, match="no such camera"):
        ProcessEnv.sharing([make, fail])


@pytest.mark.slow
def test_the_process_of_an_environment_does_not_import_torch() -> None:
    code = (
        "from functools import partial; from drqv2 import envs; from drqv2.envs.env_process import ProcessEnv\n"
        "from tests.envs.toys import ModulesSeen\n"
        "env = ProcessEnv(partial(envs.make, 'toy', 1, 1, 0, factory=ModulesSeen, image_size=8))\n"
        "env.call('reset'); env.call('step', [0.0, 0.0]); env.call('restore', env.state())\n"
        "assert env.call('step', [0.0, 0.0]).reward == 0.0, 'torch is imported'"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE, check=False).returncode == 0


@pytest.mark.slow
def test_processes_end_with_a_killed_parent() -> None:
    code = (
        "from tests.envs.test_handles import *; env = ProcessEnv(make); env.call('reset'); "
        "print(env.host.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    pytest.fail("the environment's process lives on")


@pytest.mark.slow
def test_a_program_that_closes_nothing_ends() -> None:
    code = "from tests.envs.test_handles import *; env = ProcessEnv(make); raise SystemExit(3)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=PATIENCE, check=False).returncode == 3
