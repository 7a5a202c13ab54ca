"""Load agents from any file; files written for the original DrQ-v2 implementation run unchanged.

Such a file says `import utils` or `from drqv2 import DrQV2Agent`. The files in an agent's directory are loaded as
modules of a separate package. Their import statements, including those inside functions, look names up in that
directory first, then among the names provided here. Other imports are not affected, and no module is replaced.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import re
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_loader
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import hydra
from hydra.errors import InstantiationException

from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.protocol import Agent, EstimatesValues, ValueNetworks, attributes_of
from drqv2.config.checks import check_agent
from drqv2.config.formatting import did_you_mean
from drqv2.config.keys import NO_LEGACY
from drqv2.config.signatures import agent_keys, agent_node
from drqv2.errors import UserError

# The original's modules that have another name here; `replay_buffer`, `video` and `drqv2` have the same.
_ALIASES = {"utils": "drqv2.utils", "dmc": "drqv2.envs", "logger": "drqv2.logging.logger"}
_OURS = "drqv2.agents.drqv2.DrQV2Agent"
_OF_TASKS = "drqv2.agents.multitask.MultiTaskAgent"


# Methods that only some agents have, see `drqv2.agents.protocol`.
_OPTIONAL = ("act_batch", "act_from", "observe_episode", "networks_of", "deterministic_policy")
# What `adapted` has given to classes: their subclasses may need something else.
_ADDED: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()


class _Names(MetaPathFinder, Loader):
    """Makes an agent's directory importable, and finds modules under the names that its files expect.

    Args:
        agent_dir: absolute directory of the files; None if the agent comes from the Python path.

    Attributes:
        package: name of the package that contains them, the same in every process.
    """

    def __init__(self, agent_dir: Path | None) -> None:
        self._path = [] if agent_dir is None else [str(agent_dir)]
        self.package = f"agent_dir_{zlib.crc32(str(agent_dir).encode()):08x}"
        if self.package not in sys.modules:
            package = ModuleType(self.package)
            package.__path__ = self._path
            sys.modules[self.package] = package
            sys.meta_path.insert(0, self)

    def full(self, name: str) -> str:
        """Return the full name of a module or a member of it; unchanged if it is neither the agent's nor an alias."""
        top = name.partition(".")[0]
        own = PathFinder.find_spec(f"{self.package}.{top}", self._path)
        if own is not None and own.origin is None and (top in _ALIASES or _exists(top)):
            own = None  # a namespace package comes last, as on sys.path: an output folder called wandb hides no package
        loaded = getattr(sys.modules.get(top), "__file__", "")  # agent_dir may be this project's own directory
        if own is not None and own.origin != loaded:
            return f"{self.package}.{name}"
        return _ALIASES[top] + name[len(top) :] if top in _ALIASES else name

    def import_(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Replacement for `__import__` in the agent's files."""
        full = name if level else self.full(name)
        module = builtins.__import__(full, globals, locals, fromlist or (), level)
        return module if fromlist or full == name else sys.modules[self.full(name.partition(".")[0])]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith(f"{self.package}."):
            spec = PathFinder.find_spec(fullname, path)
            if spec is not None and type(spec.loader) is SourceFileLoader:
                spec.loader = _Source(fullname, spec.loader.path)
                spec.loader.names = self
            return spec
        # Code elsewhere, such as hydra.utils.instantiate, imports one of the agent's names, which must shadow no other.
        if path is None and self.full(fullname) != fullname and not _exists(fullname):
            return spec_from_loader(fullname, self)
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.full(module.__name__))


def _exists(name: str) -> bool:
    """Return whether a top-level module can be found elsewhere."""
    return any(finder.find_spec(name, None) for finder in sys.meta_path if not isinstance(finder, _Names))


class _Source(SourceFileLoader):
    """Loads a file whose import statements resolve names by `names`."""

    names: _Names

    def exec_module(self, module: ModuleType) -> None:
        # An import statement calls the __import__ of its module's builtins.
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self.names.import_}
        super().exec_module(module)


