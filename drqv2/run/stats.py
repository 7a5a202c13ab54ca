"""Statistics of episodes, of an epoch and of a run: frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drqv2.envs import ExtendedTimeStep, info


class EpisodeResult(NamedTuple):
    """The result of an episode.

    Attributes:
        total: its return.
        steps: its length, agent steps.
        success: 1.0 if a step of it succeeded, 0.0 if none did, None where the environment does not say.
        info: sums of the numbers in `info` over its steps; None without any.
    """

    total: float = 0.0
    steps: int = -1
    success: float | None = None
    info: info.Sums | None = None

    def after(self, time_step: ExtendedTimeStep) -> EpisodeResult:
        """Return the result with one more time step; `info` is changed in place."""
        success = self.success if time_step.success is None else max(time_step.success, self.success or 0.0)
        sums = self.info
        if time_step.info:
            info.add(sums := {} if sums is None else sums, time_step.info)
        return EpisodeResult(self.total + time_step.reward, self.steps + 1, success, sums)

    def metrics(self, action_repeat: int) -> dict[str, float]:
        """Return return, length in environment frames, success where there is one, and numbers in `info`, by name."""
        found = {"episode_reward": self.total, "episode_length": self.steps * action_repeat, "success": self.success}
        found |= info.metrics(self.info or {})
        return {name: float(value) for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class EpisodeStats:
    """A finished training episode.

    Attributes:
        env_step: agent steps of the run when it was logged.
        task: index of its task, 0 where there is one.
        total: its return, of the environment's own rewards.
        length: environment frames.
        success: 1.0 if a step of it succeeded, else 0.0; None where the environment does not report it.
    """

    env_step: int
    task: int
    total: float
    length: int
    success: float | None = None

    @classmethod
    def of(cls, env_step: int, result: EpisodeResult, action_repeat: int, task: int = 0) -> EpisodeStats:
        """Return the statistics of an `EpisodeResult`."""
        return cls(env_step, task, result.total, result.steps * action_repeat, result.success)


@dataclass(frozen=True)
class EvalStats:
    """An evaluation; or the episodes of a row, where a training return may call for one (`test_in_train`).

    Attributes:
        env_step: agent steps of the run.
        frame: environment frames of the run.
        episodes: how many were played.
        return_mean: mean of their returns; of several tasks, the mean over those that are learnt.
        return_std: standard deviation of all returns.
        return_min: least return.
        return_max: greatest return.
        length_mean: mean length, environment frames.
        success: share of episodes with a successful step; None where the environment does not report it.
        metrics: the metrics of the row in eval.csv, by name; with several tasks, those of each.
        seconds: how long it took.
    """

    env_step: int
    frame: int
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    success: float | None
    metrics: Mapping[str, float]
    seconds: float


@dataclass(frozen=True)
class CollectStats:
    """Statistics of an epoch's collection.

    Attributes:
        env_steps: agent steps.
        episodes: training episodes that were logged.
        return_mean: their mean return; None if there are none.
        length_mean: their mean length, environment frames; None if there are none.
        seconds: spent on stepping environments and choosing actions, or on waiting for actors.
        frames_per_second: environment frames over all seconds of collecting and updating.
    """

    env_steps: int
    episodes: int
    return_mean: float | None
    length_mean: float | None
    seconds: float
    frames_per_second: float


@dataclass(frozen=True)
class TrainStats:
    """Statistics of an epoch's updates.

    Attributes:
        gradient_steps: steps of the optimizers.
        losses: means of the last 100 finite values of each metric of the agent's updates with `loss` in its name.
        metrics: the same of all its metrics.
        nonfinite: for each metric with such values, how many were NaN or infinite since the run began.
        seconds: spent on updates and on waiting for batches.
        steps_per_second: gradient steps over these.
    """

    gradient_steps: int
    losses: Mapping[str, float]
    metrics: Mapping[str, float]
    nonfinite: Mapping[str, int]
    seconds: float
    steps_per_second: float


@dataclass(frozen=True)
class EpochStats:
    """An epoch, with the evaluation at its end.

    Attributes:
        index: number of the epoch, from 1.
        env_step: agent steps of the run.
        frame: environment frames of the run.
        gradient_step: steps of the optimizers in the run.
        episode: training episodes of the run.
        collect: statistics of its collection.
        train: statistics of its updates.
        eval: the evaluation; None if there was none.
        score: the number by which evaluations are compared; None without an evaluation.
        improved: whether it is greater than every earlier one.
        best_score: the greatest so far; -inf before the first evaluation.
        best_frame: where that was reached; -1 before the first evaluation.
        checkpoint: what the hook `save_checkpoint` returned.
        stopped: whether the run ends here because the evaluation was good enough.
    """

    index: int
    env_step: int
    frame: int
    gradient_step: int
    episode: int
    collect: CollectStats
    train: TrainStats
    eval: EvalStats | None
    score: float | None
    improved: bool
    best_score: float
    best_frame: int
    checkpoint: str | Path | None
    stopped: bool


@dataclass(frozen=True)
class RunSummary:
    """Statistics of a run so far.

    Attributes:
        epochs: how many have ended.
        env_step: agent steps.
        frame: environment frames.
        gradient_step: steps of the optimizers.
        episode: training episodes.
        last_return: mean return of the last evaluation; NaN without one.
        best_score: greatest score of an evaluation; -inf without one.
        best_frame: where that was reached; -1 without one.
        stopped: whether it ended because an evaluation was good enough.
        collect_seconds: spent on stepping environments and choosing actions, or on waiting for actors.
        update_seconds: spent on updates and on waiting for batches.
        evaluate_seconds: spent on evaluations.
        train_seconds: of training, evaluations left out.
        frames_per_second: environment frames over these.
        gradient_steps_per_second: gradient steps over the seconds of updates.
    """

    epochs: int
    env_step: int
    frame: int
    gradient_step: int
    episode: int
    last_return: float
    best_score: float
    best_frame: int
    stopped: bool
    collect_seconds: float
    update_seconds: float
    evaluate_seconds: float
    train_seconds: float
    frames_per_second: float
    gradient_steps_per_second: float


def eval_stats(
    env_step: int, frame: int, returns: Sequence[float], metrics: Mapping[str, float], seconds: float = 0.0
) -> EvalStats:
    """Return the statistics of episodes from their returns and the metrics of their row in the log."""
    return EvalStats(
        env_step=env_step,
        frame=frame,
        episodes=len(returns),
        return_mean=metrics["episode_reward"],
        return_std=float(np.std(returns)),
        return_min=float(np.min(returns)),
        return_max=float(np.max(returns)),
        length_mean=metrics["episode_length"],
        success=metrics.get("success"),
        metrics=dict(metrics),
        seconds=seconds,
    )
