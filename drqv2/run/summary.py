"""The statistics of a run, and of its current epoch, from its counters and clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from drqv2.run import protocol
from drqv2.run.stats import CollectStats, RunSummary, TrainStats


class Run(protocol.Run, Protocol):
    """What statistics need of a run."""

    epoch_seconds: dict[str, float]
    collect_phases: tuple[str, ...]
    update_phases: tuple[str, ...]

    @property
    def frames_per_step(self) -> int:
        """Environment frames of an agent step, of all tasks."""


def _spent(run: Run, phases: Sequence[str], since: Mapping[str, float] | None = None) -> float:
    """Return the seconds spent on some activities, in the run or since the epoch began."""
    now = run.time_shares.seconds()
    return sum(now.get(name, 0.0) - (since or {}).get(name, 0.0) for name in phases)


def collected(run: Run) -> CollectStats:
    """Return the statistics of the epoch's collection."""
    p = run.progress
    steps, n = p.step - p.epoch_step, p.epoch_episodes
    seconds = _spent(run, run.collect_phases, run.epoch_seconds)
    both = seconds + _spent(run, run.update_phases, run.epoch_seconds)
    return CollectStats(
        env_steps=steps if run.collect_phases else 0,
        episodes=n,
        return_mean=p.epoch_return_sum / n if n else None,
        length_mean=p.epoch_length_sum / n if n else None,
        seconds=seconds,
        frames_per_second=steps * run.frames_per_step / max(both, 1e-9),
    )


def trained(run: Run) -> TrainStats:
    """Return the statistics of the epoch's updates."""
    seconds = _spent(run, run.update_phases, run.epoch_seconds)
    means, nonfinite = run.logger.recent()
    steps = run.progress.gradient_step - run.progress.epoch_gradient_step
    return TrainStats(
        gradient_steps=steps,
        losses={name: mean for name, mean in means.items() if "loss" in name},
        metrics=means,
        nonfinite=nonfinite,
        seconds=seconds,
        steps_per_second=steps / max(seconds, 1e-9),
    )


def summary(run: Run, stopped: bool) -> RunSummary:
    """Return the statistics of the run so far; `stopped`: whether an evaluation was good enough to end it."""
    p = run.progress
    update, train = _spent(run, run.update_phases), run.timer.total_time()
    return RunSummary(
        epochs=p.epoch,
        env_step=p.step,
        frame=run.global_frame,
        gradient_step=p.gradient_step,
        episode=run.global_episode,
        last_return=p.last_return,
        best_score=p.best_score,
        best_frame=p.best_frame,
        stopped=stopped,
        collect_seconds=_spent(run, run.collect_phases),
        update_seconds=update,
        evaluate_seconds=_spent(run, ["evaluation"]),
        train_seconds=train,
        frames_per_second=p.step * run.frames_per_step / max(train, 1e-9),
        gradient_steps_per_second=p.gradient_step / max(update, 1e-9),
    )
