"""Whole runs of regime=impala: what they write, learn and resume, lost actors, and what is refused."""

from __future__ import annotations

import csv
import itertools
import os
import queue
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eval as eval_py
import report
import train
from drqv2.agents.impala import ImpalaAgent
from drqv2.config.schema import defaults
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.rollout.batches import Batches
from drqv2.snapshot import file as snapshot
from tests.short_run import IMPALA, IN_TURN, assert_same, resume, rows


def run(run_dir: Path, *overrides: str) -> Path:
    launch(train.main, "cfgs", argv=[*IMPALA, f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


def stop_at(count: int) -> Callable[..., dict[str, float]]:
    """Return an `update` that asks the process to stop when it is called for the `count`th time."""
    update, calls = ImpalaAgent.update, itertools.count(1)

    def update_and_signal(self: ImpalaAgent, rollouts: Any, step: int) -> dict[str, float]:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, rollouts, step)

    return update_and_signal


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("impala") / "run", *IN_TURN)


@pytest.mark.slow
def test_no_rollout_is_older_than_the_bound(tmp_path: Path) -> None:
    done = run(tmp_path / "run", "max_policy_lag=0", "num_learner_threads=3")
    table = rows(done, "train")
    assert [int(row["frame"]) for row in table] == list(range(48, 961, 48))
    assert {row["policy_lag_max"] for row in table} == {"0.0"}
    assert sum(float(row["rollouts_dropped"]) for row in table) > 0


@pytest.mark.slow
def test_statistics_are_empty_where_no_episode_ended(tmp_path: Path) -> None:
    done = run(tmp_path / "run", "unroll_length=4", "total_timesteps=160")
    for row in rows(done, "train"):
        names = "episode_reward", "episode_length", "mean_episode_return", "mean_episode_len", "mean_win_rate"
        assert len({row[name] == "" for name in names}) == 1
        if row["episode_reward"]:
            assert row["mean_episode_return"] == row["episode_reward"]
    assert rows(done, "train")[0]["mean_win_rate"] == ""  # after four steps


@pytest.mark.slow
@pytest.mark.parametrize("batched", ["false", "true"])
def test_a_run_with_actors_writes_everything(tmp_path: Path, batched: str) -> None:
    done = run(tmp_path / "run", f"batched_inference={batched}", "save_video=true", "render_size=32")
    assert len(rows(done, "train")) == 20
    assert [float(row["frame"]) for row in rows(done, "eval")] == [0, 240, 432, 624, 816, 960]
    assert len(list((done / "eval_video").glob("*.mp4"))) == 6
    with open(done / "train.csv", newline="") as f:
        *_, last = csv.DictReader(f)
    losses = {f"{name}_loss" for name in "total pg baseline entropy aux".split()}
    assert last.keys() >= losses | {
        "mean_rho",
        "policy_lag",
        "policy_lag_max",
        "actors_waiting",
        "actors_running",
        "rollouts_dropped",
        "actors_restarted",
        "grad_norm",
    }
    shares = {name: float(value) for name, value in last.items() if name.startswith("performance_")}
    assert shares.keys() >= {f"performance_{name}" for name in ("actors", "learn", "weights", "misc")}
    assert sum(shares.values()) == pytest.approx(1)
    assert last["actors_restarted"] == "0.0"


OWN_AGENT = """
import torch
from drqv2.agents.impala import ImpalaAgent
from drqv2.nn.policies import Policy


class OwnPolicy(Policy):
    def choose(self, obs, state, first, generator):
        actions, log_probs, values, state = super().choose(obs, state, first, generator)
        return torch.zeros_like(actions), torch.zeros_like(log_probs), values, state


class OwnAgent(ImpalaAgent):
    def __init__(self, obs_shape, action_spec, **kwargs):
        super().__init__(obs_shape, action_spec, **kwargs)
        self.policy.__class__ = OwnPolicy

    def auxiliary_loss(self, batch):
        assert not batch.actions[:, :-1].any()
        return self.policy.critic.weight.square().sum()


class Without:
    def __init__(self, obs_shape, action_spec, device):
        pass

    def act(self, obs, step, eval_mode):
        return 0

    def update(self, rollouts, step):
        return {}

    def train(self, training=True):
        pass
"""


@pytest.mark.slow
def test_actors_act_with_the_policy_of_an_agent_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_agent.py").write_text(OWN_AGENT)
    own = f"agent_dir={tmp_path} agent._target_=own_agent.".split(" ")
    done = run(tmp_path / "run", *own[:-1], own[-1] + "OwnAgent")
    assert float(rows(done, "train")[-1]["aux_loss"]) > 0
    keys = [f"~agent.{key}" for key in defaults("impala")["agent"] if key != "_target_"]
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "other", *own[:-1], own[-1] + "Without", *keys)
    assert leaving.value.code == 2
    assert (
        "Without has no policy, policy.choose, policy.initial_state, generator: an agent of regime=impala needs"
        in capsys.readouterr().err
    )


