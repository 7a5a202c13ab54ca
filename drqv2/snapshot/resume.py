"""Resuming a run under a configuration that may differ from its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drqv2.config.checks import leaves
from drqv2.config.formatting import show
from drqv2.config.schema import keys, legacy, take_renamed
from drqv2.config.tables.shared import FIRST_REGIME
from drqv2.errors import UserError


def changed_keys(old: dict[str, Any], new: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return the keys whose values differ from those of a run, dotted, with their new values; print them.

    Each key's `resume` rule says whether it may change. Keys that the regime's table lacks, such as arguments of your
    own agent, need resume_force=true. `old` and `new` are the run's configuration and the one to resume with, resolved.

    Raises:
        UserError: a fixed key differs; or a key that affects learning does, and `resume_force` is not set.
    """
    regime = old.get("regime", FIRST_REGIME)
    known, absent = keys(regime), object()
    # The environment, not the user, says what the two shapes are.
    unrelated = {"resume", "resume_force", "init_from", "init_parts", "agent.obs_shape", "agent.action_shape"}
    was, now = (legacy(regime) | leaves(cfg) for cfg in (old, new))
    take_renamed(was)
    changed: dict[str, Any] = {}
    said: dict[str, list[str]] = {"free": [], "force": [], "fixed": []}
    for name in sorted((was.keys() | now.keys()) - unrelated):
        if was.get(name, absent) != now.get(name, absent):
            changed[name] = now.get(name)
            before, after = (show(cfg[name]) if name in cfg else "absent" for cfg in (was, now))
            said[known[name].resume if name in known else "force"].append(f"{name} {before} -> {after}")
    for rule, lines in said.items():  # agent.lr, which is ${lr}, is not named beside lr
        said[rule] = sorted({*lines} - {f"agent.{line}" for line in lines})
    if said["fixed"]:
        raise UserError(
            f"{run_dir} contains a run with other settings: {', '.join(said['fixed'])}\n"
            "These keys cannot change: remove the overrides, or start a new run in another directory."
        )
    if said["force"] and not new.get("resume_force"):
        raise UserError(
            f"{run_dir} was started with other values: {', '.join(said['force'])}\n"
            "Remove these overrides, or add resume_force=true: the learning curve then mixes two settings."
        )
    if changed:
        print("changed since this run was started: " + ", ".join(sorted(said["free"] + said["force"])))
    return changed
