"""Metrics of several tasks: the mean over tasks, and each task's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drqv2.evaluation.episodes import EpisodeResult


def metrics(
    played: Sequence[int], results: Sequence[EpisodeResult], repeats: Sequence[int], suffixes: Sequence[str]
) -> dict[str, float]:
    """Return return, length in frames and success of episodes: each task's mean, and the mean over these tasks.

    Args:
        played: index of the task of each episode.
        results: of each episode; its length is in agent steps.
        repeats: environment frames in one agent step of each task.
        suffixes: how the names of each task's metrics end, such as `/walker_walk`.

    Returns:
        The metrics by name; `success` where an environment says so.
    """
    own: dict[str, dict[int, list[float]]] = {"episode_reward": {}, "episode_length": {}, "success": {}}
    for task, (total, steps, success) in zip(played, results, strict=True):
        values = {"episode_reward": total, "episode_length": steps * repeats[task], "success": success}
        for metric, value in values.items():
            if value is not None:
                own[metric].setdefault(task, []).append(float(value))
    found: dict[str, float] = {}
    for metric, by_task in own.items():
        means = {task: float(np.mean(values)) for task, values in sorted(by_task.items())}
        if means:
            found[metric] = float(np.mean(list(means.values())))
        for task, mean in means.items():
            found[f"{metric}{suffixes[task]}"] = mean
    return found
