"""Functions of your own that a run calls; docs/library.md has the order of the calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drqv2.errors import UserError
from drqv2.run.stats import EpisodeStats, EvalStats


def transformed(transform: Callable[[np.ndarray], np.ndarray] | None, rewards: np.ndarray) -> np.ndarray:
    """Return the rewards to learn from, float32 as the environment's own.

    Raises:
        UserError: the hook `transform_reward` returned another shape, or values that are not finite.
    """
    if transform is None:
        return rewards
    made = np.asarray(transform(rewards), np.float32)
    if made.shape != rewards.shape or not np.isfinite(made).all():
        told = f"shape {made.shape}" if made.shape != rewards.shape else "values that are not finite"
        raise UserError(f"the hook transform_reward returned {told} for rewards of shape {rewards.shape}")
    return made


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What a run calls, each of them optional.

    A hook that raises ends the run with its own exception, once a snapshot of that step is on disk, or, after
    `transform_reward`, which is called within a step, the newest before it.
    Snapshots do not include what your hooks remember.

    Attributes:
        on_epoch_start: called with (epoch, env_step) where an epoch begins, and where a resumed run continues one.
        on_step: called with (env_step) before each round of environment steps, or before each update of regime=ppo,
            regime=impala and regime=offline.
        on_episode_end: called with each training episode when it is logged or, in regime=ppo and regime=impala, when
            the learner gets it.
        save_checkpoint: called with (epoch, env_step, gradient_step) where an epoch ends, before the evaluation;
            returns a path, which `EpochStats` holds.
        before_eval: called with (epoch, env_step) before an evaluation; 0 is the one before the first epoch.
        score: maps an evaluation to the number by which evaluations are compared; by default its mean return.
        save_best: called with an evaluation whose score is greater than each before.
        stop: whether an evaluation is good enough to end the run. Not called for the one before the first epoch.
        transform_reward: maps rewards of any shape, a float32 array, to those that the agent learns from, of the same
            shape. Returns in the logs are those of the environment's own rewards.
    """

    on_epoch_start: Callable[[int, int], None] | None = None
    on_step: Callable[[int], None] | None = None
    on_episode_end: Callable[[EpisodeStats], None] | None = None
    save_checkpoint: Callable[[int, int, int], str | Path] | None = None
    before_eval: Callable[[int, int], None] | None = None
    score: Callable[[EvalStats], float] | None = None
    save_best: Callable[[EvalStats], None] | None = None
    stop: Callable[[EvalStats], bool] | None = None
    transform_reward: Callable[[np.ndarray], np.ndarray] | None = None
