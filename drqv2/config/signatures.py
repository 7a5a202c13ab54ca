"""Keys of agents, read from the signatures of their constructors.

An agent's key is described where its class takes it, and nowhere else:

    target_tau: Annotated[float, key(FRACTION, "Fraction of networks mixed into targets.")] = 0.01

The files are parsed and not imported: torch, which they import, takes seconds, and `--help` shall not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from drqv2.config import keys, kinds
from drqv2.config.keys import Key
from drqv2.errors import UserError

_LIBRARY = Path(__file__).resolve().parents[2]  # the directory of drqv2/
_WORDS = {name: value for name, value in (vars(kinds) | vars(keys)).items() if not name.startswith("_")}


@dataclass(frozen=True)
class Parameter:
    """A parameter of an agent's constructor.

    Attributes:
        key: what its annotation describes; None if it is no key.
        default: the signature's; None without one, or where it is no literal.
    """

    key: Key | None
    default: Any = None


def agent_keys(target: str, agent_dir: str | None = None) -> Mapping[str, Key]:
    """Return the keys that an agent's class describes, by the names of its arguments."""
    return {name: own.key for name, own in parameters(target, agent_dir).items() if own.key is not None}


def agent_node(target: str, agent_dir: str | None = None) -> dict[str, Any]:
    """Return the configuration's node `agent` for a class: the defaults of its keys."""
    node = {
        name: "${" + own.key.follows + "}" if own.key.follows else own.default
        for name, own in parameters(target, agent_dir).items()
        if own.key is not None
    }
    return {"_target_": target} | node


def parameters(target: str, agent_dir: str | None = None) -> Mapping[str, Parameter]:
    """Return the parameters of the constructor of a class, MODULE.CLASS, or of a function.

    Those that a subclass passes on as **kwargs come first. Nothing is returned of code that has no file, or in whose
    file there is no such name.

    Raises:
        UserError: the description of a key cannot be read.
    """
    module, _, name = target.rpartition(".")
    path = _file(module, agent_dir)
    tree = None if path is None else _parsed(path, path.stat().st_mtime_ns)
    if tree is None:
        return {}
    made = next((node for node in tree.body if _defines(node, name)), None)
    if isinstance(made, ast.FunctionDef):
        return _of_signature(made.args, str(path))
    if not isinstance(made, ast.ClassDef):
        return {}
    init = next((node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    found: dict[str, Parameter] = {}
    if init is None or init.args.kwarg is not None:
        for base in made.bases:
            found |= parameters(_full_name(ast.unparse(base), module, tree), agent_dir)
    return found if init is None else found | _of_signature(init.args, str(path))


def _file(module: str, agent_dir: str | None) -> Path | None:
    """Return the file of a module, which is looked for as `agents/loading.py` does; None if there is none."""
    folders: list[str | Path] = [*([agent_dir] if agent_dir else []), _LIBRARY, *sys.path]
    inner = Path(*module.split(".")) if module else Path("-")
    files = (Path(folder, each) for folder in folders for each in (inner.with_suffix(".py"), inner / "__init__.py"))
    return next((path for path in files if path.is_file()), None)


@cache
def _parsed(path: Path, written: int) -> ast.Module | None:
    """Return the syntax tree of a file `written` at a time; None if it has none, which its import will explain."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _defines(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name


def _full_name(name: str, module: str, tree: ast.Module) -> str:
    """Return the dotted name of what a module calls `name`."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return f"{node.module}.{alias.name}"
    return name if "." in name else f"{module}.{name}"


def _of_signature(arguments: ast.arguments, file: str) -> dict[str, Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*defaults, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {arg.arg: _parameter(arg, default, file) for arg, default in pairs if arg.arg != "self"}


def _parameter(arg: ast.arg, default: ast.expr | None, file: str) -> Parameter:
    own = _key(arg, file)
    try:
        return Parameter(own, None if default is None else ast.literal_eval(default))
    except ValueError:
        if own is None:
            return Parameter(None, None)
        where = f"{file}, line {arg.lineno}"
        raise UserError(f"{where}: the default of {arg.arg} must be a number, text, true, false or null") from None


def _key(arg: ast.arg, file: str) -> Key | None:
    """Return what an annotation says of a key: `Annotated[TYPE, key(...)]`."""
    node = arg.annotation
    if not isinstance(node, ast.Subscript) or ast.unparse(node.value).rpartition(".")[2] != "Annotated":
        return None
    found = node.slice.elts[1:] if isinstance(node.slice, ast.Tuple) else []
    for each in found:
        if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] in ("key", "fixed", "free"):
            try:
                return replace(_value(each), name=f"agent.{arg.arg}")
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{file}, line {each.lineno}: the key {arg.arg} cannot be read: {error!r}") from None
    return None


def _value(node: ast.expr) -> Any:
    """Return what an expression of the names in `keys` and `kinds` stands for; nothing else is run."""
    if isinstance(node, ast.Name):
        return _WORDS[node.id]
    if isinstance(node, ast.Attribute):
        return _WORDS[node.attr]
    if isinstance(node, ast.Call):
        named = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
        return _value(node.func)(*map(_value, node.args), **named)
    return ast.literal_eval(node)
