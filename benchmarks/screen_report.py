"""Report of benchmarks.screen: returns, areas under curves and paired differences, as Markdown, CSV and a plot."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import screen_figures, screen_summary
from benchmarks.paired import Difference, Pair, area, difference
from benchmarks.screen_plan import STATES, Entry, Found, Plan, elsewhere
from drqv2.config.formatting import counted, show
from drqv2.errors import UserError
from drqv2.evaluation.statistics import LEAST
from drqv2.report.aggregate import written
from drqv2.report.curves import value_at
from drqv2.report.groups import Group, warnings
from drqv2.report.published import Reference
from drqv2.report.runs import Run
from drqv2.system import files

MACHINE = "machine.json"
REPORT, TABLE, PLOT, MEANS = "report.md", "returns.csv", "returns.png", "means.png"
_AREA = "area"
Runs = dict[str, dict[Pair, Run]]  # by arm: its runs with an evaluation that have not failed


def write(plan: Plan, found: Mapping[Entry, Found], out: Path | None) -> Path:
    """Write the report, the table and the plot into the plan's folder; copy them to `out`; return the report's path."""
    if all(one.state == "queued" for one in found.values()):
        raise UserError(f"{plan.folder}: there are no runs yet; leave out --report to start them")
    plan.folder.mkdir(parents=True, exist_ok=True)
    contents = {REPORT: page(plan, found).encode(), TABLE: table(found).encode(), PLOT: plot(plan, found)}
    if _on_all_tasks(plan, found):
        contents[MEANS] = plot_means(plan, found)
    for name, data in contents.items():
        files.write_atomically(plan.folder / name, data)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name in contents:
            shutil.copyfile(plan.folder / name, out / name)
    return plan.folder / REPORT


def table(found: Mapping[Entry, Found]) -> str:
    """Return all evaluations as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("arm", "task", "seed", "frame", "return", "minutes"))
    for entry, one in found.items():
        if one.run is not None:
            columns = (one.run.frames, one.run.returns, one.run.hours)
            for frame, value, hours in zip(*columns, strict=True):
                writer.writerow((entry.arm, entry.task, entry.seed, int(frame), round(value, 3), round(60 * hours, 2)))
    return out.getvalue()


def plot(plan: Plan, found: Mapping[Entry, Found]) -> bytes:
    """Return the curves of all tasks as a PNG image."""
    tasks = {task: list(_groups(plan, found, task)) for task in plan.tasks}
    return screen_figures.of_tasks(tasks, plan.references())


def plot_means(plan: Plan, found: Mapping[Entry, Found]) -> bytes:
    """Return the means over tasks of the arms that have curves of all of them, as a PNG image."""
    published = screen_summary.published_on_all(plan, plan.references())
    fps = {
        name: plan.reference_fps[one[0].method]
        for name, one in published.items()
        if one[0].method in plan.reference_fps
    }
    return screen_figures.over_tasks(_on_all_tasks(plan, found), published, fps)


def _on_all_tasks(plan: Plan, found: Mapping[Entry, Found]) -> dict[str, list[list[Run]]]:
    """Return the runs of each task with more than one evaluation, of arms that have such runs of every task."""
    arms = {}
    for arm, own in _by_arm(plan, found).items():
        tasks = [[run for (name, _), run in own.items() if name == task and len(run.frames) > 1] for task in plan.tasks]
        if all(tasks):
            arms[arm] = tasks
    return arms


def _groups(plan: Plan, found: Mapping[Entry, Found], task: str) -> Iterable[Group]:
    for i, arm in enumerate(plan.arms):
        every = [one.run for entry, one in found.items() if (entry.arm, entry.task) == (arm, task)]
        runs = [run for run in every if run is not None and len(run.frames)]
        if runs := [run for run in runs if len(run.frames) > 1] or runs:
            yield Group(task, arm, arm, i, runs)


def page(plan: Plan, found: Mapping[Entry, Found]) -> str:
    """Return the report as Markdown."""
    runs = _by_arm(plan, found)
    parts = [f"# {plan.name}", *_head(plan, found), f"![returns]({PLOT})", *_unfinished(found)]
    references = plan.references()
    for task in plan.tasks:
        parts += _task(plan, runs, task, references.get(task, ()))
    means = [f"![means over tasks]({MEANS})"] if _on_all_tasks(plan, found) else []
    sections = screen_summary.over_tasks(plan, runs, references), screen_summary.until(plan, runs, references)
    for part in chain(sections[0], means, sections[1]):
        parts.append(part if isinstance(part, str) else _markdown(*part))
    parts += [*_differences(plan, runs), *_notes(plan, found)]
    return "\n\n".join(parts) + "\n"


