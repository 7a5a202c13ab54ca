"""The way from a command line to `run(cfg, work_dir)`: help, resume, Hydra, checks, exit codes.

Exit codes: 0 the run ended, 2 a mistake of the user's (one or two lines, no traceback), 130 interrupted from the
keyboard; anything else is a fault of the program's and leaves its traceback.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import _run_hydra, get_args_parser  # what hydra.main calls, less its reading of sys.argv
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drqv2.config import settle
from drqv2.errors import UserError
from drqv2.explain import explain
from drqv2.schema import help_text, show

Run = Callable[[DictConfig, Path], Any]

RUNS = Path("exp_local")
SNAPSHOT, STORED = "snapshot.pt", "config.yaml"
_PATHS = ("agent_dir", "init_from", "hydra.run.dir", "hydra.sweep.dir")
_PLAIN = re.compile(r"""(?a:[\w./:%-]|\$\{[^}]*\})*|'.*'|".*\"""")  # a path that Hydra's grammar reads as it stands
_SCHEDULE = re.compile(r"""(?<!["'\w])(?:step_)?linear\([^()]*\)(?!["'])""")


def launch(run: Run, config_dir: Path | str, config_name: str = "config", argv: Sequence[str] | None = None) -> None:
    """Compose a configuration from the command line, check it, and call `run(cfg, work_dir)`, once for each job.

    Args:
        run: gets the checked configuration and its run directory, which exists. Where that directory holds a
            snapshot, `run` is expected to go on from it.
        config_dir: directory of the configuration; a relative one is taken from the file that defines `run`.
        config_name: name of the primary configuration, without .yaml.
        argv: arguments, by default the process's own.

    Raises:
        SystemExit: with code 2, 130 or 1 as described at the head of this module; 0 after --help and the like.
        Exception: whatever a single `run` raised, with its own traceback.
    """
    setbase("1.3")
    config_dir = Path(inspect.getfile(run)).resolve().parent / config_dir
    try:
        args = _parse(sys.argv[1:] if argv is None else argv)
        if args.help:
            print(help_text(Path(sys.argv[0]).name))
            return
        _launch(run, args, config_dir, config_name)
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _launch(run: Run, args: argparse.Namespace, config_dir: Path, config_name: str) -> None:
    groups = {path.name: sorted(p.stem for p in path.glob("*.yaml")) for path in config_dir.iterdir() if path.is_dir()}
    args.overrides = [_quoted(text, args.multirun) for text in args.overrides]
    run_dir = _take_resume(args, list(groups))
    if run_dir is not None:
        config_dir, config_name = run_dir, Path(STORED).stem
        # The stored configuration has no hydra node of its own. What the first start left in .hydra stays.
        args.overrides += [
            f"hydra.run.dir={_quote(str(run_dir))}",
            "hydra.output_subdir=null",
            "hydra/job_logging=stdout",
            "hydra.job_logging.root.level=WARNING",
            "++init_from=null",  # the snapshot holds the weights; the file may be gone
        ]
    elif _continues(args.overrides):
        args.overrides.append("hydra.output_subdir=null")
    crashes: list[Exception] = []

    def task(cfg: DictConfig) -> None:
        work_dir = Path(HydraConfig.get().runtime.output_dir)
        try:
            settle(cfg)
            _tell_changes(cfg, work_dir)
            run(cfg, work_dir)
        except UserError as error:
            _fail(str(error))
        except KeyboardInterrupt:
            _interrupted(work_dir)
        except Exception as error:
            crashes.append(error)
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                traceback.print_exc()  # now, not after the jobs that follow
            raise

    # Hydra names its job after the module of the function that this one wraps.
    task.__wrapped__ = run  # type: ignore[attr-defined]
    try:
        if not (args.cfg or args.info or args.hydra_help or args.shell_completion):
            _check_jobs(args, config_dir, config_name, groups)
        with _hydra_raises():
            _run_hydra(args, get_args_parser(), task, str(config_dir), config_name)
    except Exception as error:
        if isinstance(error, HydraException | OmegaConfBaseException) and error not in crashes:
            raise UserError(explain(error, groups)) from None
        if error not in crashes:
            raise
    if crashes and args.multirun:
        sys.exit(f"{len(crashes)} of the jobs failed; see above")
    for crash in crashes:
        frames = crash.__traceback__
        while frames is not None and frames.tb_frame.f_code is not task.__code__:
            frames = frames.tb_next  # Hydra's frames say nothing about the fault
        raise crash.with_traceback(frames)


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def _interrupted(work_dir: Path) -> NoReturn:
    print("\ninterrupted", end="", file=sys.stderr)
    if (work_dir / SNAPSHOT).is_file():
        near = work_dir.relative_to(Path.cwd()) if work_dir.is_relative_to(Path.cwd()) else work_dir
        print(f"; go on with: python {sys.argv[0]} {shlex.quote(f'resume={near}')}", file=sys.stderr)
    else:
        print(f" before the first snapshot; {work_dir} cannot be resumed", file=sys.stderr)
    sys.exit(130)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read options with Hydra's own parser, wherever they stand among the overrides."""
    parser = get_args_parser()

    def error(message: str) -> NoReturn:
        raise UserError(f"{message}\nusage: [task=NAME] [preset=NAME] [key=value ...] [-m]; see --help")

    parser.error = error  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(list(argv))
    if args.experimental_rerun is not None:
        raise UserError("--experimental-rerun is not offered here; go on with a run by resume=RUN_DIR")
    if args.multirun and args.cfg:
        raise UserError("--cfg shows one configuration and -m runs several: give one of the two")
    return args


