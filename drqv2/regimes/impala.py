"""IMPALA: actors fill rollouts with older policies, the learner corrects for that with V-trace, evaluates and saves."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from drqv2 import utils
from drqv2.agents import loading
from drqv2.agents.protocol import ActorCriticAgent
from drqv2.config.formatting import counted
from drqv2.envs.vector import HandleVector
from drqv2.errors import UserError, not_installed
from drqv2.regimes.on_policy import OnPolicyWorkspace
from drqv2.rollout.actor_processes import ActorProcesses, ActorTask, beats_layout
from drqv2.rollout.actors import ActorSetup
from drqv2.rollout.batches import Batches, BatchesInTurn, Statistics
from drqv2.rollout.inference import Inference, asking_layout
from drqv2.rollout.shared import SharedArrays, SharedWeights
from drqv2.rollout.unroll import Unroller, acts_with, rollout_layout
from drqv2.run import factory
from drqv2.run.environments import make_actor_vector
from drqv2.run.hooks import Hooks, transformed
from drqv2.run.stats import RunSummary
from drqv2.system import machine


class ImpalaWorkspace(OnPolicyWorkspace):
    """A run of IMPALA: actors, the batches of their rollouts, the agent, and the loop over updates.

    With `deterministic` there is one actor, in this process, which collects in turn with the learner's updates.
    """

    phases = ("actors", "learn", "weights", "evaluation", "snapshot")
    collect_phases, update_phases = ("actors",), ("learn", "weights")
    agent: ActorCriticAgent

    def setup(self) -> None:
        """Make environments, agent, recorder and predicates."""
        cfg = self.cfg
        self.batches: Batches | BatchesInTurn | None = None
        self.torch_threads = torch.get_num_threads()  # of the process, in which other runs may follow
        self.vector = make_actor_vector(cfg, 0, 0, 0)  # the only actor's, or for the specs
        self.resources.callback(self.close_actors)
        self.setup_agent()
        self.agent = loading.require(
            self.agent,
            ("policy", "policy.choose", "policy.initial_state", "generator", "update", "act"),
            "an agent of regime=impala needs a policy that actors copy, a generator, update and act, as "
            "drqv2.agents.impala.ImpalaAgent has",
        )
        self.envs_of_actor = cfg.num_envs // cfg.num_actors
        self.policy_device = next(self.agent.policy.parameters()).device  # with its number, for threads
        state = self.agent.policy.initial_state(self.envs_of_actor)
        self.layout = rollout_layout(self.vector, state, cfg.unroll_length)
        if not cfg.deterministic:
            self.vector.close()  # only its specs are needed
        self.weights: Any = None  # SharedWeights or RayActors: what actors get the learner's weights from
        self.policy_lag = self.actors_waiting = self.waited = 0.0  # at the newest row; `waited`: seconds until it

    def begin(self) -> None:
        """Begin with new episodes."""
        if self.cfg.deterministic:
            self.batches = self.make_batches_in_turn()
            self.batches.unroller.start(self.vector.reset())
        else:
            self.batches = self.make_batches()

    def make_batches_in_turn(self) -> BatchesInTurn:
        """Return batches of an actor in this process."""
        policy, number = self.agent.policy, self.cfg.batch_size // self.envs_of_actor
        state = policy.initial_state(self.envs_of_actor)
        before = None if state is None else (state[0].cpu(), state[1].cpu())
        unroller = Unroller(self.vector, acts_with(policy, self.agent.generator), before)
        return BatchesInTurn(unroller, self.layout, number, self.policy_device)

    def make_batches(self) -> Batches:
        """Return batches of actors in processes; these start with the first batch, from the learner's weights."""
        cfg, per_batch = self.cfg, self.cfg.batch_size // self.envs_of_actor
        self.num_buffers = number = cfg.num_buffers or 2 * (cfg.num_actors + per_batch)
        setup = ActorSetup(
            make_env=partial(make_actor_vector, cfg, self.global_step),
            make_policy=partial(factory.make_policy, cfg),
            seed=partial(_seed, cfg, self.global_step),
        )
        actors = self.make_ray_actors(setup, number) if cfg.cluster == "ray" else self.make_processes(setup, number)
        print(
            f"actors: {counted(cfg.num_actors, 'process')}, each with {counted(self.envs_of_actor, 'environment')} of "
            f"{cfg.env._target_ or cfg.task_name}; an update learns from {cfg.batch_size} x {cfg.unroll_length} steps; "
            f"{counted(number, 'buffer')} of {self.envs_of_actor} x {cfg.unroll_length} steps"
        )
        threads, version = cfg.num_learner_threads, lambda: self.weights.version
        return Batches(actors, per_batch, threads, self.policy_device, version, cfg.max_policy_lag)

    def make_processes(self, setup: ActorSetup, number: int) -> ActorProcesses:
        """Return actors in processes of this machine, with this many rollouts in shared memory."""
        cfg, inference = self.cfg, None
        self.weights = SharedWeights(self.agent.policy)
        threads = machine.learner_threads(cfg.num_actors)
        if threads is not None and self.policy_device.type == "cpu":
            torch.set_num_threads(threads)
        task = ActorTask(
            setup,
            buffers=SharedArrays({name: ((number, *shape), dtype) for name, (shape, dtype) in self.layout.items()}),
            beats=SharedArrays(beats_layout(cfg.num_actors)),
            weights=self.weights,
            render_threads=machine.render_threads(cfg.num_actors),
            imports=[factory.__name__],
        )
        if cfg.batched_inference:
            task.asked = SharedArrays(asking_layout(self.layout, cfg.num_actors))
            seed = utils.spawn_seed(cfg.seed, utils.ACTOR, self.global_step)
            inference = Inference(copy.deepcopy(self.agent.policy), self.weights, task.asked, seed)
        return ActorProcesses(task, cfg.num_actors, number, cfg.actor_hang_seconds, inference)

    def make_ray_actors(self, setup: ActorSetup, number: int) -> Any:
        """Return actors on the Ray cluster, with at most this many rollouts in flight."""
        try:
            from drqv2.rollout.ray_actors import RayActors, connect
        except ModuleNotFoundError as error:
            raise UserError(not_installed("ray", "cluster")) from error
        connect(self.cfg.cluster_address)
        actors = RayActors(setup, self.layout, self.cfg.num_actors, number, self.cfg.actor_hang_seconds)
        actors.publish(self.agent.policy)
        self.weights = actors
        return actors

    def train(self, hooks: Hooks | None = None, epochs: float = math.inf) -> RunSummary:
        """Learn until total_timesteps, or for a number of epochs; see `BaseWorkspace.train`."""
        assert self.batches is not None
        with self.turns.taken():
            self.epoch.start(hooks or Hooks(), epochs)
            while self.train_until_step(self.global_step):
                # at the end of an epoch save, evaluate, call hooks; save if due; stop if asked
                if self.epoch.between_rounds(epoch_ends=self.eval_every_step(self.global_step)):
                    break

                # wait for a batch of rollouts and learn from it
                with self.time_shares.spent_on("actors"):
                    batch = self.batches.take(stop=lambda: self.stop.requested)
                if batch is None:
                    continue  # asked to stop: the next pass saves a snapshot and raises Stopped
                with self.time_shares.spent_on("learn"):
                    metrics = self.agent.update(iter([self.with_rewards(batch)]), self.global_step)
                self.progress.step += self.round_steps
                self.progress.gradient_step += 1

                # give the actors the new weights
                if not self.cfg.deterministic:
                    with self.time_shares.spent_on("weights"):
                        self.weights.publish(self.agent.policy)

                # try to log
                self.log(metrics)
            self.epoch.finish()
        return self.epoch.summary()

    def with_rewards(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch with its rewards transformed by the hook `transform_reward`."""
        transform = self.epoch.hooks.transform_reward
        if transform is None:
            return batch
        rewards = transformed(transform, batch["rewards"].cpu().numpy())
        return batch | {"rewards": torch.from_numpy(rewards).to(self.policy_device)}

    def ended(self) -> Statistics:
        """Return the statistics of the batches since the newest row of train.csv."""
        return self.batches.statistics if self.batches else Statistics()

    def take_ended(self) -> Statistics:
        """Return the same, and begin anew."""
        assert self.batches is not None
        known, self.batches.statistics = self.batches.statistics, Statistics()
        return known

    def episode_columns(self, ended: Statistics) -> dict[str, float]:
        """Return TorchBeast's columns on the episodes that have ended."""
        returns, steps = zip(*ended.episodes, strict=True)
        return {
            "mean_episode_return": float(np.mean(returns)),
            "mean_episode_len": float(np.mean(steps)),
            "mean_win_rate": ended.wins / max(ended.ends, 1),
        }

    def update_columns(self, ended: Statistics, seconds: float) -> dict[str, float]:
        """Return lags of the policy, and what actors and their queue are doing."""
        columns: dict[str, float] = {}
        if ended.lags:
            self.policy_lag = float(np.mean(ended.lags))
            columns |= {"policy_lag": self.policy_lag, "policy_lag_max": float(max(ended.lags))}
        columns["rollouts_dropped"] = ended.dropped
        if isinstance(self.batches, Batches):
            actors = self.batches.actors
            waited, self.waited = actors.waited() - self.waited, actors.waited()
            self.actors_waiting = min(waited / max(seconds * actors.running(), 1e-9), 1.0)
            columns |= {"rollouts_full": actors.full.qsize(), "actors_waiting": self.actors_waiting}
            columns |= {"actors_running": actors.running(), "actors_restarted": actors.restarted}
        return columns

    def details(self) -> dict[str, str]:
        """Return lines of a dashboard on the actors and on the queue of rollouts."""
        if not isinstance(self.batches, Batches):
            return {}
        actors, lag = self.batches.actors, self.policy_lag
        waiting, restarted = 100 * self.actors_waiting, f"  {actors.restarted} restarted" if actors.restarted else ""
        running = f"{actors.running()} of {self.cfg.num_actors} running  "
        return {
            "actors": f"{running}acting {100 - waiting:.0f} %  waiting for a free rollout {waiting:.0f} %{restarted}",
            "queue": f"{actors.full.qsize()} of {self.num_buffers} rollouts full  policy lag {lag:.1f} updates",
        }

    @cached_property
    def round_steps(self) -> int:
        """Agent steps of an update."""
        return int(self.cfg.batch_size * self.cfg.unroll_length)

    def save_snapshot(self) -> None:
        """Copy what the run needs to continue; without deterministic=true, rollouts in flight are lost."""
        assert self.batches is not None
        actor = None
        if isinstance(self.batches, BatchesInTurn):
            envs = self.vector.state() if isinstance(self.vector, HandleVector) else None
            actor = {"envs": envs, "unroller": self.batches.unroller.state_dict()}
        self.snapshots.save(actor=actor, statistics=asdict(self.batches.statistics))

    def load_snapshot(self, saved: dict[str, Any]) -> None:
        """Restore the only actor, with deterministic=true; otherwise the actors begin new episodes."""
        self.count_row(saved["timer"])
        actor = saved["actor"]
        if actor is not None and actor["envs"] is not None and isinstance(self.vector, HandleVector):
            self.batches = self.make_batches_in_turn()
            self.batches.unroller.load_state_dict(actor["unroller"], self.vector.restore(actor["envs"]))
        else:
            print("all environments begin new episodes; rollouts in flight are lost")
            if self.cfg.deterministic:
                self.vector.close()
                self.vector = make_actor_vector(self.cfg, self.global_step, 0, 0)
            self.begin()
        assert self.batches is not None
        self.batches.statistics = Statistics(**saved["statistics"])

    def close_actors(self) -> None:
        """Close the actors, or the only one's environments."""
        torch.set_num_threads(self.torch_threads)
        if self.batches is not None:
            self.batches.close()
        if self.cfg.deterministic or self.batches is None:
            self.vector.close()


def _seed(cfg: DictConfig, step: int, actor: int, restarts: int) -> int:
    """Return the seed of an actor's samples."""
    return utils.spawn_seed(cfg.seed, utils.AGENT, step, actor, restarts)
