"""Actors on a Ray cluster: nodes that go and come, processes that die, hang or fail, and what is kept of weights."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drqv2.envs.vector import VectorEnv, VectorStep
from drqv2.errors import NotFiniteError, ProcessError, UserError
from drqv2.nn.policies import Policy
from drqv2.rollout.actors import ActorSetup, Filled
from drqv2.rollout.batches import stack
from drqv2.rollout.unroll import rollout_layout
from tests.patience import PATIENCE
from tests.rollout import cartpole, parts
from tests.short_run import ROOT

ray = pytest.importorskip("ray")

from ray._private.internal_api import memory_summary  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from drqv2.rollout.ray_actors import RayActors, connect  # noqa: E402
from tests.rollout.ray_cluster import STORE_BYTES, add_node, kill_raylet, ray_cluster  # noqa: E402

pytestmark = pytest.mark.slow

ENVS, LENGTH, BUFFERS = 2, 20, 6


def noted(folder: Path, actor: int, restarts: int) -> VectorEnv:
    """Return environments; note in a file of the actor where they are."""
    where = f"{os.getpid()} {ray.get_runtime_context().get_node_id()}"
    (folder / f"{actor} {restarts}").write_text(where)
    return cartpole.vector(ENVS, actor, restarts)


def slow(seconds: float, actor: int, restarts: int) -> VectorEnv:
    env = cartpole.vector(ENVS)
    recv = env.recv

    def recv_late() -> VectorStep:
        time.sleep(seconds)
        return recv()

    env.recv = recv_late  # type: ignore[method-assign]
    return env


def broken(actor: int, restarts: int) -> VectorEnv:
    env = cartpole.vector(ENVS)
    recv = env.recv

    def recv_nan() -> VectorStep:
        step = recv()
        return step._replace(reward=np.full_like(step.reward, np.nan))

    env.recv = recv_nan  # type: ignore[method-assign]
    return env


def unknown(actor: int, restarts: int) -> VectorEnv:
    raise UserError("there is no such environment")


def dying(actor: int, restarts: int) -> VectorEnv:
    os._exit(3)


def seed(actor: int, restarts: int) -> int:
    return 100 * restarts + actor


def policy(*_: Any, hidden_dim: int = 8) -> Policy:
    torch.manual_seed(0)
    return Policy((4,), cartpole.vector(1).action_spec(), "mlp", hidden_dim)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster that this process, the learner's, is connected to."""
    with ray_cluster() as cluster:
        try:
            connect(cluster.address)
            yield cluster
        finally:
            ray.shutdown()


def nodes_seen(**env: str) -> int:
    """Return how many nodes a process sees that connects without an address."""
    program = "import ray; from drqv2.rollout.ray_actors import connect; connect(None); print(len(ray.nodes()))"
    others = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run([sys.executable, "-c", program], env=others | env, cwd=ROOT, capture_output=True, check=True)
    return int(done.stdout)


def test_without_an_address_the_cluster_is_one_of_its_own(cluster: Cluster) -> None:
    assert nodes_seen() == 1
    assert nodes_seen(RAY_ADDRESS=cluster.address) == len(ray.nodes()) > 1


@contextmanager
def running(
    make_env: Callable[[int, int], VectorEnv],
    num_actors: int = 2,
    hang_seconds: float = 30.0,
    module: Policy | None = None,
    make_policy: Callable[..., Policy] = policy,
    env: VectorEnv | None = None,
) -> Iterator[RayActors]:
    layout = rollout_layout(env or cartpole.vector(ENVS), None, LENGTH)
    actors = RayActors(ActorSetup(make_env, make_policy, seed), layout, num_actors, BUFFERS, hang_seconds)
    actors.publish(module or make_policy())
    try:
        actors.start()
        yield actors
    finally:
        actors.close()


def take(actors: RayActors) -> Filled:
    until(lambda: not actors.full.empty(), actors)
    return actors.full.get()


def take_and_give_back(actors: RayActors, number: int = 1) -> None:
    for _ in range(number):
        actors.give_back(take(actors))


