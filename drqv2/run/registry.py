"""The regimes: the Workspace of each, imported when a run needs it, and what is known without it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drqv2 import programs

if TYPE_CHECKING:
    from drqv2.run.workspace import BaseWorkspace


@dataclass(frozen=True)
class Regime:
    """A regime.

    Attributes:
        module: where its Workspace is; `train` is the program in the root.
        name: of its Workspace.
        obs_type: what an agent learns from in a task that shows both, the state and images, with obs_type=auto.
        compiles: whether torch compiles its agents, or a GPU has graphs of their updates.
    """

    module: str
    name: str
    obs_type: str = "pixels"
    compiles: bool = True

    def workspace(self) -> type[BaseWorkspace]:
        """Return its Workspace."""
        module = programs.load(self.module) if self.module == "train" else importlib.import_module(self.module)
        workspace: type[BaseWorkspace] = getattr(module, self.name)
        return workspace


REGIMES = {
    "drqv2": Regime("train", "Workspace"),
    "impala": Regime("drqv2.regimes.impala", "ImpalaWorkspace", obs_type="state", compiles=False),
    "multitask": Regime("drqv2.regimes.multitask", "MultitaskWorkspace"),
    "offline": Regime("drqv2.regimes.offline", "OfflineWorkspace"),
    "ppo": Regime("drqv2.regimes.ppo", "PPOWorkspace", obs_type="state", compiles=False),
}
