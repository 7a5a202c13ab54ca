"""Hydra's plugins for several runs: what they need installed, and how their own errors read."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drqv2.errors import UserError
from drqv2.launch.overrides import unquote


class JobLostError(UserError):
    """A launcher lost a job: its process or machine died."""

    code = 1


def _no_slurm(error: Exception) -> str:
    if not isinstance(error, RuntimeError) or "srun" not in str(error):
        return ""
    return f"there is no Slurm here ({error})\nRun this on a machine from which your cluster takes jobs."


def _no_ray(error: Exception) -> str:
    if not isinstance(error, ConnectionError):
        return ""
    return (
        f"there is no Ray cluster here ({_line(error, 100)})\n"
        "Start one with ray start --head, name one in RAY_ADDRESS, or set hydra.launcher.ray.init.address=null."
    )


@dataclass(frozen=True)
class Plugin:
    """A plugin that a file of cfgs/hydra chooses.

    Args:
        option: the override that chooses it.
        package: its package in hydra_plugins.
        extra: extra of this project that installs it.
        library: what a launcher starts jobs with; an error of the library's own means that a job was lost.
        unavailable: returns what to say where an error means that there is nothing to start jobs on, else "".
    """

    option: str
    package: str
    extra: str
    library: str = ""
    unavailable: Callable[[Exception], str] = lambda error: ""


PLUGINS = (
    Plugin("hydra/launcher=joblib", "hydra_joblib_launcher", "sweep", "joblib"),
    Plugin("hydra/launcher=slurm", "hydra_submitit_launcher", "cluster", "submitit", _no_slurm),
    Plugin("hydra/launcher=ray", "hydra_ray_launcher", "cluster", "ray", _no_ray),
    Plugin("hydra/sweeper=search", "hydra_optuna_sweeper", "sweep"),
)


def check_plugins(overrides: Sequence[str], multirun: bool, only_shown: bool) -> None:
    """Check that chosen plugins are installed and used for several runs: Hydra's own errors do not say how to fix it.

    Args:
        overrides: key=value as typed.
        multirun: several runs are asked for.
        only_shown: the configuration is printed, nothing runs.

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
    library = type(error).__module__.partition(".")[0]
    for plugin in PLUGINS:
        if library == plugin.library:
            return JobLostError(
                f"a job was lost: {_line(error, 200)}\n"
                "Repeat the command with hydra.sweep.dir=THAT_DIRECTORY to resume every run of the sweep."
            )
        if reason := plugin.unavailable(error):
            return UserError(reason)
    return None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(f"hydra_plugins.{package}") is not None
    except ModuleNotFoundError:  # there is no plugin at all
        return False


def _line(error: Exception, length: int) -> str:
    return " ".join(str(error).split())[:length]
