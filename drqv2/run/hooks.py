"""Functions of your own that a run calls; docs/library.md is their contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drqv2.envs import ExtendedTimeStep
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

    docs/library.md has a table of them: when each is called, in which order, with what, and what it returns.
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

    def rewarded(self, time_step: ExtendedTimeStep) -> ExtendedTimeStep:
        """Return a time step with the reward to learn from; the first one of an episode has none."""
        if self.transform_reward is None or time_step.first():
            return time_step
        reward = transformed(self.transform_reward, np.asarray(time_step.reward, np.float32))
        return time_step._replace(reward=float(reward))
