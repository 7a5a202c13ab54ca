"""Resuming a run under a configuration that may differ from its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from drqv2.config.checks import leaves
from drqv2.config.formatting import show
from drqv2.config.schema import FIRST_REGIME, keys, legacy
from drqv2.errors import UserError
from drqv2.system import files


def changed_keys(old: dict[str, Any], new: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return the keys whose values differ from those of a run, dotted, with their new values; print them.

    Each key's `resume` rule says whether it may change. Keys that the regime's table lacks, such as arguments of your
    own agent, need resume_force=true.

    Args:
        old: the run's configuration, resolved.
        new: the configuration to resume with, resolved.
        run_dir: the run's directory.

    Raises:
        UserError: a fixed key differs; or a key that affects learning does, and `resume_force` is not set.
    """
    regime = old.get("regime", FIRST_REGIME)
    known = keys(regime)
    was, now = (legacy(regime) | leaves(cfg) for cfg in (old, new))
    absent = object()
    changed = {
        name: now.get(name)
        for name in sorted(was.keys() | now.keys())
        if was.get(name, absent) != now.get(name, absent) and name not in ("resume", "resume_force", "init_from")
    }
    said = {
        name: f"{name} {show(was[name]) if name in was else 'absent'} -> {show(now[name]) if name in now else 'absent'}"
        for name in changed
    }
    rules = {name: known[name].resume if name in known else "force" for name in changed}
    if fixed := [said[name] for name in changed if rules[name] == "fixed"]:
        raise UserError(
            f"{run_dir} contains a run with other settings: {', '.join(fixed)}\n"
            "These keys cannot change: remove the overrides, or start a new run in another directory."
        )
    forced = [said[name] for name in changed if rules[name] == "force"]
    if forced and not new.get("resume_force"):
        raise UserError(
            f"{run_dir} was started with other values: {', '.join(forced)}\n"
            "Remove these overrides, or add resume_force=true: the learning curve then mixes two settings."
        )
    if changed:
        print("changed since this run was started: " + ", ".join(said.values()))
    return changed


def store_config(cfg: DictConfig, run_dir: Path, resume_force: bool = False) -> None:
    """Write the configuration that `resume=` composes from."""
    path = run_dir / "config.yaml"
    text = OmegaConf.to_yaml(OmegaConf.merge(cfg, {"resume_force": resume_force}))
    files.retry_on_full_disk(lambda: files.write_atomically(path, text.encode()), str(path))