def agent_factory(agent: dict[str, Any], agent_dir: Path | None) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return an agent's class (or factory function) and its arguments from the configuration; see `make_agent`."""
    agent_dir = agent_dir and agent_dir.resolve()
    names = _Names(agent_dir)
    target = str(agent.get("_target_"))
    try:
        partial = hydra.utils.instantiate(_with_full_targets(agent, names), _partial_=True)
    except InstantiationException as e:
        named = re.search(r"target '([^']+)'", str(e))  # that of the agent, or of a node in it
        failed = named[1].removeprefix(f"{names.package}.") if named else target
        who = f"agent._target_={target}" if failed == target else f"_target_={failed} in agent"
        raise UserError(f"{who}: {_reason(e, names, failed, agent_dir)}") from e
    return partial.func, partial.keywords


def _with_full_targets(node: Any, names: _Names) -> Any:
    """Return a node in which each `_target_`, at any depth, has its full name."""
    if isinstance(node, list):
        return [_with_full_targets(item, names) for item in node]
    if isinstance(node, dict):
        return {k: names.full(str(v)) if k == "_target_" else _with_full_targets(v, names) for k, v in node.items()}
    return node


def _reason(error: BaseException, names: _Names, target: str, agent_dir: Path | None) -> str:
    module, _, name = names.full(target).rpartition(".")
    loaded = sys.modules.get(module)
    if loaded is not None and not hasattr(loaded, name):
        where = getattr(loaded, "__file__", module)
        return f"no {name} in {where}{did_you_mean(name, [*vars(loaded), *getattr(loaded, '__all__', ())])}"
    while error.__cause__ is not None:
        error = error.__cause__
    where = f"searched {agent_dir} and the Python path" if agent_dir else "searched the Python path; add agent_dir=DIR"
    where = "" if isinstance(error, TypeError) else where  # of the call: everything was found
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(f"{agent_dir}/"):
            where = f"{frame.filename}, line {frame.lineno}"
    return f"{type(error).__name__}: {error}\n{where}".rstrip().replace(f"{names.package}.", "")


def make_agent(
    agent: dict[str, Any],
    agent_dir: Path | None,
    found: Mapping[str, Any],
    offered: Mapping[str, Any],
    passed: Mapping[str, Any] | None = None,
) -> Agent:
    """Build an agent.

    Args:
        agent: the resolved `agent` node of the configuration; missing values are "???".
        agent_dir: directory in which `_target_` and its imports are looked up first.
        found: values that override keys of the node (obs_shape, device, ...).
        offered: additional arguments, passed if the signature names them.
        passed: as `offered`, but also passed if the signature takes any; the node comes first.

    Raises:
        UserError: `_target_` cannot be found or imported, or does not accept the node's keys.
    """
    factory, kwargs = agent_factory({k: v for k, v in agent.items() if k not in found}, agent_dir)
    kwargs |= {k: v for k, v in found.items() if k in agent}
    named = inspect.signature(factory).parameters
    _drop_own_keys(factory, named, kwargs)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in named.values())
    kwargs = {k: v for k, v in (passed or {}).items() if k in named or takes_any} | kwargs
    kwargs |= {k: v for k, v in offered.items() if k in named and k not in kwargs}
    check_agent(factory, kwargs)
    if not factory.__module__.startswith("drqv2."):
        print(f"agent: {agent['_target_']} from {getattr(sys.modules[factory.__module__], '__file__', 'Python')}")
    made = factory(**kwargs)
    _check_methods(made)
    return adapted(made)


