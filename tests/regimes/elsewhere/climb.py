"""A regime of one file, hill climbing on linear policies: an episode tries other weights, and the better ones stay."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch

from drqv2 import utils
from drqv2.agents.acting import choose_actions
from drqv2.config.keys import free, key, table
from drqv2.config.kinds import POSITIVE, Int
from drqv2.config.regime import Agent, Regime
from drqv2.errors import UserError
from drqv2.logging.video import VideoRecorder
from drqv2.run import factory
from drqv2.run.environments import make_envs
from drqv2.run.episodes import Episodes
from drqv2.run.hooks import Hooks
from drqv2.run.stats import RunSummary
from drqv2.run.workspace import BaseWorkspace


class Climber:
    """A linear policy, and another one that is tried."""

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        action_shape: tuple[int, ...],
        seed: int,
        noise: Annotated[float, key(POSITIVE, "Standard deviation of a change of weights.")] = 0.1,
    ) -> None:
        self.noise, self.best_return, self.training = noise, -math.inf, True
        self.best = torch.nn.Linear(obs_shape[0], action_shape[0])
        self.tried = copy.deepcopy(self.best)
        self.generator = torch.Generator().manual_seed(seed)

    def train(self, training: bool = True) -> None:
        self.training = training

    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        policy = self.best if eval_mode else self.tried
        return torch.tanh(policy(torch.from_numpy(obs))).detach().numpy()

    @torch.no_grad()
    def update(self, returns: Any, step: int) -> dict[str, float]:
        """Keep the weights that have just been tried if their return is no worse, and try others."""
        total = next(returns)
        if total >= self.best_return:
            self.best.load_state_dict(self.tried.state_dict())
            self.best_return = total
        for best, tried in zip(self.best.parameters(), self.tried.parameters(), strict=True):
            tried.copy_(best + self.noise * torch.randn(best.shape, generator=self.generator))
        return {"best_return": self.best_return}


class ClimbWorkspace(BaseWorkspace):
    """A run of hill climbing in one environment."""

    phases = ("environment", "evaluation", "snapshot")
    has_replay = False

    def setup(self) -> None:
        cfg = self.cfg
        self.train_envs = self.owned(make_envs(cfg, utils.TRAIN_ENV))
        self.eval_envs = self.owned(make_envs(cfg, utils.EVAL_ENV))
        self.episodes = Episodes(self)
        self.agent = factory.make_agent(cfg, self.train_envs[0], self.device)
        filmed = self.work_dir if cfg.save_video else None
        self.video_recorder = VideoRecorder(filmed, **factory.film_settings(cfg, self.eval_envs[0]))
        self.owns(self.video_recorder)
        self.train_until_step = utils.Until(cfg.num_train_frames, self.action_repeat)
        epoch_frames = cfg.epoch_frames or cfg.eval_every_frames  # an epoch ends, by default with an evaluation
        self.eval_every_step = self.kept("eval_every_step", utils.Every(epoch_frames, self.action_repeat))

    def begin(self) -> None:
        self.episodes.reset([0])

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        shape = self.train_envs[0].action_spec().shape
        with self.turns.taken():
            self.epoch.start(hooks or Hooks(), epochs)
            while self.train_until_step(self.global_step):
                if self.episodes.ended():
                    self.learn()
                if self.epoch.between_rounds(epoch_ends=self.eval_every_step(self.global_step)):
                    break
                observations = self.episodes.observations
                self.episodes.step_async(
                    choose_actions(self.agent, observations, shape, self.global_step, eval_mode=False)
                )
                self.episodes.step_wait()
                self.progress.step += 1
            self.epoch.finish()
        return self.epoch.summary()

    def learn(self) -> None:
        """Learn from an episode that has ended, log it, and begin the next one."""
        result = self.episodes.result(0)
        self.logger.log_metrics(self.agent.update(iter([result.total]), self.global_step), self.global_frame, "train")
        self.progress.episode += 1
        self.progress.gradient_step += 1
        with self.logger.log_and_dump_ctx(self.global_frame, ty="train") as log:
            for name, value in (result.metrics(self.action_repeat) | {"step": self.global_step}).items():
                log(name, value)
        self.begin()

    def save_snapshot(self) -> None:
        self.snapshots.save(train_envs=self.episodes.state())

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        self.episodes.restore(saved["train_envs"])


def check(cfg: Mapping[str, Any]) -> None:
    if cfg["num_envs"] != 1:
        raise UserError(f"num_envs={cfg['num_envs']}: regime=climb has one environment")


REGIME = Regime(
    name="climb",
    purpose="hill climbing, linear policies from states",
    workspace=lambda: ClimbWorkspace,
    agents={"climber": Agent("climb.Climber")},
    keys={"Length": table(num_train_frames=free(Int(1), "Length of the run.", "frames"))},
    defaults={"obs_type": "state", "frame_stack": 1, "num_train_frames": 100_000},
    check=check,
    obs_type="state",
    compiles=False,
)
