"""Learn to control from pixels with DrQ-v2.

python train.py                                     # cartpole_balance_sparse, the paper's settings
python train.py task=cheetah_run seed=3             # another task; any key can be overridden
python train.py preset=cpu                          # without a GPU: a short run
python train.py -m task=walker_walk seed=1,2,3      # one run after another
python train.py resume=latest                       # go on with the newest run, in its own directory
python train.py resume=RUN_DIR num_train_frames=2e6 # go on with a run, for longer
python train.py --help                              # every key, its default and its unit
"""

from __future__ import annotations

if __name__ == "__main__":
    from drqv2.system.machine import calm_openmp

    calm_openmp()  # before torch is loaded

    from drqv2.system.signals import leave_until_there_is_a_run

    leave_until_there_is_a_run()

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from drqv2 import envs, utils
from drqv2.agents.acting import choose_actions
from drqv2.errors import NotFiniteError, UserError
from drqv2.evaluation.episodes import play
from drqv2.launch.command_line import launch
from drqv2.logging import provenance
from drqv2.logging.console import Status
from drqv2.logging.diagnostics import diagnose, gradient_norms
from drqv2.logging.time_shares import Shares
from drqv2.run import factory as parts
from drqv2.run.progress import Progress
from drqv2.snapshot import agent_weights, state
from drqv2.snapshot import file as snapshot
from drqv2.snapshot import resume as resuming
from drqv2.snapshot.checkpoints import Checkpoints, has_ended
from drqv2.system import files
from drqv2.system.signals import StopSignals, how_to_go_on
from video import make_recorders


