"""Overrides (key=value) as people type them: made readable for Hydra, checked for plugins, and resume= taken out."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from drqv2.config.cfgs import CHOSEN
from drqv2.config.formatting import did_you_mean
from drqv2.config.kinds import Schedule, Settings
from drqv2.config.schema import FIRST, REGIMES, every_key, find, regime_of
from drqv2.errors import UserError
from drqv2.system import files

RUNS = Path("exp_local")
STORED = "config.yaml"
WITHOUT_WEIGHTS = "++init_from=null"  # of a run whose snapshot holds the weights; the file may be gone
# An override that chooses a file of cfgs/hydra: the plugin that it needs, and this project's extra that installs it.
PLUGINS = {
    "hydra/launcher=joblib": ("hydra-joblib-launcher", "sweep"),
    "hydra/launcher=slurm": ("hydra-submitit-launcher", "cluster"),
    "hydra/launcher=ray": ("hydra-ray-launcher", "cluster"),
    "hydra/sweeper=search": ("hydra-optuna-sweeper", "sweep"),
}
_PATHS = ("agent_dir", "regime_dir", "init_from", "hydra.run.dir", "hydra.sweep.dir")
_READABLE_PATH = re.compile(r"""(?a:[\w./:%-]|\$\{[^}]*\})*|'.*'|".*\"""")  # Hydra's grammar reads these unquoted
_TASK_KEY = re.compile(r"""(?<=[{,])\s*["']?((?:gymnasium|envpool|metaworld):[^{}\\"']+)["']?\s*(?=:\s*\{)""")
_SCHEDULE = re.compile(r"""(?<!["'\w])(?:step_)?linear\([^()]*\)(?!["'])""")


def quote(text: str) -> str:
    """Quote `text` for Hydra's grammar, which unescapes only quotes, and backslashes before a quote."""
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def _unquote(value: str) -> str:
    return value[1:-1].replace("\\" + value[0], value[0]) if re.fullmatch(r"'.*'|\".*\"", value, re.DOTALL) else value


def readable(override: str, multirun: bool) -> str:
    """Quote what Hydra's grammar would misread: schedules, paths with =, commas or spaces, tasks with a colon.

    Args:
        override: key=value as typed.
        multirun: several runs, where a comma separates values. Relative paths become absolute, since a launcher's
            processes may start in another directory.
    """
    name, equals, value = override.partition("=")
    if name in ("hydra.run.dir", "hydra.sweep.dir") and not _unquote(value).strip():
        raise UserError(f"{override}: a directory is missing; write {name}=DIRECTORY")
    key = every_key().get(name.lstrip("+~"))
    if key is not None and isinstance(key.kind, Schedule):
        value = _SCHEDULE.sub(lambda match: quote(match[0]), value)
    elif key is not None and isinstance(key.kind, Settings):
        value = _TASK_KEY.sub(lambda match: match[1].replace(":", "\\:"), value)
    elif name in _PATHS and multirun and re.fullmatch(r"[\w.~-][\w./~-]*", value) and value != "null":
        value = str(Path(value).expanduser().absolute())
    elif name.lstrip("+~") in _PATHS and not multirun and not _READABLE_PATH.fullmatch(value):
        value = quote(value)
    return name + equals + value


