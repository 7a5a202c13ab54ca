"""Checks of a composed configuration against the table of its regime's keys, before any environment is made.

Imports neither torch nor mujoco unless a value needs them, so that a mistyped name is reported at once.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.formatting import did_you_mean, show
from drqv2.config.kinds import NO_LEGACY, Device, Key, Schedule
from drqv2.config.messages import explain
from drqv2.config.schema import every_key, keys, tasks
from drqv2.config.tables.multitask import TASK_GROUPS
from drqv2.config.tables.shared import FIRST_REGIME
from drqv2.errors import UserError

FOR_REGIMES = "for_regimes"  # in a preset: the regimes that it fits, where it does not choose one
_FRAMES = {"reach_duplo": 250}  # of episodes of dm_control's tasks, where they are not 1000: 10 s at 25 Hz
_LENGTHS = {"obs_shape": 3, "action_shape": 1}  # of the shapes that the environment defines


def _check_together(cfg: Mapping[str, Any]) -> None:
    """Check values that depend on each other; `cfg` is flat, dotted name -> value, and may lack a regime's keys."""
    task, repeat = cfg["task_name"], cfg["action_repeat"]
    for name, value in cfg.items():
        shortest = name.endswith("_every_frames") or name in ("num_train_frames", "epoch_frames")
        if shortest and value is not None and value < repeat:
            raise UserError(
                f"{name}={value}: shorter than one agent step of action_repeat={repeat} frames; "
                f"must be at least {repeat} (frames)"
            )
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
    frames = _FRAMES.get(task, 1000)
    least = math.ceil(frames / repeat)
    # The length of other environments' episodes is unknown.
    if cfg["env._target_"] is None and cfg["env_id"] is None and cfg.get("replay_buffer_size", least) < least:
        raise UserError(
            f"replay_buffer_size={cfg['replay_buffer_size']}: smaller than one episode of {task}; must be at least "
            f"{least} (transitions: {frames} frames at action_repeat={repeat})"
        )


