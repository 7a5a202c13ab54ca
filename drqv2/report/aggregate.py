"""Scores over all tasks: interquartile mean against frames, and performance profiles.

Agarwal et al., Deep RL at the Edge of the Statistical Precipice (NeurIPS 2021). A score is in [0, 1]: success where a
run of the task reports it, else return / 1000 on tasks of the DeepMind Control Suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from drqv2.evaluation.statistics import iqm, performance_profile, stratified_interval
from drqv2.report import charts, style
from drqv2.report.charts import Chart, Entry, Trace
from drqv2.report.curves import Curve, series, thinned
from drqv2.report.groups import Group
from drqv2.report.runs import Run

_POINTS = 50  # of a curve
_THRESHOLDS = np.linspace(0, 1, 101)
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
        tasks: for each task the frames and scores of each seed's evaluations, [M] each.
    """

    group: Group
    tasks: dict[str, list[tuple[np.ndarray, np.ndarray]]]

    @property
    def end(self) -> float:
        """The last frame that half of the seeds of every task have reached."""
        ends = (sorted(frames[-1] for frames, _ in seeds) for seeds in self.tasks.values())
        return float(min(own[(len(own) - 1) // 2] for own in ends))

    def at(self, frames: np.ndarray) -> list[np.ndarray]:
        """Return each task's scores at frames [N], linear between evaluations, NaN beyond the last: [seeds, N] each."""
        return [np.stack([np.interp(frames, x, y, right=np.nan) for x, y in seeds]) for seeds in self.tasks.values()]


@dataclass
class Aggregate:
    """The aggregate over all tasks that the page shows.

    Attributes:
        tasks: the tasks that count, with what their score is.
        curve: interquartile mean of the scores against frames.
        profile: fraction of scores above a threshold.
        frame: frame of the profile.
        unscored: tasks without a known score.
        left_out: settings and tasks that are left out, and why.
    """

    tasks: dict[str, str]
    curve: Chart
    profile: Chart
    frame: int
    unscored: list[str]
    left_out: list[str] = field(default_factory=list)


def score_of(groups: Sequence[Group]) -> str:
    """Return what the score of a task's runs is: "success", "return / 1000", or "" where there is none."""
    if any(group.has_success for group in groups):
        return "success"
    known = any(groups[0].task.startswith(f"{domain}_") for domain in _DOMAINS)
    own = all(_is_suite(run) for group in groups for run in group.runs)
    return "return / 1000" if known and own else ""


def aggregate(tasks: Mapping[str, Sequence[Group]]) -> Aggregate | None:
    """Return the aggregate of all settings over the tasks that most of them share; None with fewer than two tasks.

    Only settings with the same tasks can be compared. So the tasks are those of as many settings as possible, at least
    two, and settings that lack one of them are left out.

    Args:
        tasks: groups by task.
    """
    kinds = {task: score_of(groups) for task, groups in tasks.items()}
    unscored = sorted(task for task, kind in kinds.items() if not kind)
    settings = _settings(tasks, kinds)
    sets = Counter(frozenset(scores.tasks) for scores in settings if len(scores.tasks) > 1)
    if not sets:
        return None
    chosen = max(sets, key=lambda names: (sum(names <= set(s.tasks) for s in settings), len(names), sorted(names)))
    counted = {task: kinds[task] for task in tasks if task in chosen}
    left_out = _left_out(tasks, settings, chosen)
    if others := sorted({task for task, kind in kinds.items() if kind} - chosen):
        left_out.append(f"the tasks {_some(others)}: not all of the settings shown have them")
    shown = [Scores(s.group, {task: s.tasks[task] for task in counted}) for s in settings if chosen <= set(s.tasks)]
    frame = min(scores.end for scores in shown)
    entries = [_entry(scores) for scores in shown]
    curves = [charts.trace(i, s.group.label, {}, _curve(s)) for i, s in enumerate(shown)]
    profiles = [_profile(i, s, frame) for i, s in enumerate(shown)]
    titles = {"": charts.X_TITLES["frames"]}, {"": "IQM of scores"}
    curve = Chart(entries, curves, {}, *titles, height=320)
    profile = Chart(entries, profiles, {}, {"": "score τ"}, {"": "fraction of runs above τ"}, height=320)
    return Aggregate(counted, curve, profile, int(frame), unscored, left_out)


def _left_out(tasks: Mapping[str, Sequence[Group]], settings: Sequence[Scores], chosen: frozenset[str]) -> list[str]:
    """Return which settings are not compared on the chosen tasks, and why."""
    lacking = [(s.group.short, chosen - set(s.tasks)) for s in settings]
    scored = {s.group.setting for s in settings}
    without = {g.setting: g.short for groups in tasks.values() for g in groups if g.setting not in scored}
    found = [f"{name}: no scores on {_some(missing)}" for name, missing in lacking if missing]
    return found + [f"{name}: no scores" for _, name in sorted(without.items())]


def _settings(tasks: Mapping[str, Sequence[Group]], kinds: Mapping[str, str]) -> list[Scores]:
    found: dict[int, Scores] = {}
    for task, kind in kinds.items():
        for group in tasks[task] if kind else ():
            metric, scale = ("success", 1.0) if kind == "success" else ("returns", 1000.0)
            learnt = [run for run in group.runs if run.learnt]
            own = [(x, y / scale) for x, y in (series(run, "frames", metric) for run in learnt) if len(x)]
            if own:
                found.setdefault(group.setting, Scores(group, {})).tasks[task] = own
    return [found[setting] for setting in sorted(found)]


def _curve(scores: Scores) -> Curve:
    every = np.unique(np.concatenate([x for seeds in scores.tasks.values() for x, _ in seeds]))
    x = thinned(every[every <= scores.end], _POINTS)
    strata = scores.at(x)
    pooled = np.concatenate(strata)  # [tasks x seeds, N]
    y, low, high = np.empty(len(x)), np.empty(len(x)), np.empty(len(x))
    present = ~np.isnan(pooled)
    for pattern in np.unique(present, axis=1).T:  # ranges of x that the same seeds reach
        covered = (present == pattern[:, None]).all(0)
        reached = [own[~np.isnan(own[:, covered][:, 0])][:, covered] for own in strata]
        y[covered] = iqm(np.concatenate(reached))
        low[covered], high[covered] = stratified_interval(reached, iqm)
    return Curve(x, y, low, high)


def _profile(entry: int, scores: Scores, frame: float) -> Trace:
    strata = [own[~np.isnan(own)] for own in (own[:, 0] for own in scores.at(np.array([frame])))]

    def profile(values: np.ndarray) -> np.ndarray:
        return performance_profile(values, _THRESHOLDS)

    low, high = stratified_interval(strata, profile)
    curve = Curve(_THRESHOLDS, profile(np.concatenate(strata)), low, high)
    return charts.trace(entry, scores.group.label, {}, curve)


def _entry(scores: Scores) -> Entry:
    counts = sorted({len(seeds) for seeds in scores.tasks.values()})
    many = f"{len(scores.tasks)} tasks, {'-'.join(map(str, counts[:1] + counts[1:][-1:]))} seeds of each"
    group = scores.group
    return Entry(group.short, f"{group.label} ({many})", style.colour(group.setting), style.dash(group.setting))


def _is_suite(run: Run) -> bool:
    """Whether a run's tasks are those of dm_control; a part's may be named by a library."""
    own = any(run.config.get(name) is not None for name in ("env_id", "env._target_", "env.time_limit"))
    return not own and (not run.whole or run.task in (run.config.get("tasks") or ()))  # else metaworld:NAME or such


def _some(names: Sequence[str] | set[str] | frozenset[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
