"""From a command line to `run(cfg, work_dir)`: help, resume, Hydra, checks, exit codes."""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import _run_hydra, get_args_parser  # hydra.main calls these; it reads sys.argv itself
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import drqv2
from drqv2 import programs
from drqv2.config.checks import check_overrides, validate
from drqv2.config.help import help_text
from drqv2.config.messages import explain
from drqv2.config.schema import offer
from drqv2.errors import UserError
from drqv2.launch.jobs import Job, JobFailed, Run, explain_launcher
from drqv2.launch.overrides import (
    STORED,
    WITHOUT_WEIGHTS,
    check_plugins,
    check_search,
    quote,
    readable,
    restarted,
    take_resume,
    without_dashes,
)
from drqv2.system import files, machine
from drqv2.system.signals import exit_on_signal_before_run

_CONFIG = Path(STORED).stem  # the name of the primary configuration, in cfgs/ as in a run directory


class ByName:
    """A module's `main` that is imported when it is first called: torch, which it imports, takes seconds.

    Args:
        module: a module's name, under which a launcher's processes find it, too.
    """

    def __init__(self, module: str) -> None:
        self.__module__ = module  # Hydra names its jobs after it

    def __call__(self, cfg: DictConfig, work_dir: Path) -> Any:
        """Return what `main` returns."""
        return programs.load(self.__module__).main(cfg, work_dir)


def start(module: str, config_dir: str) -> NoReturn:
    """Run the program whose `main` is in a module, and exit: `launch`, importing the module at the first job.

    So help and messages about mistakes do not wait for torch.
    """
    machine.limit_openmp_spinning()  # before torch is loaded
    exit_on_signal_before_run()
    launch(ByName(module), config_dir)
    sys.exit()


def launch(run: Run, config_dir: Path | str, argv: Sequence[str] | None = None) -> None:
    """Compose a configuration from the command line, check it, and call `run(cfg, work_dir)`, once for each job.

    Args:
        run: gets the checked configuration and its run directory, which exists. Where the directory contains a
            snapshot, `run` is expected to resume from it.
        config_dir: directory of config.yaml and its groups; a relative one starts at the file that defines `run`.
        argv: arguments, by default the process's own.

    Raises:
        SystemExit: with an exit code as listed in docs/deployment.md.
        Exception: whatever a single `run` raised, with its own traceback.
    """
    setbase("1.3")
    # Launchers in cfgs have the names of their plugins, and are validated against these, as intended.
    warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore schema")
    OmegaConf.register_new_resolver("jobs_that_fit", machine.jobs_that_fit, replace=True)  # hydra/launcher=joblib
    config_dir = _file_of(run).parent / config_dir
    try:
        args = _parse(sys.argv[1:] if argv is None else argv)
        if args.help:
            _, regime, _ = take_resume(args.overrides, args.multirun)
            print(programs.as_here(help_text(regime)), flush=True)
            return
        _launch(run, args, config_dir)
    except UserError as error:
        print(programs.as_here(f"error: {error}"), file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)


def _file_of(run: Run) -> Path:
    """Return the file that defines `run`."""
    if isinstance(run, ByName):
        return programs.ROOT / f"{run.__module__}.py"
    return Path(inspect.getfile(run)).resolve()


def _launch(run: Run, args: argparse.Namespace, config_dir: Path) -> None:
    only_shown = bool(args.cfg or args.info or args.hydra_help or args.shell_completion)
    check_plugins(args.overrides, single=not args.multirun and not only_shown)
    check_search(args.overrides)
    args.overrides = [readable(override, args.multirun) for override in args.overrides]
    run_dir, regime, args.overrides = take_resume(args.overrides, args.multirun)
    if run_dir is not None:
        config_dir = run_dir
        # The stored configuration has no hydra node. The .hydra of the first start is kept.
        args.overrides += [
            f"hydra.run.dir={quote(str(run_dir))}",
            "hydra.output_subdir=null",
            "hydra/job_logging=stdout",
            "hydra.job_logging.root.level=WARNING",
        ]
    elif not args.multirun and (run_dir := restarted(args.overrides)) is not None:
        args.overrides.append("hydra.output_subdir=null")
        if files.has_snapshot(run_dir):
            args.overrides.append(WITHOUT_WEIGHTS)
    job = Job(run)
    offer()
    try:
        if not only_shown:
            _check_jobs(args, config_dir)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them and ending the process
        _run_hydra(args, get_args_parser(), job, str(config_dir), _CONFIG)
        sys.stdout.flush()  # at Python's exit a closed pipe or a full disk would change nothing
    except Exception as error:
        if error is job.crash:
            raise error.with_traceback(job.traceback) from None  # Hydra's frames say nothing about the bug
        if isinstance(error, JobFailed):
            sys.exit(f"{job.failed} of the jobs failed; see above" if job.failed else f"jobs failed: {error}")
        if isinstance(error, HydraException | OmegaConfBaseException):
            raise UserError(explain(error, regime)) from None
        if told := explain_launcher(error, args.overrides):
            raise told from error
        if isinstance(error, OSError):
            advice = "choose another hydra.run.dir, or free some disk space"
            place = Path(error.filename or "standard output or the run directory")
            raise files.cannot_write(place, error, advice) from error
        raise


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read options with Hydra's own parser, wherever they stand among the overrides."""
    parser = get_args_parser()

    def error(message: str) -> NoReturn:
        raise UserError(f"{message}\nusage: python train.py [task=NAME] [preset=NAME] [key=value ...] [-m]; see --help")

    parser.error = error  # type: ignore[method-assign]
    if "--version" in argv:
        print(f"drqv2 {drqv2.__version__}")
        sys.exit()
    args = parser.parse_intermixed_args(without_dashes(argv, list(parser._option_string_actions)))
    if args.experimental_rerun is not None:
        raise UserError("--experimental-rerun is not supported; resume a run with resume=RUN_DIR")
    if args.multirun and args.cfg:
        raise UserError("--cfg shows one configuration and -m runs several: give only one of them")
    return args


def _check_jobs(args: argparse.Namespace, config_dir: Path) -> None:
    """Check the job, or every job of a sweep, before Hydra makes a directory: a sweep's last job may be days away."""
    if args.multirun and any(re.match(r"\+?hydra[/.]sweeper", override) for override in args.overrides):
        return  # only that sweeper knows its jobs
    with initialize_config_dir(str(config_dir), version_base="1.3"):
        jobs = [args.overrides]
        try:
            if args.multirun:
                parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
                jobs = BasicSweeper.split_arguments(parser.parse_overrides(args.overrides), None)[0]
            cfgs = [compose(_CONFIG, overrides=job) for job in jobs]
        except ValueError as error:  # the sweeper's; the caller explains Hydra's own
            raise UserError(explain(error)) from None
    for cfg, job in zip(cfgs, jobs, strict=True):
        check_overrides(cfg, job)
        validate(cfg)
