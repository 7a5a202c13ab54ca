"""Which updates of an agent that learns from replay are due."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from omegaconf import DictConfig

from drqv2.agents.protocol import Agent
from drqv2.run.progress import Progress


class Updates:
    """Counts the updates that fall due as agent steps pass.

    Args:
        cfg: `updates_per_step`, on average; with `steps_per_collect` or `episodes_per_collect`, updates wait until that
            many have been collected; `seed_updates` the first time.
        agent: its `update_every_steps` says at which steps an update learns.
    """

    def __init__(self, cfg: DictConfig, agent: Agent) -> None:
        self._per_step = Fraction(str(cfg.updates_per_step))  # 0.1 is a tenth, not the nearest float
        self._steps, self._episodes = cfg.steps_per_collect or 0, cfg.episodes_per_collect or 0
        self._seed_updates = int(cfg.seed_updates)
        self._every = agent.update_every_steps

    def due(self, progress: Progress, end: int) -> Iterator[int]:
        """Yield the agent step of each update that is due before agent step `end`; count those that were made."""
        p = progress
        if end - p.updated_step < self._steps or p.episode - p.updated_episode < self._episodes:
            return
        for step in range(p.updated_step, end):
            for _ in range(max(updates_due(step, self._per_step), self._seed_updates_due(p, step))):
                yield step
                p.gradient_step += step % self._every == 0
        self.skip(p, end)

    def skip(self, progress: Progress, end: int) -> None:
        """Skip the updates before agent step `end` for good."""
        progress.updated_step, progress.updated_episode = end, progress.episode

    def _seed_updates_due(self, progress: Progress, step: int) -> int:
        if progress.seed_updates_done or step % self._every:
            return 0
        progress.seed_updates_done = True
        return self._seed_updates


def updates_due(step: int, per_step: Fraction) -> int:
    """Return the number of updates due at an agent step, so that on average there are `per_step`.

    It is `per_step` where that is whole; with 1/4, one update at steps 0, 4, 8, ...

    Args:
        step: the agent step.
        per_step: a fraction, which adds up without rounding errors.
    """
    return math.ceil((step + 1) * per_step) - math.ceil(step * per_step)
