"""Configurations for your own programs, composed and checked as on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import hydra
import numpy as np
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from drqv2.config.cfgs import CFGS
from drqv2.config.checks import check_overrides, label, validate
from drqv2.config.messages import explain
from drqv2.config.schema import offer
from drqv2.errors import UserError
from drqv2.launch.overrides import RUNS, STORED, quote, readable, take_resume

_PLAIN = re.compile(r"[\w./:%-]+")  # Hydra's grammar reads these unquoted


def compose(*overrides: str, **values: Any) -> DictConfig:
    """Return the configuration of a run, composed and checked as on the command line.

    Args:
        overrides: `key=value`, which keys with a dot need: "agent.hidden_dim=64".
        values: values by key, which may be task, preset, regime and resume, too.

    Returns:
        The configuration; `resume` in it names the directory of a run that is resumed.

    Raises:
        UserError: a key or a value is wrong, or the run cannot be resumed.
    """
    given = [readable(override, multirun=False) for override in overrides]
    given += [readable(f"{name}={_written(value)}", multirun=False) for name, value in values.items()]
    if foreign := next((o for o in given if re.match(r"\+{0,2}hydra[./]", o)), None):
        raise UserError(
            f"{foreign} applies only to the command line; pass the directory to make_workspace(cfg, directory)"
        )
    run_dir, regime, given = take_resume(given, multirun=False)
    offer()
    try:
        with hydra.initialize_config_dir(str(run_dir or CFGS), version_base="1.3"):
            cfg = hydra.compose(Path(STORED).stem, overrides=given)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error, regime)) from None
    check_overrides(cfg, given)
    validate(cfg)
    with open_dict(cfg):
        cfg.resume = None if run_dir is None else str(run_dir)
    return cfg


def _written(value: Any) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, str | Path):
        return str(value) if _PLAIN.fullmatch(str(value)) else quote(str(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_written(key)}:{_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value.item() if isinstance(value, np.generic) else value)


def new_run_dir(cfg: DictConfig) -> Path:
    """Return the directory of a run whose configuration `compose` made: a new one, or that to resume from."""
    if cfg.resume:
        return Path(cfg.resume)
    name = f"{label(cfg.env_id, cfg.task_name, cfg.get('tasks'))}_{cfg.seed}"
    now = datetime.now()
    folder = RUNS / f"{now:%Y.%m.%d}"
    path, number = folder / f"{now:%H%M%S}_{name}", 1
    while path.exists():
        number += 1
        path = folder / f"{now:%H%M%S}_{name}_{number}"
    return path
