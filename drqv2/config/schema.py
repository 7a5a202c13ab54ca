"""The configuration keys of each regime, and what cfgs/ offers: regimes, tasks, presets, defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from drqv2.config.formatting import show, unknown
from drqv2.config.key import Key
from drqv2.config.tables import drqv2, shared
from drqv2.config.tables.shared import FIRST_REGIME, LARGEST_RENDER, REGIMES, SMALLEST_IMAGE, encoder_side
from drqv2.errors import UserError

__all__ = [
    "CFGS",
    "FIRST_REGIME",
    "GROUPS",
    "LARGEST_RENDER",
    "REGIMES",
    "SMALLEST_IMAGE",
    "Key",
    "defaults",
    "encoder_side",
    "every_key",
    "groups",
    "keys",
    "legacy",
    "presets",
    "show",
    "tasks",
]

CFGS = Path(__file__).resolve().parents[2] / "cfgs"
# regime -> title -> keys, in the order in which they are shown
GROUPS: dict[str, dict[str, tuple[Key, ...]]] = {
    "drqv2": {
        "Task": shared.TASK,
        "Length": drqv2.LENGTH,
        "Evaluation": shared.EVALUATION,
        "Replay": drqv2.REPLAY,
        "Learner": drqv2.LEARNER,
        "Run": shared.RUN,
        "Snapshots": shared.SNAPSHOTS,
        "Records": shared.RECORDS,
        "Agent": drqv2.AGENT,
    },
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
    """Return the keys of a regime by name.

    Raises:
        UserError: there is no such regime.
    """
    return {key.name: key for group in groups(regime).values() for key in group}


def every_key() -> Mapping[str, Key]:
    """Return the keys of all regimes by name; where regimes define a name differently, one of the definitions."""
    return {name: key for regime in GROUPS for name, key in keys(regime).items()}


def legacy(regime: str = FIRST_REGIME) -> dict[str, Any]:
    """Return what a stored configuration means by lacking a key that did not exist when it was written."""
    return {key.name: key.legacy for key in keys(regime).values() if key.legacy is not None}


def tasks() -> list[str]:
    """Return the names of the tasks in cfgs/task, sorted, without the tiers, which set no task_name."""
    found = (re.search(r"^task_name:\s*(\S+)", p.read_text(), re.M) for p in CFGS.glob("task/*.yaml"))
    return sorted(match[1] for match in found if match)


def presets() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in CFGS.glob("preset/*.yaml"))


def defaults(regime: str = FIRST_REGIME) -> dict[str, Any]:
    """Return a regime's configuration without task and preset: a nested dict, interpolations unresolved.

    Raises:
        UserError: there is no such regime.
    """
    groups(regime)
    merged = OmegaConf.merge(*(OmegaConf.load(CFGS / name) for name in ("config.yaml", f"regime/{regime}.yaml")))
    plain: Any = OmegaConf.to_container(merged)
    return {name: value for name, value in plain.items() if name not in ("defaults", "hydra")}
