"""Agents from anywhere: files written for the public DrQ-v2 implementation run here unchanged.

Such a file says `import utils` or `from drqv2 import DrQV2Agent`. The files of an agent's directory are loaded as the
modules of a package of their own, and their import statements, early or late, look names up in that directory first,
then among the names offered here. Nobody else's imports change, and no module of anybody's is replaced.
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
from drqv2.config.messages import did_you_mean
from drqv2.errors import UserError

# `replay_buffer`, `video` and `drqv2` itself are top-level modules here under their public names.
_OFFERED = {"utils": "drqv2.utils", "dmc": "drqv2.envs.dmc", "logger": "drqv2.logging.logger"}


class _Names:
    """What an agent's files mean by a top-level name.

    Args:
        agent_dir: their directory, absolute; None where an agent comes from the Python path.

    Attributes:
        package: name of the package that holds them, the same in every process.
    """

    def __init__(self, agent_dir: Path | None) -> None:
        self._path = [] if agent_dir is None else [str(agent_dir)]
        self.package = f"agent_dir_{zlib.crc32(str(agent_dir).encode()):08x}"

    def install(self) -> None:
        """Make the package importable, and the names known to who asks for them by text (`hydra.utils.instantiate`)."""
        if self.package not in sys.modules:
            package = ModuleType(self.package)
            package.__path__ = self._path
            sys.modules[self.package] = package
            sys.meta_path.insert(0, _Files(self))
            sys.meta_path.append(_Aliases(self))  # last, so that it shadows nobody

    def full(self, name: str) -> str:
        """Return the name under which a module, or something in it, is found; as it is when it is everybody's."""
        top = name.partition(".")[0]
        own = PathFinder.find_spec(f"{self.package}.{top}", self._path)
        # A plain folder counts last, as on Python's own path: an output folder called wandb does not hide wandb.
        folder = own is not None and own.origin is None
        loaded = getattr(sys.modules.get(top), "__file__", None)  # the directory may be this project's own
        if own is not None and not folder and own.origin != loaded:
            return f"{self.package}.{name}"
        if top in _OFFERED:
            return _OFFERED[top] + name[len(top) :]
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
        """Stand in for `__import__` in the agent's files."""
        full = name if level else self.full(name)
        module = builtins.__import__(full, globals, locals, fromlist or (), level)
        if fromlist or full == name:
            return module
        return sys.modules[self.full(name.partition(".")[0])]


class _Source(SourceFileLoader):
    """Loads a file whose import statements look names up in `names`."""

    names: _Names

    def exec_module(self, module: ModuleType) -> None:
        # Python takes __import__ from the builtins of the module that a statement stands in.
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self.names.import_}
        super().exec_module(module)


class _Files(MetaPathFinder):
    """Finds the modules of an agent's package."""

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
    """Finds what an agent's files mean by a top-level name, when it is asked for from elsewhere and nobody has it."""

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
    """Return an agent's class (or function) and the arguments that the configuration gives it.

    Args:
        agent: the configuration's `agent` node, resolved, with `_target_`; missing values left out.
        agent_dir: directory in which `_target_` and what it imports are looked up first.

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
        return f"there is no {name} in {getattr(loaded, '__file__', module)}{did_you_mean(name, names_in)}"
    while error.__cause__ is not None:
        error = error.__cause__
    reason = f"{type(error).__name__}: {error}".replace(f"{names.package}.", "")
    if agent_dir is None:
        return f"{reason}\nlooked for on the Python path (agent_dir=DIR adds one)"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(f"{agent_dir}/")]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    return f"{reason}\n{where or f'looked for in {agent_dir}, then on the Python path'}"


def make_agent(
    agent: dict[str, Any], agent_dir: Path | None, found: Mapping[str, Any], offered: Mapping[str, Any]
) -> Any:
    """Build an agent.

    Args:
        agent: the configuration's `agent` node, resolved; missing values may stand in it as "???".
        agent_dir: directory in which `_target_` and what it imports are looked up first.
        found: values that take the place of what the node says, for keys that it has (obs_shape, device, ...).
        offered: values for keys that it need not have: handed over where the signature names them.

    Raises:
        UserError: `_target_` cannot be found or imported, or does not take the node's keys.
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
    """Return the file that an agent's class comes from."""
    try:
        return str(inspect.getsourcefile(factory))
    except TypeError:
        return "(built in)"