def until(condition: Callable[[], bool], actors: RayActors, use: bool = False) -> None:
    """Wait for something; meanwhile use the rollouts, if `use`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        actors.check()
        while use and not actors.full.empty():
            actors.give_back(actors.full.get())
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)


def held(actors: RayActors) -> int:
    """Return how many rollouts are free or asked for: all that are neither full nor taken."""
    return actors._free + sum(len(actor.asked) for actor in actors._actors)


def assert_none_is_lost(actors: RayActors) -> None:
    """Assert that all rollouts come, and are free again once they are given back and the actors have gone."""
    taken = [take(actors) for _ in range(BUFFERS)]
    assert len({one.slot for one in taken}) == BUFFERS
    assert held(actors) == 0
    for one in taken:
        actors.give_back(one)
    until(lambda: held(actors) + len(actors._rollouts) == BUFFERS, actors)


def place(folder: Path, actor: int, restarts: int) -> tuple[int, str]:
    """Return process and node of an actor."""
    pid, node = (folder / f"{actor} {restarts}").read_text().split()
    return int(pid), node


def test_rollouts_have_the_parts_of_observations_that_are_dicts(cluster: Cluster) -> None:
    env, make_policy = parts.vector(ENVS), partial(parts.policy_for, False)
    with running(partial(parts.vector, ENVS), module=parts.policy(), make_policy=make_policy, env=env) as actors:
        batch = stack([actors.rollout(take(actors))], torch.device("cpu"))
    env.reset()
    for _ in range(LENGTH):
        env.step(np.zeros(ENVS, np.int64))
    for name, part in batch["obs"].items():
        assert torch.equal(part, parts.of(env.returned, name))


def test_actors_take_new_weights(cluster: Cluster, tmp_path: Path) -> None:
    module = policy()
    with torch.no_grad():
        module.actor.bias[0] = 50.0  # the first action, always
    with running(partial(noted, tmp_path), module=module) as actors:
        first = take(actors)
        assert first.version == 0
        assert (actors.rollout(first)["actions"][:, :-1] == 0).all()
        with torch.no_grad():
            module.actor.bias[0] = -50.0
        actors.publish(module)
        actors.give_back(first)
        while (one := take(actors)).version == 0:
            actors.give_back(one)
        assert (actors.rollout(one)["actions"][:, :-1] == 1).all()
        until(lambda: all((tmp_path / f"{actor} 0").exists() for actor in (0, 1)), actors, use=True)
        nodes = {place(tmp_path, actor, 0)[1] for actor in (0, 1)}
        assert nodes == {node.node_id for node in cluster.worker_nodes}


def test_old_weights_are_released(cluster: Cluster) -> None:
    large = partial(policy, hidden_dim=700)
    module = large()
    size = sum(x.nbytes for x in module.state_dict().values())
    with running(partial(cartpole.vector, ENVS), module=module, make_policy=large) as actors:
        for version in range(1, 121):
            assert actors.publish(module) == version
            take_and_give_back(actors)
        while take(actors).version < 120:
            pass
        summary = memory_summary(cluster.address, stats_only=True)
    assert 120 * size > 2 * STORE_BYTES
    assert "Spilled" not in summary
    needed = float(re.findall(r"([\d.]+)% needed", summary)[0]) / 100 * 3 * STORE_BYTES
    assert needed < 10 * size  # the newest one, and those that a rollout was begun with


def test_actors_without_room_hold_no_rollouts(cluster: Cluster) -> None:
    with running(partial(cartpole.vector, ENVS), num_actors=5) as actors:  # there is room for two
        until(lambda: actors.running() == 2, actors, use=True)
        taken = [take(actors) for _ in range(BUFFERS)]
        assert len({one.slot for one in taken}) == BUFFERS
        assert actors.running() == 2


@pytest.mark.parametrize("hard", [False, True])
def test_a_lost_node_costs_no_rollout_and_a_new_one_is_used(cluster: Cluster, tmp_path: Path, hard: bool) -> None:
    with running(partial(noted, tmp_path), hang_seconds=1.0) as actors:
        until(lambda: all((tmp_path / f"{actor} 0").exists() for actor in (0, 1)), actors, use=True)
        take_and_give_back(actors, BUFFERS)
        victim = min(cluster.worker_nodes, key=lambda node: node.node_id)
        (lost,) = (actor for actor in (0, 1) if place(tmp_path, actor, 0)[1] == victim.node_id)
        if hard:
            kill_raylet(victim)
        else:
            cluster.remove_node(victim)
        until(lambda: actors.restarted == 1, actors, use=True)
        take_and_give_back(actors, 3 * BUFFERS)  # of the other one
        waiting = time.monotonic()
        until(lambda: time.monotonic() > waiting + 3, actors, use=True)
        assert actors.restarted == 1  # waiting for room is no hanging
        if hard:
            cluster.remove_node(victim)
        added = add_node(cluster)
        until((tmp_path / f"{lost} 1").exists, actors, use=True)
        until(lambda: actors._actors[lost].lost == 0, actors, use=True)  # it has filled a rollout
        assert place(tmp_path, lost, 1)[1] == added.node_id
        assert_none_is_lost(actors)
        assert actors.restarted == 1


def test_processes_killed_at_any_time_are_replaced_and_no_rollout_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    chance = random.Random(0)
    with running(partial(noted, tmp_path)) as actors:
        for kill in range(6):
            actor = actors._actors[kill % 2]
            until((tmp_path / f"{actor.index} {actor.restarts}").exists, actors, use=True)
            time.sleep(chance.uniform(0.0, 0.1))
            os.kill(place(tmp_path, actor.index, actor.restarts)[0], signal.SIGKILL)
            until(lambda kill=kill: actors.restarted > kill, actors, use=True)  # type: ignore[misc]
            until(lambda actor=actor: actor.lost == 0, actors, use=True)  # type: ignore[misc]
        assert_none_is_lost(actors)
        assert actors.restarted == 6


def test_a_hung_actor_is_replaced_and_a_slow_one_is_not(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(partial(noted, tmp_path), hang_seconds=6.0) as actors, caplog.at_level(logging.WARNING):
        until(lambda: bool(actors._actors[0].steps), actors, use=True)  # before its first one it has more time
        os.kill(place(tmp_path, 0, 0)[0], signal.SIGSTOP)
        until((tmp_path / "0 1").exists, actors, use=True)
        until(lambda: actors._actors[0].lost == 0, actors, use=True)
        assert "Actor 0 has not stepped for 6 s; restarting it." in caplog.messages
        assert_none_is_lost(actors)
        assert actors.restarted == 1
    with running(partial(slow, 0.5), hang_seconds=6.0) as actors:  # a rollout takes it ten seconds
        take_and_give_back(actors, 2)
        assert actors.restarted == 0


@pytest.mark.parametrize(
    ("make_env", "error", "message"),
    [
        (unknown, UserError, "there is no such environment"),
        (broken, NotFiniteError, "the reward is nan in environment 0: fix the environment"),
        (partial(int, "x"), RuntimeError, "invalid literal for int|takes at most 2 arguments"),
        (dying, ProcessError, r"3 processes of actor \d failed one after another: it is lost \(ActorDiedError"),
    ],
)
def test_errors_in_an_actor_reach_the_learner(
    cluster: Cluster, make_env: Any, error: type[Exception], message: str
) -> None:
    with running(make_env) as actors, pytest.raises(error, match=message) as raised:
        take(actors)
    assert type(raised.value) is error
