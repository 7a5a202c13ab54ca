"""Train DrQ-v2: continuous control from pixels.

python train.py                                     # cartpole_balance_sparse, the paper's settings
python train.py task=cheetah_run seed=3             # another task; any key can be overridden
python train.py preset=cpu                          # without a GPU: a short run
python train.py -m task=walker_walk seed=1,2,3      # one run after another
python train.py regime=multitask tasks=[walker_stand,walker_walk,walker_run]   # one agent for three tasks
python train.py resume=latest                       # resume the newest run, in its own directory
python train.py resume=RUN_DIR num_train_frames=2e6 # resume a run and train for longer
python train.py --help                              # every key, its default and its unit
"""

from __future__ import annotations

if __name__ == "__main__":
    from drqv2.launch.command_line import start

    start("train", "cfgs")  # calls `main` below for each job that the command line asks for

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from drqv2 import utils
from drqv2.agents.acting import choose_actions
from drqv2.agents.protocol import ObservesEpisodes
from drqv2.envs import ExtendedTimeStep
from drqv2.launch.compose import compose as compose
from drqv2.logging.diagnostics import diagnose
from drqv2.run import factory
from drqv2.run.environments import make_envs
from drqv2.run.episodes import Episodes
from drqv2.run.evaluation import evaluate
from drqv2.run.finite import require_finite
from drqv2.run.hooks import Hooks, transformed
from drqv2.run.start import make_workspace as make_workspace
from drqv2.run.start import open_run, parts
from drqv2.run.stats import EpisodeStats, EvalStats, RunSummary
from drqv2.run.updates import Updates
from drqv2.run.workspace import BaseWorkspace
from replay_buffer import ReplayBufferStorage, make_replay_loader
from video import TrainVideoRecorder, VideoRecorder