def _by_arm(plan: Plan, found: Mapping[Entry, Found]) -> Runs:
    runs: Runs = {arm: {} for arm in plan.arms}
    for entry, one in found.items():
        if one.run is not None and len(one.run.frames) and one.state != "failed":
            runs[entry.arm][entry.task, entry.seed] = one.run
    return runs


def machines(plan: Plan) -> list[dict[str, Any]]:
    """Return code and machine of the calls that started runs, oldest first."""
    try:
        return list(json.loads((plan.folder / MACHINE).read_text()))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise UserError(f"{plan.folder / MACHINE} is damaged ({error}); delete it") from None


def _head(plan: Plan, found: Mapping[Entry, Found]) -> Iterable[str]:
    counts = Counter(one.state for one in found.values())
    waiting = counts.pop("queued", 0)  # perhaps for ever: a plan need not be worked off
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    rest = f" Not started: {waiting} of the plan's {len(found)}." if waiting else ""
    common = " ".join(f"`{override}`" for override in plan.overrides) or "none"
    begun = f"{counted(len(found) - waiting, 'run')} of {plan.frames:,} frames: {states}.{rest}"
    yield f"{begun} Seeds {show(plan.seeds)}. Overrides of all: {common}."
    rows = [(arm, " ".join(f"`{override}`" for override in own) or "none") for arm, own in plan.arms.items()]
    yield _markdown(("arm", "overrides"), rows)
    for one in machines(plan):
        dirty = " with uncommitted changes" if one["dirty"] else ""
        yield (
            f"From {one['time']}: commit {str(one['commit'])[:9]}{dirty}, {one['processor']}, "
            f"{counted(one['cores'], 'core')}, {counted(one.get('threads', 1), 'thread')} for each run, "
            f"torch {one['torch']}."
        )
    yield from (f"{line[0].upper()}{line[1:]}." for line in elsewhere(plan, found))
    starts = [start for one in found.values() if one.run for start in one.run.starts]
    if len({(one.get("commit"), one.get("dirty")) for one in [*machines(plan), *starts]}) > 1:
        yield "**Not all runs were started with the same code.**"


def _unfinished(found: Mapping[Entry, Found]) -> Iterable[str]:
    rows = []
    for entry, one in found.items():
        if one.state not in ("finished", "queued"):
            why = f"failed with exit code {one.code}: {one.message}" if one.state == "failed" else one.state
            rows.append((entry.name, f"{one.frame:,}", why.replace("|", "\\|")))
    if rows:
        yield "## Runs that are not finished"
        yield _markdown(("run", "frame", "state"), rows)
        yield "Failed runs count in no table below."


def _task(plan: Plan, runs: Runs, task: str, references: Sequence[Reference]) -> Iterable[str]:
    """Return a task's returns at the frames of the plan, areas and speeds."""
    ends = _ends(plan, runs)
    rows, cut = [], False
    for arm, own in runs.items():
        mine = [own.get((task, seed)) for seed in plan.seeds]
        cells = [_seeds([value_at(run, frame) if run else np.nan for run in mine]) for frame in plan.at]
        until = [ends.get((task, seed), 0.0) for seed in plan.seeds]
        short = [
            run is not None and end < plan.frames - run.frames_per_round for run, end in zip(mine, until, strict=True)
        ]
        areas = [area(run, end) if run else np.nan for run, end in zip(mine, until, strict=True)]
        cut |= any(short)
        reached = max((run.frames[-1] for run in mine if run), default=0)
        begun = [run for run in mine if run and run.frames[-1] >= reached / 2]  # others may not have updates yet
        speeds = [run.fps for run in begun if np.isfinite(run.fps)]
        rows.append((arm, *cells, _seeds(areas, short), f"{np.median(speeds):.1f}" if speeds else "-"))
    for one in references:
        x, y = one.curve["frame"], one.curve["mean"]
        values = (float(np.interp(frame, x, y, left=np.nan, right=np.nan)) for frame in plan.at)
        rows.append((one.long, *(f"{value:.1f}" if np.isfinite(value) else "-" for value in values), "-", "-"))
    yield f"## {task}"
    yield _markdown(("arm", *(f"return at {frame:,}" for frame in plan.at), _AREA, "frames/s"), rows)
    seeds = ", ".join(map(str, plan.seeds))
    text = f"Mean (seeds {seeds}). *Area*: mean return over frames, the area under the curve divided by its frames."
    yield text + (" \\*: up to the last frame that all arms have reached with this seed." if cut else "")


