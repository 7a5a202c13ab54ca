"""Runs that are killed again and again, and their comparison with a run that never was."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from drqv2.snapshot import file as snapshot
from drqv2.snapshot.inspection import fingerprint
from tests.short_run import IMPALA, IN_TURN, OFFLINE, PARTS, PPO, is_time, stored, stored_parts
from tests.task_run import ALL, TASKS

ROOT = Path(__file__).resolve().parents[2]
# Episodes of 60 frames; 100 of 480 transitions stay in the replay.
SHORT = (
    "preset=debug action_repeat=2 env._target_=tests.short_env.make image_size=32 render_size=32 num_train_frames=960 "
    "num_seed_frames=120 eval_every_frames=160 replay_buffer_size=100 replay_buffer_num_workers=0 batch_size=8 "
    "snapshot_every_seconds=0.1 diagnostics_every_frames=120 train_video_every_frames=120 agent.num_expl_steps=20 "
    "overlap=false precision=fp32"
).split()
_DRQV2 = {
    "plain": [],
    "1 worker": ["replay_buffer_num_workers=1"],
    "3 workers": ["replay_buffer_num_workers=3"],
    "overlap": ["overlap=true", "replay_buffer_num_workers=1"],
    "3 environments": ["num_envs=3", "replay_buffer_num_workers=1"],
    "2 evaluation environments": ["num_eval_envs=2", "num_eval_episodes=3"],
    "bf16": ["precision=bf16", "replay_buffer_num_workers=1", "overlap=true"],
    "compile": ["compile=true"],
    "parts": "obs_type=pixels+state cameras=[0,1] overlap=true replay_buffer_num_workers=1".split(),
    "all together": "num_envs=3 num_eval_envs=2 num_eval_episodes=3 replay_buffer_num_workers=3 precision=bf16".split(),
}
# Episodes of 10, 4 and 7 steps; 400 of 1800 transitions stay in the replay.
MULTITASK = [*TASKS, ALL]
MULTITASK += (
    "num_train_frames=600 eval_every_frames=120 snapshot_every_seconds=0.1 envs_per_task=2 num_eval_envs=2 "
    "overlap=true replay_buffer_num_workers=1 seed_updates=5 agent.value=hl_gauss agent.normalize_rewards=true "
    "save_video=true use_tb=true render_size=32 snapshot_keep_last=2 agent.critic=residual agent.critic_dim=8 "
    "agent.critic_heads=task agent.update_every_steps=1 updates_per_step=0.5 task_sampling=proportional"
).split()
SPQ = (
    "agent=spq agent.convolutions=patch agent.embed_dim=8 agent.model_warmup=5 replay_fading=0.99 replay_by_reward=0.5"
).split()
BOTH = "tasks=[gymnasium:tests.both_env:Both-v0,gymnasium:tests.both_env:Mirrored-v0]"
KILLED = "snapshot_every_seconds=0.1 save_video=true render_size=32 use_tb=true".split()
_OTHERS = {
    "PPO": [*PPO, *KILLED],
    "IMPALA": [*IMPALA, *IN_TURN, *KILLED],
    "actors": [*IMPALA, *KILLED, "total_timesteps=14400"],
    "multitask": MULTITASK,
    "offline": [*OFFLINE, *KILLED],
    "SPQ": [*SHORT, *SPQ, "num_envs=2", "overlap=true", "replay_buffer_num_workers=1"],
    "SPQ offline": [*OFFLINE, *SPQ, *KILLED],
    "PPO of parts": [*PPO, *KILLED, *PARTS, "env_id=null", "+env.discrete=true", "agent.encoder=impala"],
    "multitask of parts": [*MULTITASK, BOTH, "obs_type=pixels+state", "image_size=16"],
    "parts offline": [*OFFLINE, *KILLED, *PARTS],
}
_OVERRIDES = {mode: [*SHORT, *more] for mode, more in _DRQV2.items()} | _OTHERS
# What makes a run about half as long, where it is long; the replay still forgets.
_SHORTER = dict.fromkeys([*_DRQV2, "SPQ"], "num_train_frames=480")
_SHORTER["multitask of parts"] = "num_train_frames=360"
MODES = [mode for mode in _OVERRIDES if mode != "actors"]  # which give the same bits each time
BOUNDARIES = [
    *(f".pt: {at}" for at in ("begun", "written", "old one moved", "renamed")),
    *(f".safetensors: {at}" for at in ("begun", "written", "renamed")),
    *(f".csv: {at}" for at in ("begun", "written", "renamed", "row written")),
    *(f".yaml: {at}" for at in ("begun", "written", "renamed")),
    ".jsonl: row written",
    ".tfevents: row written",
]
_BEGUN = (b"replay: ", b"environments: ", b"| eval", b"resumed ")  # printed when a run is set up


def start(
    run_dir: Path, mode: str, boundary: str = "", count: int = 0, shorter: bool = False
) -> subprocess.Popen[bytes]:
    """Start or resume a run in a process of its own: by its overrides, every second time by `resume=`."""
    starts = run_dir / "starts.jsonl"
    if (run_dir / "config.yaml").exists() and starts.exists() and len(starts.read_text().splitlines()) % 2:
        argv = [f"resume={run_dir}"]
    else:
        made = stored_parts if mode.startswith("parts") else stored
        data = [f"data={made()}"] if mode.endswith("offline") else []
        length = [_SHORTER[mode]] if shorter and mode in _SHORTER else []
        argv = [*_OVERRIDES[mode], *data, *length, f"hydra.run.dir={run_dir}"]
    command = [sys.executable, "-m", "tests.faults.driver", boundary, str(count), *argv]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(run_dir: Path, mode: str, shorter: bool = False) -> str:
    """Let a run come to its end; return what it says."""
    process = start(run_dir, mode, shorter=shorter)
    words = process.communicate()[0].decode()
    assert process.returncode == 0, words
    assert "Traceback" not in words, words
    return words


def kill_at_random(run_dir: Path, mode: str, rng: random.Random, seconds: float = 4.0, shorter: bool = False) -> bool:
    """Kill a run some time after it has been set up, now and then before; return False if it had ended by then."""
    process = start(run_dir, mode, shorter=shorter)
    assert process.stdout is not None
    said = b""
    if rng.random() < 0.9:
        for line in process.stdout:
            said += line
            if line.startswith(_BEGUN):
                break
    time.sleep(rng.uniform(0.0, seconds))
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    said += process.communicate()[0]
    assert process.returncode in (0, -signal.SIGKILL), said.decode()
    return process.returncode != 0


def kill_at_boundary(run_dir: Path, mode: str, boundary: str, count: int, shorter: bool = False) -> bool:
    """Run until a boundary has been come to `count` times; return False if it ended before."""
    process = start(run_dir, mode, boundary, count, shorter)
    words = process.communicate()[0].decode()
    assert process.returncode in (0, -signal.SIGKILL), words
    return process.returncode != 0


def forked(pid: int) -> list[psutil.Process]:
    """Return the processes that a run's fork server has started: of regime=impala, the actors."""
    found: list[psutil.Process] = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # of a moment, such as an encoder of videos
            found += child.children()
    return found


