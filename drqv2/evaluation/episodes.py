"""Episodes without exploration, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drqv2.errors import NotFiniteError


def play(
    envs: Sequence[Any],
    evaluation: int,
    episodes: int,
    act: Callable[[np.ndarray], np.ndarray],
    watch: Callable[[int, Any, Any], None],
) -> list[tuple[float, int]]:
    """Play episodes 0, 1, ... of an evaluation, each in the next environment that is free.

    An episode depends on (evaluation, its number) and on `act` alone, which sees one observation at a time: never on
    how many environments there are.

    Args:
        envs: handles on environments, see `drqv2.envs.handles`.
        evaluation: number of the evaluation, which seeds its episodes.
        episodes: how many.
        act: an observation, uint8 [C, H, W], to an action, float32 [A].
        watch: called with (episode, environment, time step) for every time step, the first included.

    Returns:
        Return and length in agent steps of each episode, by its number.

    Raises:
        NotFiniteError: a reward is NaN or infinite.
    """
    results: list[tuple[float, int]] = [(0.0, -1)] * episodes
    coming = iter(range(episodes))
    playing: dict[int, int] = {}  # environment -> episode

    def begin(i: int) -> None:
        episode = next(coming, None)
        if episode is not None:
            playing[i] = episode
            envs[i].start("begin", evaluation, episode)

    for i in range(len(envs)):
        begin(i)
    while playing:
        for i, episode in list(playing.items()):
            time_step = envs[i].finish()
            total, steps = results[episode]
            if not math.isfinite(time_step.reward):
                where = f"step {steps} of episode {episode} of evaluation {evaluation}"
                raise NotFiniteError(f"the reward is {time_step.reward} at {where}: mend the environment")
            results[episode] = total + time_step.reward, steps + 1
            watch(episode, envs[i], time_step)
            if time_step.last():
                del playing[i]
                begin(i)
            else:
                envs[i].start("step", act(time_step.observation))
    return results
