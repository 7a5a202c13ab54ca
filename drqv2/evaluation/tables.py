"""The tables that eval.py prints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drqv2.evaluation.statistics import LEAST, Interval, interval, iqm, mean, mean_over_tasks, stratified_interval
from drqv2.run.stats import EpisodeResult


def episodes_table(results: Sequence[EpisodeResult], action_repeat: int) -> list[str]:
    """Return the lines of one task: each episode, then mean and IQM with their intervals, minimum and maximum."""
    values = np.array([result.total for result in results])
    lines = [f"{'episode':>8} {'return':>10} {'frames':>8}"]
    lines += [f"{i:>8} {one.total:>10.1f} {one.steps * action_repeat:>8}" for i, one in enumerate(results)]
    for name, statistic in (("mean", mean), ("IQM", iqm)):
        between = _between(interval(values, statistic))
        shown = f"95 % bootstrap interval {between}" if between else f"no interval from fewer than {LEAST} episodes"
        lines.append(f"{name:>8} {statistic(values):>10.1f}   {shown}")
    lines += [f"{'minimum':>8} {values.min():>10.1f}", f"{'maximum':>8} {values.max():>10.1f}"]
    share = success_share(results)
    return lines if share is None else [*lines, f"{'success':>8} {share:>10.2f}"]


def tasks_table(names: Sequence[str], results: Sequence[Sequence[EpisodeResult]]) -> list[str]:
    """Return the lines of several tasks: mean return with its interval and share of successes; last, their means.

    The interval of the mean over tasks is a bootstrap over the episodes of each task.
    """
    width = max(8, *(len(name) for name in names))
    returns = [np.array([result.total for result in own]) for own in results]
    rows = [(name, mean(values), interval(values)) for name, values in zip(names, returns, strict=True)]
    rows.append(("mean", mean_over_tasks(returns), stratified_interval(returns, mean_over_tasks)))
    lines = [f"{'task':<{width}} {'return':>10}   {'95 % interval':<20}"]
    lines += [f"{name:<{width}} {value:>10.1f}   {_between(bounds) or '-':<20}" for name, value, bounds in rows]
    shares = [success_share(own) for own in results]
    known = [share for share in shares if share is not None]
    if known:
        ends = ["success", *("" if share is None else f"{share:.2f}" for share in (*shares, float(np.mean(known))))]
        lines = [f"{line} {end:>8}" for line, end in zip(lines, ends, strict=True)]
    lines = [line.rstrip() for line in lines]
    few = min(map(len, returns)) < LEAST
    return [*lines, f"no interval from fewer than {LEAST} episodes"] if few else lines


def _between(bounds: Interval | None) -> str:
    return "" if bounds is None else f"{bounds[0]:.1f} to {bounds[1]:.1f}"


def success_share(results: Sequence[EpisodeResult]) -> float | None:
    """Return the share of episodes that succeeded; None where the environment does not report it."""
    values = [result.success for result in results]
    return None if None in values else float(np.mean(values))  # type: ignore[arg-type]
