"""The current episodes of a run's training environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from drqv2.envs import ExtendedTimeStep, info
from drqv2.envs.handles import EnvHandle
from drqv2.logging.usage import TimeShares
from drqv2.run.progress import Progress
from drqv2.run.stats import EpisodeResult


class Run(Protocol):
    """What the episodes of a run need of it."""

    progress: Progress
    time_shares: TimeShares
    train_envs: list[EnvHandle]


class Episodes:
    """Steps the training environments side by side, and counts rewards; the counts are in the run's `progress`.

    Args:
        run: the run.

    Attributes:
        time_steps: the current one of each environment.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.time_steps: list[ExtendedTimeStep] = []

    @property
    def observations(self) -> list[Any]:
        """The current observation of each environment."""
        return [time_step.observation for time_step in self.time_steps]

    def reset(self, indices: Sequence[int]) -> list[ExtendedTimeStep]:
        """Begin the next episodes in the environments of these indices; return their first time steps."""
        envs, p = self._run.train_envs, self._run.progress
        with self._run.time_shares.spent_on("environment"):
            for i in indices:
                envs[i].start("reset")
            started: list[ExtendedTimeStep] = [envs[i].finish() for i in indices]
        for i, time_step in zip(indices, started, strict=True):
            self.time_steps[i : i + 1] = [time_step]
            p.episode_steps[i], p.episode_rewards[i], p.episode_success[i], p.episode_info[i] = 0, 0.0, None, {}
        return started

    def step_async(self, actions: Sequence[Any]) -> None:
        """Begin a step in every environment."""
        with self._run.time_shares.spent_on("environment"):
            for env, action in zip(self._run.train_envs, actions, strict=True):
                env.start("step", action)

    def step_wait(self) -> list[ExtendedTimeStep]:
        """Return the time step of each environment."""
        p = self._run.progress
        with self._run.time_shares.spent_on("environment"):
            self.time_steps = [env.finish() for env in self._run.train_envs]
        for i, time_step in enumerate(self.time_steps):
            p.episode_rewards[i] += time_step.reward
            p.episode_steps[i] += 1
            if time_step.success is not None:
                p.episode_success[i] = max(time_step.success, p.episode_success[i] or 0.0)
            info.add(p.episode_info[i], time_step.info)
        return self.time_steps

    def ended(self) -> list[int]:
        """Return the indices of the environments whose episodes have ended."""
        return [i for i, time_step in enumerate(self.time_steps) if time_step.last()]

    def result(self, i: int) -> EpisodeResult:
        """Return the result so far of the episode in environment i."""
        p = self._run.progress
        return EpisodeResult(p.episode_rewards[i], p.episode_steps[i], p.episode_success[i], p.episode_info[i])

    def state(self) -> list[Any]:
        """Return the state of each environment."""
        return [env.state() for env in self._run.train_envs]

    def restore(self, states: Sequence[Any]) -> list[int]:
        """Bring the environments back to these states; return the indices of those in which the episode ends there.

        It does where max_episode_steps is lower than before.
        """
        for env, state in zip(self._run.train_envs, states, strict=True):
            env.start("restore", state)
        self.time_steps = [env.finish() for env in self._run.train_envs]
        return self.ended()
