"""Actors in processes: what they fill, and what happens when they die, hang or fail."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from drqv2.agents.segments import Segments
from drqv2.envs.vector import HandleVector, VectorStep
from drqv2.errors import NotFiniteError, ProcessError, UserError
from drqv2.rollout.actor_processes import ActorProcesses, ActorTask, beats_layout
from drqv2.rollout.actors import ActorSetup, Filled
from drqv2.rollout.batches import Batches, Statistics, stack
from drqv2.rollout.inference import Inference, asking_layout
from drqv2.rollout.shared import SharedArrays, SharedWeights
from drqv2.rollout.unroll import rollout_layout
from tests.patience import PATIENCE
from tests.rollout import cartpole

ENVS, LENGTH, BUFFERS = 2, 20, 6


def unknown(actor: int, restarts: int) -> Any:
    raise UserError("there is no such environment")


def broken(env: Any) -> Any:
    return int("x")


class Failing(HandleVector):
    """Environments that raise an error when they step, or give a reward that is not a number."""

    what = ""

    def recv(self) -> VectorStep:
        if self.what == "EOF":
            raise EOFError("end of a file of the environment")
        step = super().recv()
        return step._replace(reward=np.full_like(step.reward, np.nan))


def failing(what: str, actor: int, restarts: int) -> Failing:
    env = Failing(cartpole.vector(ENVS).handles)
    env.what = what
    return env


def stuck(folder: Path, actor: int, restarts: int) -> HandleVector:
    """Return environments that hang in their first step; note that they do in a file of the actor."""
    env = cartpole.vector(ENVS)

    def recv() -> VectorStep:
        (folder / str(actor)).touch()
        time.sleep(600)
        raise AssertionError

    env.recv = recv  # type: ignore[method-assign]
    return env


def slow(actor: int, restarts: int) -> Any:
    time.sleep(60)


def dying(actor: int, restarts: int) -> Any:
    os._exit(3)


def seed(actor: int, restarts: int) -> int:
    return 100 * restarts + actor


@contextmanager
def running(
    num_actors: int = 2,
    hang_seconds: float = 30.0,
    batched: bool = False,
    lstm: bool = False,
    of: Any = cartpole,
    **changes: Any,
) -> Iterator[ActorProcesses]:
    """Start actors in environments of a module like `tests.rollout.cartpole`."""
    policy = of.policy(lstm)
    layout = rollout_layout(of.vector(ENVS), policy.initial_state(ENVS), LENGTH)
    parts: dict[str, Any] = {
        "make_env": partial(of.vector, ENVS),
        "make_policy": partial(of.policy_for, lstm),
        "seed": seed,
    }
    parts["buffers"] = SharedArrays({name: ((BUFFERS, *shape), dtype) for name, (shape, dtype) in layout.items()})
    parts["beats"] = SharedArrays(beats_layout(num_actors))
    parts = parts | {"weights": SharedWeights(policy)} | changes
    parts["setup"] = ActorSetup(*(parts.pop(name) for name in ("make_env", "make_policy", "seed")))
    inference = None
    if batched:
        parts["asked"] = SharedArrays(asking_layout(layout, num_actors))
        inference = Inference(of.policy(lstm), parts["weights"], parts["asked"], 0)
    actors = ActorProcesses(ActorTask(**parts), num_actors, BUFFERS, hang_seconds, inference)
    try:
        actors.start()
        yield actors
    finally:
        actors.close()


def take(actors: ActorProcesses, seconds: float = 60.0) -> Filled:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        actors.check()
        if not actors.full.empty():
            return actors.full.get()
        time.sleep(0.01)
    raise TimeoutError("no rollout")


def take_and_give_back(actors: ActorProcesses) -> None:
    actors.give_back(take(actors))


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
def test_actors_begin_with_the_weights_of_the_learner_and_take_new_ones(batched: bool) -> None:
    module = cartpole.policy()
    with torch.no_grad():
        module.actor.bias[0] = 50.0  # the first action, always
    weights = SharedWeights(module)
    with running(weights=weights, batched=batched) as actors:
        first = take(actors)
        assert first.version == 0
        assert (actors.task.buffers["actions"][first.slot][:, :-1] == 0).all()
        with torch.no_grad():
            module.actor.bias[0] = -50.0
        weights.publish(module)
        actors.give_back(first)
        while (one := take(actors)).version == 0:
            actors.give_back(one)
        assert (actors.task.buffers["actions"][one.slot][:, :-1] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
def test_log_probabilities_are_those_of_the_actions(batched: bool) -> None:
    policy = cartpole.policy(lstm=True)
    with running(batched=batched, lstm=True) as actors:
        rollouts = [actors.rollout(take(actors)) for _ in range(BUFFERS)]
        batch = Segments(**stack(rollouts, torch.device("cpu")))
    with torch.no_grad():
        dist, *_ = policy(batch.obs, batch.state, batch.first)
    got = dist.log_prob(batch.actions.reshape(*batch.rewards.shape, -1))
    torch.testing.assert_close(got[:, :-1], batch.log_probs[:, :-1])


@pytest.mark.slow
def test_actors_wait_when_no_rollout_is_free() -> None:
    with running() as actors:
        taken = [take(actors) for _ in range(BUFFERS)]
        assert sorted(one.slot for one in taken) == list(range(BUFFERS))
        steps = actors.task.beats["steps"].copy()
        time.sleep(1.0)
        assert (actors.task.beats["steps"] == steps).all()
        actors.give_back(taken[0])
        assert take(actors).slot == taken[0].slot


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
def test_actors_killed_at_any_time_are_replaced_and_no_rollout_is_lost(batched: bool) -> None:
    chance = random.Random(0)
    with running(batched=batched) as actors:
        for kill in range(20):
            actor = actors._actors[kill % 2]
            while (
                kill % 4 < 2 and actor.lost
            ):  # one that can never fill a rollout is given up; else also while it starts
                take_and_give_back(actors)
            time.sleep(chance.uniform(0.0, 0.1))
            os.kill(actor.process.pid, signal.SIGKILL)
            take_and_give_back(actors)
            while actors.restarted <= kill:
                time.sleep(0.01)
                actors.check()
        taken = [take(actors).slot for _ in range(BUFFERS)]  # all of them come, so none was lost
        assert sorted(taken) == list(range(BUFFERS))
        assert actors.restarted == 20


@pytest.mark.slow
def test_a_hung_actor_is_replaced() -> None:
    with running(num_actors=1, hang_seconds=1.0) as actors:
        take_and_give_back(actors)
        begin = time.monotonic()
        os.kill(actors._actors[0].process.pid, signal.SIGSTOP)
        while actors.restarted == 0:
            while not actors.full.empty():
                take_and_give_back(actors)
            time.sleep(0.01)
            assert time.monotonic() - begin < PATIENCE
        take_and_give_back(actors)


@pytest.mark.slow
def test_hung_actors_end_when_the_learner_is_killed(tmp_path: Path) -> None:
    program = "import sys, time, pathlib; from functools import partial; from tests.rollout import test_actors as t\n"
    program += "with t.running(make_env=partial(t.stuck, pathlib.Path(sys.argv[1]))): time.sleep(600)"
    learner = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[2])
    try:
        end = time.monotonic() + PATIENCE
        while len(list(tmp_path.iterdir())) < 2:
            assert learner.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
        others = psutil.Process(learner.pid).children(recursive=True)
    finally:
        learner.kill()
        learner.wait()
    assert len(others) >= 4  # two actors, and the servers that start them
    assert psutil.wait_procs(others, timeout=PATIENCE)[1] == []


@pytest.mark.slow
def test_errors_in_an_actor_reach_the_learner() -> None:
    with running(make_env=unknown) as actors, pytest.raises(UserError, match="there is no such environment"):
        take(actors)
    with running(make_policy=broken) as actors, pytest.raises(RuntimeError, match="invalid literal for int"):
        take(actors)
    with running(make_env=partial(failing, "EOF")) as actors, pytest.raises(RuntimeError, match="EOFError: end of a"):
        take(actors)
    with running(make_env=partial(failing, "NaN")) as actors, pytest.raises(NotFiniteError, match="the reward is nan"):
        take(actors)
    with (
        running(make_env=dying) as actors,
        pytest.raises(ProcessError, match=r"one after another: it ended with"),
    ):
        take(actors)


@pytest.mark.slow
def test_actors_that_were_suspended_with_the_learner_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for_long(*arguments: Any) -> Any:
        ready = connection.wait(*arguments)
        if not waits:
            for actor in actors._actors:
                os.kill(actor.process.pid, signal.SIGSTOP)
            time.sleep(2.0)  # as long as the whole program was stopped
            for actor in actors._actors:
                os.kill(actor.process.pid, signal.SIGCONT)
        waits.append(True)
        return ready

    waits: list[bool] = [True]
    monkeypatch.setattr("drqv2.rollout.actor_processes.SUSPENDED_SECONDS", 1.5)
    monkeypatch.setattr("drqv2.rollout.actor_processes.connection", SimpleNamespace(wait=wait_for_long))
    with running(hang_seconds=1.0) as actors:
        for _ in range(2):
            take_and_give_back(actors)
        waits.clear()
        while len(waits) < 3:
            while not actors.full.empty():
                take_and_give_back(actors)
        assert actors.restarted == 0


def test_a_learner_that_is_asked_to_stop_does_not_wait_for_a_rollout() -> None:
    looks = iter([False, False, True])
    with running(make_env=slow) as actors:
        batches = Batches(actors, 2, 1, torch.device("cpu"), lambda: 0, None)
        batches.actors.start = lambda: None  # type: ignore[method-assign]  # they have started
        assert batches.take(stop=lambda: next(looks)) is None
        batches.close()


@pytest.mark.slow
def test_the_seconds_of_waiting_are_those_without_a_free_rollout() -> None:
    with running() as actors:
        taken = [take(actors) for _ in range(BUFFERS)]  # none is free
        begin, before = time.monotonic(), actors.waited()
        time.sleep(2.0)
        waited, seconds = actors.waited() - before, time.monotonic() - begin
        assert 0 < waited <= 2 * seconds  # of two actors, also while they wait
        for one in taken:
            actors.give_back(one)
        for _ in range(2 * BUFFERS):
            take_and_give_back(actors)
        assert actors.waited() >= before + waited


def test_statistics_of_the_batches() -> None:
    over = torch.tensor([[False, False, True, False], [True, False, False, True]])
    rewards = torch.tensor([[0.0, 0.9, 0.7, 0.0], [1.0, 0.0, 0.9, 0.81]])
    batch = {"terminated": over, "truncated": torch.zeros_like(over), "rewards": rewards}
    statistics = Statistics()
    statistics.add(batch, [Filled(0, 3, [(1.6, 2)], {"x": (0.5, 1)}), Filled(1, 5, [(1.71, 3)], {"x": (1.5, 2)})], 7)
    assert (statistics.ends, statistics.wins) == (2, 1)  # the first step of a rollout is in the one before, too
    assert statistics.episodes == [(1.6, 2), (1.71, 3)]
    assert statistics.lags == [4, 2]
    assert statistics.info == {"x": (2.0, 3)}


@pytest.mark.slow
def test_old_rollouts_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    version = 0
    with running() as actors:
        monkeypatch.setattr(actors, "start", lambda: None)  # they have started
        batches = Batches(actors, 2, 2, torch.device("cpu"), lambda: version, max_lag=3)
        try:
            batch = batches.take()
            assert batch is not None
            assert batch["obs"].shape == (2 * ENVS, LENGTH + 1, 4)
            assert batches.statistics.lags == [0, 0]
            version = 3
            batches.take()
            assert (batches.statistics.lags[2:], batches.statistics.dropped) == ([3, 3], 0)
            version = 4  # those that wait now were begun four updates ago
            until = time.monotonic() + 10
            dropped: list[int] = []
            while not any(dropped) and time.monotonic() < until:
                batches.take(stop=lambda: True)
                dropped.append(batches.statistics.dropped)
            assert any(dropped)
        finally:
            batches.close()


@pytest.mark.slow
def test_an_error_in_a_thread_that_prepares_batches_reaches_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise MemoryError("too large")

    with running() as actors:
        monkeypatch.setattr("drqv2.rollout.batches.stack", fails)
        monkeypatch.setattr(actors, "start", lambda: None)
        batches = Batches(actors, 2, 1, torch.device("cpu"), lambda: 0, None)
        with pytest.raises(MemoryError, match="too large"):
            batches.take()
        batches.close()
