"""The epochs of a run: where they end, their evaluations, hooks and statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from drqv2.errors import UserError
from drqv2.run import objective, summary
from drqv2.run.hooks import Hooks
from drqv2.run.progress import Progress
from drqv2.run.snapshots import Snapshots
from drqv2.run.stats import EpisodeStats, EpochStats, EvalStats, RunSummary, eval_stats
from drqv2.utils import Until


class Run(summary.Run, Protocol):
    """What the epochs of a run need of it."""

    snapshots: Snapshots
    train_until_step: Until
    length_key: str

    def eval(self) -> EvalStats:
        """Play num_eval_episodes without exploration; log their returns and film the first."""

    def save_snapshot(self) -> None:
        """Copy everything that the run needs to continue from this step; a thread writes it."""

    def next_part(self) -> str:
        """Return the message to print when another regime takes over; empty otherwise."""


class Epochs:
    """Ends the epochs of a run and calls its hooks.

    An epoch ends every `epoch_frames`, by default where an evaluation is due; where a training return calls for an
    evaluation; and at the end of the run.

    Args:
        run: the run.

    Attributes:
        hooks: those of the current loop.
        last: statistics of the newest epoch that has ended in the current loop.
        stopped: whether an evaluation was good enough to end the run.
        paused: whether the loop was left between two epochs.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.hooks, self.stopped, self.paused = run, Hooks(), False, False
        self.last: EpochStats | None = None
        self._over = False  # whether there was nothing to do
        self._left = math.inf  # epochs until the loop is left
        self._evaluated = False  # whether the evaluation at this step is done, and the epoch has not ended yet
        cfg = run.cfg
        self._interval = None if cfg.eval_every_frames is None else cfg.eval_every_frames // cfg.action_repeat
        self._stop_return: float | None = cfg.stop_return
        self._column = objective.ColumnCheck(cfg.objective)

    def start(self, hooks: Hooks, epochs: float = math.inf) -> None:
        """Start or resume with these hooks, for that many epochs; evaluate at the start of a run.

        Raises:
            UserError: hooks or keys would have no effect, or a hook has raised after an evaluation.
        """
        run, p = self.run, self.run.progress
        if self._evaluated:  # its epoch has not ended, and the newest snapshot is from before it
            raise UserError(
                f"a hook raised after the evaluation at frame {run.global_frame}; open the run again to repeat it"
            )
        self.hooks, self.stopped, self.paused, self.last, self._left = hooks, False, False, None, epochs
        self._require_sense()
        good_enough = reached(p, self._stop_return)
        self._over = good_enough or not run.train_until_step(p.step)
        if not run.train_until_step(p.step):
            reason = f"{run.length_key}={run.cfg[run.length_key]} reached; increase it to continue"
            if part := run.next_part():
                reason = f"{part}: make_workspace(compose(resume={str(run.work_dir)!r}))"
            print(f"nothing left to do: {reason}")
        elif good_enough:
            print(f"nothing left to do: stop_return={self._stop_return} reached; set another, or null, to continue")
        elif p.step == 0 and p.last_eval_step < 0 and self._interval is not None and run.cfg.eval_at_start:
            self._save_or_stop(now=True)
            self._evaluate(0)
            self._evaluated = False
        if not self._over:
            self.call("on_epoch_start", p.epoch + 1, p.step)

    def between_rounds(self, epoch_ends: bool, save: bool = False) -> bool:
        """Do what is due between two rounds of a loop, when no environment is stepping.

        An epoch may end: a snapshot, an evaluation, hooks. Then a snapshot may be due.

        Args:
            epoch_ends: whether the epoch ends here; it also ends where a training return triggers an evaluation.
            save: whether a snapshot is due in any case.

        Returns:
            Whether to leave the loop: all epochs asked for are done, or a return is good enough.

        Raises:
            Stopped: the process was asked to stop, and a snapshot holds the run.
        """
        p = self.run.progress
        if self._over:
            return True
        p.epoch_due |= epoch_ends and p.step not in (p.epoch_step, p.last_eval_step)
        if (p.epoch_due or p.eval_wanted) and p.step not in (p.epoch_step, p.last_eval_step):
            self.last = self.end()
            self._left -= 1
            if self.stopped or self._left <= 0:
                return True
            self.call("on_epoch_start", p.epoch + 1, p.step)
        self.call("on_step", p.step)
        self._save_or_stop(now=save)
        return False

    def _save_or_stop(self, now: bool = False) -> None:
        """Save a snapshot if one is due; raise Stopped if the process was asked to stop."""
        stopping = self.run.stop.requested  # asked once: a signal that comes later is for the next round
        self.run.snapshots.save_if_due(now)
        if stopping:
            self.run.stop.raise_if_requested()

    def finish(self) -> None:
        """End the last epoch of a run and save it, unless the loop was left between two epochs."""
        run, p = self.run, self.run.progress
        self.paused = run.train_until_step(p.step) and not self.stopped and not self._over
        if self.paused:
            return
        if self.unfinished():
            self.last = self.end()
        run.snapshots.save_if_due(now=True)
        run.snapshots.finish()

    def _require_sense(self) -> None:
        """Raise UserError if hooks or keys would have no effect."""
        if self.run.cfg.test_in_train and self._stop_return is None and self.hooks.stop is None:
            raise UserError("test_in_train=true: needs stop_return=NUMBER, a return that ends the run, or a stop hook")
        rules = {
            "eval_every_frames=null": ("before_eval", "score", "save_best", "stop") if self._interval is None else (),
            f"regime={self.run.cfg.regime}": () if self.run.collect_phases else ("transform_reward", "on_episode_end"),
        }
        for setting, names in rules.items():
            for name in names:
                if getattr(self.hooks, name) is not None:
                    raise UserError(f"the hook {name} is never called with {setting}")

    def unfinished(self) -> bool:
        """Return whether anything has happened since the last epoch ended, at the end of a run."""
        p = self.run.progress
        return p.step > p.epoch_step or (self._interval is not None and p.last_eval_step != p.step)

    def end(self) -> EpochStats:
        """Save, evaluate if due, and return the epoch's statistics.

        Raises:
            Stopped: the process was asked to stop; the epoch ends again after a resume.
        """
        run, p = self.run, self.run.progress
        evaluates = self._evaluation_due()
        run.snapshots.save_if_due(now=evaluates)  # a run stopped during an evaluation repeats all of it
        checkpoint = self.call("save_checkpoint", p.epoch + 1, p.step, p.gradient_step)
        if run.stop.requested:  # meanwhile
            self._save_or_stop()
        found = self._evaluate(p.epoch + 1) if evaluates else None
        evaluation, score, improved = found or (None, None, False)
        self.stopped = evaluation is not None and self._good_enough(evaluation)
        self._evaluated = False
        p.epoch += 1
        stats = EpochStats(
            index=p.epoch,
            env_step=p.step,
            frame=run.global_frame,
            gradient_step=p.gradient_step,
            episode=run.global_episode,
            collect=summary.collected(run),
            train=summary.trained(run),
            eval=evaluation,
            score=score,
            improved=improved,
            best_score=p.best_score,
            best_frame=p.best_frame,
            checkpoint=checkpoint,
            stopped=self.stopped,
        )
        if self.stopped and evaluation is not None:
            print(f"stopped at frame {run.global_frame}: the evaluation's return is {evaluation.return_mean:.1f}")
        p.begin_epoch()
        run.epoch_seconds = run.time_shares.seconds()
        return stats

    def _evaluation_due(self) -> bool:
        run, p = self.run, self.run.progress
        if self._interval is None:
            return False
        passed = p.step // self._interval > p.epoch_step // self._interval
        return run.cfg.epoch_frames is None or passed or p.eval_wanted or not run.train_until_step(p.step)

    def _evaluate(self, epoch: int) -> tuple[EvalStats, float, bool]:
        """Evaluate at the end of an epoch; return the evaluation, its score, and whether that is the best so far."""
        run, p = self.run, self.run.progress
        self.call("before_eval", epoch, p.step)
        stats = run.eval()
        self._evaluated = True
        self._column.after(run, stats)
        score = float(self.call("score", stats, default=stats.return_mean))
        if math.isnan(score):
            raise UserError(f"the hook score returned nan at frame {stats.frame}: must be a number, greater is better")
        improved = score > p.best_score
        if improved:
            p.best_score, p.best_frame = score, stats.frame
            if run.cfg.save_best:
                run.snapshots.save_best()
            self.call("save_best", stats)
        return stats, score, improved

    def _good_enough(self, stats: EvalStats) -> bool:
        reached = self._stop_return is not None and stats.return_mean >= self._stop_return
        return bool(self.call("stop", stats, default=False)) or reached

    def logged(self, episodes: Sequence[EpisodeStats], metrics: Mapping[str, float] | None = None) -> None:
        """Count the training episodes of a row; with test_in_train, decide whether they call for an evaluation.

        Args:
            episodes: those of the row.
            metrics: those of the row; by default, the means of return, length and success.
        """
        run, p = self.run, self.run.progress
        for episode in episodes:
            p.epoch_episodes += 1
            p.epoch_return_sum += episode.total
            p.epoch_length_sum += episode.length
        for episode in episodes:
            self.call("on_episode_end", episode)
        if run.cfg.test_in_train and episodes:
            metrics = _means(episodes) if metrics is None else metrics
            if "episode_reward" in metrics:  # absent where all of them belong to tasks that are not learnt
                returns = [episode.total for episode in episodes]
                p.eval_wanted |= self._good_enough(eval_stats(p.step, run.global_frame, returns, metrics))

    def call(self, name: str, *args: Any, default: Any = None) -> Any:
        """Return what a hook returns; `default` if there is none.

        Raises:
            Exception: the hook's own, once a snapshot is on disk.
        """
        hook = getattr(self.hooks, name)
        if hook is None:
            return default
        try:
            return hook(*args)
        except Exception as error:
            try:
                if self.run.cfg.save_snapshot and not self._evaluated:  # else a resume repeats the evaluation
                    self.run.save_snapshot()
                self.run.snapshots.finish()
            except UserError as other:
                error.add_note(f"There is no snapshot of this step: {other}")
            raise

    def summary(self) -> RunSummary:
        """Return the run's statistics so far."""
        return summary.summary(self.run, self.stopped or reached(self.run.progress, self._stop_return))


def reached(progress: Progress, stop_return: float | None) -> bool:
    """Return whether a run has ended by stop_return; the evaluation at its start does not count."""
    known = progress.epoch > 0 and progress.last_eval_step == progress.step
    return known and stop_return is not None and progress.last_return >= stop_return


def _means(episodes: Sequence[EpisodeStats]) -> dict[str, float]:
    returns, lengths, success = zip(*((e.total, e.length, e.success) for e in episodes), strict=True)
    means = {"episode_reward": float(np.mean(returns)), "episode_length": float(np.mean(lengths))}
    return means if None in success else means | {"success": float(np.mean(success))}
