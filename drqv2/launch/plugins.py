"""Hydra's plugins for several runs: what they need installed, and how their own errors read."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

from drqv2.errors import UserError
from drqv2.launch.overrides import unquote


class JobLostError(UserError):
    """A launcher lost a job: its process or machine died."""

    code = 1


class Plugin(NamedTuple):
    """A plugin that a file of cfgs/hydra chooses.

    Args:
        option: the override that chooses it.
        package: its package in hydra_plugins.
        extra: extra of this project that installs it.
        library: what a launcher starts jobs with; an error of the library's own means that a job was lost.
    """

    option: str
    package: str
    extra: str
    library: str = ""


PLUGINS = (
    Plugin("hydra/launcher=joblib", "hydra_joblib_launcher", "sweep", "joblib"),
    Plugin("hydra/launcher=slurm", "hydra_submitit_launcher", "cluster", "submitit"),
    Plugin("hydra/launcher=ray", "hydra_ray_launcher", "cluster", "ray"),
    Plugin("hydra/sweeper=search", "hydra_optuna_sweeper", "sweep"),
)


def check_plugins(overrides: Sequence[str], multirun: bool, only_shown: bool) -> None:
    """Check that the plugins that overrides choose are installed, and that several runs use them unless `only_shown`.

    Raises:
        UserError: a plugin is not installed, or there is a single run.
    """
    plugins = {plugin.option: plugin for plugin in PLUGINS}
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        plugin = plugins.get(f"{key}={unquote(value)}")
        if plugin is None:
            continue
        if not _is_installed(plugin.package):
            raise UserError(f"{override}: not installed; run .venv/bin/pip install -e '.[{plugin.extra}]'")
        if not multirun and not only_shown:
            raise UserError(f"{override}: launchers and sweepers are for several runs; add -m")


def translate(error: Exception) -> UserError | None:
    """Return what to tell the user about an error of a plugin's or its library's; None if it is neither."""
    line = " ".join(str(error).split())[:200]
    if type(error).__module__.partition(".")[0] in {plugin.library for plugin in PLUGINS}:
        return JobLostError(
            f"a job was lost: {line}\n"
            "Repeat the command with hydra.sweep.dir=THAT_DIRECTORY to resume every run of the sweep."
        )
    if isinstance(error, RuntimeError) and "srun" in line:
        return UserError(f"there is no Slurm here ({line})\nRun this on a machine from which your cluster takes jobs.")
    if isinstance(error, ConnectionError):
        return UserError(
            f"there is no Ray cluster here ({line[:100]})\n"
            "Start one with ray start --head, name one in RAY_ADDRESS, or set hydra.launcher.ray.init.address=null."
        )
    return None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(f"hydra_plugins.{package}") is not None
    except ModuleNotFoundError:  # there is no plugin at all
        return False
