"""Load a trained agent: find the snapshot, read it, reject untrusted code, and build the agent."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.schema import FIRST, REGIMES, defaults
from drqv2.errors import UserError
from drqv2.run import factory
from drqv2.run.target import find as find_target
from drqv2.snapshot import agent_state, agent_weights
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_weights import ADVICE, misfit
from drqv2.snapshot.checkpoints import newest_readable
from drqv2.system import files


def find(source: Path, name: str | None) -> Path:
    """Return the file of weights: of a run, its newest readable snapshot, or its newest milestone if it has none.

    Args:
        source: a run directory or a file of weights.
        name: a file in the run directory, or a path.

    Raises:
        UserError: there is none, or none is readable.
    """
    if source.is_file():
        if name:
            raise UserError(f"snapshot={name}: {source} is itself a file of weights; give the run's directory instead")
        return source
    milestones = [path for path in source.glob("weights_*.pt") if path.stem[8:].isdecimal()]
    milestones.sort(key=lambda path: int(path.stem[8:]), reverse=True)
    if name is None:
        if newest := newest_readable(source):
            return newest[0]
        if not milestones:
            raise UserError(f"{source}: contains no snapshot; give the directory of a run")
        return milestones[0]
    for path in (source / name, Path(name)):
        if path.is_file():
            return path
    available = [each for each in files.SNAPSHOTS if (source / each).is_file()] + [path.name for path in milestones]
    raise UserError(f"snapshot={name}: no such file in {source}\navailable: {', '.join(available) or 'none'}")


def read(path: Path) -> tuple[DictConfig, dict[str, Any], int]:
    """Return the configuration, the agent's captured state and the frame.

    Raises:
        UserError: the file is not a snapshot, milestone or export, or it is damaged.
    """
    config, state, frame = _read_export(path) if path.suffix == ".safetensors" else _read_snapshot(path)
    if not isinstance(config, dict) or not all(isinstance(config.get(node), dict) for node in ("agent", "env")):
        raise UserError(f"{path}: contains no configuration of a run; train with init_from={path} first")
    regime = config.get("regime", FIRST)  # one from elsewhere is no older than its keys
    base = defaults(regime) if regime in REGIMES else {}  # for keys that did not exist yet
    try:
        cfg = OmegaConf.merge({key: value for key, value in base.items() if key not in ("agent", "env")}, config)
    except OmegaConfBaseException as e:
        raise UserError(f"{path}: its configuration cannot be read ({_line(e)})") from e
    assert isinstance(cfg, DictConfig)
    cfg.init_from = None
    return cfg, state, frame


def _read_export(path: Path) -> tuple[Any, dict[str, Any], int]:
    state, metadata = agent_weights.read_export(path)
    try:
        if not {"config", "frame"} <= metadata.keys():
            raise ValueError("it contains no config")
        return json.loads(metadata["config"]), state, int(metadata["frame"])
    except ValueError as e:
        raise UserError(f"{path}: not written by python -m drqv2.snapshot export ({_line(e)})") from e


def _read_snapshot(path: Path) -> tuple[Any, dict[str, Any], int]:
    try:
        saved = snapshot.load(path)
    except UserError as e:
        raise UserError(f"{e}\n{ADVICE}") from e
    if "agent" not in saved:
        raise UserError(f"{path}: contains no agent\n{ADVICE}")
    return saved.get("config"), saved["agent"], saved["frame"]


def _line(text: object) -> str:
    return " ".join(str(text).split())[:100]


def reject_foreign_code(cfg: DictConfig, path: Path) -> None:
    """Check that an untrusted file references no code except this project's agents.

    Raises:
        UserError: it does.
    """
    plain: Any = OmegaConf.to_container(cfg)
    if str(plain.get("env_id")).count(":") > 1:  # gymnasium:MODULE:NAME imports the module
        plain["env"]["_target_"] = plain["env_id"]
    for task in plain.get("tasks") or ():
        if str(task).count(":") > 1:
            plain["env"]["_target_"] = task
    for key, value in _code(
        {name: plain[name] for name in ("agent", "env", "agent_dir", "regime_dir") if name in plain}
    ):
        if key != "agent._target_" or not re.fullmatch(r"drqv2\.agents\.\w+\.\w+Agent", str(value)):
            raise UserError(
                f"{path} names code to run: {_line(f'{key}={value}')}\nIf you trust its source, add trust=true."
            )


def _code(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what Hydra would import or interpolate in an unresolved configuration, by dotted name."""
    leaf = name.rpartition(".")[2]
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _code(value, f"{name}.{key}".lstrip("."))
    elif node is not None and (leaf in ("_target_", "agent_dir", "regime_dir") or "${" in str(node)):
        yield name, node


def override_task(cfg: DictConfig, task: str) -> None:
    """Set another task, or another environment of the same library as the run's.

    Raises:
        UserError: the run's environment is a custom one that takes no task_name.
    """
    if cfg.env_id is not None:
        library = str(cfg.env_id).partition(":")[0]
        cfg.env_id = task if ":" in task else f"{library}:{task}"
        return
    custom = cfg.env._target_
    if custom is not None:
        takes = inspect.signature(find_target(custom)).parameters
        if "task_name" not in takes or "task_name" in cfg.env:
            raise UserError(f"task={task}: the run's environment, env._target_={custom}, takes no task_name")
    cfg.task_name = task


def agent_with(cfg: DictConfig, env: Any, state: dict[str, Any], path: Path) -> Any:
    """Return the agent with its weights; warn of weights that it has no counterpart for.

    Raises:
        UserError: they do not fit, or some are missing: a network without them would play at random.
    """
    agent = factory.make_agent(cfg, env, torch.device(cfg.device))
    needed, given = agent_weights.weights(agent_state.capture(agent)), agent_weights.weights(state)
    if missing := sorted(needed.keys() - given.keys()):
        if needed.get("kind") == "stateful":
            raise UserError(f"{path}: tensors alone cannot restore an agent with its own state_dict; use a snapshot")
        networks = ", ".join(sorted({name.partition(".")[0] for name in missing}))
        raise UserError(
            f"{path}: weights of the agent are missing, of {networks} ({missing[0]} and {len(missing) - 1} more)\n"
            "Give a snapshot, or all that python -m drqv2.snapshot export RUN_DIR FILE.safetensors writes."
        )
    try:
        agent_weights.restore_weights(agent, given)
    except (RuntimeError, AttributeError, KeyError, ValueError) as e:  # the last three: of an agent's own code
        raise UserError(
            f"{path}: its weights do not fit {cfg.task_name}: {misfit(e)}\n"
            "Give a task of the same actions and images as the run's."
        ) from e
    return agent
