"""A whole run of regime=multitask on scripted tasks in a second or two, and an agent that records what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import train
from drqv2.launch.command_line import launch

LONG, SHORT, SILENT = (f"gymnasium:tests.task_envs:{name}-v0" for name in ("Long", "Short", "Silent"))
# 120 steps of each task: 12 episodes of Long, 30 of Short, 17 of Silent.
TASKS = (
    "regime=multitask preset=debug obs_type=state frame_stack=1 action_repeat=1 num_train_frames=120 "
    "num_seed_frames=20 eval_every_frames=60 diagnostics_every_frames=50 replay_buffer_size=400 "
    "replay_buffer_num_workers=0 batch_size=9 snapshot_every_seconds=1000 snapshot_keep=0 agent.num_expl_steps=20 "
    "overlap=false precision=fp32 save_video=false save_train_video=false use_tb=false num_eval_episodes=2 console=off "
    "device=cpu agent.hidden_dim=8 agent.use_tb=true"
).split()


def tasks(*names: str) -> str:
    """Return the override that names tasks."""
    return f"tasks=[{','.join(names)}]"


ALL = tasks(LONG, SHORT, SILENT)


def run_tasks(run_dir: Path, *overrides: str) -> Path:
    """Run it in this process, with all three tasks unless others are named; return its directory."""
    named = [] if any(o.startswith(("tasks=", "regime=")) for o in overrides) else [ALL]
    launch(train.main, "cfgs", argv=[*TASKS, *named, f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


def episodes(run_dir: Path) -> list[dict[str, np.ndarray]]:
    """Return the stored episodes of a run, oldest first."""
    return [load_file(path) for path in sorted((run_dir / "buffer").glob("episode_*.safetensors"))]


class Recorder:
    """An agent that acts at random and records its updates."""

    made: list[Recorder] = []  # noqa: RUF012 (of all tests)

    def __init__(self, obs_shape: Any, action_shape: Any, device: Any, **_: Any) -> None:
        self.size = action_shape[0]
        self.generator = np.random.default_rng(0)
        self.steps: list[int] = []
        self.acted: list[tuple[int, int]] = []  # (step, task) outside evaluations
        Recorder.made.append(self)
        self.batches: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def train(self, training: bool = True) -> None:
        self.training = training

    def act(self, obs: np.ndarray, step: int, eval_mode: bool, task: int = 0) -> np.ndarray:
        if not eval_mode:
            self.acted.append((step, task))
        return self.generator.uniform(-1, 1, self.size).astype(np.float32)

    def update(self, replay_iter: Iterator[Any], step: int) -> dict[str, Any]:
        self.steps.append(step)
        self.batches.append([x.clone() for x in next(replay_iter)])
        return {}


class PlainRecorder(Recorder):
    """One that does not want to know the task."""

    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:  # type: ignore[override]
        return super().act(obs, step, eval_mode, 0)


RECORDER = "agent._target_=tests.task_run.Recorder"