def differences(a: Path, b: Path) -> list[str]:
    """Return what differs between two runs that have ended, the clock apart."""
    found = []
    ours, theirs = (snapshot.load(run_dir / "snapshot.pt") for run_dir in (a, b))
    for part in sorted(
        ours.keys() - {"config", "timer", "seconds", "logger", "gradient_norms", "needs", "needed_before"}
    ):
        if fingerprint(ours[part]) != fingerprint(theirs[part]):
            found.append(part)
    for path in sorted(b.glob("weights_*.pt")):  # a kill can cost a milestone, but not change one
        if (a / path.name).exists():
            milestones = [fingerprint(snapshot.load(run_dir / path.name)["agent"]) for run_dir in (a, b)]
            if milestones[0] != milestones[1]:
                found.append(path.name)
    for name in ("train.csv", "eval.csv"):
        if table(a / name) != table(b / name):
            found.append(name)
    if scalars(a) != scalars(b):
        found.append("TensorBoard")
    if json_lines(a) != json_lines(b):
        found.append("metrics.jsonl")
    # How many older ones are kept besides depends on when the snapshot before the newest was written.
    first = ours["replay_storage"]["first"] if "replay_storage" in ours else 0
    episodes = [
        {p.name: p.read_bytes() for p in run_dir.glob("buffer/episode_*.safetensors") if int(p.stem[8:]) >= first}
        for run_dir in (a, b)
    ]
    if episodes[0] != episodes[1]:
        found.append("episodes")
    left = [str(path) for path in b.rglob("*") if re.search(r"\.tmp$|^\.tmp-", path.name) or "quarantine" in str(path)]
    return found + left


def table(path: Path) -> list[list[str]]:
    """Return columns and rows of a CSV file, without what the clock says."""
    with open(path, newline="") as f:
        columns, *rows = csv.reader(f)
    kept = [i for i, name in enumerate(columns) if not is_time(name)]
    return [[row[i] for i in kept] for row in (columns, *rows)]


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Return TensorBoard's points of a run as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(run_dir / "tb"), {"scalars": 0})
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not is_time(tag)]
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in tags}


def json_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, without their times."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not is_time(k)} for line in lines]
