"""The snapshots of a run: when they are saved, what every regime's state consists of, and how it is restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from drqv2 import utils
from drqv2.errors import UserError
from drqv2.logging.diagnostics import gradient_norms
from drqv2.replay.storage import ReplayBufferStorage
from drqv2.run import protocol
from drqv2.run.finite import require_finite
from drqv2.run.progress import Progress
from drqv2.run.turns import Turns
from drqv2.snapshot import agent_state, agent_weights, rng
from drqv2.snapshot.checkpoints import Checkpoints
from drqv2.snapshot.resume import changed_keys
from drqv2.system import files


class Run(protocol.Run, Protocol):
    """What the snapshots of a run need of it."""

    checkpoints: Checkpoints
    turns: Turns
    predicates: dict[str, utils.Every]
    epoch_seconds: dict[str, float]
    replay_storage: ReplayBufferStorage | None

    @property
    def round_steps(self) -> int:
        """Agent steps from one point of the loop at which a snapshot can be saved to the next."""

    def begin(self) -> None:
        """Start a new run: its first episodes."""

    def save_snapshot(self) -> None:
        """Copy everything that the run needs to continue from this step; a thread writes it."""

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Restore the regime's own part of a snapshot."""


class Snapshots:
    """Saves a run and restores it.

    Args:
        run: the run.

    Attributes:
        gradient_norms: those of the last update before a resume.
        step: agent step of the newest snapshot that this process has saved or restored; -1 before it.
    """

    def __init__(self, run: Run) -> None:
        self.run, cfg = run, run.cfg
        self._saves, self._save_every, self._keep = cfg.save_snapshot, cfg.snapshot_every_seconds, cfg.snapshot_keep
        self.gradient_norms: dict[str, float] = {}
        self.step = -1
        self._saved_at = float("-inf")  # seconds of training at the newest snapshot
        self._milestone_step = -1  # agent step of the newest milestone that this process has saved
        self._milestone = False  # whether the next `save` keeps the weights, too
        self._outdated: Sequence[int] = ()  # frames of those that it deletes

    def start_or_resume(self) -> None:
        """Resume the run from the newest snapshot in its directory; start it if there is none."""
        run = self.run
        if self._saves:
            agent_state.capture(run.agent, warn=True)
        saved = run.checkpoints.load()
        if saved is None:
            if run.cfg.init_from:
                agent_weights.init_weights(run.agent, Path(run.cfg.init_from), run.cfg.init_parts)
            self.store_config()
            run.begin()
        else:
            self.restore(saved)
            seconds = f"{saved['timer']:.0f} s of training"
            print(f"resumed {run.work_dir} at frame {run.global_frame} (episode {run.global_episode}, {seconds})")

    def save_if_due(self, now: bool = False) -> None:
        """Save if the interval has passed, at a milestone, when asked to stop, or `now`.

        `now` is set before an evaluation, whose weights `snapshot_keep_last` counts.
        """
        run, step = self.run, self.run.global_step
        since = run.timer.total_time() - self._saved_at
        due = since >= self._save_every and not run.checkpoints.busy
        milestone = self._is_milestone(step)
        kept = milestone or (now and run.cfg.snapshot_keep_last != 0)
        kept &= self._milestone_step != step  # it may come before and after an evaluation
        if self._saves and (now or kept or due or run.stop.requested):
            self._milestone, self._outdated = kept, self._count_outdated() if kept and not milestone and step else ()
            run.save_snapshot()

    def _count_outdated(self) -> list[int]:
        """Count the weights of this step among those of evaluations; return the frames of the oldest, now too many."""
        frames, last = self.run.progress.evaluated_weights, self.run.cfg.snapshot_keep_last
        if self.run.global_frame not in frames:  # a run that was stopped during the evaluation has counted them
            frames.append(self.run.global_frame)
        outdated: list[int] = frames[:-last] if last > 0 else []
        del frames[: len(outdated)]
        return outdated

    def _is_milestone(self, step: int) -> bool:
        """Return whether the weights of an agent step are among the evenly spaced ones."""
        steps = self.run.num_frames // self.run.action_repeat

        def passed(step: int) -> int:
            return int(self._keep * step // steps)

        return passed(step) > passed(step - self.run.round_steps)

    def save(self, needs: int = 0, **own: Any) -> None:
        """Copy everything that the run needs to continue from this step; a thread writes it.

        Args:
            needs: the oldest episode of the replay that the regime's own state refers to.
            own: that state: tensors, numbers, strings, None and containers of them.

        Raises:
            NotFiniteError: a loss or a parameter is NaN or infinite; nothing is written.
        """
        run, milestone, outdated = self.run, self._milestone, self._outdated
        self._milestone, self._outdated = False, ()
        with run.time_shares.spent_on("snapshot"):
            require_finite(run)
            self._saved_at, self.step, self._epoch = run.timer.total_time(), run.global_step, run.progress.epoch
            state = {
                "frame": run.global_frame,
                "config": OmegaConf.to_container(run.cfg, resolve=True),
                "progress": asdict(run.progress),
                "last_steps": {name: predicate.last_step for name, predicate in run.predicates.items()},
                "timer": run.timer.total_time(),
                "seconds": {"run": run.time_shares.seconds(), "epoch": run.epoch_seconds},
                "agent": agent_state.capture(run.agent),
                "rng": run.turns.rng_state or rng.rng_state(),
                "logger": run.logger.state_dict(),
                "gradient_norms": self.last_gradient_norms(),
                "needs": needs,
                **own,
            }
            run.checkpoints.save(state, milestone, outdated)
            self._milestone_step = run.global_step if milestone else self._milestone_step
            self._pin_replay()

    def save_best(self) -> None:
        """Write the agent's weights to best.pt, in the form of weights_FRAME.pt."""
        run = self.run
        config: Any = OmegaConf.to_container(run.cfg, resolve=True)
        run.checkpoints.save_best(run.global_frame, config, agent_state.capture(run.agent))

    def last_gradient_norms(self) -> dict[str, float]:
        """Return the gradient norms of the last update; a snapshot keeps them, though not the gradients."""
        return self.gradient_norms | {name: float(norm) for name, norm in gradient_norms(self.run.agent).items()}

    def is_current(self) -> bool:
        """Return whether the newest snapshot is up to date, the end of the last epoch included."""
        return self.step == self.run.global_step and self._epoch == self.run.progress.epoch

    def finish(self) -> None:
        """Wait for the last snapshot of the run, or of this process.

        Raises:
            DiskError: it cannot be written.
        """
        self.run.checkpoints.wait(last=True)
        self._pin_replay()

    def _pin_replay(self) -> None:
        if self.run.replay_storage is not None:
            self.run.replay_storage.pin("snapshots", self.run.checkpoints.needed)

    def store_config(self, resume_force: bool = False) -> None:
        """Write the configuration that `resume=` composes from."""
        path = self.run.work_dir / "config.yaml"
        text = OmegaConf.to_yaml(OmegaConf.merge(self.run.cfg, {"resume_force": resume_force}))
        files.retry_on_full_disk(lambda: files.write_atomically(path, text.encode()), str(path))

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore the run from a snapshot, under a configuration that may differ.

        Raises:
            UserError: it differs in what cannot change, or files that the snapshot refers to are missing.
        """
        run = self.run
        resolved: Any = OmegaConf.to_container(run.cfg, resolve=True)
        changed = changed_keys(saved["config"], resolved, run.work_dir)
        agent_weights.restore_agent(run.agent, saved["agent"], changed, run.work_dir)
        run.progress = Progress(**saved["progress"])
        run.time_shares.add(saved["seconds"]["run"])
        run.epoch_seconds = saved["seconds"]["epoch"]
        for name, predicate in run.predicates.items():
            predicate.last_step = saved["last_steps"].get(name)
        try:
            run.load_snapshot(saved)
        except FileNotFoundError as e:
            raise UserError(f"{e}: the run cannot be resumed") from e
        run.logger.load_state_dict(saved["logger"])
        self.gradient_norms = saved["gradient_norms"]
        run.timer = utils.Timer(saved["timer"])
        self._saved_at, self.step, self._epoch = saved["timer"], run.global_step, run.progress.epoch
        rng.set_rng_state(saved["rng"])
        self._keep_changes(changed)

    def _keep_changes(self, changed: dict[str, Any]) -> None:
        """Make changed keys the run's own; otherwise they would be refused again after a kill."""
        cfg = self.run.cfg
        forced = bool(changed) and cfg.resume_force
        if changed and cfg.save_snapshot:
            self.store_config(resume_force=forced)  # until the snapshot holds them, too
            self.run.save_snapshot()
            self.finish()
        if changed or cfg.resume_force:
            self.store_config(resume_force=forced and not cfg.save_snapshot)
