"""Train DrQ-v2: continuous control from pixels.

python train.py                                     # cartpole_balance_sparse, the paper's settings
python train.py task=cheetah_run seed=3             # another task; any key can be overridden
python train.py preset=cpu                          # without a GPU: a short run
python train.py -m task=walker_walk seed=1,2,3      # one run after another
python train.py regime=multitask 'tasks=[walker_stand,walker_walk,walker_run]' # one agent for three tasks
python train.py resume=latest                       # resume the newest run, in its own directory
python train.py resume=RUN_DIR num_train_frames=2e6 # resume a run and train for longer
python train.py --help                              # every key, its default and its unit
"""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports: help and mistakes need not wait for torch
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
from drqv2.run.hooks import Hooks
from drqv2.run.start import make_workspace as make_workspace
from drqv2.run.start import open_run, regimes_left
from drqv2.run.stats import EpisodeStats, EvalStats, RunSummary
from drqv2.run.updates import Updates
from drqv2.run.workspace import BaseWorkspace
from replay_buffer import ReplayBufferStorage, make_replay_loader
from video import TrainVideoRecorder, VideoRecorder


class Workspace(BaseWorkspace):
    """DrQ-v2's run: environments, agent, replay, recorders, predicates, and the frame loop around them.

    `BaseWorkspace` has what all regimes share: configuration, logs, clocks, signals, counters.
    """

    # activities that the dashboard and the statistics of an epoch show the time of
    phases = ("environment", "act", "data", "update", "evaluation", "snapshot")
    collect_phases, update_phases = ("environment", "act"), ("data", "update")
    replay_storage: ReplayBufferStorage

    def setup(self) -> None:
        """Make environments, agent, replay, recorders and predicates."""
        cfg, repeat = self.cfg, self.action_repeat
        self.train_envs = self.owned(make_envs(cfg, utils.TRAIN_ENV))
        self.eval_envs = self.owned(make_envs(cfg, utils.EVAL_ENV))
        self.episodes = Episodes(self)  # steps the training environments and sums their rewards
        env = self.train_envs[0]
        self.agent = factory.make_agent(cfg, env, self.device)

        replay_dir, stored = self.work_dir / "buffer", factory.data_specs(env)
        self.replay_storage = ReplayBufferStorage(stored, replay_dir, cfg.replay_buffer_size, cfg.frame_stack)
        options = factory.loader_options(cfg, env, self.agent, self.replay_storage, self.device)
        sizes = cfg.replay_buffer_size, cfg.batch_size, cfg.replay_buffer_num_workers
        returns = cfg.nstep, cfg.discount
        self.replay_loader = make_replay_loader(replay_dir, *sizes, cfg.save_snapshot, *returns, **options)
        # its workers start at the first batch, after `begin` or `load_snapshot`
        self.replay_iter = self.time_shares.timed_iterator("data", iter(self.replay_loader))

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
        with self.turns.taken():  # the console, random numbers, clocks and signals are this run's
            self.epoch.start(hooks or Hooks(), epochs)  # an evaluation at frame 0
            while self.train_until_step(self.global_step):
                # try to reset: log the episodes that ended, begin the next ones
                if ended := self.episodes.ended():
                    self.end_episodes(ended)

                # no environment is stepping: if an epoch ends here, save_snapshot(), eval() and hooks; save_snapshot()
                # if one is due; raise Stopped on a signal
                if self.epoch.between_rounds(epoch_ends=self.eval_every_step(self.global_step)):
                    break  # enough epochs, a return good enough, or nothing was left to do

                # choose actions; with overlap, the environments begin to step
                self.episodes.step_async(self.act(self.episodes.observations))

                # meanwhile, try to update the agent; the current transitions are not in the replay yet
                if not self.seed_until_step(self.global_step) and len(self.replay_storage) > 0:
                    self.update()
                else:  # these updates are skipped, not postponed
                    self.updates.skip(self.progress, self.global_step + self.round_steps)

                # wait for the time steps and store them
                for i, time_step in enumerate(self.episodes.step_wait()):
                    self.store(i, time_step)
                self.progress.step += self.round_steps

            if ended := self.episodes.ended():  # with the last step; the next ones begin, in case the run is extended
                self.end_episodes(ended)
            self.epoch.finish()  # the last snapshot and evaluation
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
        """Play num_eval_episodes without exploration; log their returns and film the first. See `evaluate`."""
        return evaluate(self, self.eval_envs, self.video_recorder)

    def store(self, i: int, time_step: ExtendedTimeStep) -> None:
        """Add a time step of environment i to the replay, and to the film of training."""
        time_step = self.epoch.hooks.rewarded(time_step)  # transform_reward, if there is such a hook
        self.observe_episode(self.replay_storage.add(time_step, i))  # which returns its number once it is complete
        if i == 0 and not time_step.first():
            self.train_video_recorder.record(time_step.observation)

    def observe_episode(self, episode: int | None) -> None:
        """Pass a newly stored episode, if there is one, to the agent's `observe_episode`."""
        if episode is not None and isinstance(self.agent, ObservesEpisodes):
            rewards, discounts = self.replay_storage.load_rewards(episode)
            self.agent.observe_episode(0, rewards, discounts * self.cfg.discount)

    def reset_envs(self, indices: Sequence[int]) -> None:
        """Begin the next episode in the environments of these indices; at the start of a run, in all of them."""
        for i, time_step in zip(indices, self.episodes.reset(indices), strict=True):
            self.store(i, time_step)
            if i == 0:
                self.progress.filming = self.film_every_step(self.global_step)
                self.train_video_recorder.init(time_step.observation, enabled=self.progress.filming)

    def end_episodes(self, ended: Sequence[int]) -> None:
        """Log the episodes that have ended in these environments, one row each, and begin the next ones."""
        require_finite(self, parameters=True)  # raises NotFiniteError for losses and parameters
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
            result = self.episodes.result(i)
            metrics = result.metrics(self.action_repeat)
            finished.append((EpisodeStats.of(self.global_step, result, self.action_repeat), metrics))
            with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
                log("fps", fps)
                log("total_time", total_time)
                for name, value in metrics.items():
                    log(name, value)
                log("episode", self.global_episode)
                log("buffer_size", len(self.replay_storage))
                log("step", self.global_step)
        self.reset_envs(ended)  # before the hooks: one that raises saves a snapshot
        for episode, metrics in finished:
            self.epoch.logged([episode], metrics)

    def diagnostics(self) -> dict[str, float]:
        """Return diagnostics of the learner on the newest episode, and its gradient norms."""
        newest = self.replay_storage.load_episode(max(self.replay_storage.newest_of_tasks().values()))
        found = diagnose(self.agent, newest, self.cfg.frame_stack, self.cfg.discount, self.device)
        return found | self.snapshots.last_gradient_norms()

    def save_snapshot(self) -> None:
        """Save environments and replay; `Snapshots.save` adds agent, counters, random states, logs. A thread writes."""
        self.snapshots.save(
            needs=self.replay_storage.first_needed,
            train_envs=self.episodes.state(),
            replay_storage=self.replay_storage.state_dict(),
            replay_loader=self.replay_loader.state_dict(),
        )

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Restore environments and replay, called by the constructor; the rest is restored already."""
        self.progress.last_row_step = self.global_step  # the clock begins anew, too
        self.replay_storage.load_state_dict(saved["replay_storage"], keep_from=self.checkpoints.needed)
        self.replay_loader.load_state_dict(saved["replay_loader"])
        if "train_envs" not in saved:  # by regime=offline, whose run this one continues (then=drqv2)
            self.reset_envs(range(len(self.train_envs)))
            return
        for i in self.episodes.restore(saved["train_envs"]):  # episodes that a lower max_episode_steps ends here
            self.observe_episode(self.replay_storage.end(i))
        self.train_video_recorder.init(self.episodes.observations[0], enabled=self.progress.filming)


def main(cfg: DictConfig, work_dir: Path) -> float:
    """Start or resume the run in `work_dir`; return `objective`, by default the last mean return, to a sweeper."""
    for regime in regimes_left(cfg, work_dir):  # one, or two with regime=offline then=drqv2
        with open_run(regime, cfg, work_dir) as run:  # the regime's Workspace; resumed if there is a snapshot
            run.train()
    return run.objective()
