"""Train DrQ-v2: continuous control from pixels, one task or several.

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

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from drqv2 import utils
from drqv2.agents.acting import batch_policy, choose_actions, takes_task
from drqv2.envs import ExtendedTimeStep, info
from drqv2.errors import UserError
from drqv2.evaluation import tasks
from drqv2.evaluation.episodes import EpisodeResult, evaluate
from drqv2.launch.compose import compose as compose
from drqv2.launch.compose import new_run_dir
from drqv2.logging.diagnostics import diagnose
from drqv2.regimes.impala import ImpalaWorkspace
from drqv2.regimes.offline import OfflineWorkspace
from drqv2.regimes.ppo import PPOWorkspace
from drqv2.run import factory
from drqv2.run.environments import action_repeats, discounts, make_envs, task_suffixes
from drqv2.run.hooks import transformed
from drqv2.run.start import current_regime, open_workspace, run_workspace
from drqv2.run.stats import EpisodeStats, EpochStats, EvalStats
from drqv2.run.workspace import BaseWorkspace
from replay_buffer import ReplayBufferStorage


class Workspace(BaseWorkspace):
    """DrQ-v2's run: environments, agent, replay, recorders, and the frame loop around them.

    With several tasks, an agent step is one of every task, and frames are those of one task.
    """

    replay_storage: ReplayBufferStorage
    phases = ("environment", "act", "data", "update", "evaluation", "snapshot")
    collect_phases, update_phases = ("environment", "act"), ("data", "update")

    def setup(self) -> None:
        """Make environments, replay, recorders, predicates and the agent."""
        cfg = self.cfg
        self.train_envs = make_envs(cfg, utils.TRAIN_ENV)
        self.owns(*self.train_envs)
        self.eval_envs = make_envs(cfg, utils.EVAL_ENV)
        self.owns(*self.eval_envs)
        self.multitask = cfg.regime == "multitask"
        self.task_of = [i // cfg.num_envs for i in range(len(self.train_envs))]  # index of each environment's task
        self.repeats, self.gammas = action_repeats(cfg), discounts(cfg)
        self.suffixes = task_suffixes(cfg) if self.multitask else [""]  # one task's metrics are their own means
        self.steps_per_collect, self.episodes_per_collect = cfg.steps_per_collect or 0, cfg.episodes_per_collect or 0
        self.updates_per_step = Fraction(str(cfg.updates_per_step))  # 0.1 is a tenth, not the nearest float
        self.unstored = {self.tasks.index(name) for name in cfg.get("exclude_tasks", ())}
        self.time_steps: list[ExtendedTimeStep] = []  # the current one of each training environment
        env = self.train_envs[0]

        self.agent = factory.make_agent(cfg, env, self.device)
        self.replay_storage, self.replay_loader = factory.make_replay(cfg, env, self.agent, self.work_dir, self.device)
        self.video_recorder, self.train_video_recorder = factory.make_recorders(cfg, env, self.work_dir)
        self.owns(self.video_recorder, self.train_video_recorder, self.replay_loader)

        self.train_until_step = utils.Until(cfg.num_train_frames, cfg.action_repeat)
        self.seed_until_step = utils.Until(cfg.num_seed_frames, cfg.action_repeat)
        self.eval_every_step = utils.Every(cfg.epoch_frames or cfg.eval_every_frames, cfg.action_repeat)
        self.diagnose_every_step = utils.Every(cfg.diagnostics_every_frames, cfg.action_repeat)
        self.film_every_step = utils.Every(cfg.train_video_every_frames, cfg.action_repeat)

        self.update_every_steps = getattr(self.agent, "update_every_steps", 1)
        batches = factory.batches_for(self.agent, iter(self.replay_loader), cfg)
        self.replay_iter = self.time_shares.timed_iterator("data", batches)
        self.acting_tasks = self.task_of if takes_task(self.agent) else None

    def begin(self) -> None:
        """Delete the replay of a start that had no snapshot yet; begin the first episodes."""
        self.replay_storage.delete()
        self.start_episodes(range(len(self.train_envs)))

    def loop(self) -> Iterator[EpochStats]:
        """Act and learn until num_train_frames; yield each epoch's statistics, evaluation included."""
        while self.train_until_step(self.global_step):
            # log episodes that ended, begin the next ones
            self.finish_episodes()

            # try to end the epoch: save a snapshot, evaluate
            if self.epoch.ends():
                yield self.epoch.end()
                continue

            # try to save a snapshot: no environment is stepping; stop here if asked to
            self.epoch.call("on_step", self.global_step)
            self.save_snapshot_if_due()
            self.stop.raise_if_requested()

            # choose actions; the environments begin to step
            actions = self.act([time_step.observation for time_step in self.time_steps])
            with self.time_shares.spent_on("environment"):
                for env, action in zip(self.train_envs, actions, strict=True):
                    env.start("step", action)

            # meanwhile, try to update the agent; the current transitions are not in the replay yet
            self.update()

            # fetch and store the time steps
            with self.time_shares.spent_on("environment"):
                self.time_steps = [env.finish() for env in self.train_envs]
            for i, time_step in enumerate(self.time_steps):
                self.record(i, time_step)
            self.progress.step += self.round_steps

        self.finish_episodes()

    @torch.no_grad()
    def act(self, observations: Sequence[Any]) -> Sequence[np.ndarray]:
        """Return an action for each observation."""
        with self.time_shares.spent_on("act"):
            shape = self.train_envs[0].action_spec().shape
            return choose_actions(self.agent, observations, shape, self.global_step, False, self.acting_tasks)

    def update(self) -> None:
        """Run every agent update that has fallen due since the last call.

        With steps_per_collect or episodes_per_collect, updates wait until that many have been collected.
        """
        made, end = self.progress, self.global_step + self.round_steps
        if self.seed_until_step(self.global_step) or len(self.replay_storage) == 0:
            made.updated_step, made.updated_episode = end, made.episode  # these steps are not made up for
            return
        steps, episodes = end - made.updated_step, made.episode - made.updated_episode
        if steps < self.steps_per_collect or episodes < self.episodes_per_collect:
            return
        with self.time_shares.spent_on("update"):
            for step in range(made.updated_step, end):
                for _ in range(max(utils.updates_due(step, self.updates_per_step), self.seed_updates_due(step))):
                    metrics = self.agent.update(self.replay_iter, step)
                    made.gradient_step += step % self.update_every_steps == 0
                    self.logger.log_metrics(metrics, self.global_frame, ty="train")
        made.updated_step, made.updated_episode = end, made.episode

    def seed_updates_due(self, step: int) -> int:
        """Return `seed_updates` the first time the agent learns, 0 afterwards."""
        if self.progress.seed_updates_done or step % self.update_every_steps:
            return 0
        self.progress.seed_updates_done = True
        return int(self.cfg.seed_updates)

    def record(self, i: int, time_step: ExtendedTimeStep) -> None:
        """Store and count the time step of environment i."""
        self.progress.episode_rewards[i] += time_step.reward
        self.progress.episode_steps[i] += 1
        if time_step.success is not None:
            self.progress.episode_success[i] = max(time_step.success, self.progress.episode_success[i] or 0.0)
        info.add(self.progress.episode_info[i], time_step.info)
        if (transform := self.epoch.hooks.transform_reward) is not None:
            reward = transformed(transform, np.asarray(time_step.reward, np.float32))
            time_step = time_step._replace(reward=float(reward))
        self.store(i, time_step)
        if i == 0:
            self.train_video_recorder.record(time_step.observation)

    def store(self, i: int, time_step: ExtendedTimeStep) -> None:
        """Add a time step of environment i to the replay; at an episode's end, call the agent's `observe_episode`."""
        if self.task_of[i] not in self.unstored:
            self.observe_episode(self.task_of[i], self.replay_storage.add(time_step, i))

    def observe_episode(self, task: int, episode: int | None) -> None:
        """Pass an episode that the replay now holds, if it is one, to the agent's `observe_episode`."""
        if episode is not None and hasattr(self.agent, "observe_episode"):
            rewards, discounts = self.replay_storage.load_rewards(episode)
            self.agent.observe_episode(task, rewards, discounts * self.gammas[task])

    def eval(self) -> EvalStats:
        """Play num_eval_episodes without exploration; log their returns and film the first."""
        act = batch_policy(self.agent, self.train_envs[0].action_spec().shape, self.global_step)
        with torch.no_grad():
            return evaluate(self, self.eval_envs, self.video_recorder, act)

    @property
    def frames_per_step(self) -> int:
        """Environment frames of an agent step, of all tasks."""
        return sum(self.repeats)

    def start_episodes(self, numbers: Sequence[int]) -> None:
        """Begin the next episode in the environments of these numbers; at the start of a run, in all of them."""
        with self.time_shares.spent_on("environment"):
            for i in numbers:
                self.train_envs[i].start("reset")
            started = [self.train_envs[i].finish() for i in numbers]
        for i, time_step in zip(numbers, started, strict=True):
            self.time_steps[i : i + 1] = [time_step]
            self.progress.episode_steps[i], self.progress.episode_rewards[i] = 0, 0.0
            self.progress.episode_success[i], self.progress.episode_info[i] = None, {}
            self.store(i, time_step)
            if i == 0:
                self.progress.filming = self.film_every_step(self.global_step)
                self.train_video_recorder.init(time_step.observation, enabled=self.progress.filming)

    def finish_episodes(self) -> None:
        """Log the episodes that have ended, one row each, or one row for all tasks; begin the next ones."""
        ended = [i for i, time_step in enumerate(self.time_steps) if time_step.last()]
        if not ended:
            return
        self.require_finite(parameters=True)
        elapsed_time, total_time = self.timer.reset()
        fps = (self.global_step - self.progress.last_row_step) * sum(self.repeats) / elapsed_time
        self.progress.last_row_step = self.global_step
        if 0 in ended:
            self.train_video_recorder.save(f"{self.global_frame}.mp4")
        if self.diagnose_every_step(self.global_step) and len(self.replay_storage) > 0:
            self.logger.log_metrics(self.diagnostics() | self.gradient_norms(), self.global_frame, ty="train")
        rows = []
        for row in [ended] if self.multitask else [[i] for i in ended]:
            self.progress.episode += len(row)
            metrics = self.episode_metrics(row, elapsed_time)
            rows.append(([self.episode_stats(i) for i in row], metrics))
            with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
                log("fps", fps)
                log("total_time", total_time)
                for name, value in metrics.items():
                    log(name, value)
                log("episode", self.global_episode)
                log("buffer_size", len(self.replay_storage))
                log("step", self.global_step)
        self.start_episodes(ended)
        for episodes, metrics in rows:
            self.epoch.logged(episodes, metrics)

    def episode_stats(self, i: int) -> EpisodeStats:
        """Return statistics of the episode that just ended in environment i."""
        made, task = self.progress, self.task_of[i]
        length = made.episode_steps[i] * self.repeats[task]
        return EpisodeStats(self.global_step, task, made.episode_rewards[i], length, made.episode_success[i])

    def diagnostics(self) -> dict[str, float]:
        """Return diagnostics of the learner on the newest episode of each task, and their mean over tasks."""
        found: dict[int, dict[str, float]] = {}
        for task, episode in self.replay_storage.newest_of_tasks().items():
            arrays = self.replay_storage.load_episode(episode)
            found[task] = diagnose(self.agent, arrays, self.cfg.frame_stack, self.gammas[task], self.device)
        return tasks.with_means(found, self.suffixes)

    def episode_metrics(self, ended: Sequence[int], seconds: float) -> dict[str, float]:
        """Return the metrics of the episodes that ended in these environments since the last row."""
        made = self.progress
        totals, steps, success = made.episode_rewards, made.episode_steps, made.episode_success
        results = [EpisodeResult(totals[i], steps[i], success[i], made.episode_info[i]) for i in ended]
        return self.task_metrics([self.task_of[i] for i in ended], results, seconds)

    def evaluation_metrics(self, results: Sequence[EpisodeResult], seconds: float) -> dict[str, float]:
        """Return the metrics of an evaluation's episodes."""
        if not self.multitask:
            return super().evaluation_metrics(results, seconds)
        return self.task_metrics([i // self.cfg.num_eval_episodes for i in range(len(results))], results, seconds)

    def task_metrics(self, played: Sequence[int], results: Sequence[EpisodeResult], seconds: float) -> dict[str, float]:
        """Return each task's metrics and their means; with several tasks also the seconds that the episodes took."""
        found = tasks.metrics(played, results, self.repeats, self.suffixes, self.unstored)
        return found | {"duration": seconds} if self.multitask else found

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environments and replay; `needs` is the oldest episode it refers to."""
        return {
            "needs": self.replay_storage.first_needed,
            "train_envs": [env.state() for env in self.train_envs],
            "replay_storage": self.replay_storage.state_dict(),
            "replay_loader": self.replay_loader.state_dict(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore environments and replay."""
        self.replay_storage.load_state_dict(saved["replay_storage"], keep_from=self.checkpoints.needed)
        self.replay_loader.load_state_dict(saved["replay_loader"])
        if "train_envs" not in saved:  # so far, the run has learnt from stored data
            return self.start_episodes(range(len(self.train_envs)))
        for env, env_state in zip(self.train_envs, saved["train_envs"], strict=True):
            env.start("restore", env_state)
        self.time_steps = [env.finish() for env in self.train_envs]
        for i, time_step in enumerate(self.time_steps):
            if time_step.last():  # ended by a max_episode_steps lower than before: stored so far as if it went on
                self.observe_episode(self.task_of[i], self.replay_storage.end(i))
        self.train_video_recorder.init(self.time_steps[0].observation, enabled=self.progress.filming)


REGIMES: dict[str, type[BaseWorkspace]] = {
    "drqv2": Workspace,
    "impala": ImpalaWorkspace,
    "multitask": Workspace,
    "offline": OfflineWorkspace,
    "ppo": PPOWorkspace,
}


def make_workspace(cfg: DictConfig, work_dir: str | Path | None = None) -> BaseWorkspace:
    """Open a run, new or resumed. Use it as a context manager, which closes it.

    Args:
        cfg: what `compose` returned.
        work_dir: the run's directory; by default a new one below exp_local/, or that of `resume`. If it holds a
            snapshot, the run is resumed from it.

    Raises:
        UserError: the configuration does not fit the machine, the environment or the files there.
    """
    run_dir = (new_run_dir(cfg) if work_dir is None else Path(work_dir)).resolve()
    if cfg.resume and run_dir != Path(cfg.resume).resolve():
        raise UserError(f"resume={cfg.resume} and another directory, {run_dir}: give only one of them")
    run_dir.mkdir(parents=True, exist_ok=True)
    return open_workspace(REGIMES[current_regime(cfg, run_dir)], cfg.copy(), run_dir)


def main(cfg: DictConfig, work_dir: Path) -> float:
    """Start or resume the run in `work_dir`; return its last evaluation's mean return, for a sweeper to maximize."""
    regime = current_regime(cfg, work_dir)
    objective = run_workspace(REGIMES[regime], cfg, work_dir)
    if cfg.get("then") is not None and regime == cfg.regime:
        objective = run_workspace(REGIMES[cfg.then], cfg, work_dir)
    return objective
