"""Checks of a composed configuration against the table of its regime's keys, before any environment is made.

Imports neither torch nor mujoco unless a value needs them, so that a mistyped name is reported at once.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.formatting import did_you_mean, show
from drqv2.config.key import Key
from drqv2.config.messages import explain
from drqv2.config.schema import FIRST_REGIME, every_key, keys, tasks
from drqv2.errors import UserError


def _check_intervals(cfg: Mapping[str, Any]) -> None:
    repeat = cfg["action_repeat"]
    for name, value in cfg.items():
        if (name.endswith("_every_frames") or name == "num_train_frames") and value < repeat:
            raise UserError(
                f"{name}={value}: shorter than one agent step of action_repeat={repeat} frames; "
                f"must be at least {repeat} (frames)"
            )


def _check_replay_size(cfg: Mapping[str, Any]) -> None:
    if cfg["env._target_"] is not None:
        return  # the length of its episodes is unknown
    task, repeat = cfg["task_name"], cfg["action_repeat"]
    frames = 250 if task == "reach_duplo" else 1000  # reach_duplo: 10 s at 25 Hz
    least = math.ceil(frames / repeat)
    if cfg["replay_buffer_size"] < least:
        raise UserError(
            f"replay_buffer_size={cfg['replay_buffer_size']}: smaller than one episode of {task}; must be at least "
            f"{least} (transitions: {frames} frames at action_repeat={repeat})"
        )


# Checks of several keys together: each gets the configuration flat, dotted name -> value.
_TOGETHER: dict[str, tuple[Callable[[Mapping[str, Any]], None], ...]] = {
    "drqv2": (_check_intervals, _check_replay_size),
}


def _check_task(cfg: Mapping[str, Any]) -> None:
    task, known = cfg.get("task_name"), tasks()
    env = cfg.get("env")
    own = isinstance(env, Mapping) and env.get("_target_") is not None
    if not own and task not in (None, "???", *known):
        raise UserError(
            f"task_name={show(task)}: unknown task{did_you_mean(str(task), known)}\n"
            "allowed: the files of cfgs/task, or your own environment with env._target_=module.function"
        )


def _drop_foreign(cfg: dict[str, Any], known: Mapping[str, Key]) -> None:
    """Remove keys that only other regimes have. Tasks and presets set such keys."""
    for name in every_key().keys() - known.keys():
        node, _, leaf = name.rpartition(".")
        (cfg.get(node, {}) if node else cfg).pop(leaf, None)
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


def validate(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Check a composed configuration against the table of its regime's keys.

    `agent` and `env` may contain keys that the table lacks, and `agent` may lack some: `check_agent` compares them
    with the signature of its class. Keys of other regimes, which tasks and presets set, are left out.

    Args:
        cfg: the whole configuration, with or without interpolations.

    Returns:
        a plain nested dict, interpolations resolved and numbers in their key's type (1e6 becomes 1000000).

    Raises:
        UserError: an unknown or missing key, a value of the wrong type or out of bounds, or values that do not fit
            together.
    """
    try:
        source = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(dict(cfg))
        plain: Any = OmegaConf.to_container(source, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from None
    regime = plain.get("regime", FIRST_REGIME)
    known = keys(regime)
    _drop_foreign(plain, known)
    _check_names(plain, known)
    _check_task(plain)
    flat: dict[str, Any] = {}
    for key in sorted(known.values(), key=lambda key: key.kind.needs_torch):
        node, _, leaf = key.name.rpartition(".")
        values = plain[node] if node else plain
        if leaf not in values and key.legacy is not None:
            values[leaf] = key.legacy
        if leaf in values:
            values[leaf] = flat[key.name] = key.check(values[leaf])
        elif node != "agent":
            raise UserError(f"{key.name} is missing: add +{key.name}=VALUE, which must be {key.allowed}")
    for check in _TOGETHER[regime]:
        check(flat)
    return plain


def validate_in_place(cfg: DictConfig) -> None:
    """Validate `cfg` and write the result back: numbers in their key's type, interpolations as they are.

    Raises:
        UserError: as `validate`.
    """
    plain = validate(cfg)
    with open_dict(cfg):
        for name in cfg.keys() - plain.keys():
            del cfg[name]  # another regime's
        for name in every_key():
            node, _, leaf = name.rpartition(".")
            target, values = (cfg.get(node, {}), plain.get(node, {})) if node else (cfg, plain)
            if leaf not in values:
                target.pop(leaf, None)
            elif not OmegaConf.is_interpolation(target, leaf) and not OmegaConf.is_missing(target, leaf):
                target[leaf] = values[leaf]


def check_overrides(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Raise UserError if an override of `cfg` names a key that only another regime has: `validate` would drop it."""
    regime = cfg.get("regime", FIRST_REGIME)
    known = keys(regime)
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0]
        if name in every_key() and name not in known:
            raise UserError(f"{override}: regime={regime} has no such key{did_you_mean(name, known)} (see --help)")


def check_agent(factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the agent's class takes the keys of `agent`; Hydra's own, such as `_target_`, are ignored.

    Raises:
        UserError: an argument that the class does not take, or a required one that is missing.
    """
    parameters = inspect.signature(factory).parameters
    given = {name: value for name, value in kwargs.items() if not re.fullmatch(r"_\w+_", name)}
    named = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named]
    who = getattr(factory, "__qualname__", str(factory))
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name, value in given.items():
            if name not in names:
                raise UserError(
                    f"agent.{name}={show(value)}: {who} takes no argument {name}{did_you_mean(name, names)}; "
                    f"remove it with ~agent.{name}\n{who} takes: {', '.join(names)}"
                )
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in given:
            raise UserError(
                f"agent.{parameter.name} is missing: {who} needs it; add +agent.{parameter.name}=VALUE"
                f"\nagent has: {', '.join(given) or 'no arguments'}"
            )


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration's values by dotted name."""
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {name: leaf for key, value in node.items() for name, leaf in leaves(value, f"{prefix}{key}.").items()}
