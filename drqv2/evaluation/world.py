"""The world that an exported policy's file describes, from the configuration of its run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dm_env import specs
from omegaconf import DictConfig

from drqv2.envs.ids import uses_envpool
from drqv2.play.world import ENVIRONMENTS, World, plain, versions
from drqv2.run.environments import env_options, setting, task_names
from drqv2.run.stats import EpisodeResult

_IMAGE, _VECTOR = ["batch", "channel", "height", "width"], ["batch", "number"]


def world_of(
    cfg: DictConfig,
    run_dir: Path | None,
    frame: int,
    observation: np.ndarray | Mapping[str, np.ndarray],
    action: Any,
    actions: Mapping[str, specs.BoundedArray],
    results: Sequence[EpisodeResult],
) -> World:
    """Return the world of a policy.

    Args:
        cfg: its run's configuration.
        run_dir: its run's directory, which knows the commit; None if the weights come from elsewhere.
        frame: environment frames of training.
        observation: one of them.
        action: spec of the policy's actions.
        actions: spec of each environment's own actions, by task.
        results: of episodes without exploration.
    """
    name, *others = task_names(cfg)
    environment, arguments = ("", {}) if others else _rebuilt(cfg, name)
    totals = [result.total for result in results]
    returns = {"mean": float(np.mean(totals)), "minimum": min(totals), "maximum": max(totals)}
    task = ", ".join([name, *others]) if environment or others else str(cfg.env._target_)
    training = {"task": task, "regime": cfg.regime, "agent": cfg.agent._target_, "seed": cfg.seed, "frames": frame}
    return World(
        environment,
        arguments,
        _observed(observation),
        {**_bounded(action), "axes": _VECTOR[: 1 + len(action.shape)], "own": list(map(_bounded, actions.values()))},
        versions("drqv2-workspace", "gymnasium", *_packages(name)),
        training | {"commit": commits(run_dir)} | versions("torch"),
        {key: round(value, 2) for key, value in returns.items()} | {"episodes": len(totals)},
    )


def _packages(task: str) -> tuple[str, ...]:
    """Return the packages, other than Gymnasium, on which the episodes of a task depend."""
    if ":" not in task:
        return "mujoco", "dm-control"
    if uses_envpool(task):
        return ("envpool",)
    import gymnasium

    library = str(gymnasium.spec(task.rpartition(":")[2]).entry_point)  # which has been imported to evaluate the policy
    return tuple(name for name in ("mujoco", "ale-py") if name.replace("-", "_") in library)


def _rebuilt(cfg: DictConfig, task: str) -> tuple[str, dict[str, Any]]:
    """Return the id and the arguments of `gymnasium.make` for a task's environment; an empty id for your own code."""
    library = ":" in task
    if cfg.env._target_ is not None and not library:
        return "", {}
    arguments: dict[str, Any] = {"obs_type": cfg.obs_type, "action_repeat": setting(cfg, task, "action_repeat")}
    if cfg.obs_type != "state":
        arguments |= {"frame_stack": cfg.frame_stack, "image_size": cfg.image_size, "render": cfg.render}
        arguments |= {"image_key": cfg.image_key, "channels": cfg.channels}
    arguments |= {name: list(cfg[name]) for name in ("cameras", "observation_parts") if cfg.get(name)}
    arguments |= {"camera": setting(cfg, task, "camera"), "episode_steps": cfg.max_episode_steps}
    arguments["options"] = env_options(cfg, task if library else None) or None
    arguments = {key: value for key, value in arguments.items() if value not in (None, "auto")}
    return (f"{ENVIRONMENTS}env-v0", {"task": task} | arguments) if library else (f"{ENVIRONMENTS}{task}-v0", arguments)


def _observed(observation: np.ndarray | Mapping[str, np.ndarray]) -> dict[str, Any]:
    if isinstance(observation, Mapping):
        return {"parts": {name: _observed(part) for name, part in observation.items()}}
    return {**_spec(observation), "axes": _IMAGE if observation.ndim == 3 else _VECTOR}


def _spec(array: Any) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(np.dtype(array.dtype))}


def _bounded(spec: Any) -> dict[str, Any]:
    return {**_spec(spec), "minimum": plain(spec.minimum), "maximum": plain(spec.maximum)}


def commits(run_dir: Path | None) -> str:
    """Return the commits at which a run was started and resumed."""
    file = run_dir / "starts.jsonl" if run_dir else None
    if file is None or not file.is_file():
        return "unknown"
    starts: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    known = [
        f"{start['commit'][:12]}{' with changes' if start['dirty'] else ''}" for start in starts if start["commit"]
    ]
    return ", ".join(dict.fromkeys(known)) or "unknown"
