"""Values that depend on each other: in every regime, and in each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from drqv2.config.dm_control import episode_frames, every_task
from drqv2.config.formatting import did_you_mean, show
from drqv2.config.tables.multitask import TASK_GROUPS
from drqv2.errors import UserError

_OTHER_LENGTH = ("env._target_", "env.time_limit", "max_episode_steps")  # with one of them, episodes have another


def check_together(cfg: Mapping[str, Any]) -> None:
    """Check values that depend on each other.

    Args:
        cfg: values by dotted name, each of them checked; the keys of other regimes are missing.

    Raises:
        UserError: some do not fit together.
    """
    task, repeat = cfg["task_name"], cfg["action_repeat"]
    for name, value in cfg.items():
        shortest = name.endswith("_every_frames") or name in ("num_train_frames", "offline_frames", "epoch_frames")
        if shortest and value is not None and value < repeat:
            raise UserError(
                f"{name}={value}: shorter than one agent step of action_repeat={repeat} frames; "
                f"must be at least {repeat} (frames)"
            )
    if cfg["camera"] is not None and cfg["env_id"] is not None:
        raise UserError(f"camera={show(cfg['camera'])}: applies only to dm_control's tasks, not to {cfg['env_id']}")
    _check_epochs(cfg)
    if "data" in cfg:
        _check_data(cfg)
    if "minibatch_size" in cfg:
        _check_batches(cfg)
    if "num_actors" in cfg:
        _check_actors(cfg)
    if cfg.get("updates_per_step", 1) % 1 and cfg.get("agent.update_every_steps", 1) != 1:
        raise UserError(
            f"updates_per_step={cfg['updates_per_step']}: a fraction needs agent.update_every_steps=1; otherwise the "
            "agent would ignore some of its updates"
        )
    if "tasks" in cfg:
        return _check_tasks(cfg)
    frames = episode_frames(task)
    least = math.ceil(frames / repeat)
    # The length of other environments' episodes is unknown.
    known = all(cfg.get(name) is None for name in (*_OTHER_LENGTH, "env_id"))
    size = cfg.get("replay_buffer_size", "auto")  # the data's, which may hold shorter episodes
    if known and size != "auto" and size < least:
        raise UserError(
            f"replay_buffer_size={size}: smaller than one episode of {task}; must be at least "
            f"{least} (transitions: {frames} frames at action_repeat={repeat})"
        )


def _check_epochs(cfg: Mapping[str, Any]) -> None:
    """Check the keys that determine when a run evaluates, ends and learns."""
    for name in ("stop_return", "save_best", "test_in_train"):
        if cfg["eval_every_frames"] is None and cfg[name]:
            raise UserError(f"{name}={show(cfg[name])} with eval_every_frames=null: it needs evaluations")
    if cfg["eval_every_frames"] is None and cfg["objective"] and not cfg["objective"].startswith("train/"):
        raise UserError(
            f"objective={cfg['objective']} with eval_every_frames=null: it needs evaluations; train/NAME names a "
            "column of train.csv"
        )
    epoch, interval = cfg["epoch_frames"], cfg["eval_every_frames"]
    if epoch is not None and interval is not None and epoch > interval:
        raise UserError(f"epoch_frames={epoch}: must be at most eval_every_frames={interval}: evaluations end an epoch")
    steps, episodes = cfg.get("steps_per_collect"), cfg.get("episodes_per_collect")
    if steps is not None and episodes is not None:
        raise UserError(f"steps_per_collect={steps} and episodes_per_collect={episodes}: give only one of them")
    if "updates_per_step" in cfg:
        _check_learning(cfg)


def _check_learning(cfg: Mapping[str, Any]) -> None:
    """Check that a run that is long enough to learn does so at all."""
    steps, rate = cfg["steps_per_collect"], cfg["updates_per_step"]
    learning = (cfg["num_train_frames"] - cfg["num_seed_frames"]) // cfg["action_repeat"]  # agent steps
    if steps is not None and 0 < learning < steps:
        raise UserError(f"steps_per_collect={steps}: must be at most {learning}, the agent steps after num_seed_frames")
    if learning > 0 and learning * rate < 1 and not cfg["seed_updates"]:
        raise UserError(f"updates_per_step={rate}: gives no update in the {learning} agent steps after num_seed_frames")


def _check_data(cfg: Mapping[str, Any]) -> None:
    """Check what is learnt from stored data, and for how long."""
    if cfg["data"] is None:
        raise UserError("data is missing: give the episodes to learn from, data=RUN_DIR, data=DIR or data=minari:NAME")
    if cfg.get("agent.update_every_steps", 1) != 1:
        raise UserError(
            f"agent.update_every_steps={cfg['agent.update_every_steps']}: must be 1 with regime=offline, which "
            "learns at every step"
        )
    if cfg["then"] is not None and not cfg["save_snapshot"]:
        raise UserError(f"then={cfg['then']} with save_snapshot=false: the second part resumes from a snapshot")
    offline, frames = cfg["offline_frames"], cfg["num_train_frames"]
    if cfg["then"] is None and offline is not None:
        raise UserError(f"offline_frames={offline} applies only to then=drqv2; set num_train_frames instead")
    collecting = {
        "updates_per_step": 1,
        "steps_per_collect": None,
        "episodes_per_collect": None,
        "test_in_train": False,
    }
    for name, value in collecting.items():
        if cfg["then"] is None and cfg[name] != value:
            raise UserError(f"{name}={show(cfg[name])} applies only to then=drqv2; without it nothing is collected")
    if cfg["then"] is not None and (offline is None or offline >= frames):
        raise UserError(
            f"then={cfg['then']}: needs offline_frames below num_train_frames={frames}, got {show(offline)}"
        )


def _check_tasks(cfg: Mapping[str, Any]) -> None:
    """Check a list of tasks and what refers to it."""
    names = [cfg["env_id"] or cfg["task_name"]] if cfg["tasks"] is None else cfg["tasks"]
    if not names:
        raise UserError("tasks=[]: give at least one task, or tasks=null for the task alone")
    short: dict[str, str] = {}
    for name in names:
        other = short.setdefault(name.rpartition(":")[2], name)
        if other != name:
            raise UserError(f"tasks: {other} and {name} would have the same name in the metrics; give only one of them")
        if ":" not in name and cfg["env._target_"] is None and name not in every_task():
            near = did_you_mean(name, [*TASK_GROUPS, *every_task()])
            raise UserError(f"tasks: {show(name)}: unknown task{near}; others are LIBRARY:NAME")
    for key, given in (("exclude_tasks", cfg["exclude_tasks"]), ("per_task", cfg["per_task"] or ())):
        for name in given:
            if name not in names:
                raise UserError(f"{key}: {name} is not among tasks={show(names)}{did_you_mean(name, names)}")
    if set(names) == set(cfg["exclude_tasks"]):
        raise UserError(f"exclude_tasks={show(cfg['exclude_tasks'])}: at least one of tasks={show(names)} must be left")
    if cfg["tasks"] is not None and cfg["env_id"] is not None:
        raise UserError(f"env_id={cfg['env_id']} and tasks={show(names)}: give only one of them")
    if cfg["num_envs"] != cfg["envs_per_task"]:
        raise UserError(
            f"num_envs={cfg['num_envs']}: regime=multitask has envs_per_task={cfg['envs_per_task']} instead"
        )
    size, least = cfg["replay_buffer_size"], sum(_episode(cfg, name) for name in names)
    if size < least:
        raise UserError(f"replay_buffer_size={size}: smaller than an episode of each task; must be at least {least}")


def _episode(cfg: Mapping[str, Any], task: str) -> int:
    """Return the transitions of an episode of one of several tasks; 0 where its length is not known here."""
    if task in cfg["exclude_tasks"] or any(cfg.get(name) is not None for name in _OTHER_LENGTH):
        return 0
    own = (cfg["per_task"] or {}).get(task, {})
    frames = {"": episode_frames(task), "metaworld": 500}.get(task.rpartition(":")[0], 0)
    return math.ceil(frames / own.get("action_repeat", cfg["action_repeat"]))


def _check_batches(cfg: Mapping[str, Any]) -> None:
    """Check the sizes of a regime that learns from segments of `horizon` steps."""
    horizon, envs, steps = cfg["horizon"], cfg["num_envs"], cfg["steps_per_collect"]
    if steps is not None and cfg["segments"] not in (None, steps / horizon):
        raise UserError(f"steps_per_collect={steps} and segments={cfg['segments']}: give only one of them")
    if steps is not None and steps % horizon:
        raise UserError(f"steps_per_collect={steps}: must be a multiple of horizon={horizon}, the steps of a segment")
    segments, minibatch = cfg["segments"] or (steps or envs * horizon) // horizon, cfg["minibatch_size"]
    for name in ("minibatch_size", "discount"):  # the regime needs them too
        own = cfg.get(f"agent.{name}", cfg[name])
        if own != cfg[name]:
            raise UserError(f"agent.{name}={own}: differs from {name}={show(cfg[name])}; set {name}={own} instead")
    if cfg["compile"] is True:
        raise UserError("compile=true: regime=ppo has nothing to compile, its small policies use C++ code; use auto")
    batch = segments * horizon
    if envs > segments:
        raise UserError(f"num_envs={envs}: more environments than segments={segments}; set at least {envs} segments")
    if segments % envs and cfg["envs_per_recv"] in (None, envs):
        raise UserError(
            f"segments={segments}: must be a multiple of num_envs={envs}, so that each environment fills as many"
        )
    if minibatch is not None and minibatch % horizon:
        raise UserError(f"minibatch_size={minibatch}: must be a multiple of horizon={horizon}, the steps of a segment")
    if minibatch is not None and minibatch > batch:
        raise UserError(f"minibatch_size={minibatch}: larger than {batch}, the steps of segments={segments}")
    minibatch = minibatch or default_minibatch(segments, horizon)
    if int(cfg.get("agent.update_epochs", 1) * batch / minibatch) == 0:
        epochs = cfg["agent.update_epochs"]
        raise UserError(f"agent.update_epochs={epochs}: less than one minibatch of {minibatch} steps")
    if cfg.get("agent.advantage") == "once" and cfg.get("agent.prio_alpha"):
        raise UserError(
            f"agent.prio_alpha={cfg['agent.prio_alpha']}: agent.advantage=once has no priorities; set it to 0"
        )
    for name in ("envs_per_recv", "envs_per_process"):
        if cfg[name] is not None and cfg[name] > envs:
            raise UserError(f"{name}={cfg[name]}: more than num_envs={envs}")
    if cfg["envs_per_process"] is not None and cfg["vector"] == "serial":
        raise UserError(
            f"envs_per_process={cfg['envs_per_process']}: vector=serial has no such processes; leave it out"
        )


def _check_actors(cfg: Mapping[str, Any]) -> None:
    """Check the sizes of a regime whose actors fill rollouts."""
    actors, envs, batch = cfg["num_actors"], cfg["num_envs"], cfg["batch_size"]
    own = cfg.get("agent.discount", cfg["discount"])
    if own != cfg["discount"]:
        raise UserError(f"agent.discount={own}: differs from discount={cfg['discount']}; set discount={own} instead")
    if cfg["compile"] is True:
        raise UserError("compile=true: regime=impala has nothing to compile; use auto")
    if cfg["deterministic"] and actors != 1:
        raise UserError(f"deterministic=true with num_actors={actors}: only one acts in turn; set num_actors=1")
    if cfg["cluster"] == "ray" and (cfg["batched_inference"] or cfg["deterministic"]):
        wrong = "batched_inference" if cfg["batched_inference"] else "deterministic"
        raise UserError(f"cluster=ray with {wrong}=true: {wrong} applies only to cluster=local")
    if cfg["deterministic"] and cfg["batched_inference"]:
        raise UserError("deterministic=true with batched_inference=true: the only actor acts in the learner's process")
    if envs % actors:
        raise UserError(f"num_envs={envs}: must be a multiple of num_actors={actors}, so that each has as many")
    if batch % (envs // actors):
        raise UserError(
            f"batch_size={batch}: must be a multiple of {envs // actors}, the environments of an actor, each of which "
            "fills one of the rollouts (num_envs / num_actors)"
        )
    least = batch // (envs // actors) + actors
    if cfg["num_buffers"] is not None and cfg["num_buffers"] < least:
        raise UserError(
            f"num_buffers={cfg['num_buffers']}: too few; must be at least {least}, one for each actor and a batch"
        )


def default_minibatch(segments: int, horizon: int) -> int:
    """Return the steps of a minibatch where none are set: the batch, or as many whole segments as 256 steps hold."""
    return min(segments, max(1, 256 // horizon)) * horizon
