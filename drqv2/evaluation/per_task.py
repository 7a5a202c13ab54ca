"""Metrics of one task or several: each task's own, and the mean over tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from drqv2.run.stats import EpisodeResult


def metrics(
    played: Sequence[int],
    results: Sequence[EpisodeResult],
    repeats: Sequence[int],
    suffixes: Sequence[str],
    not_learnt: Collection[int] = (),
) -> dict[str, float]:
    """Return return, length in frames, success and numbers in `info` of episodes: means of each task, and over tasks.

    Args:
        played: index of the task of each episode.
        results: of each episode; its length is in agent steps.
        repeats: environment frames in one agent step of each task.
        suffixes: how the names of each task's metrics end, such as `/walker_walk`.
        not_learnt: indices of tasks that the agent does not learn from, which the means over tasks leave out.

    Returns:
        The metrics by name; `success` where an environment reports it.
    """
    own: dict[int, dict[str, list[float]]] = {task: {} for task in sorted(set(played))}
    for task, one in zip(played, results, strict=True):
        for metric, value in one.metrics(repeats[task]).items():
            own[task].setdefault(metric, []).append(value)
    means = {task: {name: float(np.mean(values)) for name, values in found.items()} for task, found in own.items()}
    return with_means(means, suffixes, not_learnt)


def with_means(
    own: Mapping[int, Mapping[str, float]], suffixes: Sequence[str], left_out: Collection[int] = ()
) -> dict[str, float]:
    """Return the metrics of each task, whose names end in its suffix, and their means over the tasks that have them.

    Args:
        own: metrics of each task by its index; a task may lack some.
        suffixes: of all tasks.
        left_out: indices of tasks that the means leave out.
    """
    names = dict.fromkeys(name for metrics in own.values() for name in metrics)
    found: dict[str, float] = {}
    for name in names:
        values = [metrics[name] for task, metrics in own.items() if name in metrics and task not in left_out]
        if values:
            found[name] = float(np.mean(values))
        found |= {f"{name}{suffixes[task]}": metrics[name] for task, metrics in own.items() if name in metrics}
    return found