class Workspace(BaseWorkspace):
    """DrQ-v2's run: environments, agent, replay, recorders, predicates, and the frame loop around them.

    `BaseWorkspace` has what all regimes share: configuration, logs, clocks, signals, counters.
    """

    phases = ("environment", "act", "data", "update", "evaluation", "snapshot")
    collect_phases, update_phases = ("environment", "act"), ("data", "update")
    replay_storage: ReplayBufferStorage

    def setup(self) -> None:
        """Make environments, agent, replay, recorders and predicates."""
        cfg, repeat = self.cfg, self.action_repeat
        self.train_envs = self.owned(make_envs(cfg, utils.TRAIN_ENV))
        self.eval_envs = self.owned(make_envs(cfg, utils.EVAL_ENV))
        self.episodes, env = Episodes(self), self.train_envs[0]
        self.agent = factory.make_agent(cfg, env, self.device)

        self.replay_storage = ReplayBufferStorage(
            factory.data_specs(env), self.work_dir / "buffer", cfg.replay_buffer_size, cfg.frame_stack
        )
        settings = factory.loader_settings(cfg, env, self.agent, self.replay_storage, self.device)
        self.replay_loader = make_replay_loader(**settings)
        self.replay_iter = self.time_shares.timed_iterator("data", iter(self.replay_loader))

        filmed = self.work_dir if cfg.save_video else None
        self.video_recorder = VideoRecorder(filmed, **factory.film_settings(cfg, env))
        filmed = self.work_dir if cfg.save_train_video else None
        self.train_video_recorder = TrainVideoRecorder(filmed, **factory.train_film_settings(cfg, env))
        self.owns(self.video_recorder, self.train_video_recorder, self.replay_loader)

        self.train_until_step = utils.Until(cfg.num_train_frames, repeat)
        self.seed_until_step = utils.Until(cfg.num_seed_frames, repeat)
        self.eval_every_step = self.every("eval_every_step", cfg.epoch_frames or cfg.eval_every_frames)
        self.diagnose_every_step = self.every("diagnose_every_step", cfg.diagnostics_every_frames)
        self.film_every_step = self.every("film_every_step", cfg.train_video_every_frames)
        self.updates = Updates(cfg, self.agent)

    def begin(self) -> None:
        """Delete the replay of a start that had no snapshot yet; begin the first episodes."""
        self.replay_storage.delete()
        self.start_episodes(range(len(self.train_envs)))

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Act and learn until num_train_frames, or for a number of epochs; see `BaseWorkspace.train`."""
        with self.training(hooks, epochs):
            while self.train_until_step(self.global_step):
                # try to reset: log the episodes that ended, begin the next ones
                if ended := self.episodes.ended():
                    self.log_episodes(ended)

                # no environment is stepping: try to evaluate, try to save a snapshot, stop here if asked to
                if self.epoch.pause(evaluate=self.eval_every_step(self.global_step)):
                    break

                # choose actions; the environments begin to step
                self.episodes.start(self.act(self.episodes.observations))

                # meanwhile, try to update the agent; the current transitions are not in the replay yet
                if not self.seed_until_step(self.global_step) and len(self.replay_storage) > 0:
                    self.update()
                else:  # these updates are not made up for
                    self.updates.skip(self.progress, self.global_step + self.round_steps)

                # fetch the time steps and store them
                for i, time_step in enumerate(self.episodes.finish()):
                    self.store(i, time_step)
                self.progress.step += self.round_steps

            if ended := self.episodes.ended():
                self.log_episodes(ended)
        return self.epoch.summary()

    @torch.no_grad()
    def act(self, observations: Sequence[Any]) -> Sequence[np.ndarray]:
        """Return an action for each observation."""
        with self.time_shares.spent_on("act"):
            shape = self.train_envs[0].action_spec().shape
            return choose_actions(self.agent, observations, shape, self.global_step, eval_mode=False)

    def update(self) -> None:
        """Run every agent update that has fallen due since the last call."""
        with self.time_shares.spent_on("update"):
            for step in self.updates.due(self.progress, self.global_step + self.round_steps):
                metrics = self.agent.update(self.replay_iter, step)
                self.logger.log_metrics(metrics, self.global_frame, ty="train")

    def eval(self) -> EvalStats:
        """Play num_eval_episodes without exploration; log their returns and film the first."""
        return evaluate(self, self.eval_envs, self.video_recorder)

    def store(self, i: int, time_step: ExtendedTimeStep) -> None:
        """Add a time step of environment i to the replay, and to the film of training."""
        if (transform := self.epoch.hooks.transform_reward) is not None and not time_step.first():
            reward = transformed(transform, np.asarray(time_step.reward, np.float32))
            time_step = time_step._replace(reward=float(reward))
        self.observe_episode(self.replay_storage.add(time_step, i))
        if i == 0 and not time_step.first():
            self.train_video_recorder.record(time_step.observation)

    def observe_episode(self, episode: int | None) -> None:
        """Pass a newly stored episode, if there is one, to the agent's `observe_episode`."""
        if episode is not None and isinstance(self.agent, ObservesEpisodes):
            rewards, discounts = self.replay_storage.load_rewards(episode)
            self.agent.observe_episode(0, rewards, discounts * self.cfg.discount)

    def start_episodes(self, numbers: Sequence[int]) -> None:
        """Begin the next episode in the environments of these numbers; at the start of a run, in all of them."""
        for i, time_step in zip(numbers, self.episodes.begin(numbers), strict=True):
            self.store(i, time_step)
            if i == 0:
                self.progress.filming = self.film_every_step(self.global_step)
                self.train_video_recorder.init(time_step.observation, enabled=self.progress.filming)

    def log_episodes(self, ended: Sequence[int]) -> None:
        """Log the episodes that have ended in these environments, one row each; begin the next ones."""
        require_finite(self, parameters=True)
        elapsed_time, total_time = self.timer.reset()
        fps = (self.global_step - self.progress.last_row_step) * self.action_repeat / elapsed_time
        self.progress.last_row_step = self.global_step
        if 0 in ended:
            self.train_video_recorder.save(f"{self.global_frame}.mp4")
        if self.diagnose_every_step(self.global_step) and len(self.replay_storage) > 0:
            self.logger.log_metrics(self.diagnostics(), self.global_frame, ty="train")
        finished = []
        for i in ended:
            self.progress.episode += 1
            metrics = self.episodes.result(i).metrics(self.action_repeat)
            finished.append((EpisodeStats.of(self.global_step, self.episodes.result(i), self.action_repeat), metrics))
            with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
                log("fps", fps)
                log("total_time", total_time)
                for name, value in metrics.items():
                    log(name, value)
                log("episode", self.global_episode)
                log("buffer_size", len(self.replay_storage))
                log("step", self.global_step)
        self.start_episodes(ended)
        for episode, metrics in finished:
            self.epoch.logged([episode], metrics)

    def diagnostics(self) -> dict[str, float]:
        """Return diagnostics of the learner on the newest episode, and its gradient norms."""
        newest = self.replay_storage.load_episode(max(self.replay_storage.newest_of_tasks().values()))
        found = diagnose(self.agent, newest, self.cfg.frame_stack, self.cfg.discount, self.device)
        return found | self.snapshots.norms()

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
        if "train_envs" not in saved:  # so far, the run has learnt from stored data
            return self.start_episodes(range(len(self.train_envs)))
        for i in self.episodes.restore(saved["train_envs"]):  # stored so far as unfinished
            self.observe_episode(self.replay_storage.end(i))
        self.train_video_recorder.init(self.episodes.observations[0], enabled=self.progress.filming)


def main(cfg: DictConfig, work_dir: Path) -> float:
    """Start or resume the run in `work_dir`; return its last evaluation's mean return, for a sweeper to maximize."""
    for regime in parts(cfg, work_dir):  # one, here drqv2; two with regime=offline then=drqv2
        with open_run(regime, cfg, work_dir) as run:
            run.train()
    return run.objective()
