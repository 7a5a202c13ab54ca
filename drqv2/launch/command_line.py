"""The way from a command line to `run(cfg, work_dir)`: help, resume, Hydra, checks, exit codes.

Exit codes: 0 the run ended; 2 a mistake of the user's, 71 the run's processes die again and again, 74 the disk is full
or fails, 76 a reward, loss, action or parameter is not finite (one or two lines each, no traceback); 75 told to leave
(SIGTERM, SIGUSR2), 130 interrupted from the keyboard: go on with resume. Anything else is a fault of the program's and
leaves its traceback.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import _run_hydra, get_args_parser  # what hydra.main calls, less its reading of sys.argv
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from drqv2.config.checks import settle
from drqv2.config.messages import explain
from drqv2.config.schema import help_text
from drqv2.errors import DiskError, UserError
from drqv2.launch.jobs import Job, JobFailed, Run
from drqv2.system import files, machine

RUNS = Path("exp_local")
STORED = "config.yaml"
_PATHS = ("agent_dir", "init_from", "hydra.run.dir", "hydra.sweep.dir")
_PLAIN = re.compile(r"""(?a:[\w./:%-]|\$\{[^}]*\})*|'.*'|".*\"""")  # a path that Hydra's grammar reads as it stands
_PLUGINS = {  # what of cfgs/hydra needs an extra
    "hydra/launcher=joblib": ("hydra_joblib_launcher", "sweep"),
    "hydra/launcher=slurm": ("hydra_submitit_launcher", "cluster"),
    "hydra/launcher=ray": ("hydra_ray_launcher", "cluster"),
    "hydra/sweeper=search": ("hydra_optuna_sweeper", "sweep"),
}
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
        SystemExit: with a code as described at the head of this module; 0 after --help and the like.
        Exception: whatever a single `run` raised, with its own traceback.
    """
    setbase("1.3")
    # Launchers in cfgs bear their plugins' names, and are checked against these: as wanted.
    warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema")
    OmegaConf.register_new_resolver("jobs_that_fit", machine.jobs_that_fit, replace=True)  # hydra/launcher=joblib
    config_dir = Path(inspect.getfile(run)).resolve().parent / config_dir
    try:
        args = _parse(sys.argv[1:] if argv is None else argv)
        if args.help:
            with suppress(BrokenPipeError):  # `| head`
                print(help_text(Path(sys.argv[0]).name), flush=True)
            return
        _launch(run, args, config_dir, config_name)
    except UserError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(130)


def _launch(run: Run, args: argparse.Namespace, config_dir: Path, config_name: str) -> None:
    groups = {path.name: sorted(p.stem for p in path.glob("*.yaml")) for path in config_dir.iterdir() if path.is_dir()}
    _check_plugins(args)
    args.overrides = [_quoted(_rooted(text) if args.multirun else text, args.multirun) for text in args.overrides]
    run_dir = _take_resume(args, list(groups))
    if run_dir is not None:
        config_dir, config_name = run_dir, Path(STORED).stem
        # The stored configuration has no hydra node of its own. What the first start left in .hydra stays.
        args.overrides += [
            f"hydra.run.dir={_quote(str(run_dir))}",
            "hydra.output_subdir=null",
            "hydra/job_logging=stdout",
            "hydra.job_logging.root.level=WARNING",
        ]
    elif not args.multirun and (run_dir := _started(args.overrides)):
        args.overrides.append("hydra.output_subdir=null")
    if run_dir is not None and files.has_snapshot(run_dir):
        args.overrides.append("++init_from=null")  # the snapshot holds the weights; the file may be gone
    job = Job(run)
    try:
        if not (args.cfg or args.info or args.hydra_help or args.shell_completion):
            _check_jobs(args, config_dir, config_name, groups)
        with _hydra_raises():
            _run_hydra(args, get_args_parser(), job, str(config_dir), config_name)
    except Exception as error:
        if error in job.crashes:
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code is not Job.__call__.__code__:
                frames = frames.tb_next  # Hydra's frames say nothing about the fault
            raise error.with_traceback(frames) from None
        if isinstance(error, JobFailed):
            sys.exit(f"{job.failed} of the jobs failed; see above" if job.failed else f"jobs failed: {error}")
        if type(error).__module__.partition(".")[0] in ("joblib", "submitit", "ray"):  # the launcher's own error
            sys.exit(
                f"a job was lost: {' '.join(str(error).split())[:200]}\n"
                "The same command, with hydra.sweep.dir=THAT_DIRECTORY, goes on with every run of the sweep."
            )
        if isinstance(error, HydraException | OmegaConfBaseException):
            raise UserError(explain(error, groups)) from None
        if isinstance(error, ConnectionError):  # ray.init's
            raise UserError(
                f"there is no Ray cluster here ({' '.join(str(error).split())[:100]})\n"
                "ray start --head starts one, RAY_ADDRESS names one, hydra.launcher.ray.init.address=null makes one"
            ) from None
        if isinstance(error, RuntimeError) and "srun" in str(error):  # submitit's
            raise UserError(f"there is no Slurm here ({error})\nGo where your cluster's jobs are submitted.") from None
        if isinstance(error, OSError):
            kind = DiskError if error.errno in files.DISK_ERRNOS else UserError
            raise kind(
                f"the run's directory cannot be made: {error}\nGive another hydra.run.dir, or make room."
            ) from error
        raise


def _fail(error: UserError) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.code)


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


def _rooted(override: str) -> str:
    """Make a plain relative path absolute: a launcher's processes may start elsewhere."""
    key, _, value = override.partition("=")
    plain = re.fullmatch(r"[\w.~-][\w./~-]*", value) and value != "null"
    return f"{key}={Path(value).expanduser().absolute()}" if key in _PATHS and plain else override


