"""The registry of regimes, and the keys that they and their agents have."""

from __future__ import annotations

import importlib.util
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from drqv2.config import dm_control
from drqv2.config.cfgs import CFGS, leaves, load, with_bases
from drqv2.config.formatting import show, unknown
from drqv2.config.keys import NO_LEGACY, Key
from drqv2.config.regime import Agent, Regime
from drqv2.config.regimes import drqv2, impala, multitask, offline, ppo
from drqv2.config.signatures import agent_node
from drqv2.errors import UserError

REGIMES: dict[str, Regime] = {
    regime.name: regime for regime in (drqv2.REGIME, impala.REGIME, multitask.REGIME, offline.REGIME, ppo.REGIME)
}
FIRST = drqv2.REGIME.name  # of configurations stored before the key `regime` existed


def find(name: str = FIRST, regime_dir: str | Path | None = None) -> Regime:
    """Return a regime.

    Args:
        name: its name.
        regime_dir: where the file NAME.py defines it as `REGIME`, if it is not one of this project's.

    Raises:
        UserError: there is none, or its file cannot be used.
    """
    if regime_dir is not None and isinstance(name, str) and (file := Path(regime_dir, f"{name}.py")).is_file():
        _load(name, file.resolve())
    if not isinstance(name, str) or name not in REGIMES:
        where = "" if regime_dir is None else f", and no {name}.py in {regime_dir}"
        raise UserError(unknown("regime", show(name), REGIMES) + where)
    return REGIMES[name]


def regime_of(config: Mapping[Any, Any]) -> Regime:
    """Return the regime of a configuration; raises as `find`."""
    return find(config.get("regime", FIRST), config.get("regime_dir"))


def _load(name: str, file: Path) -> None:
    """Add the regime that a file defines, once in a process.

    Raises:
        UserError: it defines none, or takes the name of another one.
    """
    if name in REGIMES:
        if REGIMES[name].folder != str(file.parent):
            raise UserError(f"{file}: there is a regime {name} already; give yours another name")
        return
    module_name = f"regime_dir_{zlib.crc32(str(file).encode()):08x}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # for what it defines, such as dataclasses, and for pickle
    try:
        spec.loader.exec_module(module)
        regime = getattr(module, "REGIME", None)
        if not isinstance(regime, Regime) or regime.name != name:
            raise UserError(f"{file}: must define REGIME = Regime(name={name!r}, ...), of drqv2.config.regime")
    except BaseException:
        del sys.modules[module_name]
        raise
    REGIMES[name] = replace(regime, folder=str(file.parent))
    every_key.cache_clear()


def find_agent(target: str) -> Agent | None:
    """Return which of the regimes' agents has a class; None for another class."""
    found = (regime.agent(target) for regime in REGIMES.values())
    return next((agent for agent in found if agent is not None), None)


@cache
def every_key() -> Mapping[str, Key]:
    """Return the keys of all regimes by name; where they describe a name differently, one of the descriptions."""
    return {name: key for regime in REGIMES.values() for name, key in regime.every_key.items()}


def free_in_a_setting() -> frozenset[str]:
    """Return the keys by dotted name that may differ between runs of the same setting: its seeds."""
    free = {name for name, key in every_key().items() if key.resume == "free"}
    learnt_from = {"init_from", "init_parts", "agent_dir"}
    return frozenset(free - learnt_from | {"seed", "agent.obs_shape", "agent.action_shape"})


def length(config: Mapping[str, Any]) -> int | None:
    """Return a run's environment frames from its configuration by dotted name; None if they are not determined."""
    steps = config.get("total_timesteps")
    frames = config.get("num_train_frames") if steps is None else steps * config["action_repeat"]
    return frames if isinstance(frames, int) else None


def moved(config: Mapping[str, Any], regime: Regime) -> tuple[list[str], dict[str, Any]]:
    """Return what an old configuration, resolved, has as keys of `agent` that are keys of the regime now.

    Returns:
        the names of these arguments; and the values that they give to keys of the regime. A key that a resume may
        change freely keeps its own.
    """
    agent = config.get("agent")
    given = {name: agent[name] for name in regime.passes if name in agent} if isinstance(agent, dict) else {}
    keys = {regime.passes[name]: value for name, value in given.items() if value is not None}
    return list(given), {key: value for key, value in keys.items() if regime.every_key[key].resume != "free"}


def stored(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a stored configuration, resolved, by the dotted names that keys have today.

    Keys that did not exist when it was written have their `legacy` value; a class that is none of the regime's agents,
    whose code is not run for this, has those of the first one.
    """
    if (regime := REGIMES.get(config.get("regime", FIRST))) is None:
        return leaves(dict(config))  # one from elsewhere, whose code is not run for this
    node = config.get("agent")
    target = node.get("_target_") if isinstance(node, Mapping) else None
    agent = regime.agent(str(target)) or next(iter(regime.agents.values()))
    keys = regime.keys_of(agent.target)
    found = {name: key.legacy for name, key in keys.items() if key.legacy is not NO_LEGACY}
    arguments, values = moved(config, regime)
    found |= {regime.renamed.get(name, name): value for name, value in leaves(dict(config)).items()} | values
    return {name: found[name] for name in found.keys() - {f"agent.{name}" for name in arguments}}


def defaults(name: str = FIRST, agent: str = "") -> dict[str, Any]:
    """Return a regime's configuration without task and preset, nested, interpolations unresolved.

    Args:
        name: of the regime.
        agent: name of one of its agents, by default the first.
    """
    regime = find(name)
    target = regime.agents[agent or next(iter(regime.agents))].target
    own = {"agent": agent_node(target, regime.folder), "regime": name}
    files = [regime.defaults] if regime.folder else with_bases("regime", name)
    plain: Any = OmegaConf.to_container(OmegaConf.merge(load(CFGS / "config.yaml"), own, *files))
    return {name: value for name, value in plain.items() if name not in ("defaults", "hydra")}


def offer() -> None:
    """Let Hydra compose what has no file in cfgs/: dm_control's other tasks, agents, regimes from elsewhere."""
    dm_control.offer_tasks()
    store = ConfigStore.instance().store
    for regime in REGIMES.values():
        for name, agent in regime.agents.items():
            store(name, agent_node(agent.target, regime.folder), group="agent", provider="drqv2")
        if regime.folder:
            node = {"defaults": [{"/agent": next(iter(regime.agents))}, "_self_"], "regime": regime.name}
            store(regime.name, node | dict(regime.defaults), group="regime", package="_global_", provider="drqv2")
