"""Mean returns over the tasks of benchmarks.screen, beside published ones, and when returns are reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.paired import Pair
from benchmarks.screen_plan import Plan
from drqv2.evaluation.statistics import LEAST, mean_over_tasks, stratified_interval
from drqv2.report.curves import series, value_at
from drqv2.report.published import Reference
from drqv2.report.runs import Run

REACHED = (500, 900)  # returns
Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # head and rows


class Mean(NamedTuple):
    """A mean over tasks with its 95 % interval; `low` and `high` are NaN where there is none."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return "-"
        return f"{self.value:.0f}" + (f" ({self.low:.0f} to {self.high:.0f})" if np.isfinite(self.low) else "")


def of_runs(own: Mapping[Pair, Run], tasks: Sequence[str], frame: int) -> Mean:
    """Return the mean over tasks of the mean over seeds at a frame; NaN unless there is a run of each task.

    Seeds are resampled within each task, at least LEAST of each.
    """
    values = {task: [value_at(run, frame) for (name, _), run in own.items() if name == task] for task in tasks}
    strata = [np.array([value for value in each if np.isfinite(value)]) for each in values.values()]
    if not all(map(len, strata)):
        return Mean(np.nan, np.nan, np.nan)
    low, high = map(float, stratified_interval(strata, mean_over_tasks) or (np.nan, np.nan))
    return Mean(float(mean_over_tasks(strata)), low, high)


def of_published(curves: Sequence[Reference], frame: int) -> Mean:
    """Return the mean at a frame of a method's curves, one of each task, with 1.96 standard errors to each side.

    NaN where a curve begins later or ends before.
    """
    means, variances = [], []
    for one in curves:
        x, std = one.curve["frame"], one.curve["std"]
        means.append(np.interp(frame, x, one.curve["mean"], left=np.nan, right=np.nan))
        variances.append(np.interp(frame, x, std**2 / one.curve["n_seeds"]))  # of the mean over seeds
    value, error = float(np.mean(means)), float(np.sqrt(np.sum(variances))) / len(curves)
    return Mean(value, value - 1.96 * error, value + 1.96 * error)


def over_tasks(plan: Plan, runs: Mapping[str, Mapping[Pair, Run]]) -> Iterable[str | Table]:
    """Yield a section on means over the plan's tasks: of each arm, and of methods published on all of them."""
    arms = {arm: [of_runs(own, plan.tasks, frame) for frame in plan.at] for arm, own in runs.items()}
    by_method: dict[str, list[Reference]] = {}
    for task in plan.tasks:
        for one in plan.references().get(task, ()):
            by_method.setdefault(one.short, []).append(one)
    methods = {
        name: [of_published(curves, frame) for frame in plan.at]
        for name, curves in by_method.items()
        if len(curves) == len(plan.tasks)
    }
    yield "## Mean over tasks"
    rows = [(name, *map(str, means)) for name, means in (arms | methods).items()]
    yield ("arm", *(f"return at {frame:,}" for frame in plan.at)), rows
    yield (
        f"In brackets 95 % intervals: of arms with at least {LEAST} seeds of each task, a bootstrap over the seeds of "
        "each task; of published methods, 1.96 standard errors over their seeds. They say nothing of other tasks."
    )
    lines = []
    for arm, means in arms.items():
        for i, frame in enumerate(plan.at):
            above = [name for name, others in methods.items() if means[i].low > others[i].high]
            below = [name for name, others in methods.items() if means[i].high < others[i].low]
            for word, names in (("above", above), ("below", below)):
                if names:
                    lines.append(f"- {arm} at {frame:,} frames: {word} {'; '.join(names)}")
    if lines:
        yield "Intervals that do not touch:"
        yield "\n".join(lines)


def reached(plan: Plan, runs: Mapping[str, Mapping[Pair, Run]]) -> Iterable[str | Table]:
    """Yield a section on the frames until returns are reached: of each seed, and of the mean of published curves."""
    rows = []
    for task in plan.tasks:
        for arm, own in runs.items():
            mine = [own[task, seed] for seed in plan.seeds if (task, seed) in own]
            cells = [[first(*series(run, "frames", "returns"), value) for run in mine] for value in REACHED]
            for i, run in enumerate(mine):
                if run.frames[-1] < plan.frames - run.frames_per_round:  # it may reach them yet
                    for cell in cells:
                        cell[i] = cell[i] if np.isfinite(cell[i]) else np.nan
            rows.append((task, arm, *map(_seeds, cells)))
        for one in plan.references().get(task, ()):
            within = one.curve["frame"] <= plan.frames
            x, y = one.curve["frame"][within], one.curve["mean"][within]
            rows.append((task, one.short, *(_seeds([first(x, y, value)]) for value in REACHED)))
    yield "## Frames until a return is reached"
    yield ("task", "arm", *(f"{value}" for value in REACHED)), rows
    yield (
        "The first evaluation with at least this return: the median of the seeds, and each; of published methods, of "
        "the mean of their seeds. A dash: not within the run."
    )


def first(frames: np.ndarray, returns: np.ndarray, value: float) -> float:
    """Return the first frame at which a curve is at a value or above it; infinity if there is none."""
    return float(min(frames[returns >= value], default=np.inf))


def _seeds(frames: Sequence[float]) -> str:
    """Return the median and each, infinity as a dash, which also stands for infinities alone; NaN is left out."""
    known = [frame for frame in frames if not np.isnan(frame)]
    if not np.isfinite(known).any():
        return "-" if known else ""
    median, *each = (f"{frame:,.0f}" if np.isfinite(frame) else "-" for frame in (float(np.median(known)), *known))
    return median if len(known) == 1 else f"{median} ({'; '.join(each)})"
