"""What a run's loop counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from drqv2.envs.info import Sums


@dataclass
class Progress:
    """What a run's loop counts; part of every snapshot."""

    step: int = 0  # agent steps so far
    episode: int = 0  # training episodes finished so far
    gradient_step: int = 0  # steps of the optimizers so far
    evaluations: int = 0
    last_eval_step: int = -1  # agent step of the newest evaluation, -1 before the first
    last_row_step: int = 0  # agent step of the newest row of train.csv
    last_return: float = float("nan")  # mean return of the newest evaluation
    best_return: float = float("-inf")  # greatest of these
    best_score: float = float("-inf")  # greatest score of an evaluation
    best_frame: int = -1  # where that was reached
    episode_steps: list[int] = field(default_factory=list)  # agent steps in each environment's current episode
    episode_rewards: list[float] = field(default_factory=list)  # sum of rewards in it
    episode_success: list[float | None] = field(default_factory=list)  # 1.0 once a step of it has succeeded
    episode_info: list[Sums] = field(default_factory=list)  # sums of the numbers in `info` over its steps
    seed_updates_done: bool = False  # whether the updates of the key `seed_updates` have been made
    updated_step: int = 0  # agent step up to which the updates that are due have been made
    updated_episode: int = 0  # training episodes at the newest of them
    evaluated_weights: list[int] = field(default_factory=list)  # frames of weights kept only for snapshot_keep_last
    filming: bool = False  # whether the current episode of the first environment is filmed

    epoch: int = 0  # epochs that have ended
    epoch_step: int = 0  # agent step at which the current one began
    epoch_gradient_step: int = 0  # gradient_step there
    epoch_episodes: int = 0  # training episodes that were logged since
    epoch_return_sum: float = 0.0  # of their returns
    epoch_length_sum: int = 0  # of their lengths, environment frames
    epoch_due: bool = False  # whether the current one ends here
    eval_wanted: bool = False  # whether a training return calls for an evaluation

    @classmethod
    def of(cls, environments: int) -> Progress:
        """Return the progress of a new run with so many environments."""
        n = environments
        return cls(
            episode_steps=[0] * n,
            episode_rewards=[0.0] * n,
            episode_success=[None] * n,
            episode_info=[{} for _ in range(n)],
        )

    def begin_epoch(self) -> None:
        """Reset the counters of the epoch."""
        self.epoch_step, self.epoch_gradient_step = self.step, self.gradient_step
        self.epoch_episodes, self.epoch_return_sum, self.epoch_length_sum = 0, 0.0, 0
        self.epoch_due = self.eval_wanted = False
