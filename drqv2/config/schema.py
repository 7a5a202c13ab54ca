"""The configuration keys of each regime, and what cfgs/ offers: tasks, presets, defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from drqv2.config.formatting import show, unknown
from drqv2.config.kinds import NO_LEGACY, Key
from drqv2.config.tables import drqv2, impala, multitask, offline, ppo
from drqv2.config.tables.shared import FIRST_REGIME
from drqv2.errors import UserError
from drqv2.programs import ROOT

CFGS = ROOT / "cfgs"
CHOSEN = ("regime", "task", "preset", "agent")  # each chooses a file of the folder of cfgs/ with its name
# Regimes whose agent is chosen by name, agent=NAME, and those names; in the others, agent._target_ chooses one.
AGENTS: dict[str, tuple[str, ...]] = {
    "drqv2": ("drqv2", "spq"),
    "offline": ("drqv2", "drqv2_bc", "bc", "cql", "spq"),
    "multitask": ("multitask", "drqv2"),
    "impala": (),
    "ppo": (),
}
# regime -> title -> keys
GROUPS: dict[str, dict[str, tuple[Key, ...]]] = {
    "drqv2": drqv2.GROUPS,
    "impala": impala.GROUPS,
    "multitask": multitask.GROUPS,
    "offline": offline.GROUPS,
    "ppo": ppo.GROUPS,
}


def groups(regime: str = FIRST_REGIME) -> Mapping[str, tuple[Key, ...]]:
    """Return the keys of a regime under the titles of their groups.

    Raises:
        UserError: there is no such regime.
    """
    if not isinstance(regime, str) or regime not in GROUPS:
        raise UserError(unknown("regime", show(regime), GROUPS))
    return GROUPS[regime]


def keys(regime: str = FIRST_REGIME) -> Mapping[str, Key]:
    """Return the keys of a regime by name; raises as `groups`."""
    return {key.name: key for group in groups(regime).values() for key in group}


def every_key() -> Mapping[str, Key]:
    """Return the keys of all regimes by name; where regimes define a name differently, one of the definitions."""
    return {name: key for regime in GROUPS for name, key in keys(regime).items()}


@cache
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


RENAMED = {"snapshot_every_epochs": "snapshot_every_updates"}  # keys of stored configurations: their names today


def take_renamed(config: MutableMapping[str, Any]) -> None:
    """Give the keys of a stored configuration the names that they have today."""
    for old, new in RENAMED.items():
        if old in config:
            value = config.pop(old)
            config.setdefault(new, value)


def legacy(regime: str = FIRST_REGIME) -> dict[str, Any]:
    """Return the values of keys that a stored configuration may lack because they did not exist yet."""
    return {key.name: key.legacy for key in keys(regime).values() if key.legacy is not NO_LEGACY}


def tasks() -> list[str]:
    """Return the names of the tasks in cfgs/task, sorted, without the tiers, which set no task_name."""
    found = (re.search(r"^task_name:\s*(\S+)", p.read_text(), re.M) for p in CFGS.glob("task/*.yaml"))
    return sorted(match[1] for match in found if match)


def presets() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in CFGS.glob("preset/*.yaml"))


def defaults(regime: str = FIRST_REGIME) -> dict[str, Any]:
    """Return a regime's configuration without task and preset, nested, interpolations unresolved."""
    groups(regime)
    files = _with_bases("regime", regime)
    chosen = [name for file in files for name in _chosen_agents(file)]
    agent: list[Any] = [{"agent": OmegaConf.merge(*_with_bases("agent", chosen[-1]))}] if chosen else []
    plain: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.load(CFGS / "config.yaml"), *agent, *files))
    plain.get("agent", {}).pop("defaults", None)
    return {name: value for name, value in plain.items() if name not in ("defaults", "hydra")}


def agent_arguments(regime: str = FIRST_REGIME) -> dict[str, Any]:
    """Return what the files of a regime's agents set, by dotted name; each argument belongs to some of these agents."""
    groups(regime)
    names = AGENTS.get(regime, ())
    files: list[Any] = [OmegaConf.to_container(OmegaConf.load(CFGS / f"agent/{name}.yaml")) for name in names]
    return {
        f"agent.{name}": value for file in files for name, value in file.items() if name not in ("_target_", "defaults")
    }


def arguments_of(target: str) -> set[str]:
    """Return the arguments that the file of an agent's class in cfgs/agent sets; none for a class without a file."""
    for names in AGENTS.values():
        for name in names:
            files = _with_bases("agent", name)
            if files[-1].get("_target_") == target:
                return {str(key) for file in files for key in file} - {"defaults"}
    return set()


def _with_bases(folder: str, name: str) -> list[Any]:
    """Return a file of a folder of cfgs/, after those of the folder that it is based on."""
    own: Any = OmegaConf.load(CFGS / folder / f"{name}.yaml")
    bases = [entry for entry in own.get("defaults", ()) if isinstance(entry, str) and entry != "_self_"]
    return [file for base in bases for file in _with_bases(folder, base)] + [own]


def _chosen_agents(file: Any) -> list[str]:
    entries = [entry for entry in file.get("defaults", ()) if not isinstance(entry, str)]
    return [name for entry in entries for group, name in entry.items() if group.split("/")[-1] == "agent"]
