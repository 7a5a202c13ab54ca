"""What the files of cfgs/ offer: tasks, presets, and the defaults of keys."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from drqv2.programs import ROOT

CFGS = ROOT / "cfgs"
CHOSEN = ("regime", "task", "preset", "agent")  # each chooses a file of the folder of cfgs/ with its name


def tasks() -> list[str]:
    """Return the names of the tasks in cfgs/task, sorted, without the tiers, which set no task_name."""
    found = (re.search(r"^task_name:\s*(\S+)", p.read_text(), re.M) for p in CFGS.glob("task/*.yaml"))
    return sorted(match[1] for match in found if match)


def presets() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in CFGS.glob("preset/*.yaml"))


@cache
def load(path: Path) -> Any:
    """Return a file, read once in a process; it is not to be changed."""
    return OmegaConf.load(path)


def with_bases(folder: str, name: str) -> list[Any]:
    """Return a file of a folder of cfgs/, after those of the folder that it is based on."""
    own = load(CFGS / folder / f"{name}.yaml")
    bases = [entry for entry in own.get("defaults", ()) if isinstance(entry, str) and entry != "_self_"]
    return [file for base in bases for file in with_bases(folder, base)] + [own]


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration's values by dotted name; the shapes of an observation's parts are one value."""
    if not isinstance(node, dict) or (prefix and not node) or prefix == "agent.obs_shape.":
        return {prefix[:-1]: node}
    return {name: leaf for key, value in node.items() for name, leaf in leaves(value, f"{prefix}{key}.").items()}
