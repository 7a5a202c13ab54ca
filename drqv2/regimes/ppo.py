"""PPO on many environments at once, as PufferLib 3 trains: collect segments, learn from them, log, repeat."""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import Any

from drqv2 import utils
from drqv2.agents import loading, ppo_mlp
from drqv2.agents.protocol import OnPolicyAgent
from drqv2.config.formatting import counted
from drqv2.config.regimes.ppo import default_minibatch
from drqv2.envs.vector import HandleVector
from drqv2.errors import UserError
from drqv2.regimes.on_policy import OnPolicyWorkspace
from drqv2.rollout.collector import Collector
from drqv2.rollout.totals import Ended, EpisodeTotals
from drqv2.run import objective
from drqv2.run.environments import make_vector
from drqv2.run.hooks import Hooks, transformed
from drqv2.run.stats import RunSummary


class PPOWorkspace(OnPolicyWorkspace):
    """A run of PPO: a vector of environments, the collector of segments, the agent, and the loop over updates.

    The agent's `update` gets an iterator; asking it for the next batch collects one.
    """

    phases = ("env", "forward", "copy", "learn", "evaluation", "snapshot")
    collect_phases, update_phases = ("env", "forward", "copy"), ("learn",)
    agent: OnPolicyAgent

    def setup(self) -> None:
        """Make environments, agent, collector, recorder and predicates."""
        cfg = self.cfg
        cfg.segments = cfg.segments or (cfg.steps_per_collect or cfg.num_envs * cfg.horizon) // cfg.horizon
        cfg.minibatch_size = cfg.minibatch_size or default_minibatch(cfg.segments, cfg.horizon)

        self.vector = make_vector(cfg, 0)
        self.resources.callback(lambda: self.vector.close())  # on a resume there may be another
        self.setup_agent()
        agent = loading.require(
            self.agent,
            ("policy", "step", "update", "act"),
            "an agent of regime=ppo needs policy.initial_state, step, update and act, as drqv2.agents.ppo.PPOAgent has",
        )
        self.agent = ppo_mlp.fast(agent)
        self.segments = self.make_collector()

        print(
            f"environments: {cfg.num_envs} of {cfg.env._target_ or cfg.task_name}, in {self.vector.name}; an "
            f"update learns from {counted(cfg.segments, 'segment')} of {counted(cfg.horizon, 'step')}, "
            f"in minibatches of {cfg.minibatch_size}"
            f"{', in C++' if isinstance(self.agent, ppo_mlp.MlpPPOAgent) else ''}"
        )
        minibatches = int(cfg.repeat_per_collect * self.round_steps / cfg.minibatch_size)
        self.gradient_steps = math.ceil(minibatches / cfg.agent.get("accumulate_minibatches", 1))  # of an update
        frames = cfg.snapshot_every_updates * self.round_steps * self.action_repeat
        self.save_every_step = self.kept("save_every_step", utils.Every(frames, self.action_repeat))

    def make_collector(self) -> Collector:
        """Return a new collector of segments."""
        cfg = self.cfg
        state = self.agent.policy.initial_state(cfg.num_envs)
        sizes = cfg.segments, cfg.horizon, cfg.discount
        return Collector(self.vector, self.agent.step, state, *sizes, self.device, self.time_shares.spent_on)

    def begin(self) -> None:
        """Start the first episodes."""
        self.segments.start(self.vector.reset())

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Collect and learn until total_timesteps, or for a number of epochs; see `BaseWorkspace.train`."""
        with self.turns.taken():
            self.epoch.start(hooks or Hooks(), epochs)
            transform = self.epoch.hooks.transform_reward
            self.segments.transform_reward = None if transform is None else partial(transformed, transform)
            while self.train_until_step(self.global_step):
                # at the end of an epoch save, evaluate, call hooks; save if due; stop if asked
                save = self.save_every_step(self.global_step) and self.global_step > 0
                if self.epoch.between_rounds(epoch_ends=self.eval_every_step(self.global_step), save=save):
                    break

                # collect a batch of segments and learn from it
                with self.time_shares.spent_on("learn"):
                    metrics = self.agent.update(self.segments, self.global_step)
                self.progress.step += self.round_steps
                self.progress.gradient_step += int(metrics.get("gradient_steps", self.gradient_steps)) if metrics else 0

                # try to log
                self.log(metrics)
            self.epoch.finish()
        return self.epoch.summary()

    def ended(self) -> EpisodeTotals:
        """Return the training episodes that ended since the newest row of train.csv."""
        return self.segments.totals

    def take_ended(self) -> Ended:
        """Return the same, and begin anew."""
        return self.segments.totals.take()

    def update_columns(self, ended: Any, seconds: float) -> dict[str, float]:
        """Return PufferLib's names of steps and time, and the number of the update."""
        update = self.global_step // self.round_steps
        return {"agent_steps": self.global_step, "uptime": self.rows_at, "update": update}

    @cached_property
    def round_steps(self) -> int:
        """Agent steps of an update."""
        return int(self.cfg.segments * self.cfg.horizon)

    def default_objective(self) -> float:
        """Return the mean of the logged training returns after the first fifth of the run.

        Where no episode has ended there, it is the return of the last evaluation, and a warning is printed.
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
        self.count_row(saved["timer"])
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
        self.segments.totals.episodes, self.segments.totals.info = ended["episodes"], ended["info"]
        self.begin()
