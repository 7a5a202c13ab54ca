"""Plans of benchmarks.screen: what a plan file may hold, the runs that it asks for, and the state of each run."""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from benchmarks import screen_known
from benchmarks.screen_kinds import OVERRIDES, Arms, List, Name, Speeds
from drqv2.config.formatting import did_you_mean, show
from drqv2.config.keys import Key
from drqv2.config.kinds import Int, Text
from drqv2.errors import UserError
from drqv2.launch.compose import compose
from drqv2.report import runs
from drqv2.report.published import Reference, read_references
from drqv2.report.tables import read_table
from drqv2.system import files

ROOT = screen_known.ROOT
RECORD = "screen.json"  # in a run directory: the overrides that the run was started with, and its exit code
OUTPUT = "output.txt"  # what the run has printed
STATES = ("finished", "running", "interrupted", "failed", "queued")
# Exit codes of runs that can be continued: asked to stop, ctrl-C, or ended by one of these signals.
_CONTINUES = {75, 130, *(-number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL))}
# Overrides that the tool gives itself, and the plan's key for each.
_OWN = {"task": "tasks", "seed": "seeds", "num_train_frames": "frames"} | dict.fromkeys(
    ("console", "resume", "save_snapshot", "hydra"), ""
)


KEYS: dict[Key, Any] = {
    Key("name", Name(), "Name of the plan."): None,
    Key("folder", Text(), "Where the runs and the report go.", null="exp_local/screen/NAME"): None,
    Key("jobs", Int(1), "Number of runs at a time."): 2,
    Key("overrides", OVERRIDES, "Overrides of all runs."): [],
    Key("tasks", List(Name(), "a list of tasks ([walker_walk,cheetah_run])"), "Each arm learns each task."): None,
    Key("seeds", List(Int(0), "a list of whole numbers ([1,2,3])"), "Seeds of each arm on each task."): None,
    Key("frames", Int(1), "num_train_frames of each run.", "frames"): None,
    Key("at", List(Int(1), "a list of frames"), "Where returns are compared.", null="the last frame"): None,
    Key("arms", Arms(), "What is compared, with the overrides of each; the first is the one to compare with."): None,
    Key("reference", List(Text(), "a list of methods"), "Methods of results/published/reference_curves.csv."): [],
    Key("reference_fps", Speeds(), "Their frames per second on this machine, for minutes.", null="unknown"): None,
    Key("known", List(Text(), "a list of files", empty=True), "Tables of runs made elsewhere.", null="none"): None,
}


@dataclass(frozen=True)
class Entry:
    """One run of a plan.

    Attributes:
        arm: name of its arm.
        task: its task.
        seed: its seed.
        folder: its run directory.
        overrides: those of the plan and of the arm, with task, seed and length.
    """

    arm: str
    task: str
    seed: int
    folder: Path
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Arm, task and seed, as in the path of its folder."""
        return f"{self.arm}/{self.task}/seed_{self.seed}"


@dataclass(frozen=True)
class Plan:
    """A checked plan; the attributes are `KEYS`."""

    path: Path
    name: str
    folder: Path
    jobs: int
    overrides: list[str]
    tasks: list[str]
    seeds: list[int]
    frames: int
    at: list[int]
    arms: dict[str, list[str]]
    reference: list[str]
    reference_fps: dict[str, float]
    known: dict[tuple[str, str, int], list[screen_known.Known]]

    @cached_property
    def entries(self) -> list[Entry]:
        """The runs in the order in which they start: seeds outermost, so that what is compared ends together."""
        found = []
        for seed, task, (arm, own) in product(self.seeds, self.tasks, self.arms.items()):
            words = f"task={task}", f"seed={seed}", f"num_train_frames={self.frames}", *self.overrides, *own
            found.append(Entry(arm, task, seed, self.folder / arm / task / f"seed_{seed}", words))
        return found

    @cached_property
    def elsewhere(self) -> dict[Entry, runs.Run]:
        """The runs that were made elsewhere and have come to their end, from the first table that has all of it."""
        found = {}
        for entry in self.entries:
            if tables := self.known.get((entry.arm, entry.task, entry.seed)):
                cfg = compose(*entry.overrides)
                found[entry] = next(filter(None, (known.run(cfg, self.frames) for known in tables)), None)
        return {entry: run for entry, run in found.items() if run is not None}

    def references(self) -> dict[str, list[Reference]]:
        """Return the published curves of the plan's methods by task; raises UserError for an unknown method."""
        if not self.reference:
            return {}
        found = read_references(ROOT / "results/published/reference_curves.csv", self.reference, [])
        return {task: [one for one in curves if one.method in self.reference] for task, curves in found.items()}


def read(path: Path) -> Plan:
    """Return the plan in a YAML file.

    Raises:
        UserError: the file cannot be read, a key is unknown or missing, or a value is not allowed.
    """
    try:
        given = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())[:200]
        raise UserError(f"{path}: the plan cannot be read ({reason})") from None
    try:
        values = _checked(given)
        plan = Plan(path=path, **values)
        plan.references()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return plan


