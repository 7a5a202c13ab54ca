"""The Workspace of each regime, imported when a run needs it."""

from __future__ import annotations

import importlib

from drqv2 import programs
from drqv2.run.workspace import BaseWorkspace

_WORKSPACES = {  # module and class, by the name of the regime
    "drqv2": ("train", "Workspace"),
    "impala": ("drqv2.regimes.impala", "ImpalaWorkspace"),
    "multitask": ("drqv2.regimes.multitask", "MultitaskWorkspace"),
    "offline": ("drqv2.regimes.offline", "OfflineWorkspace"),
    "ppo": ("drqv2.regimes.ppo", "PPOWorkspace"),
}


def workspace_of(regime: str) -> type[BaseWorkspace]:
    """Return the Workspace of a regime."""
    module, name = _WORKSPACES[regime]
    found = programs.load(module) if module == "train" else importlib.import_module(module)
    workspace: type[BaseWorkspace] = getattr(found, name)
    return workspace
