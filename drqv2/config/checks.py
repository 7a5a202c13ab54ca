"""Checks of a composed configuration against the schema, before any environment is made.

`python -m drqv2.config > docs/configuration.md` writes the page of all keys. Imports neither torch nor mujoco unless
a value needs them, so that a mistyped name is answered at once.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.messages import did_you_mean, explain, not_set
from drqv2.config.schema import KEYS, LARGEST_RENDER, Key, show, tasks
from drqv2.errors import UserError


def checked(key: Key, value: Any) -> Any:
    """Return `value` in the key's type; raise UserError where it has no place there."""
    bad = UserError(f"{key.name}={show(value)}: must be {key.allowed}" + (f" ({key.unit})" if key.unit else ""))
    if value == "???":
        if key.kind == "shape":
            return value
        raise UserError(not_set(key.name))
    if value is None:
        if key.null:
            return None
        raise bad
    match key.kind:
        case "int" | "float":
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise bad
            if key.kind == "int" and value != int(value):
                raise bad
            value = int(value) if key.kind == "int" else float(value)
            if key.low is not None and (value < key.low or (key.above and value == key.low)):
                raise bad
            if (key.high is not None and value > key.high) or (key.even and value % 2):
                raise bad
        case "bool":
            if not isinstance(value, bool):
                raise bad
        case "shape":
            if not isinstance(value, list | tuple) or not all(type(n) is int and n > 0 for n in value):
                raise bad
        case "schedule":
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise bad
            from drqv2.utils import schedule  # imports torch

            try:
                start = schedule(value, 0)
            except UserError as error:
                raise UserError(f"{key.name}={show(value)}: {str(error).partition(': ')[2]}") from None
            if not math.isfinite(start) or re.search(r"(^|[(,])\s*-", str(value)):
                raise UserError(f"{key.name}={show(value)}: a standard deviation must be 0 or above, and finite")
        case "choice":
            if value not in key.choices or isinstance(value, int) != isinstance(value, bool):
                raise bad
        case "device":
            _check_device(key, value, bad)
        case _:
            if key.kind == "text" and isinstance(value, int | float) and not isinstance(value, bool):
                value = str(value)  # experiment=7
            if not isinstance(value, str) or not value:
                raise bad
            if key.kind == "name" and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value):
                raise bad
            if key.kind == "file" and not Path(value).is_file():
                raise UserError(f"{key.name}={value}: there is no such file (relative paths start at {Path.cwd()})")
            if key.kind == "folder" and not Path(value).is_dir():
                raise UserError(
                    f"{key.name}={value}: there is no such directory (relative paths start at {Path.cwd()})"
                )
    return value


def _check_device(key: Key, value: Any, bad: UserError) -> None:
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", value) if isinstance(value, str) else None
    if match is None:
        raise bad
    if value.startswith("cuda"):
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise UserError(
                f"{key.name}={value}: torch {torch.__version__} sees no GPU here; use device=cpu or device=auto"
            )
        if int(match[1] or 0) >= count:
            seen = ", ".join(f"cuda:{i}" for i in range(count))
            raise UserError(f"{key.name}={value}: there is no such GPU here; torch sees {seen}")


def _check_together(cfg: dict[str, Any]) -> None:
    """Check what several keys must fulfil together. `cfg` is flat: dotted name -> value."""
    repeat = cfg["action_repeat"]
    for name, value in cfg.items():
        if name.endswith("_every_frames") and value < repeat:
            raise UserError(
                f"{name}={value}: shorter than one agent step of action_repeat={repeat} frames; "
                f"must be at least {repeat} (frames)"
            )
    if cfg["num_train_frames"] < repeat:
        raise UserError(
            f"num_train_frames={cfg['num_train_frames']}: shorter than one agent step of action_repeat={repeat} "
            f"frames; must be at least {repeat} (frames)"
        )
    if cfg["env._target_"] is not None:
        return  # nothing is known of someone's own environment
    task = cfg["task_name"]
    for name in ("image_size", "render_size"):
        if cfg[name] > LARGEST_RENDER:
            raise UserError(f"{name}={cfg[name]}: must be at most {LARGEST_RENDER} (pixels)")
    frames = 250 if task == "reach_duplo" else 1000  # reach_duplo: 10 s at 25 Hz
    least = math.ceil(frames / repeat)
    if cfg["replay_buffer_size"] < least:
        raise UserError(
            f"replay_buffer_size={cfg['replay_buffer_size']}: smaller than one episode of {task}; must be at least "
            f"{least} (transitions: {frames} frames at action_repeat={repeat})"
        )


