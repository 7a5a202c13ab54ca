"""A trained agent from a file of weights: which file, what is in it, whose code it names, and the agent itself."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.messages import did_you_mean
from drqv2.config.schema import CFGS, show, tasks
from drqv2.errors import UserError
from drqv2.run import factory as parts
from drqv2.snapshot import agent_state
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_weights import ADVICE, misfit
from drqv2.system import files


def find(source: Path, name: str | None) -> list[Path]:
    """Return the file of weights that is meant: of a run the newest snapshot, then the one before it.

    Args:
        source: a run's directory, or a file of weights.
        name: a file in it, or anywhere.

    Raises:
        UserError: there is none.
    """
    if source.is_file():
        if name:
            raise UserError(f"snapshot={name}: {source} is a file of weights itself; give the run's directory")
        return [source]
    if not source.is_dir():
        raise UserError(f"{source}: there is no such run directory or file")
    milestones = [path for path in source.glob("weights_*.pt") if path.stem[8:].isdecimal()]
    there = [path for each in files.SNAPSHOTS if (path := source / each).is_file()]
    there += sorted(milestones, key=lambda path: int(path.stem[8:]), reverse=True)
    if name is None:
        if not there:
            raise UserError(f"{source}: there is no snapshot in it; give the directory of a run")
        return [path for path in there if path.name in files.SNAPSHOTS] or there[:1]
    for path in (source / name, Path(name)):
        if path.is_file():
            return [path]
    others = ", ".join(path.name for path in there) or "none"
    raise UserError(f"snapshot={name}: there is no such file in {source}; there are {others}")


def read_first(paths: Sequence[Path]) -> tuple[Path, tuple[DictConfig, dict[str, Any], int]]:
    """Return the first file that can be read, and what is in it, as `read`; say which could not.

    Raises:
        UserError: what ails the last.
    """
    for path in paths[:-1]:
        try:
            return path, read(path)
        except UserError as e:
            print(f"{str(e).splitlines()[0]}; taking the one before it")
    return paths[-1], read(paths[-1])


def read(path: Path) -> tuple[DictConfig, dict[str, Any], int]:
    """Return the configuration, the agent's captured state (or tensors by dotted name) and the frame.

    Raises:
        UserError: the file is no snapshot, milestone or export, or is damaged.
    """
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as f:
                about = f.metadata() or {}
                weights = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)
            if not {"config", "frame"} <= about.keys():
                raise ValueError("it holds no config")
            config, frame = json.loads(about["config"]), int(about["frame"])
        except (SafetensorError, OSError, ValueError) as e:
            raise UserError(f"{path}: no weights that python -m drqv2.snapshot export has written ({_line(e)})") from e
    else:
        try:
            saved = snapshot.load(path)
        except UserError as e:
            raise UserError(f"{e}\n{ADVICE}") from e
        config = saved.get("config")
        frame, weights = saved.get("frame", ""), saved.get("agent", {})
        if not isinstance(frame, int) or not isinstance(weights, dict) or "kind" not in weights:
            raise UserError(f"{path}: there is no agent in it\n{ADVICE}")
    if not config:
        raise UserError(f"{path}: there is no configuration in it; train with init_from={path} first")
    for node in ("agent", "env"):
        found = config.get(node) if isinstance(config, dict) else config
        if not isinstance(found, dict) or "_target_" not in found:
            where = node if isinstance(config, dict) else "config"
            raise UserError(
                f"{path}: the configuration in it is not a run's, {where}={_line(show(found))}: must hold _target_\n"
                "Give a snapshot of train.py's, or a file that python -m drqv2.snapshot export has written."
            )
    base: Any = OmegaConf.to_container(OmegaConf.load(CFGS / "config.yaml"))  # for keys that there were not yet
    known = {key: value for key, value in base.items() if key not in ("defaults", "hydra", "agent", "env")}
    try:
        cfg = OmegaConf.merge(known, config)
    except OmegaConfBaseException as e:
        raise UserError(f"{path}: the configuration in it cannot be read ({_line(e)})") from e
    assert isinstance(cfg, DictConfig)
    cfg.init_from = None
    return cfg, weights, frame


def _line(said: object, length: int = 100) -> str:
    return " ".join(str(said).split())[:length]


def refuse_foreign_code(cfg: DictConfig, path: Path) -> None:
    """Check that a file which may be anybody's names no code but this project's agents.

    Raises:
        UserError: it does.
    """
    plain: Any = OmegaConf.to_container(cfg)
    for key, value in _code({name: plain[name] for name in ("agent", "env", "agent_dir")}):
        if key != "agent._target_" or not re.fullmatch(r"drqv2\.agents\.\w+\.\w+Agent", str(value)):
            raise UserError(
                f"{path} names code to run, {_line(f'{key}={value}')}\nIf you know where it comes from, say trust=true."
            )


def _code(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield, by dotted name, what Hydra would import or work out in an unresolved configuration, however deep."""
    leaf = name.rpartition(".")[2]
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _code(value, f"{name}.{key}".lstrip("."))
    elif (node is not None and leaf in ("_target_", "agent_dir")) or (isinstance(node, str) and "${" in node):
        yield name, node


