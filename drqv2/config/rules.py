"""Values that depend on each other in every regime; what a regime adds is its own `check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drqv2.config.formatting import show
from drqv2.errors import UserError


def check_together(cfg: Mapping[str, Any]) -> None:
    """Check values that depend on each other.

    Args:
        cfg: values by dotted name, each of them checked; the keys of other regimes are missing.

    Raises:
        UserError: some do not fit together.
    """
    repeat = cfg["action_repeat"]
    for name, value in cfg.items():
        shortest = name.endswith("_every_frames") or name in ("num_train_frames", "offline_frames", "epoch_frames")
        if shortest and value is not None and value < repeat:
            raise UserError(
                f"{name}={value}: shorter than one agent step of action_repeat={repeat} frames; "
                f"must be at least {repeat} (frames)"
            )
    _check_cameras(cfg)
    for name in ("stop_return", "save_best", "test_in_train"):
        if cfg["eval_every_frames"] is None and cfg[name]:
            raise UserError(f"{name}={show(cfg[name])} with eval_every_frames=null: it needs evaluations")
    if cfg["eval_every_frames"] is None and cfg["objective"] and not cfg["objective"].startswith("train/"):
        raise UserError(
            f"objective={cfg['objective']} with eval_every_frames=null: it needs evaluations; train/NAME names a "
            "column of train.csv"
        )
    epoch, interval = cfg["epoch_frames"], cfg["eval_every_frames"]
    if epoch is not None and interval is not None and epoch > interval:
        raise UserError(f"epoch_frames={epoch}: must be at most eval_every_frames={interval}: evaluations end an epoch")


def _check_cameras(cfg: Mapping[str, Any]) -> None:
    given = {name: f"{name}={show(cfg[name])}" for name in ("camera", "cameras") if cfg[name] is not None}
    for shown in given.values():
        if cfg["env_id"] is not None:
            raise UserError(f"{shown}: applies only to dm_control's tasks, not to {cfg['env_id']}")
    if len(given) > 1:
        raise UserError(f"{' and '.join(given.values())}: give only one of them")
    if cfg["cameras"] is None:
        return
    if cfg["obs_type"] == "state":
        raise UserError(f"{given['cameras']} with obs_type=state: the agent sees no images; camera=NAME films videos")
    if cfg["image_key"] is not None:
        raise UserError(f"{given['cameras']} and image_key={cfg['image_key']}: give only one of them")
    for task, own in (cfg.get("per_task") or {}).items():
        if "camera" in own:
            raise UserError(
                f"{given['cameras']} and per_task.{task}.camera={show(own['camera'])}: give only one of them"
            )