def _check_task(cfg: Mapping[str, Any]) -> None:
    task, known = cfg.get("task_name"), tasks()
    env = cfg.get("env")
    own = isinstance(env, Mapping) and env.get("_target_") is not None
    if own or task is None or task == "???" or task in known or not known:
        return
    raise UserError(
        f"task_name={show(task)}: unknown task{did_you_mean(str(task), known)}\n"
        "allowed: the files of cfgs/task, or an environment of your own with env._target_=module.function"
    )


def validate(cfg: DictConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Check a composed configuration against the schema.

    `agent` and `env` may hold more keys than the schema knows, and `agent` fewer: what is too much or missing there
    is found by `check_call`, against the signature of what is called.

    Args:
        cfg: the whole configuration, with or without interpolations.

    Returns:
        a plain nested dict, interpolations resolved and numbers in their key's type (1e6 becomes 1000000).

    Raises:
        UserError: an unknown or missing key, a value of the wrong type or out of bounds, or values that do not fit.
    """
    try:
        source = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(dict(cfg))
        plain: Any = OmegaConf.to_container(source, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from None
    roots = {name.partition(".")[0] for name in KEYS}
    for name, value in plain.items():
        if name not in roots:
            raise UserError(f"{name}={show(value)}: there is no such key{did_you_mean(str(name), KEYS)} (see --help)")
    for node in ("agent", "env"):
        if not isinstance(plain.get(node), dict) or "_target_" not in plain[node]:
            raise UserError(f"{node}={show(plain.get(node))}: must hold _target_; see cfgs/config.yaml")
    _check_task(plain)
    flat: dict[str, Any] = {}
    # Schedules and devices last: they import torch.
    for key in sorted(KEYS.values(), key=lambda key: key.kind in ("schedule", "device")):
        node, _, leaf = key.name.rpartition(".")
        holder = plain[node] if node else plain
        if leaf in holder:
            holder[leaf] = flat[key.name] = checked(key, holder[leaf])
        elif node != "agent":
            raise UserError(f"{key.name} is missing: add +{key.name}=VALUE, which must be {key.allowed}")
    _check_together(flat)
    return plain


def settle(cfg: DictConfig) -> None:
    """Validate `cfg` and write numbers back in their key's type, interpolations left as they are.

    Raises:
        UserError: as `validate`.
    """
    plain = validate(cfg)
    for name in KEYS:
        node, _, leaf = name.rpartition(".")
        holder, values = (cfg[node], plain[node]) if node else (cfg, plain)
        if leaf in values and not OmegaConf.is_interpolation(holder, leaf) and not OmegaConf.is_missing(holder, leaf):
            holder[leaf] = values[leaf]


def check_call(node: str, factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Check that `factory(**kwargs)` binds.

    Args:
        node: where kwargs stand in the configuration, e.g. "agent".
        factory: class or function that will be called.
        kwargs: its arguments; Hydra's own, such as `_target_`, are left out of account.

    Raises:
        UserError: an argument that the factory does not take, or one that it needs and does not get.
    """
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:
        return  # some C functions have no signature; calling it will tell
    given = {name: value for name, value in kwargs.items() if not re.fullmatch(r"_\w+_", name)}
    named = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [p.name for p in named]
    who = getattr(factory, "__qualname__", str(factory))
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name, value in given.items():
            if name not in names:
                raise UserError(
                    f"{node}.{name}={show(value)}: {who} takes no argument {name}{did_you_mean(name, names)}; "
                    f"take it away with ~{node}.{name}\n{who} takes: {', '.join(names)}"
                )
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in given:
            raise UserError(
                f"{node}.{parameter.name} is missing: {who} needs it; add +{node}.{parameter.name}=VALUE"
                f"\n{node} has: {', '.join(given) or 'no arguments'}"
            )


def check_agent(factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Check that the agent's class takes the keys of `agent`; see `check_call`."""
    check_call("agent", factory, kwargs)


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration's values by dotted name."""
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {name: leaf for key, value in node.items() for name, leaf in leaves(value, f"{prefix}{key}.").items()}