def test_a_reward_that_is_not_a_number_ends_the_run_with_its_own_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [word for word in IMPALA if not word.startswith("env_id=")]
    base += "env._target_=tests.memory_env.Corridor +env.reward=nan obs_type=state".split()
    with pytest.raises(SystemExit) as leaving:
        launch(train.main, "cfgs", argv=[*base, f"hydra.run.dir={tmp_path / 'run'}"])
    assert leaving.value.code == 76
    assert "the reward is nan" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_waits_for_rollouts_stops_with_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(queue.Queue):
        def get(self, *_: Any, **__: Any) -> Any:
            time.sleep(0.01)
            raise queue.Empty

    take, calls = Batches.take, itertools.count(1)

    def wait(self: Batches, stop: Callable[[], bool] = lambda: False) -> Any:
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            monkeypatch.setattr(self, "_ready", Empty())  # no batch comes any more
        return take(self, stop)

    monkeypatch.setattr(Batches, "take", wait)
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run")
    assert leaving.value.code == 75
    assert snapshot.load(tmp_path / "run" / "snapshot.pt")["frame"] == 3 * 48


@pytest.mark.slow
def test_actors_on_a_ray_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ray = pytest.importorskip("ray")
    from tests.rollout.ray_cluster import clusters

    with clusters():
        try:
            done = run(tmp_path / "run", "cluster=ray")
            assert len(rows(done, "train")) == 20
            with pytest.raises(SystemExit):
                run(tmp_path / "other", "cluster=ray", "num_envs=3", "num_actors=3", "batch_size=3", "env.colour=red")
            assert "colour" in capsys.readouterr().err
        finally:
            ray.shutdown()


@pytest.mark.slow
def test_in_turn_the_same_seed_gives_the_same_bits(in_turn: Path, tmp_path: Path) -> None:
    assert_same(in_turn, run(tmp_path / "run", *IN_TURN))
    assert rows(in_turn, "eval") != rows(run(tmp_path / "other", *IN_TURN, "seed=2"), "eval")


def test_in_turn_an_interrupted_run_ends_in_the_same_bits(
    in_turn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr(ImpalaAgent, "update", stop_at(9))
        with pytest.raises(SystemExit) as leaving:
            run(tmp_path / "run", *IN_TURN)
    assert leaving.value.code == 75
    assert snapshot.load(tmp_path / "run" / "snapshot.pt")["frame"] == 9 * 48
    resume(tmp_path / "run")
    assert_same(in_turn, tmp_path / "run")


@pytest.mark.slow
def test_a_run_with_actors_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as m:
        m.setattr(ImpalaAgent, "update", stop_at(9))
        with pytest.raises(SystemExit):
            run(tmp_path / "run")
    before = rows(tmp_path / "run", "train")
    resume(tmp_path / "run")
    assert "begin new episodes; rollouts in flight are lost" in capsys.readouterr().out
    after = rows(tmp_path / "run", "train")
    assert after[:9] == before
    assert (after[-1]["step"], len(after)) == ("960", 20)
    assert float(after[9]["learning_rate"]) < float(before[-1]["learning_rate"])


def test_eval_and_report_read_the_run(in_turn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eval_py.main([str(in_turn), "episodes=2", f"out={tmp_path}", "render_size=32"])
    assert "CartPole-v1" in capsys.readouterr().out
    assert list(tmp_path.glob("*.mp4"))
    report.main([str(in_turn), f"out={tmp_path / 'report.html'}"])
    assert "CartPole-v1" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_a_task_from_pixels(tmp_path: Path) -> None:
    base = [word for word in IMPALA if not word.startswith("env_id=")]
    pixels = "task=cartpole_balance image_size=40 frame_stack=3 agent.encoder=small total_timesteps=96 action_repeat=50"
    launch(
        train.main,
        "cfgs",
        argv=[
            *base,
            *pixels.split(),
            "obs_type=pixels",
            "eval_every_frames=4800",
            f"hydra.run.dir={tmp_path / 'run'}",
        ],
    )
    assert rows(tmp_path / "run", "eval")[-1]["frame"] == "4800"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["num_envs=5"], "num_envs=5: must be a multiple of num_actors=2"),
        (["batch_size=3"], "batch_size=3: must be a multiple of 2, the environments of an actor"),
        (["num_buffers=3"], "num_buffers=3: too few; must be at least 4"),
        (["deterministic=true"], "deterministic=true with num_actors=2: only one acts"),
        (
            ["cluster=ray", "batched_inference=true"],
            "cluster=ray with batched_inference=true: batched_inference applies only to cluster=local",
        ),
        (["agent.discount=0.9"], "agent.discount is now discount"),
        (["agent.reward_clipping=hard"], "agent.reward_clipping=hard"),
        (["horizon=8"], "horizon: is a key of regime=ppo only"),
        (["agent._target_=drqv2.agents.drqv2.DrQV2Agent"], "DrQV2Agent needs continuous actions"),
        (
            ["num_actors=1", "num_envs=2", "deterministic=true", "batched_inference=true"],
            "deterministic=true with batched_inference=true",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    overrides: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, UserError)):
        run(tmp_path / "run", *overrides)
    assert message in capsys.readouterr().err
