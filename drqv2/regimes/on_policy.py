"""What PPO and IMPALA share: set-up around the agent, counters, and the rows of train.csv; each has its own loop."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np

from drqv2 import utils
from drqv2.envs import info
from drqv2.envs.vector import VectorEnv
from drqv2.logging.video import VideoRecorder
from drqv2.run import factory
from drqv2.run.environments import make_envs
from drqv2.run.finite import require_finite
from drqv2.run.stats import EpisodeStats
from drqv2.run.workspace import BaseWorkspace


class Ended(Protocol):
    """Episodes that have ended."""

    @property
    def episodes(self) -> list[tuple[float, int]]:
        """Return and length in steps of each."""

    @property
    def info(self) -> info.Sums:
        """Of the numbers in `info`: sum of these episodes' means, and how many had it."""


class OnPolicyWorkspace(BaseWorkspace):
    """A run that learns from what the newest policies have just collected, without a replay.

    A regime adds `ended` and `take_ended`, and columns of its own: `episode_columns` and `update_columns`.
    """

    length_key = "total_timesteps"
    has_replay = False
    vector: VectorEnv

    def setup_agent(self) -> None:
        """Make the agent for `vector`, environments of evaluations, recorder and predicates."""
        cfg = self.cfg
        self.eval_envs = self.owned(make_envs(cfg, utils.EVAL_ENV))
        filmed = self.work_dir if cfg.save_video else None
        self.video_recorder = VideoRecorder(filmed, **factory.film_settings(cfg, self.eval_envs[0]))
        self.owns(self.video_recorder)
        self.agent = factory.make_agent(cfg, self.vector, self.device)
        self.train_until_step = utils.Until(cfg.total_timesteps)
        epoch_frames = cfg.epoch_frames or cfg.eval_every_frames  # an epoch ends, by default with an evaluation
        self.eval_every_step = self.kept("eval_every_step", utils.Every(epoch_frames, self.action_repeat))
        self.rows_at = 0.0  # seconds of training at the newest row of train.csv

    def ended(self) -> Ended:
        """Return the training episodes that ended since the newest row of train.csv."""
        raise NotImplementedError

    def take_ended(self) -> Ended:
        """Return the same, and begin anew."""
        raise NotImplementedError

    def episode_columns(self, ended: Any) -> dict[str, float]:
        """Return further columns on episodes that have ended, of which there are some."""
        return {}

    def update_columns(self, ended: Any, seconds: float) -> dict[str, float]:
        """Return further columns of a row that covers so many seconds of training."""
        return {}

    def log(self, metrics: dict[str, float]) -> None:
        """Log an update and the episodes that ended; write a row, at most every log_every_seconds."""
        self.logger.log_metrics(metrics, self.global_frame, ty="train")
        total_time = self.timer.total_time()
        if total_time - self.rows_at < self.cfg.log_every_seconds and self.train_until_step(self.global_step):
            return
        require_finite(self)
        progress, seconds = self.progress, max(total_time - self.rows_at, 1e-9)
        sps = (self.global_step - progress.last_row_step) / seconds
        self.count_row(total_time)
        ended = self.take_ended()
        progress.episode += len(ended.episodes)
        columns = self._of_episodes(ended) if ended.episodes else {}
        columns |= {"fps": sps * self.action_repeat, "total_time": total_time, "episode": progress.episode}
        columns |= {"step": self.global_step, "SPS": sps, **self.update_columns(ended, seconds)}
        for name, share in self.time_shares.shares().items():
            columns[f"performance/{'misc' if name == 'other' else name}"] = share
        with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
            for name, value in columns.items():
                log(name, value)
        self.epoch.logged(
            [EpisodeStats(self.global_step, 0, total, n * self.action_repeat) for total, n in ended.episodes]
        )

    def _of_episodes(self, ended: Ended) -> dict[str, float]:
        returns, steps = zip(*ended.episodes, strict=True)
        mean, length = float(np.mean(returns)), float(np.mean(steps)) * self.action_repeat
        return {
            "episode_reward": mean,
            "episode_length": length,
            **self.episode_columns(ended),
            **info.metrics(ended.info),
        }

    def count_row(self, total_time: float) -> None:
        """Have the next row of train.csv begin here, after so many seconds of training."""
        self.rows_at, self.progress.last_row_step = total_time, self.global_step

    @property
    def global_episode(self) -> int:
        """Training episodes finished so far, those of the next row of train.csv included."""
        return self.progress.episode + len(self.ended().episodes)

    @cached_property
    def num_frames(self) -> int:
        """Environment frames of the whole run."""
        return int(self.cfg.total_timesteps * self.cfg.action_repeat)
