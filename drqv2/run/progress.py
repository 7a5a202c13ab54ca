"""The counters of a run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """What a run's loop counts; part of every snapshot.

    Attributes:
        step: agent steps so far.
        episode: training episodes finished so far.
        evaluations: so far.
        last_eval_step: agent step of the newest evaluation, -1 before the first.
        last_row_step: agent step of the newest row of train.csv.
        last_return: mean return of the newest evaluation, NaN before the first.
        best_return: greatest of these.
        episode_steps: agent steps in the current episode of each environment.
        episode_rewards: sum of rewards in it.
        filming: whether the current episode of the first environment is filmed.
    """

    step: int = 0
    episode: int = 0
    evaluations: int = 0
    last_eval_step: int = -1
    last_row_step: int = 0
    last_return: float = float("nan")
    best_return: float = float("-inf")
    episode_steps: list[int] = field(default_factory=list)
    episode_rewards: list[float] = field(default_factory=list)
    filming: bool = False