def _unquoted(value: str) -> str:
    return value[1:-1].replace("\\" + value[0], value[0]) if re.fullmatch(r"'.*'|\".*\"", value, re.DOTALL) else value


def _started(overrides: Sequence[str]) -> Path | None:
    """Return the hydra.run.dir that is given, if a run has been started in it before."""
    given = [_unquoted(value) for key, _, value in (o.partition("=") for o in overrides) if key == "hydra.run.dir"]
    return Path(given[-1]) if given and (Path(given[-1]) / STORED).is_file() else None


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
    if run_dir.name in files.SNAPSHOTS:
        run_dir = run_dir.parent
    if not wanted or not run_dir.is_dir():
        raise UserError(f"resume={wanted}: there is no such directory; give a run directory, or resume=latest")
    if not (run_dir / STORED).is_file():
        raise UserError(f"resume={wanted}: there is no {STORED} in it, so it is no run that can be gone on with")
    try:
        stored = OmegaConf.load(run_dir / STORED)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        stored, reason = None, " ".join(str(error).split())[:100]
    if not isinstance(stored, DictConfig):
        raise UserError(
            f"resume={wanted}: {STORED} in it is damaged ({reason if stored is None else 'not a mapping'})\n"
            f"Start the run as it was first started, with hydra.run.dir={wanted}: its snapshot holds all the rest."
        )
    if foreign := {"hydra", "defaults"} & set(stored):
        raise UserError(
            f"resume={wanted}: {STORED} in it has {min(map(str, foreign))}, which no run writes: it could run code\n"
            "Take it out, if you know where the directory comes from."
        )
    if not files.has_snapshot(run_dir):
        print(f"{run_dir} has no snapshot yet: the run begins anew")
    return run_dir.resolve()


def _latest() -> Path:
    found = [path for path in _run_dirs(RUNS) if files.has_snapshot(path) and (path / STORED).is_file()]
    if not found:
        raise UserError(
            f"resume=latest: no run with a snapshot below {RUNS.resolve()}\n"
            "Go to the directory that the run was started in, or give resume=RUN_DIR."
        )
    return max(found, key=lambda path: max(p.stat().st_mtime_ns for p in path.glob("snapshot*.pt")))


def _run_dirs(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        if STORED in names or set(files.SNAPSHOTS) & set(names):
            below.clear()  # a replay below may hold very many files
            yield Path(folder)


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


def _check_plugins(args: argparse.Namespace) -> None:
    """Check that the launchers and sweepers that are asked for are installed: Hydra would fail where it makes them."""
    for override in args.overrides:
        key, _, value = override.lstrip("+").partition("=")
        plugin, extra = _PLUGINS.get(f"{key}={_unquoted(value)}", ("", ""))
        if plugin and not _installed(plugin):
            raise UserError(f"{override}: it is not installed; .venv/bin/pip install -e '.[{extra}]'")
        if plugin and not (args.multirun or args.cfg or args.info):
            raise UserError(f"{override}: it is for several runs, which need -m")


def _installed(plugin: str) -> bool:
    try:
        return importlib.util.find_spec(f"hydra_plugins.{plugin}") is not None
    except ModuleNotFoundError:  # there is no plugin at all
        return False


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
