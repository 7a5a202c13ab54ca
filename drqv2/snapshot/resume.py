"""Going on with a run, under a configuration that may not be quite its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from drqv2.config.checks import leaves
from drqv2.config.schema import FREE, show
from drqv2.errors import UserError
from drqv2.system import files

_log = logging.getLogger(__name__)

# What the state of a run is made for: no other value of these could take it.
_FIXED = ("task_name", "num_envs", "action_repeat", "frame_stack", "image_size")


def changed_keys(old: dict[str, Any], new: dict[str, Any], run_dir: Path) -> dict[str, Any]:
    """Say how a configuration differs from that of a run, and return the keys, dotted, with their new values.

    Args:
        old: the run's, resolved.
        new: the one to go on with, resolved.
        run_dir: the run's directory.

    Raises:
        UserError: keys differ that change what is learned, and `resume_force` is not set; or that cannot change.
    """
    was, now = leaves(old), leaves(new)
    gone = object()
    changed = {
        name: now.get(name)
        for name in sorted(was.keys() | now.keys())
        if was.get(name, gone) != now.get(name, gone) and name not in ("resume", "resume_force", "init_from")
    }
    words = {
        name: f"{name} {show(was[name]) if name in was else 'absent'} -> {show(now[name]) if name in now else 'absent'}"
        for name in changed
    }
    if fixed := [words[name] for name in changed if name in _FIXED]:
        raise UserError(
            f"{run_dir} holds another run: {', '.join(fixed)}\n"
            "A run keeps these: leave the override out, or start a new run in another directory."
        )
    bound = [words[name] for name in changed if name not in FREE]
    if bound and not new.get("resume_force"):
        raise UserError(
            f"{run_dir} was started with other values: {', '.join(bound)}\n"
            "Leave these overrides out, or say resume_force=true: the curve is then no longer that of one setting."
        )
    if changed:
        print("changed since this run was started: " + ", ".join(words.values()))
    return changed


def store_config(cfg: DictConfig, run_dir: Path, resume_force: bool = False) -> None:
    """Write what `resume` begins with."""
    path = run_dir / "config.yaml"
    text = OmegaConf.to_yaml(OmegaConf.merge(cfg, {"resume_force": resume_force}))
    files.retry_on_full_disk(lambda: files.write_atomically(path, text.encode()), str(path))