# --- overrides -------------------------------------------------------------------------------------------------


def _quote(text: str) -> str:
    """Quote `text` as Hydra's grammar wants it: only quotes, and backslashes before one, are escaped."""
    return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text) + "'"


def _quoted(override: str, multirun: bool) -> str:
    """Quote what Hydra's grammar would misread: schedules, which look like calls, and paths with =, commas, spaces."""
    key, equals, value = override.partition("=")
    name = key.lstrip("+~")
    if name in ("stddev_schedule", "agent.stddev_schedule"):
        value = _SCHEDULE.sub(lambda match: _quote(match[0]), value)
    elif name in _PATHS and not multirun and not _PLAIN.fullmatch(value):
        value = _quote(value)
    return key + equals + value


def _unquoted(value: str) -> str:
    return value[1:-1].replace("\\" + value[0], value[0]) if re.fullmatch(r"'.*'|\".*\"", value, re.DOTALL) else value


def _continues(overrides: Sequence[str]) -> bool:
    """Whether a hydra.run.dir is given that a run has been started in before."""
    given = [_unquoted(value) for key, _, value in (o.partition("=") for o in overrides) if key == "hydra.run.dir"]
    return bool(given) and (Path(given[-1]) / STORED).is_file()


# --- resume ----------------------------------------------------------------------------------------------------


def _take_resume(args: argparse.Namespace, groups: Sequence[str]) -> Path | None:
    """Take resume=... out of the overrides; return the run directory that it names, checked, or None."""
    values = [o.partition("=")[2] for o in args.overrides if re.match(r"\+{0,2}resume=", o)]
    args.overrides = [o for o in args.overrides if not re.match(r"\+{0,2}resume=", o)]
    wanted = _unquoted(values[-1]) if values else "null"
    if wanted == "null":
        return None
    if args.multirun:
        raise UserError(f"resume={wanted}: one run at a time; leave out -m")
    for override in args.overrides:
        group = re.split(r"[=@]", override.lstrip("+~"))[0]
        if group in groups:
            raise UserError(
                f"{override}: a {group} cannot be chosen on resume, the run keeps what is in its {STORED}"
                "\nOverride single keys (batch_size=128), or start a new run."
            )
        if group in ("hydra.run.dir", "init_from"):
            raise UserError(f"{override}: resume goes on in the run's own directory, with its weights; leave one out")
    if wanted == "latest":
        run_dir = _latest()
        print(f"resume=latest: {run_dir}")
        return run_dir.resolve()
    run_dir = Path(wanted).expanduser()
    if run_dir.name == SNAPSHOT:
        run_dir = run_dir.parent
    if not wanted or not run_dir.is_dir():
        raise UserError(f"resume={wanted}: there is no such directory; give a run directory, or resume=latest")
    for name in (STORED, SNAPSHOT):
        if not (run_dir / name).is_file():
            raise UserError(f"resume={wanted}: there is no {name} in it, so it is no run that can be gone on with")
    return run_dir.resolve()


def _latest() -> Path:
    found = [path for path in _run_dirs(RUNS) if (path / SNAPSHOT).is_file() and (path / STORED).is_file()]
    if not found:
        raise UserError(
            f"resume=latest: no run with a {SNAPSHOT} below {RUNS.resolve()}\n"
            "Go to the directory that the run was started in, or give resume=RUN_DIR."
        )
    return max(found, key=lambda path: (path / SNAPSHOT).stat().st_mtime_ns)


def _run_dirs(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        if STORED in files or SNAPSHOT in files:
            below.clear()  # a replay below may hold very many files
            yield Path(folder)


def _tell_changes(cfg: DictConfig, work_dir: Path) -> None:
    """Print in one line how `cfg` differs from what the run in `work_dir` was started with, if one was."""
    if not (work_dir / STORED).is_file():
        return
    old, new = (_leaves(OmegaConf.to_container(c, resolve=True)) for c in (OmegaConf.load(work_dir / STORED), cfg))
    gone = object()
    changes = [
        f"{name} {'absent' if a is gone else show(a)} -> {'absent' if b is gone else show(b)}"
        for name in sorted((old.keys() | new.keys()) - {"init_from"})
        if (a := old.get(name, gone)) != (b := new.get(name, gone)) and b != "auto"  # a run stores what auto came to
    ]
    if changes:
        print("changed since this run was started: " + ", ".join(changes))


def _leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix[:-1]: node}
    return {name: leaf for key, value in node.items() for name, leaf in _leaves(value, f"{prefix}{key}.").items()}


# --- Hydra -----------------------------------------------------------------------------------------------------


@contextmanager
def _hydra_raises() -> Iterator[None]:
    """Context in which Hydra raises its errors instead of printing them and leaving the process."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def _check_jobs(args: argparse.Namespace, config_dir: Path, config_name: str, groups: dict[str, list[str]]) -> None:
    """Check the job, or every job of a sweep, before Hydra makes a directory: a sweep's last job may be days away."""
    if args.multirun and any(re.match(r"\+?hydra[/.]sweeper", override) for override in args.overrides):
        return  # another sweeper's own syntax
    with initialize_config_dir(str(config_dir), version_base="1.3"):
        jobs = [args.overrides]
        try:
            if args.multirun:
                parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
                jobs = BasicSweeper.split_arguments(parser.parse_overrides(args.overrides), None)[0]
            cfgs = [compose(config_name, overrides=job) for job in jobs]
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise UserError(explain(error, groups)) from None
        for cfg in cfgs:
            settle(cfg)