def adapted(agent: Any) -> Agent:
    """Give the class of an agent, if it is not this project's, what `Agent` declares and the class lacks."""
    kind = type(agent)
    if kind.__module__.startswith("drqv2."):
        return agent
    bases = [base for base in kind.__mro__ if base is not Agent]
    declared = {name for base in bases for name in vars(base).keys() - _ADDED.get(base, set())}
    added = {name: getattr(Agent, name) for name in Agent.__annotations__ if not hasattr(agent, name)}
    for name in _OPTIONAL:
        found = name in attributes_of(agent) or any(name in vars(base) for base in bases)
        if not found and hasattr(agent, name):  # its `__getattr__` has it, which isinstance does not ask
            added[name] = _forwarded(name)
    if "takes_task" not in declared:
        with suppress(ValueError):  # a builtin without a signature
            added["takes_task"] = "task" in inspect.signature(agent.act).parameters
    if "acts_singly" not in declared:
        owners = ({"act", "act_batch"} & vars(base).keys() for base in kind.__mro__)
        added["acts_singly"] = next(filter(None, owners), set()) == {"act"}
    if not isinstance(agent, EstimatesValues):
        added["networks_of"] = _networks_of
    for name, value in added.items():
        setattr(kind, name, value)
    _ADDED[kind] = added.keys() | _ADDED.get(kind, set())
    return agent


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.__getattr__(name)(*args, **kwargs)

    return method


def require(agent: Agent, names: Sequence[str], why: str) -> Any:
    """Return an agent that has members of these dotted names.

    Raises:
        UserError: it lacks some; `why` says who needs them.
    """
    missing = [name for name in names if not _has(agent, name)]
    if missing:
        raise UserError(f"{type(agent).__name__} has no {', '.join(missing)}: {why}")
    return agent


def _has(agent: Agent, name: str) -> bool:
    try:
        attrgetter(name)(agent)
    except AttributeError:
        return False
    return True


def _networks_of(agent: Any, task: int) -> ValueNetworks | None:
    """Return the networks of an agent that has those of DrQ-v2: the method of classes without one."""
    if not all(hasattr(agent, name) for name in ("encoder", "actor", "critic")):
        return None
    return ValueNetworks(agent.encoder, agent.actor, agent.critic, (agent.actor, agent.critic))


def _drop_own_keys(factory: Callable[..., Any], named: Mapping[str, inspect.Parameter], kwargs: dict[str, Any]) -> None:
    """Remove the keys that public agent files do not know from the arguments of an agent that cannot use them."""
    ours = inspect.isclass(factory) and issubclass(factory, DrQV2Agent)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in named.values())
    usual = agent_keys(_OURS)
    if "num_tasks" not in named:  # keys of an agent of several tasks, which regime=multitask sets whatever the agent
        theirs = agent_node(_OF_TASKS)
        for name in sorted(agent_keys(_OF_TASKS).keys() - usual.keys() - named.keys()):
            if (value := kwargs.pop(name, theirs[name])) != theirs[name]:
                print(f"agent.{name}={value} is left out: it is meant for MultiTaskAgent")
    for name, key in usual.items():
        if key.legacy is NO_LEGACY or name not in kwargs:
            continue
        # An `encoder` of another agent is something else.
        takes = (name in named or takes_all) if ours else (name in named and name != "encoder")
        if key.allows(kwargs[name]) and not takes:
            value = kwargs.pop(name)
            if value != key.legacy:
                print(f"agent.{name}={value} is left out: it is meant for DrQV2Agent and its subclasses")


def _check_methods(agent: Any) -> None:
    """Check that the loop can call an agent's methods.

    Raises:
        UserError: one is missing, or takes other arguments.
    """
    for name, arguments in (("act", "obs, step, eval_mode"), ("update", "replay_iter, step"), ("train", "training")):
        who, method = f"{type(agent).__name__}.{name}", getattr(agent, name, None)
        if not callable(method):
            raise UserError(f"{who}({arguments}) is missing: an agent has the methods act, update and train")
        with suppress(ValueError):  # a builtin without a signature
            signature = inspect.signature(method)
            keywords = {"eval_mode": False} if name == "act" else {}
            try:
                signature.bind(*[None] * (2 - (name == "train")), **keywords)
            except TypeError as error:
                raise UserError(f"{who}{signature}: must take ({arguments}); {error}") from error
