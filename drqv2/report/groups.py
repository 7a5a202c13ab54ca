"""Groups of runs with the same task and setting, and what a reader of their curves should know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import LEAST
from drqv2.report.published import Published
from drqv2.report.runs import Run
from drqv2.report.settings import settings

_NOT_LEARNT = 0.2  # a seed below this fraction of the others' return counts as not learning


@dataclass
class Group:
    """Runs that differ only in their seed.

    Attributes:
        task: name of the task, or the label of several.
        label: the keys in which the group differs from most runs of the page.
        short: what tells it from the others, in at most about 44 characters; the same on all tasks.
        setting: number of the setting, the same on all tasks.
        runs: ordered by seed.
    """

    task: str
    label: str
    short: str
    setting: int
    runs: list[Run]

    @property
    def has_success(self) -> bool:
        """Whether a run reports success."""
        return any(run.has_success for run in self.runs)

    @property
    def title(self) -> str:
        """The full label with the number of seeds."""
        return f"{self.label} ({seeds(self.runs)})"


def group(runs: Sequence[Run]) -> list[Group]:
    """Group runs and their parts by task and setting, ordered by task name, then by setting."""
    known = settings(runs)
    members: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        for one in (run, *run.parts):
            members.setdefault((one.task, known[id(one)].index), []).append(one)
    found = []
    for (task, index), own in sorted(members.items()):
        setting = known[id(own[0])]
        found.append(Group(task, setting.label, setting.short, index, sorted(own, key=lambda run: run.seed)))
    return found


def seeds(runs: Sequence[Run]) -> str:
    """Return how many seeds there are, in words, and whether they are too few for an interval."""
    few = "" if has_interval(runs) else ", no interval"
    return f"{counted(len(runs), 'seed')}{few}"


def has_interval(runs: Sequence[Run]) -> bool:
    """Whether enough of the runs have an evaluation for an interval over seeds."""
    return sum(len(run.frames) > 0 for run in runs) >= LEAST


def warnings(group: Group, published: Published | None) -> list[str]:
    """Return what a reader of the group's curves should know, one sentence each."""
    found = []
    for run in group.runs:
        name = f"seed {run.seed} ({run.path.name})"
        if run.learnt and (reason := _not_learnt(run, group.runs, published)):
            found.append(f"{name} has not learnt: {reason}")
        if run.whole:
            continue  # the rest is reported with the run
        for before, start in zip(run.starts, run.starts[1:], strict=False):
            message = f"{name} was resumed at frame {start.get('frame', 0):,} ({start.get('time', 'at unknown time')})"
            if before.get("commit") != start.get("commit"):
                message += f" with different code: {_short(before)} before, {_short(start)} after"
            found.append(message)
        if any(start.get("dirty") for start in run.starts):
            found.append(f"{name} was run with uncommitted changes")
        found += [f"{name}: {fault}" for fault in run.faults]
        if not len(run.frames):
            found.append(f"{name} has no evaluation yet")
    if behind := _behind(group.runs):
        found.append(behind)
    commits = {_short(run.starts[-1]) for run in group.runs if run.starts and not run.whole}
    if len(commits) > 1:
        found.append(f"its seeds were run with different commits: {', '.join(sorted(commits))}")
    counts = Counter(run.seed for run in group.runs if not run.whole)
    if repeated := [str(seed) for seed, count in counts.items() if count > 1]:
        found.append(f"seed {', '.join(repeated)} occurs more than once")
    return found


def _behind(runs: Sequence[Run]) -> str:
    """Return which seed ends before others; "" if they end together. Of a part it is reported with the run."""
    evaluated = [run for run in runs if len(run.frames) and not run.whole]
    ends = [run.frames[-1] for run in evaluated]
    if not ends or max(ends) - min(ends) <= max(run.frames_per_round for run in evaluated):
        return ""
    last = evaluated[int(np.argmin(ends))]
    name = f"seed {last.seed} ({last.path.name})"
    return f"{name} ends at frame {min(ends):,.0f}, another seed at {max(ends):,.0f}"


def _not_learnt(run: Run, runs: Sequence[Run], published: Published | None) -> str:
    """Return why a seed counts as not learning; "" if it learns."""
    if len(run.frames) < 3:
        return ""
    end, own = run.frames[-1], float(run.returns[-3:].mean())
    others = [r for r in runs if r is not run and len(r.frames) >= 3]
    if others:
        theirs = float(np.median([np.interp(end, r.frames, r.returns) for r in others]))
        initial = float(np.median([r.returns[0] for r in others]))
        if theirs > initial and own - initial < _NOT_LEARNT * (theirs - initial):
            return f"its return is {own:.0f}, that of the other seeds {theirs:.0f}"
    if published is not None and len(published["frame"]) > 1 and end >= published["frame"][1]:
        theirs = float(np.interp(end, published["frame"], published["mean"]))
        if theirs > 50 and own < _NOT_LEARNT * theirs:
            return f"its return is {own:.0f}, the published mean {theirs:.0f}"
    return ""


def _short(start: dict[str, Any]) -> str:
    return str(start.get("commit") or "unknown")[:9]
