"""The DrQ-v2 workspace's library: agents, environments, logging and snapshots.

`drqv2.DrQV2Agent`, `drqv2.Encoder`, `drqv2.Actor`, `drqv2.Critic` and `drqv2.RandomShiftsAug` are here too, under
the names that agent files written for the public implementation import; `drqv2.compose` and `drqv2.make_workspace` are
those of train.py. All are loaded on first use, so that importing `drqv2.config` alone does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Names of the public implementation, and the modules that have them here.
EXPORTS = {
    "DrQV2Agent": "drqv2.agents.drqv2",
    "Encoder": "drqv2.nn.networks",
    "Actor": "drqv2.nn.networks",
    "Critic": "drqv2.nn.networks",
    "RandomShiftsAug": "drqv2.nn.augmentation",
}
_OF_TRAIN = ("compose", "make_workspace")
__all__ = ["Actor", "Critic", "DrQV2Agent", "Encoder", "RandomShiftsAug", "compose", "make_workspace"]


def __getattr__(name: str) -> Any:
    if name in EXPORTS:
        return getattr(importlib.import_module(EXPORTS[name]), name)
    if name in _OF_TRAIN:
        return getattr(importlib.import_module("drqv2.programs").load("train"), name)
    raise AttributeError(f"module 'drqv2' has no attribute {name!r}")