def _checked(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UserError(f"a plan is a mapping with the keys {', '.join(key.name for key in KEYS)}")
    names = [key.name for key in KEYS]
    if unknown := [name for name in given if name not in names]:
        near = did_you_mean(str(unknown[0]), names)
        raise UserError(f"there is no key {unknown[0]}{near}\nallowed: {', '.join(names)}")
    values: dict[str, Any] = {}
    for key, default in KEYS.items():
        if key.name not in given and default is None and not key.null:
            raise UserError(f"{key.name} is missing: {key.meaning}\nIt must be {key.allowed}.")
        values[key.name] = key.check(given[key.name]) if key.name in given else default
    values["folder"] = Path(values["folder"] or f"exp_local/screen/{values['name']}").expanduser().absolute()
    values["at"] = sorted(values["at"] or [values["frames"]])
    values["reference_fps"] = values["reference_fps"] or {}
    if unknown := [method for method in values["reference_fps"] if method not in values["reference"]]:
        raise UserError(f"reference_fps: {unknown[0]} is not one of reference={show(values['reference'])}")
    values["known"] = screen_known.read(values["known"] or ())
    if values["at"][-1] > values["frames"]:
        raise UserError(f"at={show(values['at'])}: must not be greater than frames={values['frames']}")
    for where, own in {"overrides": values["overrides"], **values["arms"]}.items():
        for override in own:
            name = re.split(r"[=./@]", override.lstrip("+~"))[0]
            if name in _OWN:
                instead = f"set {_OWN[name]} in the plan instead" if _OWN[name] else "leave it out"
                raise UserError(f"{where}: {override}: does not belong in a plan; {instead}")
    return values


def check(plan: Plan) -> None:
    """Compose each arm on each task as train.py would.

    Raises:
        UserError: an override is wrong, or no evaluation is where returns are compared.
    """
    for entry in plan.entries[: len(plan.tasks) * len(plan.arms)]:  # of the first seed
        try:
            cfg = compose(*entry.overrides)
        except UserError as error:
            first, *rest = str(error).splitlines()
            raise UserError("\n".join([f"{plan.path}: arm {entry.arm}, {entry.task}: {first}", *rest])) from None
        every = cfg.eval_every_frames or math.inf
        if missing := [frame for frame in plan.at if frame < plan.frames and frame % every]:
            raise UserError(
                f"{plan.path}: arm {entry.arm} has no evaluation at={missing[0]}, but every {show(every)} frames\n"
                "Choose multiples of eval_every_frames, or the last frame."
            )


@dataclass(frozen=True)
class Found:
    """The state of a run, from its files.

    Attributes:
        state: one of STATES.
        code: exit code of a run that failed, a signal's as a negative number.
        frame: newest frame in its tables.
        run: its evaluations; None before the run has begun.
        message: how the output of a run that failed ends.
    """

    state: str
    code: int | None = None
    frame: int = 0
    run: runs.Run | None = None
    message: str = ""


def look(plan: Plan) -> dict[Entry, Found]:
    """Return the state of each run, from its files."""
    live = files.in_use(plan.folder)
    return {entry: look_at(plan, entry, live) for entry in plan.entries}


def look_at(plan: Plan, entry: Entry, live: bool) -> Found:
    """Return the state of a run, from its files or, without any, from the plan's tables of runs made elsewhere.

    Args:
        plan: the plan.
        entry: the run.
        live: whether this tool is at work on the plan.
    """
    record = read_record(entry)
    if not record:
        run = plan.elsewhere.get(entry)
        return Found("queued") if run is None else Found("finished", None, int(run.frames[-1]), run)
    try:
        run = runs.read(entry.folder)
    except UserError:  # it has not written its configuration yet
        run = None
    tables = (read_table(entry.folder / name, ("frame",), []) for name in ("train.csv", "eval.csv"))
    frame = int(max((row[0] for table in tables for _, row in table), default=0))
    code = record["code"]
    if code == 0:
        return Found("finished", None, frame, run)
    if code is None and (live or files.in_use(entry.folder)):
        return Found("running", None, frame, run)
    if code is None or code in _CONTINUES:
        return Found("interrupted", None, frame, run)
    return Found("failed", code, frame, run, _last_words(entry.folder / OUTPUT))


def elsewhere(plan: Plan, found: Mapping[Entry, Found]) -> list[str]:
    """Return for each of the plan's tables which runs are shown from it, in words."""
    names: dict[str, list[str]] = {}
    for entry, run in plan.elsewhere.items():
        if found[entry].run is run:
            names.setdefault(str(run.path), []).append(entry.name)
    return [f"made elsewhere, read from {file}: {', '.join(own)}" for file, own in names.items()]


def read_record(entry: Entry) -> dict[str, Any]:
    """Return the overrides and the exit code in the run's record; {} before its first start."""
    try:
        record = json.loads((entry.folder / RECORD).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{entry.folder / RECORD} cannot be read ({error}); delete the folder") from None
    return dict(record)


def write_record(entry: Entry, code: int | None) -> None:
    """Record the start of a run (None), or its exit code."""
    record = {"overrides": entry.overrides, "code": code}
    files.write_atomically(entry.folder / RECORD, (json.dumps(record) + "\n").encode())


def _last_words(output: Path) -> str:
    """Return the last line of a run's output, with those before it that belong to the same message."""
    try:
        lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()][-3:]
    except OSError:
        return ""
    start = max((i for i, line in enumerate(lines) if line.startswith("error: ")), default=len(lines) - 1)
    return " ".join(lines[max(start, 0) :])
