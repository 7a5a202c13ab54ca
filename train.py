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
    from drqv2.system.machine import limit_openmp_spinning

    limit_openmp_spinning()  # before torch is loaded

    from drqv2.system.signals import exit_on_signal_before_run

    exit_on_signal_before_run()

from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from drqv2 import utils
from drqv2.agents.acting import choose_actions, evaluation_policy, takes_task
from drqv2.envs import ExtendedTimeStep
from drqv2.evaluation import tasks
from drqv2.evaluation.episodes import EpisodeResult, evaluate, require_finite
from drqv2.launch.command_line import launch
from drqv2.logging.diagnostics import diagnose
from drqv2.regimes.impala import ImpalaWorkspace
from drqv2.regimes.ppo import PPOWorkspace
from drqv2.run import factory
from drqv2.run.environments import action_repeats, discounts, make_envs, task_suffixes
from drqv2.run.start import run_workspace
from drqv2.run.workspace import BaseWorkspace
from replay_buffer import ReplayBufferStorage


class Workspace(BaseWorkspace):
    """DrQ-v2's run: environments, agent, replay, recorders, and the frame loop around them.

    With several tasks, an agent step is one of every task, and frames are those of one task.
    """

    replay_storage: ReplayBufferStorage
    phases = ("environment", "act", "data", "update", "evaluation", "snapshot")

    def setup(self) -> None:
        """Make environments, replay, recorders, predicates and the agent."""
        cfg = self.cfg
        self.train_envs = make_envs(cfg, utils.TRAIN_ENV)
        self.eval_envs = make_envs(cfg, utils.EVAL_ENV)
        self.multitask = cfg.regime == "multitask"
        self.task_of = [i // cfg.num_envs for i in range(len(self.train_envs))]  # index of each environment's task
        self.repeats, self.gammas = action_repeats(cfg), discounts(cfg)
        self.suffixes = task_suffixes(cfg) if self.multitask else []
        self.updates_per_step = Fraction(str(cfg.updates_per_step))  # 0.1 is a tenth, not the nearest float
        self.unstored = {self.tasks.index(name) for name in cfg.get("exclude_tasks", ())}
        self.time_steps: list[ExtendedTimeStep] = []  # the current one of each training environment
        env = self.train_envs[0]

        self.replay_storage, self.replay_loader = factory.make_replay(cfg, env, self.work_dir, self.device)
        self.video_recorder, self.train_video_recorder = factory.make_recorders(cfg, env, self.work_dir)

        self.train_until_step = utils.Until(cfg.num_train_frames, cfg.action_repeat)
        self.seed_until_step = utils.Until(cfg.num_seed_frames, cfg.action_repeat)
        self.eval_every_step = utils.Every(cfg.eval_every_frames, cfg.action_repeat)
        self.diagnose_every_step = utils.Every(cfg.diagnostics_every_frames, cfg.action_repeat)
        self.film_every_step = utils.Every(cfg.train_video_every_frames, cfg.action_repeat)

        self.agent = factory.make_agent(cfg, env, self.device)
        batches = factory.batches_for(self.agent, iter(self.replay_loader), cfg)
        self.replay_iter = self.time_shares.timed_iterator("data", batches)
        self.acting_tasks = self.task_of if takes_task(self.agent) else None

    def begin(self) -> None:
        """Delete the replay of a start that had no snapshot yet; begin the first episodes."""
        self.replay_storage.delete()
        self.start_episodes(range(len(self.train_envs)))

    def train(self) -> None:
        """Act, learn and evaluate until num_train_frames; then evaluate and save once more."""
        if not self.train_until_step(self.global_step):
            print(f"nothing left to do: num_train_frames={self.cfg.num_train_frames} reached; increase it to continue")
        while self.train_until_step(self.global_step):
            # log episodes that ended, begin the next ones
            self.finish_episodes()

            # try to evaluate
            if self.progress.last_eval_step != self.global_step and self.eval_every_step.due(self.global_step):
                self.save_snapshot_if_due(now=True)  # a run stopped during an evaluation repeats all of it
                self.stop.raise_if_requested()
                self.eval()
            self.eval_every_step(self.global_step)

            # try to save a snapshot: no environment is stepping; stop here if asked to
            self.save_snapshot_if_due()
            self.stop.raise_if_requested()

            # choose actions; the environments begin to step
            actions = self.act([time_step.observation for time_step in self.time_steps])
            with self.time_shares.spent_on("environment"):
                for env, action in zip(self.train_envs, actions, strict=True):
                    env.start("step", action)

            # meanwhile, try to update the agent; the current transitions are not in the replay yet
            if not self.seed_until_step(self.global_step) and len(self.replay_storage) > 0:
                self.update()

            # fetch and store the time steps
            with self.time_shares.spent_on("environment"):
                self.time_steps = [env.finish() for env in self.train_envs]
            for i, time_step in enumerate(self.time_steps):
                self.record(i, time_step)
            self.progress.step += self.round_steps

        self.finish_episodes()
        if self.progress.last_eval_step != self.global_step:
            self.save_snapshot_if_due(now=True)
            self.eval()
        self.save_snapshot_if_due(now=True)
        self.finish_snapshots()

    @torch.no_grad()
    def act(self, observations: Sequence[Any]) -> Sequence[np.ndarray]:
        """Return an action for each observation."""
        with self.time_shares.spent_on("act"):
            shape = self.train_envs[0].action_spec().shape
            return choose_actions(self.agent, observations, shape, self.global_step, False, self.acting_tasks)

    def update(self) -> None:
        """Call the agent's update as often as it is due at each agent step of this round."""
        with self.time_shares.spent_on("update"):
            for step in range(self.global_step, self.global_step + self.round_steps):
                for _ in range(max(utils.updates_due(step, self.updates_per_step), self.seed_updates_due(step))):
                    metrics = self.agent.update(self.replay_iter, step)
                    self.logger.log_metrics(metrics, self.global_frame, ty="train")

    def seed_updates_due(self, step: int) -> int:
        """Return the number of updates at once: all of them at the first step at which the agent learns."""
        if self.progress.seed_updates_done or step % getattr(self.agent, "update_every_steps", 1):
            return 0
        self.progress.seed_updates_done = True
        return int(self.cfg.seed_updates)

    def record(self, i: int, time_step: ExtendedTimeStep) -> None:
        """Store and count the time step of environment i.

        Raises:
            NotFiniteError: its reward or discount is NaN or infinite.
        """
        where = f"frame {self.global_frame} (environment {i}, step {self.progress.episode_steps[i]} of its episode)"
        require_finite(time_step, where)
        self.progress.episode_rewards[i] += time_step.reward
        self.progress.episode_steps[i] += 1
        if time_step.success is not None:
            self.progress.episode_success[i] = max(time_step.success, self.progress.episode_success[i] or 0.0)
        self.store(i, time_step)
        if i == 0:
            self.train_video_recorder.record(time_step.observation)

    def store(self, i: int, time_step: ExtendedTimeStep) -> None:
        """Add a time step of environment i to the replay; at an episode's end, call the agent's `observe_episode`."""
        task = self.task_of[i]
        if task in self.unstored:
            return
        episode = self.replay_storage.add(time_step, i)
        if episode is not None and hasattr(self.agent, "observe_episode"):
            rewards, discounts = self.replay_storage.load_rewards(episode)
            self.agent.observe_episode(task, rewards, discounts * self.gammas[task])

    def eval(self) -> None:
        """Play num_eval_episodes without exploration; log their returns and film the first."""
        policy = evaluation_policy(self.agent, self.train_envs[0].action_spec().shape, self.global_step)

        @torch.no_grad()
        def act(time_step: ExtendedTimeStep, episode: int) -> np.ndarray:
            with self.time_shares.spent_on("act"):
                return policy(time_step, episode)

        evaluate(self, self.eval_envs, self.video_recorder, act)

    def start_episodes(self, numbers: Sequence[int]) -> None:
        """Begin the next episode in the environments of these numbers; at the start of a run, in all of them."""
        with self.time_shares.spent_on("environment"):
            for i in numbers:
                self.train_envs[i].start("reset")
            started = [self.train_envs[i].finish() for i in numbers]
        for i, time_step in zip(numbers, started, strict=True):
            self.time_steps[i : i + 1] = [time_step]
            self.progress.episode_steps[i], self.progress.episode_rewards[i] = 0, 0.0
            self.progress.episode_success[i] = None
            self.store(i, time_step)
            if i == 0:
                self.progress.filming = self.film_every_step(self.global_step)
                self.train_video_recorder.init(time_step.observation, enabled=self.progress.filming)

    def finish_episodes(self) -> None:
        """Log the episodes that have ended, a row each, or one for those of several tasks; begin the next ones."""
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
        for row in [ended] if self.multitask else [[i] for i in ended]:
            self.progress.episode += len(row)
            with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
                log("fps", fps)
                log("total_time", total_time)
                for name, value in self.episode_metrics(row, elapsed_time).items():
                    log(name, value)
                log("episode", self.global_episode)
                log("buffer_size", len(self.replay_storage))
                log("step", self.global_step)
        self.start_episodes(ended)

    def diagnostics(self) -> dict[str, float]:
        """Return what the newest episode says of the learner; of several tasks, that of each, and their mean."""
        found: dict[int, dict[str, float]] = {}
        for task, episode in self.replay_storage.newest_of_tasks().items():
            arrays = self.replay_storage.load_episode(episode)
            found[task] = diagnose(self.agent, arrays, self.cfg.frame_stack, self.gammas[task], self.device)
        return tasks.with_means(found, self.suffixes) if self.multitask else found[0]

    def episode_metrics(self, ended: Sequence[int], seconds: float) -> dict[str, float]:
        """Return what a row says of the episodes that have ended in these environments since the row before."""
        made = self.progress
        totals, steps, success = made.episode_rewards, made.episode_steps, made.episode_success
        if not self.multitask:
            (i,) = ended
            own = {"episode_reward": totals[i], "episode_length": steps[i] * self.action_repeat}
            known = success[i]
            return own if known is None else own | {"success": known}
        results = [EpisodeResult(totals[i], steps[i], success[i]) for i in ended]
        return self.task_metrics([self.task_of[i] for i in ended], results, seconds)

    def evaluation_metrics(self, results: Sequence[EpisodeResult], seconds: float) -> dict[str, float]:
        """Return what the row of an evaluation says of its episodes."""
        if not self.multitask:
            return super().evaluation_metrics(results, seconds)
        return self.task_metrics([i // self.cfg.num_eval_episodes for i in range(len(results))], results, seconds)

    def task_metrics(self, played: Sequence[int], results: Sequence[EpisodeResult], seconds: float) -> dict[str, float]:
        """Return the metrics of several tasks, and the seconds that the episodes took."""
        return tasks.metrics(played, results, self.repeats, self.suffixes, self.unstored) | {"duration": seconds}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of environments and replay; `needs` is the first episode that it refers to."""
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
        for env, env_state in zip(self.train_envs, saved["train_envs"], strict=True):
            env.start("restore", env_state)
        self.time_steps = [env.finish() for env in self.train_envs]
        self.train_video_recorder.init(self.time_steps[0].observation, enabled=self.progress.filming)

    def close(self) -> None:
        """Finish the current snapshot; close environments, workers, recorders and files."""
        with ExitStack() as closing:  # each, whatever happens to the others; the last one first
            closing.callback(self.close_environments)
            closing.callback(self.video_recorder.close)
            closing.callback(self.train_video_recorder.close)
            closing.callback(self.replay_loader.close)
            closing.callback(super().close)


REGIMES: dict[str, type[BaseWorkspace]] = {
    "drqv2": Workspace,
    "impala": ImpalaWorkspace,
    "multitask": Workspace,
    "ppo": PPOWorkspace,
}


def main(cfg: DictConfig, work_dir: Path) -> float:
    """Start or resume the run in `work_dir`; return its last evaluation's mean return, for a sweeper to maximize."""
    return run_workspace(REGIMES[cfg.regime], cfg, work_dir)


if __name__ == "__main__":
    import train  # this file by its name, under which the processes of a launcher find `main`

    launch(train.main, "cfgs")
