"""The world of an exported policy: as its file describes it, and the environment that is rebuilt from that alone.

An ONNX file has every attribute of a `World` in its metadata, by name: `environment` as text, the others as JSON.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any

import numpy as np

from drqv2.errors import UserError, not_installed

_ANOTHER = "another world than the policy's"
ENVIRONMENTS = "drqv2.envs.as_gymnasium:drqv2/"  # how the ids begin of all environments that can be rebuilt


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of packages, as far as they are installed."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@dataclasses.dataclass(frozen=True)
class World:
    """What an exported policy has learnt to act in.

    Attributes:
        environment: its id for `gymnasium.make`; empty if it cannot be rebuilt.
        arguments: of `gymnasium.make`.
        observation: shape, dtype and names of the axes of a batch; of a dict, `parts` with these of each, by name.
        action: the same of the policy's actions, with minimum and maximum; `own` are those of the environment itself.
        versions: of the packages on which its episodes depend, where the policy was exported.
        training: task, regime, agent, seed, frames, commit, and torch's version.
        returns: mean, minimum, maximum and number of the episodes that were evaluated.
    """

    environment: str
    arguments: dict[str, Any]
    observation: dict[str, Any]
    action: dict[str, Any]
    versions: dict[str, str]
    training: dict[str, Any]
    returns: dict[str, Any]

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Shape, dtype and axes of each part of an observation; of one that is no dict, of `obs`."""
        found: dict[str, dict[str, Any]] = self.observation.get("parts", {"obs": self.observation})
        return found

    def metadata(self) -> dict[str, str]:
        """Return the metadata of an ONNX file."""
        fields = vars(self)
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}

    @classmethod
    def read(cls, given: Mapping[str, str]) -> World:
        """Return the world that a file's metadata describe.

        Raises:
            UserError: some are missing or damaged.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if missing := [name for name in names if name not in given]:
            raise UserError(f"its metadata lack {', '.join(missing)}: export the policy again, by eval.py export=FILE")
        try:
            parts = {name: json.loads(given[name]) for name in names[1:]}
        except ValueError as error:
            raise UserError(f"its metadata are damaged ({error})") from error
        needed = {"action": {"shape", "dtype", "minimum", "maximum"}}
        needed |= {"training": {"task"}, "returns": {"mean", "episodes"}}
        for name, part in parts.items():
            if not isinstance(part, dict) or not needed.get(name, set()) <= part.keys():
                raise UserError(f"its metadata are damaged ({name}: {given[name][:80]})")
        world = cls(given[names[0]], **parts)
        described = world.parts.values() if isinstance(world.parts, dict) else ()
        if not described or not all(isinstance(part, dict) and {"shape", "dtype"} <= part.keys() for part in described):
            raise UserError(f"its metadata are damaged (observation: {given['observation'][:80]})")
        return world

    def make(self, **more: Any) -> Any:
        """Return the environment, a gymnasium.Env; warn if it is another version's.

        Args:
            more: arguments of `gymnasium.make` in addition, such as `render_mode`.

        Raises:
            UserError: it cannot be rebuilt, or differs from the one of the training.
        """
        own_code = "make its environment yourself, then call require(env)"
        if not self.environment:
            raise UserError(f"no id rebuilds {self.training['task']}: {own_code}")
        module = str(self.arguments.get("task")).split(":")[1:-1]  # of gymnasium:MODULE:NAME, which is imported
        if not self.environment.startswith(ENVIRONMENTS) or module not in ([], ["ale_py"]):
            raise UserError(f"its metadata name code to run, {self.environment} {self.arguments}: {own_code}")
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise UserError(not_installed("gymnasium", "gym")) from error
        self._warn_of_versions()
        try:
            env: Any = gymnasium.make(self.environment, disable_env_checker=True, **self.arguments, **more)
        except (gymnasium.error.Error, TypeError) as error:
            raise UserError(f"its environment cannot be made here: {' '.join(str(error).split())[:200]}") from error
        try:
            self.require(env)
        except UserError:
            env.close()
            raise
        return env

    def _warn_of_versions(self) -> None:
        here = versions(*self.versions)
        differ = [name for name in self.versions if here.get(name) != self.versions[name]]
        if differ:
            shown = (f"{name} {self.versions[name]} (here {here.get(name, 'none')})" for name in differ)
            warnings.warn(f"the policy is from a world of {', '.join(shown)}", stacklevel=3)

    def require(self, env: Any) -> None:
        """Check that a gymnasium.Env is of this world.

        Raises:
            UserError: its observations, actions or arguments differ.
        """
        made = getattr(env.unwrapped, "arguments", None)
        if made is not None:
            parameters = inspect.signature(type(env.unwrapped)).parameters
            wanted = {name: parameters[name].default for name in made}
            wanted["task"] = self.environment.removeprefix(ENVIRONMENTS).rpartition("-v")[0]
            _require_equal("", wanted | self.arguments, made)
        observed, acted = env.observation_space, env.action_space
        parts = parts_of(observed)
        if parts.keys() != self.parts.keys():
            shown = f"{named(parts)}; the policy's are {named(self.parts)}"
            raise UserError(f"{_ANOTHER}: observation's parts are {shown}")
        for name, space in parts.items():
            what = "observation's " if name == "obs" else f"observation {name}'s "
            _require_equal(what, self.parts[name], {"shape": list(space.shape), "dtype": str(space.dtype)})
        low, high = bounds(acted)
        own = {"shape": list(acted.shape), "dtype": str(acted.dtype), "minimum": low, "maximum": high}
        _require_equal("action's ", self.action, own)


def parts_of(observed: Any) -> dict[str, Any]:
    """Return the parts of an observation or of its space by name; one that is no dict is `obs`."""
    parts = getattr(observed, "spaces", observed)
    return dict(parts) if isinstance(parts, Mapping) else {"obs": observed}


def named(parts: Mapping[str, Any]) -> str:
    """Return the names of an observation's parts, in words."""
    return "one array" if list(parts) == ["obs"] else ", ".join(parts)


def bounds(space: Any) -> tuple[Any, Any]:
    """Return the least and the greatest action of a space, as JSON has them: one number where all are equal."""
    if hasattr(space, "nvec"):
        low, high = np.zeros_like(space.nvec), space.nvec - 1
    elif hasattr(space, "n"):
        low, high = space.start, space.start + space.n - 1
    else:
        low, high = space.low, space.high
    return plain(low), plain(high)


def plain(bound: Any) -> Any:
    """Return a bound of actions as JSON has it: one number where all are equal."""
    values = np.unique(bound)
    return values.item() if len(values) == 1 else np.asarray(bound).tolist()


def _require_equal(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name, value in found.items():
        if value != wanted[name]:
            raise UserError(f"{_ANOTHER}: {what}{name} is {value}; the policy's is {wanted[name]}")
