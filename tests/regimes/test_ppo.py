"""Whole runs of regime=ppo: what they write, learn and resume, and what is refused."""

from __future__ import annotations

import csv
import itertools
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import eval as eval_py
import report
import train
from drqv2 import compose
from drqv2.agents.ppo import PPOAgent
from drqv2.envs.env_process import ProcessEnv
from drqv2.envs.handles import LocalEnv
from drqv2.launch.command_line import launch
from drqv2.regimes.ppo import PPOWorkspace
from drqv2.run.environments import envs_per_process, make_vector
from drqv2.snapshot import file as snapshot
from drqv2.system import machine
from tests.short_run import PPO, assert_same, resume, rows

POOL = [word for word in PPO if not word.startswith(("vector=", "env_id="))] + [
    "env_id=envpool:CartPole-v1",
    "total_timesteps=480",
]

WALKS = "env_id=null env._target_=tests.walk_env.vector vector=auto"  # a gymnasium.vector.VectorEnv
VECTOR = [*PPO, *WALKS.split(), "total_timesteps=288"]


def run(run_dir: Path, *overrides: str, base: list[str] = PPO) -> Path:
    launch(train.main, "cfgs", argv=[*base, f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


def signal_at(count: int) -> Callable[..., dict[str, float]]:
    """Return an `update` that asks the process to stop when it is called for the `count`th time."""
    update, calls = PPOAgent.update, itertools.count(1)

    def update_and_signal(self: PPOAgent, segments: Any, step: int) -> dict[str, float]:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(self, segments, step)

    return update_and_signal


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("ppo") / "run", "save_video=true", "render_size=32")


def test_a_run_writes_everything(whole: Path) -> None:
    assert len(rows(whole, "train")) == 20
    evaluations = [float(row["frame"]) for row in rows(whole, "eval")]
    assert evaluations == [0, 240, 432, 624, 816, 960]
    assert {p.name for p in (whole / "eval_video").iterdir()} == {f"{frame:.0f}.mp4" for frame in evaluations}
    assert {p.name for p in whole.glob("weights_*.pt")} == {f"weights_{n}.pt" for n in (0, 240, 480, 720, 960)}
    with open(whole / "train.csv", newline="") as f:
        *_, last = csv.DictReader(f)
    told = {name for name, value in last.items() if value}
    assert told >= {"SPS", "agent_steps", "uptime", "update", "learning_rate", "episode_reward", "episode_length"}
    losses = ("policy_loss value_loss entropy old_approx_kl approx_kl clipfrac importance explained_variance").split()
    assert told >= {f"losses_{name}" for name in losses}
    shares = {name: float(value) for name, value in last.items() if name.startswith("performance_")}
    assert shares.keys() >= {f"performance_{name}" for name in ("env", "forward", "copy", "learn", "misc")}
    assert sum(shares.values()) == pytest.approx(1)
    assert (last["step"], last["update"]) == ("960", "20.0")
    assert OmegaConf.load(whole / "config.yaml").task_name == "CartPole-v1"


def test_an_interrupted_run_ends_in_the_same_bits(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr(PPOAgent, "update", signal_at(9))
        with pytest.raises(SystemExit) as leaving:
            run(tmp_path / "run")
    assert leaving.value.code == 75
    assert snapshot.load(tmp_path / "run" / "snapshot.pt")["frame"] == 9 * 48
    resume(tmp_path / "run")
    assert_same(whole, tmp_path / "run")


@pytest.mark.slow
def test_a_run_from_before_some_keys_existed_resumes_as_it_began(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as m:
        m.setattr(PPOAgent, "update", signal_at(9))
        with pytest.raises(SystemExit):
            run(tmp_path / "run")
    config: Any = OmegaConf.load(tmp_path / "run" / "config.yaml")
    for name in ("adam_lr", "anneal_lr", "adam_beta2", "target_kl"):
        del config.agent[name]
    config.snapshot_every_epochs = config.pop("snapshot_every_updates")  # its former name
    OmegaConf.save(config, tmp_path / "run" / "config.yaml")
    resume(tmp_path / "run")
    assert_same(whole, tmp_path / "run")


def test_a_resume_may_stop_annealing_and_set_a_target(whole: Path, tmp_path: Path) -> None:
    longer = Path(shutil.copytree(whole, tmp_path / "run"))
    resume(longer, *"total_timesteps=1200 resume_force=true agent.anneal_lr=false agent.target_kl=1e-9".split())
    *_, before, last = (row for row in rows(longer, "train") if row["step"] in ("960", "1200"))
    assert float(before["learning_rate"]) < 1e-5
    assert (float(last["learning_rate"]), float(last["gradient_steps"])) == (0.001, 2)


@pytest.mark.slow
@pytest.mark.parametrize("more", ["envs_per_process=1 num_eval_envs=2", "envs_per_process=2"])
def test_processes_give_the_same_run(whole: Path, more: str, tmp_path: Path) -> None:
    assert_same(whole, run(tmp_path / "run", "vector=processes", *more.split()))


@pytest.mark.slow
def test_a_run_with_environments_in_one_process_resumes_in_others(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as m:
        m.setattr(PPOAgent, "update", signal_at(9))
        with pytest.raises(SystemExit):
            run(tmp_path / "run", "vector=processes", "envs_per_process=3")
    assert "environments: 3 of CartPole-v1, in one process;" in capsys.readouterr().out
    resume(tmp_path / "run", "envs_per_process=2")
    assert "environments: 3 of CartPole-v1, in 2 processes, up to 2 in each;" in capsys.readouterr().out
    assert_same(whole, tmp_path / "run")


def test_without_overlap_they_are_stepped_in_this_process() -> None:
    for overrides, kind in (("overlap=false", LocalEnv), ("overlap=false vector=processes", ProcessEnv)):
        base = ("regime=ppo", "env_id=gymnasium:CartPole-v1", "num_envs=2", "obs_type=state")
        vector: Any = make_vector(compose(*base, *overrides.split()), 0)
        assert [type(handle) for handle in vector.handles] == [kind, kind]
        vector.close()


def test_as_many_processes_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, envs, expected in ((2.0, 32, 16), (2.0, 3, 2), (64.0, 8, 1), (0.5, 8, 8), (1.5, 8, 8)):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        assert envs_per_process(OmegaConf.create({"num_envs": envs, "envs_per_process": None})) == expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_a_vector_of_gymnasium_trains_evaluates_and_resumes(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (run(tmp_path / name, f"+env.mode={mode}", base=VECTOR) for name in "ab")
    assert_same(one, other)
    assert "in a gymnasium.vector.VectorEnv; an update learns" in capsys.readouterr().out
    with monkeypatch.context() as m:
        m.setattr(PPOAgent, "update", signal_at(4))
        with pytest.raises(SystemExit):
            run(tmp_path / "run", f"+env.mode={mode}", base=VECTOR)
    resume(tmp_path / "run")
    out = capsys.readouterr().out
    assert "all environments begin new episodes: a gymnasium.vector.VectorEnv cannot return to a state" in out
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [row["step"] for row in rows(one, "train")]
    assert rows(tmp_path / "run", "train")[:4] == rows(one, "train")[:4]


def test_evaluations_of_a_vector_are_truncated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", "+env.longest=100000", "max_episode_steps=5", base=VECTOR)
    out = capsys.readouterr().out
    assert {row["episode_length"] for row in rows(tmp_path / "run", "eval")} == {"5"}
    assert "max_episode_steps=5: truncates evaluations; in training your vector ends its episodes itself" in out


@pytest.mark.slow
def test_another_seed_gives_another_run(whole: Path, tmp_path: Path) -> None:
    assert rows(whole, "eval") != rows(run(tmp_path / "run", "seed=2"), "eval")


@pytest.mark.slow
def test_envpool_gives_the_same_run_twice_and_begins_new_episodes_on_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (run(tmp_path / name, base=POOL) for name in "ab")
    assert_same(one, other)
    capsys.readouterr()
    longer = Path(shutil.copytree(one, tmp_path / "c"))
    resume(longer, "total_timesteps=720")
    assert "begin new episodes: EnvPool cannot return" in capsys.readouterr().out
    assert rows(longer, "train")[:10] == rows(one, "train")
    assert rows(longer, "train")[-1]["step"] == "720"


@pytest.mark.slow
def test_a_resume_with_envpool_keeps_episodes_that_no_row_has_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = [*POOL, "log_every_seconds=1000"]
    with monkeypatch.context() as m:
        m.setattr(PPOAgent, "update", signal_at(9))
        with pytest.raises(SystemExit):
            run(tmp_path / "run", base=base)
    assert not (tmp_path / "run" / "train.csv").exists()
    saved = snapshot.load(tmp_path / "run" / "snapshot.pt")
    waiting = len(saved["collector"]["totals"]["episodes"])
    assert waiting > 10
    resume(tmp_path / "run", "total_timesteps=480")  # one update more, in which at most a few episodes end
    (row,) = rows(tmp_path / "run", "train")
    assert int(row["episode"]) >= waiting


@pytest.mark.slow
def test_preset_cartpole_learns_and_films_its_last_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    run(tmp_path / "run", "total_timesteps=40000", base=["regime=ppo", "preset=cartpole"])
    *before, last = rows(tmp_path / "run", "eval")
    assert len(before) == 2
    assert float(last["episode_reward"]) > 400
    assert [film.stem for film in (tmp_path / "run" / "eval_video").iterdir()] == [last["frame"]]


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "least"), [("envpool:CartPole-v1", 400), ("envpool:Catch-v0", 0.8)])
def test_the_defaults_learn(env_id: str, least: float, tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    words = "total_timesteps=50000 eval_every_frames=50000 save_video=false".split()
    run(tmp_path / "run", f"env_id={env_id}", *words, base=["regime=ppo"])
    *_, last = rows(tmp_path / "run", "eval")
    assert float(last["episode_reward"]) > least


def test_a_sweep_maximises_the_mean_return_after_the_first_fifth(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returns = [float(row["episode_reward"]) for row in rows(whole, "train")[4:] if row["episode_reward"]]
    workspace = PPOWorkspace.__new__(PPOWorkspace)
    workspace.cfg = OmegaConf.create({"total_timesteps": 960, "action_repeat": 1, "objective": None})
    workspace.work_dir = whole
    assert workspace.objective() == pytest.approx(np.mean(returns))


@pytest.mark.slow
def test_tasks_of_dm_control_from_state_and_from_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = [word for word in PPO if not word.startswith("env_id=")] + ["total_timesteps=48"]
    small = ["num_eval_episodes=1", "eval_every_frames=1000", "action_repeat=50"]
    run(tmp_path / "state", "task=cartpole_balance", *small, base=base)
    assert "obs_type: state (auto)" in capsys.readouterr().out
    pixels = ["obs_type=pixels", "image_size=40", "frame_stack=3", "agent.encoder=small"]
    run(tmp_path / "pixels", "task=cartpole_balance", *small, *pixels, base=base)
    assert OmegaConf.load(tmp_path / "state" / "config.yaml").obs_type == "state"  # unless asked for pixels
    (_, last) = rows(tmp_path / "pixels", "eval")
    assert (last["frame"], last["episode_length"]) == ("2400", "1000")


def test_eval_and_report_read_the_run(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eval_py.main([str(whole), "episodes=2", f"out={tmp_path}", "render_size=32"])
    out = capsys.readouterr().out
    assert "CartPole-v1" in out
    assert list(tmp_path.glob("*.mp4"))
    eval_py.main([str(whole), "episodes=2", f"out={tmp_path}", "film=none"])
    again = capsys.readouterr()
    assert again.out.splitlines()[:4] == out.splitlines()[:4]
    report.main([str(whole), f"out={tmp_path / 'report.html'}"])
    assert "CartPole-v1" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("num_envs=7", "num_envs=7: more environments than segments=6"),
        ("num_envs=4", "segments=6: must be a multiple of num_envs=4"),
        ("minibatch_size=20", "minibatch_size=20: must be a multiple of horizon=8"),
        ("minibatch_size=96", "minibatch_size=96: larger than 48, the steps of segments=6"),
        ("repeat_per_collect=0.1", "repeat_per_collect=0.1: less than one minibatch of 24 steps"),
        ("agent.minibatch_size=8", "agent.minibatch_size is now minibatch_size"),
        ("snapshot_every_epochs=5", "snapshot_every_epochs is now snapshot_every_updates"),
        (
            "env_id=envpool:CartPole-v1 vector=auto obs_type=pixels",
            "obs_type=pixels: the observations of envpool:CartPole-v1 have no image",
        ),
        ("env_id=envpool:CartpoleBalance-v1 vector=auto +env.from_pixels=true", "use task=NAME"),
        ("agent.advantage=once agent.prio_alpha=0.8", "agent.advantage=once has no priorities"),
        ("env_id=envpool:CartPole-v1 vector=auto +env.seed=7", "env.seed: is set by seed; leave it out"),
        ("agent.encoder=nature", "agent.encoder=nature applies only to images"),
        ("obs_type=pixels render=rgb_array agent.encoder=mlp", "agent.encoder=mlp applies only to vectors"),
        ("env_id=gymnasium:CartPol-v1", "nearest: .*CartPole-v1"),
        ("env_id=CartPole-v1", "the library is missing; for Gymnasium.s write gymnasium:CartPole-v1"),
        ("task=walker_walk", "task=walker_walk and env_id=gymnasium:CartPole-v1: give only one of them"),
        ("preset=cpu", "preset=cpu applies only to regime=drqv2"),
        ("nstep=3", "nstep: is a key of regime=drqv2 and regime=multitask and regime=offline only"),
        ("env_id=envpool:CartPole-v1 vector=auto action_repeat=2", "EnvPool repeats actions"),
        ("env_id=envpool:Pong-v5 vector=auto image_size=64", "image_size=64: the images of envpool:Pong-v5 are 84x84"),
        ("envs_per_recv=2 num_envs=3", "applies only to EnvPool"),
        ("envs_per_process=2", "envs_per_process=2: vector=serial has no such processes"),
        ("vector=auto envs_per_process=4", "envs_per_process=4: more than num_envs=3"),
        ("env_id=envpool:CartPole-v1 vector=auto envs_per_process=2", "EnvPool steps its environments by threads"),
        (f"{WALKS} envs_per_process=2", "your vector steps its environments itself"),
        (f"{WALKS} action_repeat=2", "VectorEnv repeats actions and stacks frames by itself; set action_repeat=1"),
        (f"{WALKS} +env.mode=DISABLED", "It must be gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP"),
        (f"{WALKS} +env.num_envs=2", "returned 2 environments at once.*\n.*leave env.num_envs out"),
        (f"{WALKS} +env.num_envs=2 obs_type=state", "num_envs=3: vector returned 2\n.*leave env.num_envs"),
        (f"{WALKS} cameras=[0,1] obs_type=pixels", "your vector is no MuJoCo simulation"),
        ("env_id=envpool:MiniGrid-Empty-5x5-v0 vector=auto obs_type=pixels+state", "image_size=84: .* are 7x7"),
        ("env_id=gymnasium:Blackjack-v1", "must be a Box, discrete"),
    ],
)
def test_what_cannot_work_is_refused(
    overrides: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run", *overrides.split())
    assert leaving.value.code == 2
    error = capsys.readouterr().err
    assert re.search(words, error), error
    assert "Traceback" not in error


@pytest.mark.slow
def test_drqv2_learns_from_other_libraries_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = (
        "num_train_frames=300 num_seed_frames=100 eval_every_frames=1000 num_eval_episodes=1 batch_size=8 "
        "replay_buffer_num_workers=0 replay_buffer_size=300 obs_type=state action_repeat=1 agent.hidden_dim=8 "
        "save_video=false save_train_video=false"
    ).split()
    for env_id in ("gymnasium:Pendulum-v1", "envpool:Pendulum-v1"):
        run(tmp_path / env_id[:3], f"env_id={env_id}", base=short)
        assert rows(tmp_path / env_id[:3], "eval")[-1]["episode_length"] == "200"
    with pytest.raises(SystemExit):
        run(tmp_path / "c", "env_id=envpool:CartPole-v1", base=short)
    assert "those of CartPole-v1 are discrete: use regime=ppo" in capsys.readouterr().err
