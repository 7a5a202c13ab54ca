"""The argument resume=RUN_DIR or resume=latest: which run it names, and whether that run can be resumed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from drqv2.config.schema import FIRST_REGIME
from drqv2.errors import UserError
from drqv2.launch.overrides import unquote
from drqv2.system import files

RUNS = Path("exp_local")
STORED = "config.yaml"


def take_resume(
    overrides: Sequence[str], groups: Sequence[str], multirun: bool = False
) -> tuple[Path | None, list[str]]:
    """Take resume=... out of the overrides.

    Args:
        overrides: key=value as typed.
        groups: the configuration's groups, such as task, which a resumed run does not choose again.
        multirun: several runs are asked for.

    Returns:
        the directory of the run to resume, or None; and the other overrides.

    Raises:
        UserError: the run cannot be resumed, or not with these overrides.
    """
    chosen = [o for o in overrides if re.match(r"\+{0,2}resume=", o)]
    others = [o for o in overrides if o not in chosen]
    wanted = unquote(chosen[-1].partition("=")[2]) if chosen else "null"
    if wanted == "null":
        return None, others
    if multirun:
        raise UserError(f"resume={wanted}: resumes a single run; leave out -m")
    _check_overrides(others, groups)
    path = Path(wanted).expanduser()
    run_dir = _latest() if wanted == "latest" else path.parent if path.name in files.SNAPSHOTS else path
    if not wanted or not run_dir.is_dir():
        raise UserError(f"resume={wanted}: there is no such directory; give a run directory, or resume=latest")
    _check_stored(run_dir, wanted)
    if wanted == "latest":
        print(f"resume=latest: {run_dir}")
    elif not files.has_snapshot(run_dir):
        print(f"{run_dir} has no snapshot yet: the run starts from the beginning")
    return run_dir.resolve(), others


def stored_regime(run_dir: Path) -> str:
    """Return the regime of a run that `take_resume` has returned."""
    return str(OmegaConf.select(OmegaConf.load(run_dir / STORED), "regime", default=FIRST_REGIME))


def _check_overrides(overrides: Sequence[str], groups: Sequence[str]) -> None:
    for override in overrides:
        group = re.split(r"[=@]", override.lstrip("+~"))[0]
        if group in groups:
            raise UserError(
                f"{override}: a {group} cannot be chosen on resume, the run keeps what is in its {STORED}"
                "\nOverride single keys (batch_size=128), or start a new run."
            )
        if group in ("hydra.run.dir", "init_from"):
            raise UserError(f"{override}: resume uses the run's own directory and weights; leave out {group} or resume")


def _check_stored(run_dir: Path, wanted: str) -> None:
    if not (run_dir / STORED).is_file():
        raise UserError(f"resume={wanted}: there is no {STORED} in it; give the directory of a run")
    try:
        stored = OmegaConf.load(run_dir / STORED)
        reason = "not a mapping"
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        stored, reason = OmegaConf.create([]), " ".join(str(error).split())[:100]
    if not isinstance(stored, DictConfig):
        raise UserError(
            f"resume={wanted}: {STORED} in it is damaged ({reason})\n"
            f"Repeat the command that started the run, with hydra.run.dir={wanted}: it resumes from the snapshot there."
        )
    if foreign := {"hydra", "defaults"} & set(stored):
        raise UserError(
            f"resume={wanted}: {STORED} in it has {min(map(str, foreign))}, which no run writes: it could run code\n"
            "Remove it, if you trust the source of the directory."
        )


def _latest() -> Path:
    found = []
    for folder, below, names in os.walk(RUNS):
        if STORED in names or set(files.SNAPSHOTS) & set(names):
            below.clear()  # a replay below may contain very many files
            if files.has_snapshot(Path(folder)) and STORED in names:
                found.append(Path(folder))
    if not found:
        raise UserError(
            f"resume=latest: no run with a snapshot below {RUNS.resolve()}\n"
            "Change to the directory in which the run was started, or give resume=RUN_DIR."
        )
    return max(found, key=lambda path: max(p.stat().st_mtime_ns for p in path.glob("snapshot*.pt")))
