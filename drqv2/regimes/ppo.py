"""PPO on many environments at once, as PufferLib 3 trains: collect segments, learn from them, log, and so on."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import Any

import numpy as np

from drqv2 import utils
from drqv2.agents import ppo_mlp
from drqv2.config.formatting import counted
from drqv2.config.rules import default_minibatch
from drqv2.envs import info
from drqv2.envs.vector import HandleVector
from drqv2.errors import UserError
from drqv2.logging.video import VideoRecorder
from drqv2.rollout.collector import Collector
from drqv2.run import factory, objective
from drqv2.run.environments import make_envs, make_vector
from drqv2.run.hooks import Hooks, transformed
from drqv2.run.stats import EpisodeStats, RunSummary
from drqv2.run.workspace import BaseWorkspace


class PPOWorkspace(BaseWorkspace):
    """A run of PPO: a vector of environments, the collector of segments, the agent, and the loop over updates.

    The agent's `update` gets an iterator; to ask it for the next batch collects one.
    """

    phases = ("env", "forward", "copy", "learn", "evaluation", "snapshot")
    collect_phases, update_phases = ("env", "forward", "copy"), ("learn",)
    length_key = "total_timesteps"
    has_replay = False

    def setup(self) -> None:
        """Make environments, agent, collector, recorder and predicates."""
        cfg = self.cfg
        cfg.segments = cfg.segments or (cfg.steps_per_collect or cfg.num_envs * cfg.horizon) // cfg.horizon
        cfg.minibatch_size = cfg.minibatch_size or default_minibatch(cfg.segments, cfg.horizon)

        self.vector = make_vector(cfg, 0)
        self.resources.callback(lambda: self.vector.close())  # on a resume there may be another
        self.eval_envs = self.owned(make_envs(cfg, utils.EVAL_ENV))
        filmed = self.work_dir if cfg.save_video else None
        self.video_recorder = VideoRecorder(filmed, **factory.film_settings(cfg, self.eval_envs[0]))
        self.owns(self.video_recorder)
        self.agent = ppo_mlp.fast(factory.make_agent(cfg, self.vector, self.device))
        self.require_on_policy()
        self.segments = self.make_collector()

        print(
            f"environments: {cfg.num_envs} of {cfg.env._target_ or cfg.task_name}, in {self.vector.name}; an "
            f"update learns from {counted(cfg.segments, 'segment')} of {counted(cfg.horizon, 'step')}, "
            f"in minibatches of {cfg.minibatch_size}"
            f"{', in C++' if isinstance(self.agent, ppo_mlp.MlpPPOAgent) else ''}"
        )
        self.train_until_step = utils.Until(cfg.total_timesteps)
        self.eval_every_step = self.every("eval_every_step", cfg.epoch_frames or cfg.eval_every_frames)
        minibatches = int(cfg.agent.get("update_epochs", 1) * self.round_steps / cfg.minibatch_size)
        self.gradient_steps = math.ceil(minibatches / cfg.agent.get("accumulate_minibatches", 1))  # of an update
        frames = cfg.snapshot_every_epochs * self.round_steps * self.action_repeat
        self.save_every_step = self.every("save_every_step", frames)
        self.rows_at = 0.0  # seconds of training at the newest row of train.csv

    def require_on_policy(self) -> None:
        """Raise UserError if the agent lacks what this regime calls."""
        missing = [name for name in ("policy", "step", "update", "act") if not hasattr(self.agent, name)]
        if missing:
            raise UserError(
                f"{type(self.agent).__name__} has no {', '.join(missing)}: an agent of regime=ppo needs "
                "policy.initial_state, step, update and act, as drqv2.agents.ppo.PPOAgent has"
            )

    def make_collector(self) -> Collector:
        """Return a collector of segments that has not begun."""
        cfg = self.cfg
        state = self.agent.policy.initial_state(cfg.num_envs)
        sizes = cfg.segments, cfg.horizon, cfg.discount
        return Collector(self.vector, self.agent.step, state, *sizes, self.device, self.time_shares.spent_on)

    def begin(self) -> None:
        """Start the first episodes."""
        self.segments.start(self.vector.reset())

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Collect and learn until total_timesteps, or for so many epochs; see `BaseWorkspace.train`."""
        with self.training(hooks, epochs):
            transform = self.epoch.hooks.transform_reward
            self.segments.transform_reward = None if transform is None else partial(transformed, transform)
            while self.train_until_step(self.global_step):
                # no environment is stepping: try to evaluate, try to save a snapshot, stop here if asked to
                save = self.save_every_step(self.global_step) and self.global_step > 0
                if self.pause(evaluate=self.eval_every_step(self.global_step), save=save):
                    break

                # collect a batch of segments and learn from it
                with self.time_shares.spent_on("learn"):
                    metrics = self.agent.update(self.segments, self.global_step)
                self.progress.step += self.round_steps
                self.progress.gradient_step += int(metrics.get("gradient_steps", self.gradient_steps)) if metrics else 0

                # try to log
                self.log(metrics)
        return self.epoch.summary()

    def log(self, metrics: dict[str, float]) -> None:
        """Log an update and the episodes that ended; write a row, at most every log_every_seconds."""
        cfg, progress = self.cfg, self.progress
        self.logger.log_metrics(metrics, self.global_frame, ty="train")
        total_time = self.timer.total_time()
        if total_time - self.rows_at < cfg.log_every_seconds and self.train_until_step(self.global_step):
            return
        self.require_finite()
        sps = (self.global_step - progress.last_row_step) / max(total_time - self.rows_at, 1e-9)
        self.rows_at, progress.last_row_step = total_time, self.global_step
        episodes, numbers = self.segments.totals.take()
        progress.episode += len(episodes)
        with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
            if episodes:
                returns, steps = zip(*episodes, strict=True)
                log("episode_reward", float(np.mean(returns)))
                log("episode_length", float(np.mean(steps)) * cfg.action_repeat)
            for name, mean in info.metrics(numbers).items():
                log(name, mean)
            log("fps", sps * cfg.action_repeat)
            log("total_time", total_time)
            log("episode", progress.episode)
            log("step", self.global_step)
            log("SPS", sps)
            log("agent_steps", self.global_step)
            log("uptime", total_time)
            log("epoch", self.global_step // self.round_steps)
            for name, share in self.time_shares.shares().items():
                log(f"performance/{'misc' if name == 'other' else name}", share)
        self.epoch.logged([EpisodeStats(self.global_step, 0, total, n * cfg.action_repeat) for total, n in episodes])

    @property
    def global_episode(self) -> int:
        """Training episodes finished so far, those of the next row of train.csv included."""
        return self.progress.episode + len(self.segments.totals.episodes)

    @cached_property
    def num_frames(self) -> int:
        """Environment frames of the whole run."""
        return int(self.cfg.total_timesteps * self.cfg.action_repeat)

    @cached_property
    def round_steps(self) -> int:
        """Agent steps of an update."""
        return int(self.cfg.segments * self.cfg.horizon)

    def default_objective(self) -> float:
        """Return the mean of the logged training returns after the first fifth of the run.

        Where no episode has ended there, it is the return of the last evaluation, and a warning says so.
        """
        try:
            return objective.value("train/episode_reward", self.work_dir)
        except UserError:
            print(
                "warning: no training episode ended after the first fifth of the run: its value to a sweep is the "
                f"return of the last evaluation, {self.progress.last_return:.1f}"
            )
            return self.progress.last_return

    def save_snapshot(self) -> None:
        """Copy everything that the run needs to continue from this step, as far as environments can be restored."""
        envs = self.vector.state() if isinstance(self.vector, HandleVector) else None
        self.snapshots.save(train_envs=envs, collector=self.segments.state_dict())

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Restore environments and collector; where the environments cannot be restored, start new episodes."""
        self.rows_at, self.progress.last_row_step = saved["timer"], self.global_step
        if saved["train_envs"] is not None and isinstance(self.vector, HandleVector):
            self.segments.load_state_dict(saved["collector"], self.vector.restore(saved["train_envs"]))
            return
        print(
            f"all environments begin new episodes: {self.vector.name} cannot return to a state "
            "within one; agent, optimizers, random generators, counters and logs continue exactly"
        )
        self.vector.close()
        self.vector = make_vector(self.cfg, self.global_step)
        self.segments = self.make_collector()
        ended = saved["collector"]["totals"]
        self.segments.totals.episodes, self.segments.totals.info = ended["episodes"], ended.get("info", {})
        self.begin()