class Workspace:
    """A run: environments, agent, replay, recorders and counters, and the loop that moves them.

    Args:
        cfg: the checked configuration, see docs/configuration.md.
        work_dir: the run's directory. Where it holds a snapshot, the run goes on from it.
        stop: says when to leave.
    """

    def __init__(self, cfg: DictConfig, work_dir: Path, stop: StopSignals | None = None) -> None:
        self.cfg = cfg
        self.work_dir = work_dir
        self.stop = stop or StopSignals(work_dir)
        self.device = torch.device(cfg.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # streams and graphs are made on the current one
        utils.set_seed_everywhere(cfg.seed)
        self.setup()
        self.agent = parts.make_agent(cfg, self.train_envs[0], self.device)

        self.timer = utils.Timer()
        self.progress = Progress(episode_steps=[0] * cfg.num_envs, episode_rewards=[0.0] * cfg.num_envs)
        self.time_steps: list[envs.ExtendedTimeStep] = []  # one for each environment
        self._saved_at = float("-inf")  # training seconds at the newest snapshot
        self._norms_before: dict[str, float] = {}  # gradient norms of the last update before a resume

        self.checkpoints = Checkpoints(work_dir)
        if saved := self.checkpoints.load():
            self.load_snapshot(saved)
            return
        if cfg.init_from:
            agent_weights.init_weights(self.agent, Path(cfg.init_from))
        self.replay_storage.delete()  # what a run left here that was stopped before its first snapshot
        resuming.store_config(cfg, work_dir)
        self._start_episodes(range(cfg.num_envs))

    def setup(self) -> None:
        """Make environments, replay, logger, recorders and predicates; nothing of it has a history yet."""
        cfg = self.cfg
        self.shares = Shares("environment", "act", "data", "update", "evaluation", "snapshot")
        self.console = parts.make_console(cfg, self.device, self.status)
        self.logger = parts.make_logger(cfg, self.work_dir, self.console)
        self.train_envs = [parts.make_env(cfg, utils.TRAIN_ENV, i) for i in range(cfg.num_envs)]
        self.eval_envs = [parts.make_env(cfg, utils.EVAL_ENV, i) for i in range(cfg.num_eval_envs)]
        env = self.train_envs[0]

        self.replay_storage, self.replay_loader = parts.make_replay(cfg, env, self.work_dir, self.device)
        self.replay_iter = self.shares.waited_for("data", iter(self.replay_loader))
        self.video_recorder, self.train_video_recorder = make_recorders(cfg, env, self.work_dir)

        self.train_until_step = utils.Until(cfg.num_train_frames, cfg.action_repeat)
        self.seed_until_step = utils.Until(cfg.num_seed_frames, cfg.action_repeat)
        self.eval_every_step = utils.Every(cfg.eval_every_frames, cfg.action_repeat)
        self.diagnose_every_step = utils.Every(cfg.diagnostics_every_frames, cfg.action_repeat)
        self.film_every_step = utils.Every(cfg.train_video_every_frames, cfg.action_repeat)

    @property
    def global_step(self) -> int:
        """Agent steps so far."""
        return self.progress.step

    @property
    def global_episode(self) -> int:
        """Training episodes finished so far."""
        return self.progress.episode

    @property
    def global_frame(self) -> int:
        """Environment frames so far."""
        return self.progress.step * self.cfg.action_repeat

    def status(self) -> Status:
        """Return what a dashboard shows."""
        best = self.progress.best_return
        return Status(self.global_frame, self.cfg.num_train_frames, best, self.shares.shares())

    def train(self) -> None:
        """Step, learn and evaluate until num_train_frames; then evaluate and save once more."""
        if not self.train_until_step(self.global_step):
            print(f"nothing left to do: the run has had its num_train_frames={self.cfg.num_train_frames}; give more")
        while self.train_until_step(self.global_step):
            # episodes have ended: log them, start the next
            if ended := self._ended():
                self._finish_episodes(ended)
                self._start_episodes(ended)

            # try to evaluate
            self._evaluate_if_due()

            # nothing is under way: try to save a snapshot; leave if told to
            self._save_snapshot_if_due()
            self.stop.raise_if_requested()

            # choose actions; with them the environments begin to step
            actions = self._act([time_step.observation for time_step in self.time_steps])
            with self.shares.spent_on("environment"):
                for env, action in zip(self.train_envs, actions, strict=True):
                    env.start("step", action)

            # try to update the agent meanwhile: the transitions under way are not in the replay yet
            if not self.seed_until_step(self.global_step) and len(self.replay_storage) > 0:
                self._update()

            # see where the environments have come to
            with self.shares.spent_on("environment"):
                self.time_steps = [env.finish() for env in self.train_envs]
            for i, time_step in enumerate(self.time_steps):
                self._record(i, time_step)
            self.progress.step += self.cfg.num_envs

        if ended := self._ended():
            self._finish_episodes(ended)
            self._start_episodes(ended)
        if self.progress.last_eval_step != self.global_step:
            self._save_snapshot_if_due(now=True)
            self.eval()
        self._save_snapshot_if_due(now=True)
        self.checkpoints.settle(last=True)
        self.replay_storage.pin("snapshots", self.checkpoints.needed)

    @torch.no_grad()
    def _act(self, observations: Sequence[np.ndarray], eval_mode: bool = False) -> Sequence[np.ndarray]:
        with self.shares.spent_on("act"):
            return choose_actions(self.agent, observations, self.global_step, eval_mode)

    def _update(self) -> None:
        with self.shares.spent_on("update"):
            for step in range(self.global_step, self.global_step + self.cfg.num_envs):
                for _ in range(self.cfg.updates_per_step):
                    metrics = self.agent.update(self.replay_iter, step)
                    self.logger.log_metrics(metrics, self.global_frame, ty="train")

    def _record(self, i: int, time_step: envs.ExtendedTimeStep) -> None:
        for name in ("reward", "discount"):
            value = getattr(time_step, name)
            if math.isfinite(value):
                continue
            raise NotFiniteError(
                f"the {name} is {value} at frame {self.global_frame} (environment {i}, "
                f"step {self.progress.episode_steps[i]} of its episode): mend the environment"
            )
        self.progress.episode_rewards[i] += time_step.reward
        self.progress.episode_steps[i] += 1
        self.replay_storage.add(time_step, i)
        if i == 0:
            self.train_video_recorder.record(time_step.observation)

    def _evaluate_if_due(self) -> None:
        due = self.progress.last_eval_step != self.global_step and self.eval_every_step.due(self.global_step)
        if due:
            self._save_snapshot_if_due(now=True)  # a run that is stopped within the evaluation does all of it again
            self.stop.raise_if_requested()
        self.eval_every_step(self.global_step)
        if due:
            self.eval()

    def eval(self) -> None:
        """Run num_eval_episodes without exploration; log their mean return and film the first.

        Episode j of evaluation n is seeded by (seed, n, j), whatever was evaluated before.
        """

        def film(episode: int, env: Any, time_step: envs.ExtendedTimeStep) -> None:
            self.stop.raise_if_requested()
            if episode == 0:
                self.video_recorder.init(env) if time_step.first() else self.video_recorder.record(env)
                if time_step.last():
                    self.video_recorder.save(video.name)

        video = self.work_dir / "eval_video" / f"{self.global_frame}.mp4"

        with self.timer.paused(), self.shares.spent_on("evaluation"):
            results = play(
                self.eval_envs,
                self.progress.evaluations,
                self.cfg.num_eval_episodes,
                lambda obs: self._act([obs], eval_mode=True)[0],
                film,
            )
        self.progress.evaluations += 1
        self.progress.last_eval_step = self.global_step

        returns, steps = zip(*results, strict=True)
        self.progress.last_return = float(np.mean(returns))
        self.progress.best_return = max(self.progress.best_return, self.progress.last_return)
        with self.logger.log_and_dump_ctx(self.global_frame, ty="eval") as log:
            log("total_time", self.timer.total_time())
            log("episode_reward", self.progress.last_return)
            log("episode_length", float(np.mean(steps)) * self.cfg.action_repeat)
            log("episode", self.global_episode)
            log("step", self.global_step)
            for episode, value in enumerate(returns):
                log(f"episode_reward/{episode}", value)
        with self.timer.paused(), self.shares.spent_on("evaluation"):
            if self.cfg.save_video and video.exists():
                self.logger.log_video("eval/video", video, self.global_frame)

    def _ended(self) -> list[int]:
        return [i for i, time_step in enumerate(self.time_steps) if time_step.last()]

    def _start_episodes(self, numbers: Sequence[int]) -> None:
        """Start the next episode in the environments of these numbers; all of them, if it is the first."""
        with self.shares.spent_on("environment"):
            for i in numbers:
                self.train_envs[i].start("reset")
            started = [self.train_envs[i].finish() for i in numbers]
        for i, time_step in zip(numbers, started, strict=True):
            self.time_steps[i : i + 1] = [time_step]
            self.progress.episode_steps[i], self.progress.episode_rewards[i] = 0, 0.0
            self.replay_storage.add(time_step, i)
            if i == 0:
                self.progress.filming = self.film_every_step(self.global_step)
                self.train_video_recorder.init(time_step.observation, enabled=self.progress.filming)

    def _finish_episodes(self, numbers: Sequence[int]) -> None:
        """Log the episodes that have ended in the environments of these numbers, a row each."""
        self._require_finite(parameters=True)
        elapsed_time, total_time = self.timer.reset()
        fps = (self.global_step - self.progress.last_row_step) * self.cfg.action_repeat / elapsed_time
        self.progress.last_row_step = self.global_step
        if 0 in numbers:
            self.train_video_recorder.save(f"{self.global_frame}.mp4")
        if self.diagnose_every_step(self.global_step):
            episode = self.replay_storage.load_episode(self.replay_storage.num_episodes - 1)
            figures = diagnose(self.agent, episode, self.cfg.frame_stack, self.cfg.discount, self.device)
            self.logger.log_metrics(figures | self._gradient_norms(), self.global_frame, ty="train")
        for i in numbers:
            self.progress.episode += 1
            with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
                log("fps", fps)
                log("total_time", total_time)
                log("episode_reward", self.progress.episode_rewards[i])
                log("episode_length", self.progress.episode_steps[i] * self.cfg.action_repeat)
                log("episode", self.global_episode)
                log("buffer_size", len(self.replay_storage))
                log("step", self.global_step)

    def _gradient_norms(self) -> dict[str, float]:
        """Return those of the last update; gradients themselves are not in a snapshot."""
        return self._norms_before | {name: float(norm) for name, norm in gradient_norms(self.agent).items()}

    def _require_finite(self, parameters: bool = False) -> None:
        name = self.logger.not_finite_loss()
        if name is None and parameters:
            name = snapshot.not_finite(state.capture(self.agent), "agent")
        if name:
            raise NotFiniteError(f"{name} is not finite at frame {self.global_frame} (episode {self.global_episode})")

    def _save_snapshot_if_due(self, now: bool = False) -> None:
        since = self.timer.total_time() - self._saved_at
        due = since >= self.cfg.snapshot_every_seconds and not self.checkpoints.busy
        milestone = self._milestones(self.global_step) > self._milestones(self.global_step - self.cfg.num_envs)
        if self.cfg.save_snapshot and (now or milestone or due or self.stop.requested):
            self.save_snapshot(milestone)

    def _milestones(self, step: int) -> int:
        """Return how many milestones have been passed at an agent step."""
        return self.cfg.snapshot_keep * step // (self.cfg.num_train_frames // self.cfg.action_repeat)

    def save_snapshot(self, milestone: bool = False) -> None:
        """Begin to write everything that the run needs to go on from this step; a thread does the rest."""
        with self.shares.spent_on("snapshot"):
            self._require_finite()
            self._saved_at = self.timer.total_time()
            self.checkpoints.save(self.state_dict(), milestone)
            self.replay_storage.pin("snapshots", self.checkpoints.needed)

    def state_dict(self) -> dict[str, Any]:
        """Return the run's state: tensors, numbers, strings, None and containers of them; tensors may be its own."""
        return {
            "frame": self.global_frame,
            "needs": self.replay_storage.first_needed,
            "config": OmegaConf.to_container(self.cfg, resolve=True),
            "progress": asdict(self.progress),
            "last_steps": {name: predicate.last_step for name, predicate in self._predicates().items()},
            "timer": self.timer.total_time(),
            "agent": state.capture(self.agent),
            "rng": state.rng_state(),
            "train_envs": [env.state() for env in self.train_envs],
            "replay_storage": self.replay_storage.state_dict(),
            "replay_loader": self.replay_loader.state_dict(),
            "logger": self.logger.state_dict(),
            "gradient_norms": self._gradient_norms(),
        }

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Go on from a snapshot's state, and say from where.

        Raises:
            UserError: it does not fit the configuration or the files in the run's directory.
        """
        cfg: Any = OmegaConf.to_container(self.cfg, resolve=True)
        changed = resuming.changed_keys(saved["config"], cfg, self.work_dir)
        agent_weights.restore_agent(self.agent, saved["agent"], changed, self.work_dir)
        try:
            self.replay_storage.load_state_dict(saved["replay_storage"], keep_from=self.checkpoints.needed)
        except FileNotFoundError as e:
            raise UserError(f"{e}: the run cannot be gone on with") from e
        self.progress = Progress(**saved["progress"])
        for name, predicate in self._predicates().items():
            predicate.last_step = saved["last_steps"][name]
        self.replay_loader.load_state_dict(saved["replay_loader"])
        self.logger.load_state_dict(saved["logger"])
        self._norms_before = saved["gradient_norms"]
        for env, env_state in zip(self.train_envs, saved["train_envs"], strict=True):
            env.start("restore", env_state)
        self.time_steps = [env.finish() for env in self.train_envs]
        # The recorder holds no history: after a resume within an episode its video begins there.
        self.train_video_recorder.init(self.time_steps[0].observation, enabled=self.progress.filming)
        self.timer = utils.Timer(saved["timer"])
        self._saved_at = saved["timer"]
        state.set_rng_state(saved["rng"])
        if changed and cfg["save_snapshot"]:  # or else what was just accepted would be asked for again after a kill
            resuming.store_config(self.cfg, self.work_dir, resume_force=True)  # until the snapshot has it, too
            self.save_snapshot()
            self.checkpoints.settle()
        if changed or cfg["resume_force"]:
            resuming.store_config(self.cfg, self.work_dir)
        window = self.replay_storage.window
        print(
            f"resumed {self.work_dir} at frame {self.global_frame} (episode {self.global_episode}, "
            f"{saved['timer']:.0f} s of training): agent, optimizers, generators, environment, logs, "
            f"replay of {len(self.replay_storage)} transitions in {window.end - window.first} episodes"
        )

    def _predicates(self) -> dict[str, utils.Every]:
        return {name: value for name, value in vars(self).items() if isinstance(value, utils.Every)}

    def close(self) -> None:
        """Finish the snapshot that is being written; close environments, workers, recorders and files."""
        self.checkpoints.close()
        self.replay_loader.close()
        for env in (*self.train_envs, *self.eval_envs):
            env.close()
        self.video_recorder.close()
        self.train_video_recorder.close()
        self.logger.close()

    def sum_up(self) -> None:
        """Say how well the run has done, and where to look."""
        best, last = self.progress.best_return, self.progress.last_return
        print(f"evaluation return: {last:.1f} at the end, {best:.1f} at best")
        made = {"curves": "eval.csv", "TensorBoard": "tb", "videos": "eval_video", "snapshot": "snapshot.pt"}
        there = [f"{what}: {self.work_dir / name}" for what, name in made.items() if (self.work_dir / name).exists()]
        print("\n".join(there))

    def dispose_of_replay(self) -> None:
        """Keep or delete the episodes of a run that has ended for good, as configured, and say so."""
        size = f"{self.replay_storage.nbytes() / 1e9:.2f} GB of replay in {self.replay_storage.replay_dir}"
        if self.cfg.keep_replay:
            print(f"kept {size} (keep_replay=false deletes it at the end)")
        else:
            files.discard(self.replay_storage.replay_dir)
            print(f"deleted {size}; the snapshot's weights remain usable (init_from), the run cannot be resumed")


def main(cfg: DictConfig, work_dir: Path) -> float:
    """Run or go on with the run in `work_dir`; return its last evaluation's return, which a sweeper may maximize."""
    parts.settle_machine(cfg)
    for name in ("agent_dir", "init_from"):
        if cfg[name]:
            cfg[name] = str(Path(cfg[name]).resolve())  # to be found when the run is resumed from elsewhere
    renderer = parts.require_renderer(cfg)
    print(f"run directory: {work_dir}")
    compiled = "compiled" if cfg.compile else "not compiled"
    print(f"device: {cfg.device}, {cfg.precision}, {compiled}; renderer: {renderer}")
    if cfg.save_snapshot:
        print(f"after an interruption, {how_to_go_on(work_dir, soon=True)}")
    with files.locked(work_dir), StopSignals(work_dir) as stop:
        files.tidy(work_dir)
        if (over := has_ended(cfg, work_dir)) is not None:
            return float(over["last_return"])
        workspace = Workspace(cfg, work_dir, stop)
        provenance.record_start(work_dir, workspace.global_frame, workspace.device)
        try:
            with workspace.console:
                workspace.train()
        except NotFiniteError as e:
            otherwise = " resume_force=true, with a smaller lr, say" if files.has_snapshot(work_dir) else ""
            raise NotFiniteError(f"{e}\nNo snapshot has that: {how_to_go_on(work_dir)}{otherwise}") from e
        finally:
            workspace.close()
        workspace.sum_up()
        workspace.dispose_of_replay()
    return workspace.progress.last_return


if __name__ == "__main__":
    import train  # this file under its name, by which a launcher's processes, here and on other machines, find `main`

    launch(train.main, "cfgs")
