"""Names and values in messages and columns: a value as you would type it, the names closest to a mistyped one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from drqv2.errors import nearest


def show(value: Any) -> str:
    """Return `value` as you would type it on the command line; text that looks like another type is quoted."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(show, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{show(item)}" for name, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and re.fullmatch(r"|null|true|false|[-+\d.][-+\w.]*", value, re.IGNORECASE):
        return repr(value)
    return str(value)


def counted(number: float, noun: str) -> str:
    """Return how many there are, such as `1 episode` or `1,200 episodes`."""
    return f"{number:,.12g} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def column_name(task: str) -> str:
    """Return a task's name in the columns of train.csv and eval.csv, without a library and without slashes."""
    return task.rpartition(":")[2].replace("/", "_")


def rewards_of(tasks: Iterable[str]) -> str:
    """Return which rewards Meta-World's tasks have, for tables of returns; an empty string without such a task."""
    return "Meta-World v3 with rewards of version 2" if any(task.startswith("metaworld:") for task in tasks) else ""


# Names of keys in other programs, and what they are here; the first that exists.
SYNONYMS = {
    "actor_lr": ("lr", "agent.lr"),
    "adam_eps": ("agent.adam_eps",),
    "buffer_size": ("replay_buffer_size",),
    "capacity": ("replay_buffer_size",),
    "clip_coef": ("agent.clip_coef",),
    "critic_lr": ("lr", "agent.lr"),
    "cuda": ("device",),
    "domain": ("task",),
    "ent_coef": ("agent.ent_coef", "agent.entropy_cost"),
    "env": ("task", "env_id"),
    "env_name": ("task", "env_id"),
    "env_steps": ("num_train_frames", "total_timesteps"),
    "eval_episodes": ("num_eval_episodes",),
    "frame_skip": ("action_repeat",),
    "gae_lambda": ("agent.gae_lambda",),
    "gamma": ("discount",),
    "gpu": ("device",),
    "hidden_size": ("agent.hidden_dim",),
    "learning_rate": ("lr", "agent.lr"),
    "learning_starts": ("num_seed_frames",),
    "log_dir": ("hydra.run.dir",),
    "max_steps": ("num_train_frames", "total_timesteps"),
    "n_envs": ("num_envs",),
    "n_epochs": ("repeat_per_collect",),
    "n_eval_episodes": ("num_eval_episodes",),
    "n_steps": ("nstep", "horizon", "unroll_length"),
    "num_environments": ("num_envs",),
    "num_steps": ("num_train_frames", "horizon", "unroll_length"),
    "num_train_frames": ("total_timesteps",),
    "num_train_steps": ("num_train_frames", "total_timesteps"),
    "output_dir": ("hydra.run.dir",),
    "replay_size": ("replay_buffer_size",),
    "rollout_length": ("horizon", "unroll_length"),
    "save_dir": ("hydra.run.dir",),
    "seed_steps": ("num_seed_frames",),
    "snapshot_every_epochs": ("snapshot_every_updates",),  # its former name here
    "steps": ("num_train_frames", "total_timesteps"),
    "tau": ("agent.critic_target_tau", "agent.target_tau"),
    "timesteps": ("num_train_frames", "total_timesteps"),
    "total_frames": ("num_train_frames", "total_timesteps"),
    "total_steps": ("num_train_frames", "total_timesteps"),
    "total_timesteps": ("num_train_frames",),
    "update_epochs": ("repeat_per_collect",),
}
_BESIDE = ("task", "hydra.run.dir")  # keys that no table has


def synonym(name: str, names: Iterable[str]) -> str | None:
    """Return what a key of other programs is called here, if `names` has it."""
    known = {*names, *_BESIDE}
    return next((own for own in SYNONYMS.get(name, ()) if own in known), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return `; here it is a`, `; nearest: a, b`, or an empty string if nothing in `names` resembles `name`."""
    names = list(names)
    if own := synonym(name, names):
        return f"; here it is {own}"
    containing = [candidate for candidate in names if len(name) > 2 and name in candidate]
    found = list(dict.fromkeys(containing + nearest(name, names)))[:3]
    return "; nearest: " + ", ".join(found) if found else ""


def unknown(group: str, option: str, options: Iterable[str]) -> str:
    """Return the message that a configuration group has no such option, and which ones it has."""
    options = list(options)
    separator = "\n" if len(options) > 6 else "; "
    near = did_you_mean(option, options)
    return f"{group}={option}: there is no such {group}{near}{separator}allowed: {', '.join(options)}"
