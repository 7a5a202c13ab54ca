"""Your own environment by its name in `env._target_`: found, imported, and called with arguments that it takes."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import hydra
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from drqv2.config.formatting import did_you_mean, show
from drqv2.envs.checks import own_frames
from drqv2.errors import UserError

_OFFERED = ("task_name", "image_size", "seed", "camera", "num_envs")  # passed where the signature names it


def own_factory(env: DictConfig) -> Callable[..., Any]:
    """Return the function or class that `env._target_` names, with the other values of `env` as its arguments.

    Its module is looked up on the Python path and, if it is not there, in the current directory.

    Args:
        env: the node of the configuration.

    Raises:
        UserError: it cannot be found or imported, or does not take these arguments.
    """
    target = str(env._target_)
    found = find(target)
    if not callable(found):
        raise UserError(f"env._target_={target}: is {type(found).__name__}; must be a function or a class")
    given: Any = OmegaConf.to_container(env, resolve=True)
    _check_arguments(found, target, given)
    try:
        factory: Callable[..., Any] = hydra.utils.instantiate(env, _partial_=True, _convert_="all")
    except InstantiationException as error:  # of a node within `env` that has a _target_ of its own
        cause = error.__cause__ or error
        key = re.search(r"full_key: (\S+)", str(error))
        raise UserError(f"env.{key[1] if key else target}: {_line(cause)}") from error
    return factory


def find(target: str) -> Any:
    """Return what a dotted name stands for, say `my_package.my_module.make`.

    Raises:
        UserError: there is no such module or member, or importing it fails.
    """
    who, found = f"env._target_={target}", None
    parts = target.split(".")
    _search_current_directory(parts[0])
    for i, name in enumerate(parts):
        if found is not None and hasattr(found, name):
            found = getattr(found, name)
        elif found is None or isinstance(found, ModuleType):
            found = _import(".".join(parts[: i + 1]), found, who)
        else:
            raise UserError(f"{who}: no {name} in {'.'.join(parts[:i])}{did_you_mean(name, dir(found))}")
    return found


def _search_current_directory(top: str) -> None:
    """Add the current directory to the end of the Python path if only that has a module or package of this name."""
    here = str(Path.cwd())
    if top in sys.modules or here in sys.path or PathFinder.find_spec(top, [here]) is None:
        return
    elsewhere = importlib.util.find_spec(top)
    if elsewhere is None or elsewhere.origin is None:  # a mere directory of that name hides nothing
        sys.path.append(here)  # also of the processes that this one starts
        importlib.invalidate_caches()


def _import(name: str, package: ModuleType | None, who: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise UserError(f"{who}: {_absent(name, package)}") from error
        failed: BaseException = error
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        failed = error
    raise UserError(f"{who}: cannot be imported; {_line(failed)}\n{_place(failed)}") from failed


def _absent(name: str, package: ModuleType | None) -> str:
    """Say that a module, or a member of one, does not exist, and where it was looked up."""
    here = Path.cwd()
    if package is None:
        near = did_you_mean(name, [path.stem for path in here.glob("*.py")])
        return f"there is no module {name}{near}\nsearched the Python path and the current directory, {here}"
    top, _, member = name.rpartition(".")
    where = getattr(package, "__file__", None) or top
    within = [module.name for module in pkgutil.iter_modules(getattr(package, "__path__", ()))]
    said = f"no {member} in {where}{did_you_mean(member, [*vars(package), *within])}"
    mine = PathFinder.find_spec(top, [str(here)]) if "." not in top else None
    if mine is not None and mine.origin not in (None, where):
        said += f"\n{mine.origin} is hidden by that module of the same name: rename it"
    return said


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _place(error: BaseException) -> str:
    """Return the last line of the user's own code that an error passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    own = own_frames(error) or traceback.extract_tb(error.__traceback__)
    return f"{own[-1].filename}, line {own[-1].lineno}"


def _check_arguments(found: Callable[..., Any], target: str, node: Mapping[str, Any]) -> None:
    """Check that a function or class takes the values of `env`; Hydra's own keys, such as `_target_`, are ignored.

    Raises:
        UserError: it does not take one of them, or needs another.
    """
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # of some that are written in C
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = {name: value for name, value in node.items() if not re.fullmatch(r"_\w+_", name)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for name, value in given.items():
            if name not in named:
                raise UserError(
                    f"env.{name}={show(value)}: {target} takes no argument {name}{did_you_mean(name, named)}\n"
                    f"It takes: {', '.join(named) or 'none'}."
                )
    for name, parameter in named.items():
        needed = parameter.default is parameter.empty and name not in (*_OFFERED, *given) and "_args_" not in node
        if needed:
            raise UserError(f"env.{name} is missing: {target} needs it; add +env.{name}=VALUE")
