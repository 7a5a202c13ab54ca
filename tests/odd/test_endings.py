"""Episodes without an end: cut off where that is wished, and said where it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from safetensors.numpy import load_file

import train
from drqv2 import utils
from drqv2.config.cfgs import CFGS
from drqv2.envs import make, notices
from drqv2.launch.command_line import launch
from drqv2.launch.compose import compose
from drqv2.rollout.unroll import Unroller, rollout_layout
from drqv2.run import environments
from drqv2.run.environments import make_envs, make_vector
from tests.odd.interfaces import Endless
from tests.short_run import resume, rows

ROOT = Path(__file__).parents[2]


def lengths(env: Any, episodes: int) -> list[tuple[int, float]]:
    """Return agent steps and last discount of episodes."""
    found = []
    for _ in range(episodes):
        time_step, steps = env.reset(), 0
        while not time_step.last():
            time_step, steps = env.step(env.action_spec().generate_value()), steps + 1
        found.append((steps, time_step.discount))
    return found


def test_an_episode_is_truncated_and_bootstrapped() -> None:
    env = make("own", 1, 2, 1, factory=Endless, obs_type="state", max_episode_steps=7)
    assert lengths(env, 2) == [(7, 1.0), (7, 1.0)]
    assert env.step(env.action_spec().generate_value()).first()
    state = env.state()
    assert env.restore(state).first()


def test_a_lower_limit_holds_from_a_resume_on() -> None:
    env = make("own", 1, 1, 1, factory=Endless, obs_type="state")
    env.reset()
    for _ in range(9):
        env.step(np.zeros(2))
    limited = make("own", 1, 1, 1, factory=Endless, obs_type="state", max_episode_steps=4)
    assert limited.restore(env.state()).last()
    assert limited.step(np.zeros(2)).first()


@pytest.mark.slow
def test_a_resume_with_a_lower_limit_keeps_what_was_collected(tmp_path) -> None:
    run_dir = tmp_path / "run"
    settings = "env._target_=tests.odd.interfaces.Endless obs_type=state action_repeat=1 num_train_frames=1300 "
    settings += "num_seed_frames=3000 eval_every_frames=null overlap=false device=cpu save_video=false use_tb=false "
    settings += f"save_train_video=false replay_buffer_num_workers=0 num_envs=2 hydra.run.dir={run_dir}"
    launch(train.main, "cfgs", argv=settings.split())
    assert not (run_dir / "train.csv").exists()  # no episode has ended
    resume(run_dir, "max_episode_steps=100", "resume_force=true", "num_train_frames=1500")
    first = rows(run_dir, "train")[:2]
    assert [float(row["episode_length"]) for row in first] == [650, 650]
    assert [float(row["buffer_size"]) for row in first] == [1300, 1300]
    arrays = load_file(run_dir / "buffer/episode_00000000.safetensors")
    assert arrays["observation"][:, 0].tolist() == list(range(651))
    assert arrays["reward"].tolist()[1:] == arrays["discount"].tolist()[1:] == [[1.0]] * 650


@pytest.mark.parametrize("steps", [3, 140])
def test_it_replaces_the_time_limit_of_a_task(steps) -> None:
    env = make("cartpole_balance", 1, 8, 1, obs_type="state", max_episode_steps=steps)  # else 125 steps
    assert lengths(env, 1) == [(steps, 1.0)]


def configured(*overrides: str) -> DictConfig:
    cfg = compose("regime=ppo", "num_envs=2", "obs_type=state", "num_eval_envs=1", *overrides)
    cfg.device = "cpu"
    return cfg


@pytest.mark.parametrize("env_id", ["gymnasium:MountainCar-v0", "envpool:MountainCar-v0"])
@pytest.mark.parametrize("steps", [5, 230])
def test_it_replaces_the_limit_of_other_libraries(env_id, steps) -> None:
    cfg = configured(f"env_id={env_id}", f"max_episode_steps={steps}", "vector=auto", "overlap=false")  # else 200
    (env,) = make_envs(cfg, utils.EVAL_ENV)
    env.call("reset")
    for t in range(1, steps + 1):
        time_step = env.call("step", np.int64(1))
        assert time_step.last() == (t == steps)
    assert time_step.discount == 1.0
    env.close()
    vector = make_vector(cfg, 0)
    vector.reset()
    for t in range(1, steps + 1):
        step = vector.step(np.ones(2, np.int64))
        assert step.truncated.tolist() == [t == steps] * 2
    vector.close()


def told(caplog: Any, **options: Any) -> list[str]:
    """Return the notices of the same 12 steps, played twice: by steps, and by a resume."""
    notices.forget()
    caplog.clear()
    env = make("own", 1, 1, 1, factory=Endless, obs_type="state", long_episode=5, **options)
    env.reset()
    for t in range(12):
        env.step(np.zeros(2))
        assert len(caplog.records) <= (t >= 4)
    played = [record.getMessage() for record in caplog.records]
    notices.forget()
    env.restore(env.state())
    env.step(np.zeros(2))
    assert len(caplog.records) == len(played)
    return played


@pytest.mark.parametrize(
    ("overrides", "help_"),
    [
        ("env_id=envpool:Pendulum-v1", "resume it with max_episode_steps=N"),
        ("env._target_=tests.walk_env.vector +env.longest=100000", "truncate episodes, do so in your function"),
    ],
)
def test_a_vector_tells_of_a_long_episode_too(overrides, help_, caplog) -> None:
    notices.forget()
    env = make_vector(configured(*overrides.split()), 0)
    assert env.long_episode == 10_000
    env.long_episode = 12
    action = np.zeros((2, *env.action_spec().shape), np.float32)
    unroller = Unroller(env, lambda obs, *_: (torch.from_numpy(action), torch.zeros(2), None), None)
    rollout = {name: np.zeros(shape, dtype) for name, (shape, dtype) in rollout_layout(env, None, 6).items()}
    unroller.start(env.reset())
    for times in (0, 1, 1):
        unroller.fill(rollout)
        assert caplog.text.count("an episode has not ended after 12 agent steps. Its return is logged once") == times
    assert help_ in caplog.text
    env.close()


def test_a_long_episode_is_told_of_once_with_the_key_that_helps(caplog) -> None:
    (line,) = told(caplog)
    assert "an episode has not ended after 5 agent steps. max_episode_steps=N truncates episodes." in line
    assert told(caplog, max_episode_steps=7) == told(caplog, max_episode_steps=100) == []


WAITS = "DrQ-v2 learns from it once it has ended. To truncate episodes, stop the run and resume it with"


@pytest.mark.parametrize(
    ("regime", "stream", "words"),
    [
        ("drqv2", utils.TRAIN_ENV, WAITS),
        ("ppo", utils.TRAIN_ENV, "Its return is logged once it has ended. To truncate episodes, stop the run and"),
        ("impala", utils.TRAIN_ENV, "Its return is logged once it has ended. To truncate episodes, stop the run and"),
        ("ppo", utils.EVAL_ENV, "The evaluation waits for its end. To truncate episodes, stop the run and resume it"),
    ],
)
def test_it_says_what_waits_in_this_regime(caplog, monkeypatch, regime, stream, words) -> None:
    notices.forget()
    monkeypatch.setattr(environments, "LONG_EPISODE", 5)
    own = "env._target_=tests.odd.interfaces.Endless", "obs_type=state", "overlap=false", "num_eval_envs=1"
    cfg = compose(f"regime={regime}", "num_envs=1", *own, *["num_actors=1"] * (regime == "impala"))
    (env,) = make_envs(cfg, stream)
    env.call("reset")
    for _ in range(6):
        env.call("step", np.zeros(2))
    assert [words in record.getMessage() for record in caplog.records] == [True]


def test_half_of_a_longer_run_is_long() -> None:
    own = ["env._target_=tests.odd.interfaces.Endless", "obs_type=state", "action_repeat=2"]

    def steps(*overrides: str) -> int:
        return environments._long_episode(compose(*overrides, *own), "own")

    assert steps("num_train_frames=5000") == 1250
    assert steps("num_train_frames=1e6") == 10_000
    assert steps("num_train_frames=64") == 1000
    assert steps("regime=ppo", "total_timesteps=48000", "num_envs=10") == 2400


@pytest.mark.slow
def test_a_run_whose_episodes_never_end_says_so_and_that_it_has_learnt_nothing(tmp_path) -> None:
    command = [sys.executable, "train.py", "env._target_=tests.odd.interfaces.Endless", "obs_type=state"]
    command += ["action_repeat=1", "num_train_frames=1500", "num_seed_frames=10", "eval_every_frames=null"]
    command += ["save_video=false", "save_train_video=false", "use_tb=false", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert output.count("an episode has not ended after 1000 agent steps") == 1
    assert "the agent has never learnt: no episode has ended" in output
    assert "raise num_train_frames=1500 or set max_episode_steps=N" in output
    assert output.count("max_episode_steps=N") == 2
    files = sorted(path.name for path in (tmp_path / "run/buffer").iterdir())
    assert files == ["unfinished_00000000_000000.safetensors", "unfinished_00000000_000001.safetensors"]


def test_the_keys_are_documented() -> None:
    page = (CFGS.parent / "docs/configuration.md").read_text()
    for key in ("max_episode_steps", "image_key", "channels", "render"):
        assert f"| `{key}` |" in page
