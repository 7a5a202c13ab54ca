"""The base class of every regime's Workspace: run directory, logs, signals, snapshots, summary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from omegaconf import DictConfig

from drqv2 import utils
from drqv2.agents.protocol import Agent
from drqv2.envs import notices
from drqv2.envs.handles import EnvHandle
from drqv2.errors import UserError
from drqv2.logging.usage import TimeShares
from drqv2.logging.video import VideoRecorder
from drqv2.replay.storage import ReplayBufferStorage
from drqv2.run import factory, objective
from drqv2.run.console import make_console
from drqv2.run.environments import task_names
from drqv2.run.epochs import Epochs
from drqv2.run.evaluation import evaluate
from drqv2.run.hooks import Hooks
from drqv2.run.progress import Progress
from drqv2.run.protocol import Closeable
from drqv2.run.snapshots import Snapshots
from drqv2.run.stats import EpochStats, EvalStats, RunSummary
from drqv2.run.turns import Turns
from drqv2.snapshot.checkpoints import Checkpoints
from drqv2.system import files, machine
from drqv2.system.signals import StopSignals


class BaseWorkspace:
    """A run in its directory, new or resumed. A regime's Workspace adds its components and its loop.

    A regime defines `setup`, `begin`, `train`, `save_snapshot` and `load_snapshot`, `eval` if its evaluations differ,
    and registers what it opens with `owns` and its predicates with `kept`. Usable as a context, which closes it.

    Args:
        cfg: the checked configuration, see docs/configuration.md.
        work_dir: the run's directory. If it holds a snapshot, the run is resumed from it.
        stop: knows whether the process was asked to stop.

    Attributes:
        phases: what the time is spent on, in the order of the dashboard.
        collect_phases: those of them that collect experience.
        update_phases: those of them that learn from it.
        length_key: the key that sets the length of the run.
        resources: what `close` closes, last opened first; `owns` adds to them.
        closed: whether the run has been closed.
        progress: what the loop counts.
        epoch: ends epochs and calls hooks.
        epoch_seconds: what the run had spent on each activity when the epoch began.
        turns: when the run trains, and with which random numbers.
        predicates: those whose state snapshots keep, by the names they were registered with.
        has_replay: whether the run's directory contains a replay, without which it cannot be resumed.
        tasks: names of the tasks; a single one, unless the regime has several.
        agent: made by `setup`, as are the next two.
        eval_envs: environments of evaluations.
        video_recorder: films them.
        replay_storage: made by `setup` where a regime learns from replay.
    """

    phases: tuple[str, ...] = ("evaluation", "snapshot")
    collect_phases: tuple[str, ...] = ()
    update_phases: tuple[str, ...] = ()
    length_key = "num_train_frames"
    train_until_step: utils.Until
    has_replay = True
    agent: Agent
    eval_envs: list[EnvHandle]
    video_recorder: VideoRecorder
    replay_storage: ReplayBufferStorage | None = None

    def __init__(self, cfg: DictConfig, work_dir: Path, stop: StopSignals | None = None) -> None:
        notices.forget()
        self.cfg, self.work_dir, self.stop = cfg, work_dir, stop or StopSignals(work_dir)
        self.device = machine.with_number(torch.device(cfg.device))
        self.tasks = task_names(cfg)
        # Reading a key of an OmegaConf configuration takes microseconds: those that every step needs are read once.
        self.action_repeat = int(cfg.action_repeat)
        self.progress = Progress.of(len(self.tasks) * cfg.num_envs)
        self.time_shares = TimeShares(*self.phases)
        self.console = make_console(self)
        self.predicates: dict[str, utils.Every] = {}
        self.epoch_seconds: dict[str, float] = {}
        self.epoch, self.turns = Epochs(self), Turns(self)
        self.resources, self.closed = ExitStack(), False
        self.lock = ExitStack()  # of the directory, released after `close`
        try:
            with self.turns.process_state():
                utils.set_seed_everywhere(cfg.seed)
                self.setup()
                self.logger = factory.make_logger(cfg, work_dir, self.console)  # `setup` has put the shapes into `cfg`
                self.owns(self.logger)
                self.checkpoints = Checkpoints(work_dir)
                self.owns(self.checkpoints)
                self.timer, self.snapshots = utils.Timer(), Snapshots(self)
                self.snapshots.start_or_resume()
        except BaseException:
            self.resources.close()
            raise
        self.timer.pause()
        self.time_shares.pause()

    def setup(self) -> None:
        """Make the environments, the agent and everything else that the loop needs, all of it new."""
        raise NotImplementedError

    def begin(self) -> None:
        """Start a new run: its first episodes."""
        raise NotImplementedError

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Train until the end of the run, or for a number of epochs.

        The loop is within `turns.taken()`, between `epoch.start` and `epoch.finish`, and leaves where
        `epoch.between_rounds` says so.

        Args:
            hooks: functions of yours that are called.
            epochs: that number; the last epoch of a run may be shorter.

        Raises:
            Stopped: the process was asked to stop, and a snapshot holds the run.
            NotFiniteError: a reward, a loss or a parameter is NaN or infinite.
        """
        raise NotImplementedError

    def eval(self) -> EvalStats:
        """Play num_eval_episodes without exploration; log their returns and film the first."""
        return evaluate(self, self.eval_envs, self.video_recorder)

    def save_snapshot(self) -> None:
        """Copy everything that the run needs to continue from this step; a thread writes it.

        Raises:
            NotFiniteError: a loss or a parameter is NaN or infinite; nothing is written.
        """
        raise NotImplementedError

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Restore the regime's own part of a snapshot; agent, progress and predicates are restored already.

        Raises:
            FileNotFoundError: files that the snapshot refers to are missing.
        """
        raise NotImplementedError

    def kept(self, name: str, predicate: utils.Every) -> utils.Every:
        """Return a predicate, whose state snapshots keep under this name."""
        self.predicates[name] = predicate
        return predicate

    def epochs(self, hooks: Hooks | None = None) -> Iterator[EpochStats]:
        """Train, epoch by epoch, until the end of the run; the last one may be shorter.

        Between epochs the run is paused: the time does not count, and what other code draws from the global random
        generators does not affect it. So several runs can take turns, as in `zip(a.epochs(), b.epochs())`. An iterator
        that is left early is continued by the next one.

        Args:
            hooks: functions of yours that are called.

        Raises:
            Stopped, NotFiniteError: as in `train`.
            UserError: another iterator over the run's epochs has taken over.
        """
        held = self.turns.revoke()
        with self.turns.shown():
            going = True
            while going:
                self.train(hooks, epochs=1)
                going = self.epoch.paused
                if self.epoch.last is not None:
                    yield self.epoch.last
                self.turns.require_newest(held)

    def reset(self) -> None:
        """Start over from frame 0 with the same seed; everything the run has written is deleted, videos too.

        Existing epoch iterators then raise UserError.

        Raises:
            UserError: the run cannot start over; nothing is deleted.
        """
        self.turns.require_open()
        self.require_beginning()
        self.close()
        files.remove_leftovers(self.work_dir)
        files.delete_run(self.work_dir)
        lock = self.lock
        try:
            with machine.on(self.device):
                type(self).__init__(self, self.cfg, self.work_dir, self.stop)
        finally:
            self.lock = lock

    def require_beginning(self) -> None:
        """Raise UserError if the run could not start over once its files are deleted."""
        if self.cfg.get("then") is not None:
            raise UserError(f"a run with then={self.cfg.then} has two parts: start a new one in another directory")
        if self.cfg.init_from and not Path(self.cfg.init_from).is_file():
            raise UserError(f"init_from={self.cfg.init_from}: the file no longer exists; the run cannot start over")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self.lock:
            if self.closed:
                return
            try:
                if self.epoch.paused and self.cfg.save_snapshot:  # the loop was left early
                    if not self.snapshots.is_current():
                        self.save_snapshot()
                    self.snapshots.finish()
            finally:
                self.close()

    @property
    def global_step(self) -> int:
        """Agent steps so far."""
        return self.progress.step

    @property
    def global_episode(self) -> int:
        """Training episodes finished so far."""
        return self.progress.episode

    @property
    def global_frame(self) -> int:
        """Environment frames so far."""
        return self.progress.step * self.action_repeat

    @cached_property
    def num_frames(self) -> int:
        """Environment frames of the whole run."""
        return int(self.cfg.num_train_frames)

    @property
    def frames_per_step(self) -> int:
        """Environment frames of an agent step, of all tasks."""
        return self.action_repeat

    @cached_property
    def round_steps(self) -> int:
        """Agent steps of a round of the loop."""
        return int(self.cfg.num_envs)

    def objective(self) -> float:
        """Return the run's value to a sweep: the column that the key `objective` names, or the regime's default.

        Raises:
            UserError: there is no such column.
        """
        name = self.cfg.objective
        return self.default_objective() if name is None else objective.value(name, self.work_dir)

    def default_objective(self) -> float:
        """Return the mean return of the last evaluation."""
        return self.progress.last_return

    def details(self) -> dict[str, str]:
        """Return further lines of a dashboard, by label, where a regime has some."""
        return {}

    def owns(self, *resources: Closeable) -> None:
        """Have `close` close these, before those registered earlier."""
        for one in resources:
            self.resources.callback(one.close)

    def owned(self, envs: list[EnvHandle]) -> list[EnvHandle]:
        """Return environments, which `close` closes."""
        self.owns(*envs)
        return envs

    def next_part(self) -> str:
        """Return the message to print when another regime takes over; empty otherwise."""
        return ""

    def close(self) -> None:
        """Finish the snapshot that is being written; close files, recorders, loaders and environments."""
        self.closed = True
        self.resources.close()
