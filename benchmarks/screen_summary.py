"""What benchmarks.screen tells of all tasks: mean returns beside published ones, and when returns are reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from benchmarks.paired import Pair
from benchmarks.screen_plan import Plan
from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import LEAST, Interval, mean_over_tasks
from drqv2.report.curves import series, value_at
from drqv2.report.published import Reference
from drqv2.report.runs import Run

REACHED = (500, 900)  # returns
Runs = Mapping[str, Mapping[Pair, Run]]  # by arm, task and seed
References = Mapping[str, Sequence[Reference]]  # by task
Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # head and rows


class Mean(NamedTuple):
    """A mean over tasks with its 95 % interval, NaN where there is none, and the numbers of seeds of the tasks."""

    value: float
    low: float
    high: float
    seeds: Sequence[int]

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return "-"
        if np.isfinite(self.low):
            return f"{self.value:.0f} ({self.low:.0f} to {self.high:.0f})"
        fewest, most = min(self.seeds), max(self.seeds)
        return f"{self.value:.0f} ({f'{fewest} to ' if fewest < most else ''}{counted(most, 'seed')})"


def of_runs(own: Mapping[Pair, Run], tasks: Sequence[str], frame: int) -> Mean:
    """Return the mean over tasks of the mean over seeds at a frame; NaN unless there is a run of each task.

    Its interval is `students_t` over the seeds.
    """
    strata = [values[np.isfinite(values)] for values in (_values(own, task, frame) for task in tasks)]
    seeds = [len(values) for values in strata]
    if not all(seeds):
        return Mean(np.nan, np.nan, np.nan, seeds)
    low, high = map(float, students_t(strata) or (np.nan, np.nan))
    return Mean(float(mean_over_tasks(strata)), low, high, seeds)


def students_t(strata: Sequence[np.ndarray]) -> Interval | None:
    """Return the 95 % interval of the mean over tasks, by Student's t; None with fewer than LEAST seeds of a task.

    A bootstrap, as `statistics.stratified_interval` has, would be narrower with few seeds than the intervals of
    published means, which can only be had by Student's t.

    Args:
        strata: values of each task, [seeds] or [seeds, N].
    """
    seeds = np.array([len(own) for own in strata])
    if seeds.min() < LEAST:
        return None
    means, variances = ([of(own, axis=0) for own in strata] for of in (np.mean, np.var))
    half = _half_width(variances, seeds)
    middle = np.mean(means, axis=0)
    return middle - half, middle + half


def _half_width(variances: Sequence[Any], seeds: np.ndarray) -> Any:
    """Return half of the 95 % interval of a mean over tasks, from the variances (divided by n) of their seeds.

    The degrees of freedom are those of all tasks together.
    """
    error = np.sqrt(sum(one / (n - 1) for one, n in zip(variances, seeds, strict=True))) / len(seeds)
    return stats.t.ppf(0.975, np.sum(seeds - 1)) * error


def of_published(curves: Sequence[Reference], frame: int) -> Mean:
    """Return the mean at a frame of a method's curves, one of each task, with an interval by Student's t.

    NaN where a curve begins later or ends before, and bounds of NaN where a task has fewer than LEAST seeds or no
    standard deviation.
    """
    means, variances = [], []
    seeds = np.array([one.curve["n_seeds"].min() for one in curves], int)
    for one in curves:
        x, std = one.curve["frame"], one.curve["std"]
        means.append(np.interp(frame, x, one.curve["mean"], left=np.nan, right=np.nan))
        variances.append(np.interp(frame, x, std) ** 2)
    value = float(np.mean(means))
    if seeds.min() < LEAST:
        return Mean(value, np.nan, np.nan, seeds.tolist())
    half = float(_half_width(variances, seeds))  # `std` is that of the seeds, not of a population
    return Mean(value, value - half, value + half, seeds.tolist())


def published_on_all(plan: Plan, references: References) -> dict[str, list[Reference]]:
    """Return the curves of the methods that were published on all tasks of the plan, by their names in a legend."""
    by_method: dict[str, list[Reference]] = {}
    for task in plan.tasks:
        for one in references.get(task, ()):
            by_method.setdefault(one.short, []).append(one)
    return {name: curves for name, curves in by_method.items() if len(curves) == len(plan.tasks)}


def over_tasks(plan: Plan, runs: Runs, references: References) -> Iterable[str | Table]:
    """Yield a section on means over the plan's tasks: of each arm, and of methods published on all of them."""
    arms = {arm: [of_runs(own, plan.tasks, frame) for frame in plan.at] for arm, own in runs.items()}
    whole = published_on_all(plan, references)
    methods = {name: [of_published(curves, frame) for frame in plan.at] for name, curves in whole.items()}
    rows = [(name, *map(str, means)) for name, means in (arms | methods).items()]
    yield "## Mean over tasks"
    yield ("arm", *(f"return at {frame:,}" for frame in plan.at)), rows
    yield (
        f"In brackets 95 % intervals by Student's t, where there are at least {LEAST} seeds of each task. They show "
        "how the mean varies with seeds, not with the choice of tasks. Published methods have other settings "
        "(results/published)."
    )
    lines = []
    for arm, means in arms.items():
        above = [name for name, others in methods.items() if means[-1].low > others[-1].high]
        below = [name for name, others in methods.items() if means[-1].high < others[-1].low]
        for word, names in (("above", above), ("below", below)):
            if names:
                lines.append(f"- {arm}: {word} {'; '.join(names)}")
    if lines:
        yield f"Intervals at {plan.at[-1]:,} frames that do not overlap:"
        yield "\n".join(lines)