def _check_epochs(cfg: Mapping[str, Any]) -> None:
    """Check what says when a run evaluates, ends and learns."""
    for name in ("stop_return", "save_best", "test_in_train"):
        if cfg["eval_every_frames"] is None and cfg[name]:
            raise UserError(f"{name}={show(cfg[name])} with eval_every_frames=null: it needs evaluations")
    steps, episodes = cfg.get("steps_per_collect"), cfg.get("episodes_per_collect")
    if steps is not None and episodes is not None:
        raise UserError(f"steps_per_collect={steps} and episodes_per_collect={episodes}: give only one of them")


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
        raise UserError(f"offline_frames={offline}: is for then=drqv2; set num_train_frames instead")
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
        if ":" not in name and cfg["env._target_"] is None and name not in tasks():
            near = did_you_mean(name, [*TASK_GROUPS, *tasks()])
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
    if task in cfg["exclude_tasks"] or cfg["env._target_"] is not None:
        return 0
    own = (cfg["per_task"] or {}).get(task, {})
    frames = {"": _FRAMES.get(task, 1000), "metaworld": 500}.get(task.rpartition(":")[0], 0)
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
    if cfg["envs_per_recv"] is not None and cfg["envs_per_recv"] > envs:
        raise UserError(f"envs_per_recv={cfg['envs_per_recv']}: more than num_envs={envs}")


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
        raise UserError(f"cluster=ray with {wrong}=true: is for cluster=local")
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
    """Return the steps of a minibatch where none are set: the batch, or as many segments as 16,384 steps hold."""
    return min(segments, max(1, 16384 // horizon)) * horizon


def _drop_foreign(cfg: DictConfig, known: Mapping[str, Key]) -> None:
    """Remove keys that only other regimes have. Tasks and presets set such keys."""
    for name in every_key().keys() - known.keys():
        node, _, leaf = name.rpartition(".")
        values = cfg.get(node) if node else cfg
        if isinstance(values, DictConfig):
            with suppress(KeyError):
                del values[leaf]
        if node and not any(other.startswith(f"{node}.") for other in known):
            cfg.pop(node, None)


def _check_names(cfg: Mapping[str, Any], known: Mapping[str, Key]) -> None:
    roots = {name.partition(".")[0] for name in known}
    for name, value in cfg.items():
        if name not in roots:
            raise UserError(f"{name}={show(value)}: there is no such key{did_you_mean(str(name), known)} (see --help)")
    for node in {"agent", "env"} & roots:
        if not isinstance(cfg.get(node), dict) or "_target_" not in cfg[node]:
            raise UserError(f"{node}={show(cfg.get(node))}: must contain _target_; see cfgs/")
    task, env_id = cfg.get("task_name"), cfg.get("env_id")
    if env_id is not None:
        if cfg["env"]["_target_"] is not None:
            raise UserError(f"env_id={show(env_id)} and env._target_={cfg['env']['_target_']}: give only one of them")
        return
    if cfg.get("tasks") is None and cfg["env"]["_target_"] is None and task not in (None, "???", *tasks()):
        raise UserError(
            f"task_name={show(task)}: unknown task{did_you_mean(str(task), tasks())}\n"
            "allowed: the files of cfgs/task; env_id=gymnasium:NAME or env_id=envpool:NAME; or your own environment "
            "with env._target_=module.function"
        )


def validate(cfg: DictConfig) -> None:
    """Check a composed configuration against the table of its regime's keys, and put numbers in their key's type.

    Interpolations stay as they are, 1e6 becomes 1000000, and keys of other regimes, which tasks and presets set, are
    removed. `agent` and `env` may contain keys that the table lacks, and `agent` may lack some: `check_agent` compares
    them with the signature of its class.

    Raises:
        UserError: an unknown or missing key, a value of the wrong type or out of bounds, or values that do not fit
            together.
    """
    regime = cfg.get("regime", FIRST_REGIME)
    known = keys(regime)
    with open_dict(cfg):
        cfg.pop(FOR_REGIMES, None)
        _drop_foreign(cfg, known)
        if re.search(":.", str(cfg.get("env_id"))):
            cfg.task_name = label(cfg.env_id, "")
        if regime == "multitask" and cfg.get("tasks"):
            cfg.task_name = label(None, "", cfg.tasks)
        try:
            plain = _resolved(cfg)
        except OmegaConfBaseException as error:
            raise UserError(explain(error, regime)) from None
        _check_names(plain, known)
        flat: dict[str, Any] = {}
        # Those that may import torch, which takes seconds, come last.
        for key in sorted(known.values(), key=lambda key: isinstance(key.kind, Schedule | Device)):
            node, _, leaf = key.name.rpartition(".")
            values, target = (plain[node], cfg[node]) if node else (plain, cfg)
            if leaf not in values and key.legacy is not NO_LEGACY:
                values[leaf] = key.legacy
            if leaf in values and not (key.name == "agent.encoder" and _is_foreign(plain)):
                flat[key.name] = key.check(values[leaf])
                if not OmegaConf.is_interpolation(target, leaf) and not OmegaConf.is_missing(target, leaf):
                    target[leaf] = flat[key.name]
            elif node != "agent":
                raise UserError(f"{key.name} is missing: add +{key.name}=VALUE, which must be {key.allowed}")
    _check_together(flat)


def _resolved(cfg: DictConfig) -> Any:
    """Return plain values, where others may refer to numbers in the shapes (`${agent.obs_shape[0]}`), still unknown."""
    agent, known = cfg.get("agent"), cfg.copy()
    unknown: dict[str, Any] = {}
    if isinstance(agent, DictConfig):
        unknown = {name: None for name in _LENGTHS if name in agent and agent.get(name) is None}
        known.agent.update({name: [1] * _LENGTHS[name] for name in unknown})
    plain: Any = OmegaConf.to_container(known, resolve=True)
    if unknown:
        plain["agent"].update(unknown)
    return plain


def _is_foreign(plain: Mapping[str, Any]) -> bool:
    """Return whether the agent may be another's, whose `encoder` is something else; DrQV2Agent checks its own."""
    return plain.get("agent_dir") is not None or not str(plain["agent"].get("_target_")).startswith("drqv2.")


def label(env_id: str | None, task_name: str, tasks: str | Sequence[str] | None = None) -> str:
    """Return the name of what a run learns, also for file names: that of `env_id`, of `tasks`, or else the task's."""
    if tasks is not None:
        return _tasks_label(tasks)
    return task_name if env_id is None else _plain_name(str(env_id))


def _plain_name(env_id: str) -> str:
    return env_id.partition(":")[2].replace("/", "_").replace(":", "_")


def _tasks_label(tasks: str | Sequence[str]) -> str:
    """Return the name of a group of tasks, or the names of up to three joined, or their number and a checksum."""
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    for group, members in TASK_GROUPS.items():
        if names in ([group], members):
            return group
    if len(names) > 3:
        return f"{len(names)}_tasks_{crc32(' '.join(map(str, names)).encode()) & 0xFFFF:04x}"  # others have other names
    return "+".join(_plain_name(str(name)) if ":" in str(name) else str(name) for name in names)


def check_overrides(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Check the overrides that `cfg` was composed with, which `validate` cannot see.

    Raises:
        UserError: one names a key that only another regime has, a preset of another regime, or two environments.
    """
    regime = cfg.get("regime", FIRST_REGIME)
    known = keys(regime)
    chosen = next((o.partition("=")[2] for o in reversed(overrides) if o.startswith("regime=")), FIRST_REGIME)
    presets = [o for o in overrides if o.startswith("preset=")]
    fitting = cfg.get(FOR_REGIMES, [regime])
    if presets and (regime != chosen or regime not in fitting):
        fits = fitting[0] if regime == chosen else regime
        raise UserError(f"{', '.join(presets)}: is for regime={fits}; add regime={fits}, or choose another preset")
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0]
        if name == "task" and cfg.get("env_id") is not None:
            raise UserError(f"{override} and env_id={cfg.env_id}: give only one of them")
        if name in every_key() and name not in known:
            raise UserError(f"{override}: regime={regime} has no such key{did_you_mean(name, known)} (see --help)")


def check_agent(factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the agent's class takes the keys of `agent`; Hydra's own, such as `_target_`, are ignored.

    Raises:
        UserError: an argument that the class does not take, or a required one that is missing.
    """
    parameters = inspect.signature(factory).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    given = {name: value for name, value in kwargs.items() if not re.fullmatch(r"_\w+_", name)}
    who = getattr(factory, "__qualname__", str(factory))
    for name, value in given.items():
        if name not in named and not takes_any:
            raise UserError(
                f"agent.{name}={show(value)}: {who} takes no argument {name}{did_you_mean(name, named)}; "
                f"remove it with ~agent.{name}\n{who} takes: {', '.join(named)}"
            )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in given:
            raise UserError(
                f"agent.{name} is missing: {who} needs it; add +agent.{name}=VALUE"
                f"\nagent has: {', '.join(given) or 'no arguments'}"
            )


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration's values by dotted name."""
    if not isinstance(node, dict) or (prefix and not node):
        return {prefix[:-1]: node}
    return {name: leaf for key, value in node.items() for name, leaf in leaves(value, f"{prefix}{key}.").items()}