def _ends(plan: Plan, runs: Runs) -> dict[Pair, float]:
    """Return the last frame that all arms which have begun a task with a seed have reached."""
    found = {}
    for pair in product(plan.tasks, plan.seeds):
        begun = [own[pair].frames[-1] for own in runs.values() if pair in own and len(own[pair].frames) > 1]
        if begun:
            found[pair] = float(min(begun))
    return found


def _seeds(values: Sequence[float], marked: Sequence[bool] = ()) -> str:
    """Return the mean of the seeds that have a value, and the value of each."""
    known = [value for value in values if np.isfinite(value)]
    if not known:
        return "-"
    marks = ["\\*" if mark else "" for mark in marked] or [""] * len(values)
    each = [f"{value:.1f}{mark}" if np.isfinite(value) else "-" for value, mark in zip(values, marks, strict=True)]
    return f"{np.mean(known):.1f} ({', '.join(each)})"


def _differences(plan: Plan, runs: Runs) -> Iterable[str]:
    """Return the differences of each arm to the first, on each task and on all."""
    first, *others = plan.arms
    if not others:
        return
    rows = []
    for arm in others:
        for name, before, after in _measures(plan, runs[first], runs[arm]):
            for task in plan.tasks:
                rows.append(_row(arm, task, name, difference(_of(task, before), _of(task, after))))
            if len(plan.tasks) > 1:
                found = difference(before, after)
                some = "all" if found.tasks == len(plan.tasks) else f"{found.tasks} of {len(plan.tasks)} tasks"
                rows.append(_row(arm, f"**{some}**", name, found))
    yield f"## Differences to {first}"
    yield _markdown(("arm", "task", "of", "pairs", "difference", "95 % interval", "reading", "better"), rows)
    yield (
        f"Mean over pairs of runs with the same task and seed, {first} subtracted; areas up to the last frame that "
        "both runs of a pair have reached. Over several tasks, the mean of their means. Percentile bootstrap over the "
        f"seeds of each task, with at least {LEAST} pairs of each. With few seeds these intervals are too narrow: with "
        "three pairs, they are the range of the differences. *Better*: the probability that a run of the arm is better "
        f"than one of {first} on the same task, with its interval; ties count half."
    )


def _measures(
    plan: Plan, first: Mapping[Pair, Run], other: Mapping[Pair, Run]
) -> Iterable[tuple[str, dict[Pair, float], dict[Pair, float]]]:
    """Yield what is compared: its name, and the values of the first and of the other arm."""
    pairs = [pair for pair in first if pair in other]
    ends = {pair: float(min(first[pair].frames[-1], other[pair].frames[-1])) for pair in pairs}
    before, after = ({pair: area(own[pair], ends[pair]) for pair in pairs} for own in (first, other))
    yield _AREA, before, after
    for frame in plan.at:
        before, after = ({pair: value_at(own[pair], frame) for pair in pairs} for own in (first, other))
        yield f"return at {frame:,}", before, after


def _of(task: str, values: Mapping[Pair, float]) -> dict[Pair, float]:
    return {pair: value for pair, value in values.items() if pair[0] == task}


def _row(arm: str, task: str, name: str, found: Difference) -> tuple[str, ...]:
    start = arm, task, name, str(found.pairs), f"{found.mean:+.1f}" if found.pairs else "-"
    better = written(found.better, found.better_bounds, 2) if found.pairs else "-"
    if found.bounds is None:
        return *start, "-", f"fewer than {LEAST} pairs: no interval", better
    low, high = map(float, found.bounds)
    reading = "above 0" if low > 0 else "below 0" if high < 0 else "contains 0"
    return *start, f"{low:+.1f} to {high:+.1f}", reading, better


def _notes(plan: Plan, found: Mapping[Entry, Found]) -> Iterable[str]:
    """Return what a reader of the curves should know."""
    lines = []
    for task in plan.tasks:
        for group in _groups(plan, found, task):
            lines += [f"- {group.label}, {task}: {line}" for line in warnings(group, None)]
    if lines:
        yield "## Notes"
        yield "\n".join(lines)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