def take_task(cfg: DictConfig, task: str) -> None:
    """Set another task. An environment of the run's own that takes no task_name gives way to dm_control's.

    Raises:
        UserError: it would, and there is no such task of dm_control's.
    """
    own = cfg.env._target_
    if own is None and task not in tasks():
        near = did_you_mean(task, tasks())
        raise UserError(f"task={task}: there is no such task\nallowed: the files of cfgs/task{near}")
    if own is not None and not _takes_task_name(cfg):
        if task not in tasks():
            raise UserError(
                f"task={task}: the run has an environment of its own, env._target_={own}, which takes no task_name\n"
                f"allowed: the files of cfgs/task{did_you_mean(task, tasks())}; without task= the run's own is played"
            )
        cfg.env = {"_target_": None}
    cfg.task_name = task


def _takes_task_name(cfg: DictConfig) -> bool:
    try:
        taken = inspect.signature(hydra.utils.get_object(cfg.env._target_)).parameters
    except Exception:  # whatever its import raises
        return False
    return "task_name" in taken and "task_name" not in cfg.env


def agent_with(cfg: DictConfig, env: Any, weights: dict[str, Any], path: Path) -> Any:
    """Return the agent with its weights.

    Raises:
        UserError: they do not fit, or some are missing: a network without them would play at random.
    """
    agent = parts.make_agent(cfg, env, torch.device(cfg.device))
    captured = isinstance(weights.get("kind"), str)
    own = agent_state.capture(agent)
    if own["kind"] == "stateful" and not captured:
        raise UserError(f"{path}: the agent has a state_dict of its own: tensors alone do not fill it; give a snapshot")
    needed, given = agent_state.parameters(own), agent_state.parameters(weights) if captured else weights
    if missing := sorted(needed.keys() - given.keys()):
        networks = ", ".join(sorted({name.partition(".")[0] for name in missing}))
        raise UserError(
            f"{path}: weights of the agent are missing, of {networks} ({missing[0]} and {len(missing) - 1} more)\n"
            "Give a snapshot, or all that python -m drqv2.snapshot export RUN_DIR FILE.safetensors writes."
        )
    try:
        if not captured:
            if unknown := sorted(given.keys() - needed.keys()):
                raise KeyError(f"the agent has no {unknown[0]}")
            for name, network in agent_state.networks(own):
                network["value"] = {key: given[f"{name}.{key}" if name else key] for key in network["value"]}
        agent_state.restore(agent, weights if captured else own, weights_only=True)
    except (RuntimeError, AttributeError, KeyError, ValueError) as e:  # the last three: of an agent's own code
        raise UserError(
            f"{path}: its weights do not fit {cfg.task_name}: {misfit(e)}\n"
            "Give a task of the same actions and images as the run's."
        ) from e
    return agent
