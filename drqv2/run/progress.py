"""What a run's loop counts."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """What a run's loop counts; part of every snapshot."""

    step: int = 0  # agent steps so far
    episode: int = 0  # training episodes finished so far
    evaluations: int = 0
    last_eval_step: int = -1  # agent step of the newest evaluation, -1 before the first
    last_row_step: int = 0  # agent step of the newest row of train.csv
    last_return: float = float("nan")  # mean return of the newest evaluation
    best_return: float = float("-inf")  # greatest of these
    episode_steps: list[int] = field(default_factory=list)  # agent steps in each environment's current episode
    episode_rewards: list[float] = field(default_factory=list)  # sum of rewards in it
    episode_success: list[float | None] = field(default_factory=list)  # 1.0 once a step of it has succeeded
    seed_updates_done: bool = False  # whether the updates at once after the seed frames have been made
    evaluated_weights: list[int] = field(default_factory=list)  # frames of weights kept for snapshot_keep_last alone
    filming: bool = False  # whether the current episode of the first environment is filmed
