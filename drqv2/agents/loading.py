"""Load agents from any file; files written for the original DrQ-v2 implementation run unchanged.

Such a file says `import utils` or `from drqv2 import DrQV2Agent`. The files in an agent's directory are loaded as
modules of a separate package. Their import statements, including those inside functions, look names up in that
directory first, then among the names provided here. Other imports are not affected, and no module is replaced.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
from hydra.errors import InstantiationException

from drqv2.config.checks import check_agent
from drqv2.config.formatting import did_you_mean
from drqv2.errors import UserError

# The original's modules that have another name here; `replay_buffer`, `video` and `drqv2` have the same.
_ALIASES = {"utils": "drqv2.utils", "dmc": "drqv2.envs", "logger": "drqv2.logging.logger"}


class _Names:
    """Resolves top-level module names as an agent's files expect them.

    Args:
        agent_dir: absolute directory of the files; None if the agent comes from the Python path.

    Attributes:
        package: name of the package that contains them, the same in every process.
    """

    def __init__(self, agent_dir: Path | None) -> None:
        self._path = [] if agent_dir is None else [str(agent_dir)]
        self.package = f"agent_dir_{zlib.crc32(str(agent_dir).encode()):08x}"

    def install(self) -> None:
        """Make the package importable, and the names available to `hydra.utils.instantiate`."""
        if self.package not in sys.modules:
            package = ModuleType(self.package)
            package.__path__ = self._path
            sys.modules[self.package] = package
            sys.meta_path.insert(0, _Files(self))
            sys.meta_path.append(_Aliases(self))  # last, so that it shadows no other module

    def full(self, name: str) -> str:
        """Return the full name of a module or a member of it; unchanged if it is neither the agent's nor an alias."""
        top = name.partition(".")[0]
        own = PathFinder.find_spec(f"{self.package}.{top}", self._path)
        # A namespace package comes last, as on sys.path: an output folder called wandb must not hide the package.
        folder = own is not None and own.origin is None
        loaded = getattr(sys.modules.get(top), "__file__", None)  # agent_dir may be this project's own directory
        if own is not None and not folder and own.origin != loaded:
            return f"{self.package}.{name}"
        if top in _ALIASES:
            return _ALIASES[top] + name[len(top) :]
        if folder and not any(f.find_spec(top, None) for f in sys.meta_path if not isinstance(f, _Files | _Aliases)):
            return f"{self.package}.{name}"
        return name

    def import_(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Replacement for `__import__` in the agent's files."""
        full = name if level else self.full(name)
        module = builtins.__import__(full, globals, locals, fromlist or (), level)
        if fromlist or full == name:
            return module
        return sys.modules[self.full(name.partition(".")[0])]


class _Source(SourceFileLoader):
    """Loads a file whose import statements resolve names by `names`."""

    names: _Names

    def exec_module(self, module: ModuleType) -> None:
        # An import statement calls the __import__ of its module's builtins.
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self.names.import_}
        super().exec_module(module)


class _Files(MetaPathFinder):
    """Finds the modules in an agent's package."""

    def __init__(self, names: _Names) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(self._names.package + "."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Source(fullname, spec.loader.path)
            spec.loader.names = self._names
        return spec


class _Aliases(MetaPathFinder, Loader):
    """Finds a top-level name as the agent's files expect it, when code elsewhere imports it and no other finder can."""

    def __init__(self, names: _Names) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or self._names.full(fullname) == fullname:
            return None
        return spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._names.full(module.__name__))


def agent_factory(agent: dict[str, Any], agent_dir: Path | None) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return an agent's class (or factory function) and its arguments from the configuration.

    Args:
        agent: the resolved `agent` node of the configuration, with `_target_` and without missing values.
        agent_dir: directory in which `_target_` and its imports are looked up first.

    Raises:
        UserError: `_target_` cannot be found or imported.
    """
    agent_dir = agent_dir and agent_dir.resolve()
    names = _Names(agent_dir)
    names.install()
    target = str(agent.get("_target_"))
    try:
        node = {**agent, "_target_": names.full(target)}
        partial = hydra.utils.instantiate(node, _partial_=True, _convert_="all")
    except InstantiationException as e:
        raise UserError(f"agent._target_={target}: {_reason(e, names, target, agent_dir)}") from e
    return partial.func, partial.keywords


def _reason(error: BaseException, names: _Names, target: str, agent_dir: Path | None) -> str:
    module, _, name = names.full(target).rpartition(".")
    loaded = sys.modules.get(module)
    if loaded is not None and not hasattr(loaded, name):
        names_in = [*vars(loaded), *getattr(loaded, "__all__", ())]
        return f"no {name} in {getattr(loaded, '__file__', module)}{did_you_mean(name, names_in)}"
    while error.__cause__ is not None:
        error = error.__cause__
    reason = f"{type(error).__name__}: {error}".replace(f"{names.package}.", "")
    if agent_dir is None:
        return f"{reason}\nsearched the Python path; to search another directory, add agent_dir=DIR"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(f"{agent_dir}/")]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    return f"{reason}\n{where or f'searched {agent_dir}, then the Python path'}"


def make_agent(
    agent: dict[str, Any], agent_dir: Path | None, found: Mapping[str, Any], offered: Mapping[str, Any]
) -> Any:
    """Build an agent.

    Args:
        agent: the resolved `agent` node of the configuration; missing values are "???".
        agent_dir: directory in which `_target_` and its imports are looked up first.
        found: values that override keys of the node (obs_shape, device, ...).
        offered: additional arguments, passed if the signature names them.

    Raises:
        UserError: `_target_` cannot be found or imported, or does not accept the node's keys.
    """
    given = {k: v for k, v in agent.items() if k not in found}
    factory, kwargs = agent_factory(given, agent_dir)
    kwargs |= {k: v for k, v in found.items() if k in agent}
    named = inspect.signature(factory).parameters
    kwargs |= {k: v for k, v in offered.items() if k in named and k not in kwargs}
    check_agent(factory, kwargs)
    if not factory.__module__.startswith("drqv2."):
        print(f"agent: {agent['_target_']} from {source_file(factory)}")
    return factory(**kwargs)


def source_file(factory: Callable[..., Any]) -> str:
    """Return the source file of an agent's class."""
    try:
        return str(inspect.getsourcefile(factory))
    except TypeError:
        return "(built in)"
