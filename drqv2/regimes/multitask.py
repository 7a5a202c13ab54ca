"""DrQ-v2 on several tasks at once, with one agent: every round steps all tasks, and updates mix them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from dm_env import specs

from drqv2 import utils
from drqv2.agents.acting import choose_actions
from drqv2.agents.protocol import ObservesEpisodes
from drqv2.envs import ExtendedTimeStep
from drqv2.evaluation import per_task
from drqv2.logging.diagnostics import diagnose
from drqv2.logging.video import TrainVideoRecorder, VideoRecorder
from drqv2.replay.loader import make_replay_loader
from drqv2.replay.storage import ReplayBufferStorage
from drqv2.run import factory
from drqv2.run.environments import action_repeats, discounts, make_envs, task_suffixes
from drqv2.run.episodes import Episodes
from drqv2.run.evaluation import evaluate
from drqv2.run.finite import require_finite
from drqv2.run.hooks import Hooks
from drqv2.run.stats import EpisodeResult, EpisodeStats, EvalStats, RunSummary
from drqv2.run.updates import Updates
from drqv2.run.workspace import BaseWorkspace


class MultitaskWorkspace(BaseWorkspace):
    """A run of several tasks. An agent step is one of every task, and frames are those of one task.

    Its loop is that of train.py, line by line. What differs: an episode belongs to a task, a row of train.csv has those
    of all tasks that ended together, and its `fps` counts the frames of all tasks.
    """

    phases = ("environment", "act", "data", "update", "evaluation", "snapshot")
    collect_phases, update_phases = ("environment", "act"), ("data", "update")
    replay_storage: ReplayBufferStorage

    def setup(self) -> None:
        """Make environments, agent, replay, recorders and predicates."""
        cfg, repeat = self.cfg, self.action_repeat
        if not cfg.tasks:
            print(f"a single task, {self.tasks[0]}: tasks=[NAME,NAME] trains several")
        self.train_envs = self.owned(make_envs(cfg, utils.TRAIN_ENV))
        self.eval_envs = self.owned(make_envs(cfg, utils.EVAL_ENV))
        self.task_of = [i // cfg.num_envs for i in range(len(self.train_envs))]  # index of each environment's task
        self.repeats, self.gammas, self.suffixes = action_repeats(cfg), discounts(cfg), task_suffixes(cfg)
        self.excluded = {self.tasks.index(name) for name in cfg.exclude_tasks}
        self.episodes, env = Episodes(self), self.train_envs[0]
        self.agent = factory.make_agent(cfg, env, self.device)
        self.acting_tasks = self.task_of if self.agent.takes_task else None

        stored = *factory.data_specs(env), specs.Array((1,), np.int64, "task")
        replay_dir = self.work_dir / "buffer"
        self.replay_storage = ReplayBufferStorage(stored, replay_dir, cfg.replay_buffer_size, cfg.frame_stack)
        options = factory.loader_options(cfg, env, self.agent, self.replay_storage, self.device)
        options["balanced"] = len(self.tasks) > 1 and cfg.task_sampling == "uniform"
        sizes = cfg.replay_buffer_size, cfg.batch_size, cfg.replay_buffer_num_workers
        returns = cfg.nstep, self.gammas
        self.replay_loader = make_replay_loader(replay_dir, *sizes, cfg.save_snapshot, *returns, **options)
        batches: Iterator[Any] = iter(self.replay_loader)
        if self.acting_tasks is None:  # the agent does not ask for the task, the sixth field
            batches = map(itemgetter(slice(5)), batches)
        self.replay_iter = self.time_shares.timed_iterator("data", batches)

        video_dir = self.work_dir if cfg.save_video else None
        self.video_recorder = VideoRecorder(video_dir, **factory.film_settings(cfg, env))
        video_dir = self.work_dir if cfg.save_train_video else None
        self.train_video_recorder = TrainVideoRecorder(video_dir, **factory.train_film_settings(cfg, env))
        self.owns(self.video_recorder, self.train_video_recorder, self.replay_loader)

        self.train_until_step = utils.Until(cfg.num_train_frames, repeat)
        self.seed_until_step = utils.Until(cfg.num_seed_frames, repeat)
        epoch_frames = cfg.epoch_frames or cfg.eval_every_frames  # by default an epoch ends where an evaluation is due
        self.eval_every_step = self.kept("eval_every_step", utils.Every(epoch_frames, repeat))
        self.diagnose_every_step = self.kept("diagnose_every_step", utils.Every(cfg.diagnostics_every_frames, repeat))
        self.film_every_step = self.kept("film_every_step", utils.Every(cfg.train_video_every_frames, repeat))
        self.updates = Updates(cfg, self.agent)

    def begin(self) -> None:
        """Start a new run: delete episodes left by a start that died before its first snapshot; reset environments."""
        self.replay_storage.delete()
        self.reset_envs(range(len(self.train_envs)))

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Act and learn until num_train_frames, or for a number of epochs; see `BaseWorkspace.train`."""
        with self.turns.taken():
            self.epoch.start(hooks or Hooks(), epochs)
            while self.train_until_step(self.global_step):
                # try to reset: log the episodes that ended, begin the next ones
                if ended := self.episodes.ended():
                    self.end_episodes(ended)

                # no environment is stepping: if an epoch ends here, save_snapshot(), eval() and hooks; save_snapshot()
                # if one is due; raise Stopped on a signal
                if self.epoch.between_rounds(epoch_ends=self.eval_every_step(self.global_step)):
                    break

                # choose actions of all tasks; with overlap, the environments begin to step
                self.episodes.step_async(self.act(self.episodes.observations))

                # meanwhile, try to update the agent with batches of all tasks
                if not self.seed_until_step(self.global_step) and len(self.replay_storage) > 0:
                    self.update()
                else:  # these updates are skipped, not postponed
                    self.updates.skip(self.progress, self.global_step + self.round_steps)

                # wait for the time steps and store them
                for i, time_step in enumerate(self.episodes.step_wait()):
                    self.store(i, time_step)
                self.progress.step += self.round_steps

            if ended := self.episodes.ended():
                self.end_episodes(ended)
            self.epoch.finish()
        return self.epoch.summary()

    @torch.no_grad()
    def act(self, observations: Sequence[Any]) -> Sequence[np.ndarray]:
        """Return an action for each observation."""
        with self.time_shares.spent_on("act"):
            shape = self.train_envs[0].action_spec().shape
            return choose_actions(self.agent, observations, shape, self.global_step, False, self.acting_tasks)

    def update(self) -> None:
        """Run every agent update that has fallen due since the last call."""
        with self.time_shares.spent_on("update"):
            for step in self.updates.due(self.progress, self.global_step + self.round_steps):
                metrics = self.agent.update(self.replay_iter, step)
                self.logger.log_metrics(metrics, self.global_frame, ty="train")

    def store(self, i: int, time_step: ExtendedTimeStep) -> None:
        """Add a time step of environment i to the replay, unless its task is not learnt, and to the film."""
        time_step = self.epoch.hooks.rewarded(time_step)
        if self.task_of[i] not in self.excluded:
            self.observe_episode(self.task_of[i], self.replay_storage.add(time_step, i))
        if i == 0 and not time_step.first():
            self.train_video_recorder.record(time_step.observation)

    def observe_episode(self, task: int, episode: int | None) -> None:
        """Pass a newly stored episode, if there is one, to the agent's `observe_episode`."""
        if episode is not None and isinstance(self.agent, ObservesEpisodes):
            rewards, discounts = self.replay_storage.load_rewards(episode)
            self.agent.observe_episode(task, rewards, discounts * self.gammas[task])

    @property
    def frames_per_step(self) -> int:
        """Environment frames of an agent step, of all tasks."""
        return sum(self.repeats)

    def reset_envs(self, indices: Sequence[int]) -> None:
        """Begin the next episode in the environments of these indices; at the start of a run, in all of them."""
        for i, time_step in zip(indices, self.episodes.reset(indices), strict=True):
            self.store(i, time_step)
            if i == 0:
                self.progress.filming = self.film_every_step(self.global_step)
                self.train_video_recorder.init(time_step.observation, enabled=self.progress.filming)

    def end_episodes(self, ended: Sequence[int]) -> None:
        """Log the episodes that have ended in these environments, in one row; begin the next ones."""
        require_finite(self, parameters=True)
        elapsed_time, total_time = self.timer.reset()
        fps = (self.global_step - self.progress.last_row_step) * self.frames_per_step / elapsed_time
        self.progress.last_row_step = self.global_step
        if 0 in ended:
            self.train_video_recorder.save(f"{self.global_frame}.mp4")
        if self.diagnose_every_step(self.global_step) and len(self.replay_storage) > 0:
            self.logger.log_metrics(self.diagnostics(), self.global_frame, ty="train")
        played, results = [self.task_of[i] for i in ended], [self.episodes.result(i) for i in ended]
        self.progress.episode += len(ended)
        metrics = self.task_metrics(played, results, elapsed_time)
        with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
            log("fps", fps)
            log("total_time", total_time)
            for name, value in metrics.items():
                log(name, value)
            log("episode", self.global_episode)
            log("buffer_size", len(self.replay_storage))
            log("step", self.global_step)
        self.reset_envs(ended)
        episodes = [
            EpisodeStats.of(self.global_step, result, self.repeats[task], task)
            for task, result in zip(played, results, strict=True)
        ]
        self.epoch.logged(episodes, metrics)

    def diagnostics(self) -> dict[str, float]:
        """Return diagnostics of the learner on the newest episode of each task, their mean, and gradient norms."""
        found: dict[int, dict[str, float]] = {}
        for task, episode in self.replay_storage.newest_of_tasks().items():
            arrays = self.replay_storage.load_episode(episode)
            found[task] = diagnose(self.agent, arrays, self.cfg.frame_stack, self.gammas[task], self.device)
        return per_task.with_means(found, self.suffixes) | self.snapshots.last_gradient_norms()

    def eval(self) -> EvalStats:
        """Play num_eval_episodes of each task without exploration; log their returns and film the first."""
        return evaluate(self, self.eval_envs, self.video_recorder, self.evaluation_metrics)

    def evaluation_metrics(self, results: Sequence[EpisodeResult], seconds: float) -> dict[str, float]:
        """Return the metrics of an evaluation's episodes."""
        return self.task_metrics([i // self.cfg.num_eval_episodes for i in range(len(results))], results, seconds)

    def task_metrics(self, played: Sequence[int], results: Sequence[EpisodeResult], seconds: float) -> dict[str, float]:
        """Return each task's metrics, their means, and the seconds that the episodes took."""
        return per_task.metrics(played, results, self.repeats, self.suffixes, self.excluded) | {"duration": seconds}

    def save_snapshot(self) -> None:
        """Copy everything that the run needs to continue from this step; a thread writes it."""
        self.snapshots.save(
            needs=self.replay_storage.first_needed,
            train_envs=self.episodes.state(),
            replay_storage=self.replay_storage.state_dict(),
            replay_loader=self.replay_loader.state_dict(),
        )

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Restore environments and replay; agent, counters and predicates are restored already."""
        self.replay_storage.load_state_dict(saved["replay_storage"], keep_from=self.checkpoints.needed)
        self.replay_loader.load_state_dict(saved["replay_loader"])
        self.progress.last_row_step = self.global_step  # the clock begins anew, too
        for i in self.episodes.restore(saved["train_envs"]):  # episodes that a lower max_episode_steps ends here
            self.observe_episode(self.task_of[i], self.replay_storage.end(i))
        self.train_video_recorder.init(self.episodes.observations[0], enabled=self.progress.filming)