def _values(own: Mapping[Pair, Run], task: str, frame: int) -> np.ndarray:
    return np.array([value_at(run, frame) for (name, _), run in own.items() if name == task])


def until(plan: Plan, runs: Runs, references: References) -> Iterable[str | Table]:
    """Yield a section on frames and minutes until returns are reached: of each seed, and of published means."""
    rows = []
    for task in plan.tasks:
        for arm, own in runs.items():
            mine = [own[task, seed] for seed in plan.seeds if (task, seed) in own]
            cells = []
            for value in REACHED:
                found = [first(run, value) for run in mine]
                cells += [_cell([point[i] for point in found], "{:,.0f}") for i in range(2)]
            rows.append((task, arm, *cells))
        for one in references.get(task, ()):
            x, y = one.curve["frame"], one.curve["mean"]
            cells = []
            for value in REACHED:
                frame = min(x[(y >= value) & (x <= plan.frames)], default=np.inf)
                minutes = frame / 60 / plan.reference_fps[one.method] if one.method in plan.reference_fps else None
                cells += [_cell([float(frame)], "{:,.0f}"), "" if minutes is None else _cell([minutes], "{:,.0f}")]
            rows.append((task, one.short, *cells))
    speeds = ", ".join(f"{method} {fps:g}" for method, fps in plan.reference_fps.items())
    how = f" Their minutes follow from the frames per second that the plan names: {speeds}." if speeds else ""
    yield "## Frames and minutes until a return is reached"
    yield ("task", "arm", *(head for value in REACHED for head in (f"return of {value}", "minutes"))), rows
    yield (
        "The first evaluation after frame 0 with at least this return, and the minutes of training until then: the "
        "median of the seeds, and each. A dash: not reached; ?: not yet, and then there is no median. Of published "
        "methods it is the first published frame at which the mean of the seeds is as high. They have fewer "
        f"evaluations, and a mean rises later than its best seeds do, so this comparison favours the arms.{how}"
    )


def first(run: Run, value: float) -> tuple[float, float]:
    """Return frame and minutes of a run's first evaluation, after frame 0, with at least a return.

    Infinity if a run that has ended never came to it; NaN if one that has not ended may still do.
    """
    frames, returns = series(run, "frames", "returns")
    hours, _ = series(run, "hours", "returns")
    reached = np.flatnonzero((returns >= value) & (frames > 0))
    if len(reached):
        return float(frames[reached[0]]), 60 * float(hours[reached[0]])
    return (np.inf, np.inf) if run.finished else (np.nan, np.nan)


def _cell(values: Sequence[float], form: str) -> str:
    """Return the median and each value; infinity as a dash, NaN as a question mark."""
    shown = ["?" if np.isnan(value) else form.format(value) if np.isfinite(value) else "-" for value in values]
    if len(set(shown)) <= 1:
        return shown[0] if shown else ""
    median = float(np.median(values))
    middle = "" if np.isnan(median) else (form.format(median) if np.isfinite(median) else "-") + " "
    return f"{middle}({'; '.join(shown)})"
