"""A whole run of train.py in a few seconds, and what two runs that should be the same are compared by."""

from __future__ import annotations

import atexit
import csv
import functools
import re
import shutil
import tempfile
from pathlib import Path

import train
from drqv2.launch.command_line import launch
from drqv2.snapshot import file as snapshot
from tests.compare import assert_equal

ROOT = Path(__file__).resolve().parents[1]
# Eight episodes of 60 frames; 100 of 240 transitions stay in the replay. No OpenGL, videos, or TensorBoard.
SHORT = (
    "preset=debug action_repeat=2 env._target_=tests.dot_env.make image_size=32 render_size=32 num_train_frames=480 "
    "num_seed_frames=120 eval_every_frames=160 replay_buffer_size=100 replay_buffer_num_workers=0 batch_size=8 "
    "snapshot_every_seconds=1000 diagnostics_every_frames=120 agent.num_expl_steps=20 overlap=false precision=fp32 "
    "num_eval_episodes=2 save_video=false save_train_video=false use_tb=false agent.use_tb=true"
).split()
# With it, a rendered simulation, and everything that a run can write, as often as the clock says.
FULL = (
    "env._target_=tests.short_env.make snapshot_every_seconds=0.5 save_video=true save_train_video=true "
    "train_video_every_frames=120 use_tb=true"
).split()
# With it, observations that are a dict of an image and a vector.
PARTS = "env._target_=tests.both_env.make image_size=16 obs_type=pixels+state".split()
# Of regime=offline, with data=stored().
OFFLINE = (
    "regime=offline preset=debug action_repeat=2 env._target_=tests.dot_env.make render_size=32 "
    "num_train_frames=120 eval_every_frames=40 replay_buffer_num_workers=0 batch_size=8 "
    "snapshot_every_seconds=1000 log_every_frames=20 diagnostics_every_frames=40 overlap=false precision=fp32 "
    "num_eval_episodes=2 save_video=false use_tb=false agent.use_tb=true"
).split()
PPO = (
    "regime=ppo env_id=gymnasium:CartPole-v1 vector=serial num_envs=3 horizon=8 segments=6 minibatch_size=24 "
    "total_timesteps=960 eval_every_frames=200 num_eval_episodes=2 snapshot_every_seconds=1000 log_every_seconds=0 "
    "save_video=false use_tb=false agent.hidden_dim=8 agent.lstm=true agent.normalize_observations=true "
    "agent.normalize_rewards=true"
).split()
# Of regime=impala, with two actors in processes; with IN_TURN, one in turn with the learner.
IMPALA = (
    "regime=impala env_id=gymnasium:CartPole-v1 num_actors=2 num_envs=4 batch_size=4 unroll_length=12 "
    "total_timesteps=960 eval_every_frames=200 num_eval_episodes=2 snapshot_every_seconds=1000 log_every_seconds=0 "
    "save_video=false use_tb=false agent.hidden_dim=8 agent.lstm=true"
).split()
IN_TURN = "num_actors=1 num_envs=2 deterministic=true agent.normalize_observations=true".split()


def is_time(name: str) -> bool:
    """Return whether a column or a tag of the logs says what the clock said."""
    return re.search(r"(^|/)(fps|total_time|duration|SPS|uptime|performance[_/]\w+)$", name) is not None


def run(run_dir: Path, *overrides: str) -> Path:
    """Run it in this process; return its directory."""
    launch(train.main, "cfgs", argv=[*SHORT, f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


@functools.cache
def stored() -> Path:
    """Return the directory of such a run, made at the first call, whose replay holds all of its eight episodes."""
    folder = tempfile.mkdtemp(prefix="drqv2_stored_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return run(Path(folder) / "run", "replay_buffer_size=1000", "eval_every_frames=null")


@functools.cache
def stored_parts() -> Path:
    """Return the directory of a run like that of `stored`, whose observations are images and vectors."""
    folder = tempfile.mkdtemp(prefix="drqv2_stored_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return run(Path(folder) / "run", *PARTS, "replay_buffer_size=1000", "eval_every_frames=null")


def resume(run_dir: Path, *overrides: str) -> None:
    """Resume a run in this process."""
    launch(train.main, "cfgs", argv=[f"resume={run_dir}", *overrides])


def rows(run_dir: Path, name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without what the clock says."""
    with open(run_dir / f"{name}.csv", newline="") as f:
        return [{k: v for k, v in row.items() if not is_time(k)} for row in csv.DictReader(f)]


def assert_same(a: Path, b: Path) -> None:
    """Assert that two runs have ended with the same bits: logs, snapshots, and the episodes that these refer to."""
    for name in ("train", "eval"):
        assert rows(a, name) == rows(b, name)
    states = [snapshot.load(run_dir / "snapshot.pt") for run_dir in (a, b)]
    for state in states:
        for key in ("timer", "seconds", "logger", "config", "needed_before"):  # times, and what may differ
            state.pop(key)
    assert_equal(states[0], states[1])
    if "replay_storage" not in states[0]:
        return
    storage = states[0]["replay_storage"]
    for number in range(storage["first"], storage["first"] + len(storage["lengths"])):
        name = f"buffer/episode_{number:08}.safetensors"
        assert (a / name).read_bytes() == (b / name).read_bytes()
