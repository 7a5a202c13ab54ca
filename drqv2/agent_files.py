"""Agents from anywhere: files written for the public DrQ-v2 implementation run here unchanged.

Such a file says `import utils` or `from drqv2 import DrQV2Agent`. While it is imported, top-level names are looked up
in its own directory first, then among the names offered here. This project's modules never import through them.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
from hydra.errors import InstantiationException

from drqv2.errors import UserError

# `replay_buffer`, `video` and `drqv2` itself are top-level modules here under their public names.
_OFFERED = {"utils": "drqv2.utils", "dmc": "drqv2.envs.dmc", "logger": "drqv2.logger"}


class _Delegate(importlib.abc.Loader):
    """Makes a module whose attributes are those of another, which is imported when the first is asked for."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        target = self._target
        module.__dict__["__getattr__"] = lambda name: getattr(importlib.import_module(target), name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds top-level names in an agent's directory, then among those offered here."""

    def __init__(self, agent_dir: Path | None) -> None:
        self.agent_dir = agent_dir

    def has_own(self, name: str) -> bool:
        return self.agent_dir is not None and self.find_own(name) is not None

    def find_own(self, name: str) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [str(self.agent_dir)])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None:
            return None
        if self.has_own(fullname):
            return self.find_own(fullname)
        if fullname in _OFFERED:
            return importlib.util.spec_from_loader(fullname, _Delegate(_OFFERED[fullname]))
        return None


@contextmanager
def _importing(agent_dir: Path | None) -> Iterator[None]:
    finder = _Finder(agent_dir)
    sys.meta_path.insert(0, finder)
    set_aside = {}
    for name in list(sys.modules):
        top = name.partition(".")[0]
        if top in _OFFERED or finder.has_own(top):
            set_aside[name] = sys.modules.pop(name)
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n in _OFFERED and not finder.has_own(n)]:
            del sys.modules[name]
        sys.modules.update(set_aside)
        # An import inside one of the agent's functions comes later: it is served last, so that it shadows nobody.
        sys.meta_path.remove(finder)
        sys.meta_path.append(finder)


def agent_factory(agent: dict[str, Any], agent_dir: Path | None) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return an agent's class (or function) and the arguments that the configuration gives it.

    Args:
        agent: the configuration's `agent` node, resolved, with `_target_`; missing values left out.
        agent_dir: directory in which `_target_` and what it imports are looked up first.

    Raises:
        UserError: `_target_` cannot be found or imported.
    """
    target = str(agent.get("_target_"))
    try:
        with _importing(agent_dir):
            partial = hydra.utils.instantiate(agent, _partial_=True, _convert_="all")
    except InstantiationException as e:
        cause: BaseException = e
        while cause.__cause__ is not None:
            cause = cause.__cause__
        where = f"in {agent_dir}, then on the Python path" if agent_dir else "on the Python path (agent_dir=DIR adds one)"
        raise UserError(f"agent._target_={target}: {type(cause).__name__}: {cause}\nlooked for {where}") from e
    return partial.func, partial.keywords


def source_file(factory: Callable[..., Any]) -> str:
    """Return the file that an agent's class comes from."""
    try:
        return str(inspect.getsourcefile(factory))
    except TypeError:
        return "(built in)"


def takes(factory: Callable[..., Any], name: str) -> bool:
    """Return whether a class or function names `name` among its parameters."""
    return name in inspect.signature(factory).parameters
