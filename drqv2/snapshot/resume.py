"""Going on with a run, under a configuration that may not be quite its own."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from drqv2.config.schema import FREE, show
from drqv2.errors import UserError
from drqv2.run.progress import Progress
from drqv2.snapshot import file as snapshot
from drqv2.snapshot import state
from drqv2.system import files

_log = logging.getLogger(__name__)

ADVICE = (
    "Give a run's snapshot.pt or weights_FRAME.pt; for the public DrQ-v2's weights see python -m drqv2.snapshot --help."
)
REPLAY = "buffer"  # the folder of episodes in a run's directory
# What the state of a run is made for: no other value of these could take it.
_FIXED = ("task_name", "num_envs", "action_repeat", "frame_stack", "image_size")
# An agent's attributes that follow the machine of each start, not the snapshot.
_OF_THIS_START = ("device", "precision", "compile")


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


def has_ended(cfg: DictConfig, run_dir: Path) -> Progress | None:
    """Return how far the run in `run_dir` came if it has ended and given up its replay (keep_replay=false); say so.

    Raises:
        UserError: it has, and is asked to go on for longer; or its replay is missing though it has not ended.
    """
    if not files.has_snapshot(run_dir) or (run_dir / REPLAY).exists():
        return None
    path, saved = _newest(run_dir)
    length = saved["config"]["num_train_frames"]
    ended = saved["frame"] + saved["config"]["action_repeat"] * saved["config"]["num_envs"] > length
    if not ended or cfg.num_train_frames > length:
        why = "has ended and its replay is deleted (keep_replay=false)" if ended else "has lost its replay"
        raise UserError(
            f"{run_dir} {why}: it cannot be gone on with\ninit_from={path} begins another run with its weights."
        )
    print(f"nothing left to do: the run has had its num_train_frames={length}, and its replay is deleted")
    return Progress(**saved["progress"])


def _newest(run_dir: Path) -> tuple[Path, dict[str, Any]]:
    """Return the newest snapshot that is whole, and its path; if none is, say what ails the newest."""
    reason: UserError | None = None
    for path in (run_dir / name for name in files.SNAPSHOTS):
        if path.is_file():
            try:
                return path, snapshot.load_run(path)
            except UserError as e:
                reason = reason or e
    assert reason is not None, "the caller has seen a snapshot"
    raise reason


def restore_agent(agent: Any, saved: Any, changed: dict[str, Any], run_dir: Path) -> None:
    """Bring an agent to where a snapshot was taken, but for what this start has changed.

    Args:
        agent: a new one, of the configuration.
        saved: what the snapshot holds of it.
        changed: what `changed_keys` returned.
        run_dir: the run's directory.

    Raises:
        UserError: the snapshot is of another agent.
    """
    fresh = dict(getattr(agent, "__dict__", {}))
    try:
        state.restore(agent, saved)
    except (RuntimeError, AttributeError, TypeError, ValueError, KeyError) as e:  # what agents' own code raises, too
        raise UserError(f"the snapshot in {run_dir} is of another agent than the configuration's: {misfit(e)}") from e
    apply(agent, fresh, changed)


def apply(agent: Any, fresh: dict[str, Any], changed: dict[str, Any]) -> None:
    """Give a restored agent what does not come from its snapshot.

    Args:
        agent: restored.
        fresh: its attributes as they were before that.
        changed: what `changed_keys` returned.
    """
    names = {key.removeprefix("agent.") for key in changed if key.startswith("agent.")}
    for name in sorted(names.union(_OF_THIS_START)):
        if name in fresh and (name not in _OF_THIS_START or isinstance(fresh[name], str | bool | torch.device)):
            setattr(agent, name, fresh[name])
    if "agent.lr" in changed:
        for optimizer in _optimizers(vars(agent)):
            for group in optimizer.param_groups:
                group["lr"] = changed["agent.lr"]


def _optimizers(value: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers in nested containers."""
    if isinstance(value, torch.optim.Optimizer):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _optimizers(item)


def init_weights(agent: Any, path: Path) -> None:
    """Give a new agent the weights in a snapshot, and say so.

    Raises:
        UserError: the file is no snapshot, or its weights do not fit.
    """
    try:
        saved = snapshot.load(path)
    except UserError as e:
        raise UserError(f"init_from={e}\n{ADVICE}") from e
    if "agent" not in saved:
        raise UserError(f"init_from={path}: there is no agent in it\n{ADVICE}")
    try:
        state.restore(agent, saved["agent"], weights_only=True)
    except RuntimeError as e:
        raise UserError(
            f"init_from={path}: its weights do not fit the agent: {misfit(e)}\n"
            "Give a task of the same actions and images, and the preset and sizes that they were trained with."
        ) from e
    print(f"agent's weights from {path}; counters and replay are new")


def store_config(cfg: DictConfig, run_dir: Path, resume_force: bool = False) -> None:
    """Write what `resume` begins with."""
    path = run_dir / "config.yaml"
    text = OmegaConf.to_yaml(OmegaConf.merge(cfg, {"resume_force": resume_force}))
    files.persist(lambda: files.write_atomically(path, text.encode()), str(path))


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration's values by dotted name."""
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {name: leaf for key, value in node.items() for name, leaf in leaves(value, f"{prefix}{key}.").items()}


def misfit(error: Exception) -> str:
    """Return in a line what torch, or an agent's own code, has said about weights that do not fit."""
    size = r"size mismatch for (\S+): copying a param with shape torch.Size\((.*?)\) from checkpoint, "
    size += r"the shape in current model is torch.Size\((.*?)\)"
    said = " ".join(str(error).split())
    if found := re.search(size, said):
        return f"{found[1]} is {found[2]} there and {found[3]} here"
    return said if len(said) <= 200 else said[:200].rpartition(" ")[0] + " ..."
