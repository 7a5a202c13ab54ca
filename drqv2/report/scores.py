"""Scores of settings on tasks: success where a run of the task reports it, else return / 1000 on tasks of dm_control.

A score is in [0, 1], so that scores of different tasks can be averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drqv2.config.regimes.drqv2 import OTHER_LENGTH
from drqv2.evaluation.statistics import LEAST
from drqv2.report.curves import Series, interpolated, series
from drqv2.report.groups import Group
from drqv2.report.runs import Run

# Of dm_control.suite: an episode of 1000 frames with rewards in [0, 1]. Those of the manipulation tasks are shorter.
_DOMAINS = (
    "acrobot ball_in_cup cartpole cheetah cup dog finger fish hopper humanoid humanoid_CMU manipulator pendulum "
    "point_mass quadruped reacher stacker swimmer walker"
).split()


@dataclass
class Scores:
    """The scores of one setting.

    Attributes:
        group: one of its groups, for its labels.
        tasks: for each task the frames and scores of each seed's evaluations, by the seed's name.
    """

    group: Group
    tasks: dict[str, dict[str, Series]]

    @property
    def strata(self) -> list[list[Series]]:
        """The seeds of each task."""
        return [list(seeds.values()) for seeds in self.tasks.values()]

    @property
    def counts(self) -> list[int]:
        """The number of seeds of each task."""
        return [len(seeds) for seeds in self.tasks.values()]

    def at(self, frame: float) -> list[np.ndarray]:
        """Return the scores of each task at a frame, linear between evaluations, [seeds] each."""
        return [interpolated(seeds, np.array([frame]))[:, 0] for seeds in self.strata]

    def described(self) -> str:
        """Return how many seeds there are of each task, and whether they are too few for an interval."""
        fewest, most = min(self.counts), max(self.counts)
        text = f"{fewest}" if fewest == most else f"{fewest}-{most}"
        return f"{text} (no interval)" if fewest < LEAST else text


class CommonFrame(NamedTuple):
    """The last frame that all runs have reached.

    Attributes:
        frame: the frame.
        shortest: the run that goes no further, where others do; else "".
    """

    frame: float
    shortest: str


def score_of(groups: Sequence[Group]) -> str:
    """Return what the score of a task's runs is: "success", "return / 1000", or "" where there is none."""
    if any(group.has_success for group in groups):
        return "success"
    known = any(groups[0].task.startswith(f"{domain}_") for domain in _DOMAINS)
    own = all(_is_suite(run) for group in groups for run in group.runs)
    return "return / 1000" if known and own else ""


def scores_of(tasks: Mapping[str, Sequence[Group]], kinds: Mapping[str, str]) -> list[Scores]:
    """Return the scores of each setting, ordered by its number.

    Args:
        tasks: groups by task.
        kinds: what the score of each task is, as `score_of` says; tasks with "" are left out.
    """
    found: dict[int, Scores] = {}
    for task, kind in kinds.items():
        for group in tasks[task] if kind else ():
            metric, scale = ("success", 1.0) if kind == "success" else ("returns", 1000.0)
            if own := seeds_of(group, metric, scale):
                found.setdefault(group.setting, Scores(group, {})).tasks[task] = own
    return [found[setting] for setting in sorted(found)]


def seeds_of(group: Group, metric: str, scale: float = 1.0) -> dict[str, Series]:
    """Return the evaluations of each run of a group that learns from its task, divided by `scale`."""
    every = {f"seed {run.seed} ({run.path})": series(run, "frames", metric) for run in group.runs if run.learnt}
    return {name: (x, y / scale) for name, (x, y) in every.items() if len(x)}


def common_frame(settings: Sequence[Scores]) -> CommonFrame | None:
    """Return the last frame that all runs of all settings have reached; None if one of them begins after it."""
    every = {
        f"{name} of {one.group.short} on {task}": x
        for one in settings
        for task, seeds in one.tasks.items()
        for name, (x, _) in seeds.items()
    }
    name = min(every, key=lambda name: every[name][-1])
    frame = float(every[name][-1])
    if max(x[0] for x in every.values()) > frame:
        return None
    return CommonFrame(frame, name if max(x[-1] for x in every.values()) > frame else "")


def _is_suite(run: Run) -> bool:
    """Whether a run's tasks are those of dm_control; a part's may be named by a library."""
    own = any(run.config.get(name) is not None for name in ("env_id", *OTHER_LENGTH))
    return not own and (not run.whole or run.task in (run.config.get("tasks") or ()))  # else metaworld:NAME or such
