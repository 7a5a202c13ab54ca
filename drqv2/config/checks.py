"""Checks of a composed configuration against the table of its regime's keys, before any environment is made.

Imports neither torch nor mujoco unless a value needs them, so that a mistyped name is reported at once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from zlib import crc32

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.cfgs import CFGS
from drqv2.config.dm_control import every_task, unknown_task
from drqv2.config.formatting import did_you_mean, show
from drqv2.config.keys import NO_LEGACY, Key
from drqv2.config.kinds import Device, Schedule
from drqv2.config.messages import explain
from drqv2.config.regime import Regime
from drqv2.config.regimes.multitask import TASK_GROUPS
from drqv2.config.rules import check_together
from drqv2.config.schema import FIRST, REGIMES, every_key, moved, regime_of
from drqv2.errors import UserError

FOR_REGIMES = "for_regimes"  # in a preset: the regimes that it fits, where it does not choose one
FOR_AGENTS = "for_agents"  # and the agents
_LENGTHS = {"obs_shape": 3, "action_shape": 1}  # of the shapes that the environment defines


def _drop_foreign(cfg: DictConfig, known: Mapping[str, Key]) -> None:
    """Remove keys that only other regimes have, but not those of `agent`. Tasks and presets set such keys."""
    for name in every_key().keys() - known.keys():
        if "." not in name and name in cfg:
            del cfg[name]


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
    if cfg.get("tasks") is None and cfg["env"]["_target_"] is None and task not in (None, "???", *every_task()):
        raise UserError(unknown_task(f"task_name={show(task)}", str(task)))


def validate(cfg: DictConfig) -> None:
    """Check a composed configuration against the table of its regime's keys, and put numbers in their key's type.

    Interpolations stay as they are, 1e6 becomes 1000000, and keys of other regimes, which tasks and presets set, are
    removed. `agent` and `env` may contain keys that the table lacks, and `agent` may lack some: `check_agent` compares
    them with the signature of its class.

    Raises:
        UserError: an unknown or missing key, a value of the wrong type or out of bounds, or values that do not fit
            together.
    """
    regime = regime_of(cfg)
    known = regime.keys_of(str(OmegaConf.select(cfg, "agent._target_")), cfg.get("agent_dir"))
    with open_dict(cfg):
        cfg.pop(FOR_REGIMES, None)
        cfg.pop(FOR_AGENTS, None)
        _take_renamed(cfg, regime)
        _drop_foreign(cfg, known)
        if re.search(":.", str(cfg.get("env_id"))):
            cfg.task_name = label(cfg.env_id, "")
        if cfg.get("tasks"):
            cfg.task_name = label(None, "", cfg.tasks)
        try:
            plain = _resolved(cfg)
        except OmegaConfBaseException as error:
            raise UserError(explain(error, regime.name)) from None
        _check_names(plain, known)
        _take_moved(cfg, plain, regime)
        flat: dict[str, Any] = {}
        # Those that may import torch, which takes seconds, come last.
        for key in sorted(known.values(), key=lambda key: isinstance(key.kind, Schedule | Device)):
            node, _, leaf = key.name.rpartition(".")
            values, target = (plain[node], cfg[node]) if node else (plain, cfg)
            if leaf not in values and key.legacy is not NO_LEGACY:
                values[leaf] = key.legacy
            if leaf in values:
                flat[key.name] = key.check(values[leaf])
                if not OmegaConf.is_interpolation(target, leaf) and not OmegaConf.is_missing(target, leaf):
                    target[leaf] = flat[key.name]
            elif node != "agent":
                raise UserError(f"{key.name} is missing: add +{key.name}=VALUE, which must be {key.allowed}")
    if "time_limit" in plain["env"]:
        flat["env.time_limit"] = plain["env"]["time_limit"]  # of dm_control's task: its episodes have another length
    check_together(flat)
    regime.check(flat)


def _take_renamed(cfg: DictConfig, regime: Regime) -> None:
    """Give the keys of an old configuration the names that they have today."""
    for old, new in regime.renamed.items():
        if old in cfg:
            cfg[new] = cfg.pop(old)


def _take_moved(cfg: DictConfig, plain: dict[str, Any], regime: Regime) -> None:
    """Replace what a configuration, old or of your own, has as keys of `agent` that are keys of the regime now."""
    arguments, values = moved(plain, regime)
    for name in arguments:
        del cfg.agent[name], plain["agent"][name]
    for key, value in values.items():
        if plain.get(key) != value:
            cfg[key] = plain[key] = value


def _resolved(cfg: DictConfig) -> Any:
    """Return plain values, where others may refer to numbers in the shapes (`${agent.obs_shape[0]}`), still unknown."""
    agent, known = cfg.get("agent"), cfg.copy()
    unknown: dict[str, Any] = {}
    if isinstance(agent, DictConfig):
        unknown = {name: None for name in _LENGTHS if name in agent and agent.get(name) is None}
        known.agent.update({name: _stand_in(name, agent) for name in unknown})
    plain: Any = OmegaConf.to_container(known, resolve=True)
    if unknown:
        plain["agent"].update(unknown)
    return plain


def _stand_in(name: str, agent: DictConfig) -> Any:
    """Return numbers in place of a shape, or of the shapes of the parts of an observation to which keys refer."""
    numbers = [1] * _LENGTHS[name]
    parts = re.findall(rf"\$\{{agent\.{name}\.([^.\[}}]+)", OmegaConf.to_yaml(agent))
    return dict.fromkeys(parts, numbers) or numbers


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
    own = regime_of(cfg)
    regime, known = own.name, own.every_key
    chosen = next((o.partition("=")[2] for o in reversed(overrides) if o.startswith("regime=")), FIRST)
    presets = [o for o in overrides if o.startswith("preset=")]
    fitting = cfg.get(FOR_REGIMES, [regime])
    if presets and (regime != chosen or regime not in fitting):
        fits = " or regime=".join(fitting) if regime == chosen else regime
        raise UserError(
            f"{', '.join(presets)} applies only to regime={fits}; add regime={fits}, or choose another preset"
        )
    agents = [o.partition("=")[2].strip("'\"") for o in overrides if o.startswith("agent=")]
    if presets and agents and agents[-1] not in cfg.get(FOR_AGENTS, agents):
        raise UserError(
            f"{', '.join(presets)} with agent={agents[-1]}: applies only to agent={' or '.join(cfg[FOR_AGENTS])}; "
            "choose one of these, or another preset"
        )
    for override in overrides:
        name, _, value = override.lstrip("+~").partition("=")
        if override.startswith("~agent") and name == "agent":
            raise UserError(
                f"{override}: a run needs an agent; choose one with agent=NAME or agent._target_=MODULE.CLASS"
            )
        if name == "agent" and not _has_agent(own, value.strip("'\"")):
            raise UserError(_other_agent(override, value, own))
        if name in own.moved:
            raise UserError(f"{name} is now {own.moved[name]}")
        if name == "task" and cfg.get("env_id") is not None:
            raise UserError(f"{override} and env_id={cfg.env_id}: give only one of them")
        if name in every_key() and name not in known:
            raise UserError(f"{override}: regime={regime} has no such key{did_you_mean(name, known)} (see --help)")


def _has_agent(regime: Regime, name: str) -> bool:
    return name in regime.agents or (CFGS / "agent" / f"{name}.yaml").is_file()  # one of your own


def _other_agent(override: str, agent: str, regime: Regime) -> str:
    fitting = [other.name for other in REGIMES.values() if agent in other.agents]
    near = f"; agent={agent} applies only to regime={' or '.join(fitting)}" if fitting else ""
    return (
        f"{override}: regime={regime.name} has {', '.join(regime.agents)}"
        f"{near or did_you_mean(agent, regime.agents)}; others are chosen by agent._target_=MODULE.CLASS"
    )


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
    if unknown := [name for name in given if name not in named and not takes_any]:
        name, removed = unknown[0], " ".join(f"~agent.{each}" for each in unknown)
        raise UserError(
            f"agent.{name}={show(given[name])}: {who} takes no argument {name}{did_you_mean(name, named)}; "
            f"remove what it does not take with {removed}\n{who} takes: {', '.join(named)}"
        )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in given:
            raise UserError(
                f"agent.{name} is missing: {who} needs it; add +agent.{name}=VALUE"
                f"\nagent has: {', '.join(given) or 'no arguments'}"
            )