def without_dashes(argv: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return a command line on which --seed=3 and --seed 3 are seed=3; a key that is true or false needs no value.

    Args:
        argv: words as typed.
        options: those that are no keys, such as --help; beginnings of them are left as they are.

    Raises:
        UserError: there is no such key or option, or its value is missing.
    """
    keys, found, words = every_key(), [], deque(argv)
    while words:
        word = words.popleft()
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or any(known.startswith(option) for known in options):
            found.append(word)
            continue
        if name not in {*keys, *CHOSEN, "resume"} and not re.match(r"hydra[./]", name):
            raise UserError(f"{option}: there is no such key or option{did_you_mean(name, keys)} (see --help)")
        another = r"--|-[a-zA-Z]|[+~]{0,2}[a-z_][\w./@]*="  # a key or an option, and no value
        follows = bool(words) and not re.match(another, words[0])
        if not equals and not follows:
            if name not in keys or "true" not in keys[name].allowed:
                raise UserError(f"{option}: a value is missing; write {name}=VALUE")
            value = "true"
        found.append(f"{name}={value if equals or not follows else words.popleft()}")
    return found


def check_plugins(overrides: Sequence[str], single: bool) -> None:
    """Raise UserError if an override chooses a plugin that is not installed, or one for several runs in a `single`."""
    for override in overrides:
        if override not in PLUGINS:
            continue
        package, extra = PLUGINS[override]
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            raise UserError(f"{override}: not installed; run pip install -e '.[{extra}]'") from None
        if single:
            raise UserError(f"{override}: launchers and sweepers apply only to several runs; add -m")


def check_search(overrides: Sequence[str]) -> None:
    """Raise UserError if a search would compare runs that return no number."""
    searched = "hydra/sweeper=search" in overrides and "eval_every_frames=null" in overrides
    regime = REGIMES.get(chosen_regime(overrides))
    if searched and regime and not regime.objective and not any(o.startswith("objective=") for o in overrides):
        raise UserError(
            "hydra/sweeper=search with eval_every_frames=null: trials are compared by their evaluations; set "
            "objective=train/NAME, a column of train.csv"
        )


def chosen_regime(overrides: Sequence[str]) -> str:
    """Return the regime that overrides choose, or the default; one from regime_dir is known from then on."""
    given = {name: _unquote(value) for name, _, value in (override.partition("=") for override in overrides)}
    name, folder = given.get("regime", FIRST), given.get("regime_dir", "null")
    if folder != "null":
        for each in name.split(","):
            find(each, Path(folder).expanduser())
    return name


def restarted(overrides: Sequence[str]) -> Path | None:
    """Return the directory of hydra.run.dir=... if a run has begun there: the same command continues it."""
    given = [_unquote(o.partition("=")[2]) for o in overrides if o.startswith("hydra.run.dir=")]
    return Path(given[-1]) if given and Path(given[-1], STORED).is_file() else None


def take_resume(overrides: Sequence[str], multirun: bool) -> tuple[Path | None, str, list[str]]:
    """Take resume=RUN_DIR or resume=latest out of the overrides.

    Returns:
        the directory of the run to resume, or None; the run's regime; and the overrides to compose with.

    Raises:
        UserError: the run cannot be resumed, or not with these overrides.
    """
    chosen = [o for o in overrides if re.match(r"\+{0,2}resume=", o)]
    others = [o for o in overrides if o not in chosen]
    wanted = _unquote(chosen[-1].partition("=")[2]) if chosen else "null"
    if wanted == "null":
        return None, chosen_regime(others), others
    if multirun:
        raise UserError(f"resume={wanted}: resumes a single run; leave out -m")
    for override in others:
        name = re.split(r"[=@]", override.lstrip("+~"))[0]
        if name in CHOSEN:
            article = "an" if name == "agent" else "a"
            raise UserError(
                f"{override}: {article} {name} cannot be chosen on resume, the run keeps what is in its {STORED}"
                "\nOverride single keys (batch_size=128), or start a new run."
            )
        if name in ("hydra.run.dir", "init_from"):
            raise UserError(f"{override}: resume uses the run's own directory and weights; leave out {name} or resume")
    path = Path(wanted).expanduser()
    run_dir = _latest() if wanted == "latest" else path.parent if path.name in files.SNAPSHOTS else path
    if not wanted or not run_dir.is_dir():
        raise UserError(f"resume={wanted}: there is no such directory; give a run directory, or resume=latest")
    regime = _stored_regime(run_dir, wanted)
    if wanted == "latest":
        print(f"resume=latest: {run_dir}")
    elif not files.has_snapshot(run_dir):
        print(f"{run_dir} has no snapshot yet: the run starts from the beginning")
    if files.has_snapshot(run_dir):
        others = [*others, WITHOUT_WEIGHTS]
    return run_dir.resolve(), regime, others


def _stored_regime(run_dir: Path, wanted: str) -> str:
    if not (run_dir / STORED).is_file():
        raise UserError(f"resume={wanted}: there is no {STORED} in it; give the directory of a run, or resume=latest")
    try:
        stored = OmegaConf.load(run_dir / STORED)
        if not isinstance(stored, DictConfig):
            raise ValueError("not a mapping")
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(
            f"resume={wanted}: {STORED} in it is damaged ({' '.join(str(error).split())[:100]})\n"
            f"Repeat the command that started the run, with hydra.run.dir={wanted}: it resumes from the snapshot there."
        ) from None
    if foreign := {"hydra", "defaults"} & set(stored):
        raise UserError(
            f"resume={wanted}: {STORED} in it has {min(map(str, foreign))}, which no run writes: it could run code\n"
            "Remove it, if you trust the source of the directory."
        )
    return regime_of(stored).name


def _latest() -> Path:
    found = []
    for folder, below, names in os.walk(RUNS):
        if STORED in names:
            below.clear()  # a replay below may contain very many files
            if files.has_snapshot(Path(folder)):
                found.append(Path(folder))
    if not found:
        raise UserError(
            f"resume=latest: no run with a snapshot below {RUNS.resolve()}\n"
            "Change to the directory in which the run was started, or give resume=RUN_DIR."
        )
    return max(found, key=lambda path: max(p.stat().st_mtime_ns for p in path.glob("snapshot*.pt")))
