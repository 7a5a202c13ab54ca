"""What a regime is: everything that the rest of the project asks of one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from drqv2 import EXPORTS, programs
from drqv2.config.keys import Key
from drqv2.config.kinds import Name
from drqv2.config.regimes import shared
from drqv2.config.signatures import agent_keys


@dataclass(frozen=True)
class Agent:
    """An agent of a regime.

    Args:
        target: its class, MODULE.CLASS; the keys of `agent` are described in its constructor's signature.
        compiles: devices on which torch compiles it, or a graph replays its updates.
        continuous: whether its actions are vectors of numbers, never discrete.
    """

    target: str
    compiles: tuple[str, ...] = ("cuda", "cpu")
    continuous: bool = False


@dataclass(frozen=True)
class Regime:
    """A way to learn, chosen by regime=NAME.

    Args:
        name: its name.
        purpose: one line for `--help`.
        workspace: MODULE:CLASS of its Workspace, which is imported when a run needs it; or the class, or a function
            that returns it.
        agents: by the names that agent=NAME gives them; the first is the default.
        keys: its own keys by title and name; those of `shared.GROUPS` are every regime's, unless replaced here.
        defaults: of its own keys, where there is no file cfgs/regime/NAME.yaml.
        passes: arguments of its agents that are keys of the regime: the argument, and the key.
        renamed: earlier names of its keys, and those of today.
        check: raises UserError where checked values, by dotted name, do not fit together.
        obs_type: what an agent learns from in a task that shows both, the state and images, with obs_type=auto.
        compiles: whether there is anything to compile in an agent.
        collects: whether it steps environments beside those of evaluations.
        whole_episodes: whether it learns from an episode only once that has ended.
        folder: where its file is, and those of its agents, if it is not one of this project's; set by what loads it.
        objective: what a run without evaluations returns to a sweep, a column of train.csv.
    """

    name: str
    purpose: str
    workspace: str | Callable[[], Any]
    agents: Mapping[str, Agent]
    keys: Mapping[str, Mapping[str, Key]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    passes: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], None] = lambda cfg: None
    obs_type: str = "pixels"
    compiles: bool = True
    collects: bool = True
    whole_episodes: bool = True
    objective: str | None = None
    folder: str | None = None

    @cached_property
    def groups(self) -> dict[str, dict[str, Key]]:
        """Its keys without those of its agents, by title and name, in the order in which they are shown."""
        first, *others = shared.GROUPS
        titles = [first, *(title for title in self.keys if title not in shared.GROUPS), *others]
        return {title: {**shared.GROUPS.get(title, {}), **self.keys.get(title, {})} for title in titles}

    @cached_property
    def every_key(self) -> Mapping[str, Key]:
        """Its keys and those of all its agents, by name; where agents differ, those of the first."""
        found = self._of_regime()
        for agent in reversed(list(self.agents.values())):
            found |= {key.name: key for key in agent_keys(agent.target, self.folder).values()}
        return found

    @property
    def moved(self) -> Mapping[str, str]:
        """Today's keys by earlier names: of keys that were renamed, and of keys of `agent` that repeated them."""
        return {f"agent.{argument}": key for argument, key in self.passes.items()} | dict(self.renamed)

    def keys_of(self, target: str, agent_dir: str | None = None) -> Mapping[str, Key]:
        """Return its keys and those of an agent's class, by name.

        A class that is not one of its own has the keys that it describes, and may have those of the first agent, but
        other names where that one has a choice.

        Args:
            target: the class.
            agent_dir: where it is looked for first.
        """
        own = dict(agent_keys(target, agent_dir or self.folder))
        if agent_dir is not None or self.agent(target) is None:
            usual = agent_keys(next(iter(self.agents.values())).target, self.folder)
            if target.startswith("drqv2."):  # of another regime, which the regime's own checks refuse
                own = {name: key.with_any_choice() for name, key in own.items()}
            own = {name: key.with_any_choice() for name, key in usual.items()} | own
        return self._of_regime() | {key.name: key for key in own.values()}

    def _of_regime(self) -> dict[str, Key]:
        found = {name: key for group in self.groups.values() for name, key in group.items()}
        return found | {"agent._target_": Key("agent._target_", Name(), "Class of the agent.")}

    def agent(self, target: str) -> Agent | None:
        """Return which of its agents has a class; None for another class."""
        name = target.removeprefix("drqv2.")  # as agent files of the public implementation call it
        target = f"{EXPORTS[name]}.{name}" if name in EXPORTS else target
        return next((agent for agent in self.agents.values() if agent.target == target), None)

    def load_workspace(self) -> Any:
        """Return the class of its Workspace."""
        if not isinstance(self.workspace, str):
            return self.workspace if isinstance(self.workspace, type) else self.workspace()
        module, _, name = self.workspace.partition(":")
        return getattr(programs.load(module) if module == "train" else importlib.import_module(module), name)
