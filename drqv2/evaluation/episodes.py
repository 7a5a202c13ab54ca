"""Evaluation episodes, without exploration, in several environments in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from drqv2.envs.handles import EnvHandle
from drqv2.errors import NotFiniteError
from drqv2.logging.video import VideoRecorder
from drqv2.run.workspace import BaseWorkspace


def play(
    envs: Sequence[Any],
    evaluation: int,
    episodes: int,
    act: Callable[[Any, int], np.ndarray],
    watch: Callable[[int, Any, Any], None],
) -> list[tuple[float, int]]:
    """Play episodes 0, 1, ... of an evaluation, each in the next free environment.

    An episode depends only on its seed, (evaluation, episode), and on `act`, which gets one observation at a time, but
    not on the number of environments.

    Args:
        envs: handles on environments, see `drqv2.envs.handles`.
        evaluation: index of the evaluation, which seeds its episodes.
        episodes: number of episodes.
        act: maps a time step and the number of its episode to an action.
        watch: called with (episode, environment, time_step) for every time step, including the first.

    Returns:
        Return and length in agent steps of each episode.

    Raises:
        NotFiniteError: a reward is NaN or infinite.
    """
    results: list[tuple[float, int]] = [(0.0, -1)] * episodes
    upcoming = iter(range(episodes))
    running: dict[int, int] = {}  # environment -> episode

    def begin(i: int) -> None:
        episode = next(upcoming, None)
        if episode is not None:
            running[i] = episode
            envs[i].start("begin", evaluation, episode)

    for i in range(len(envs)):
        begin(i)
    while running:
        for i, episode in list(running.items()):
            time_step = envs[i].finish()
            total, steps = results[episode]
            require_finite(time_step, f"step {steps} of episode {episode} of evaluation {evaluation}")
            results[episode] = total + time_step.reward, steps + 1
            watch(episode, envs[i], time_step)
            if time_step.last():
                del running[i]
                begin(i)
            else:
                envs[i].start("step", act(time_step, episode))
    return results


def evaluate(
    run: BaseWorkspace, envs: Sequence[EnvHandle], recorder: VideoRecorder, act: Callable[[Any, int], np.ndarray]
) -> None:
    """Play num_eval_episodes of a run without exploration; log their returns and film the first.

    Raises:
        Stopped: the process was asked to stop.
        NotFiniteError: a reward is NaN or infinite.
    """
    video = run.work_dir / "eval_video" / f"{run.global_frame}.mp4"

    def film(episode: int, env: Any, time_step: Any) -> None:
        run.stop.raise_if_requested()
        if episode == 0:
            recorder.init(env) if time_step.first() else recorder.record(env)
            if time_step.last():
                recorder.save(video.name)

    with run.timer.paused(), run.time_shares.spent_on("evaluation"):
        results = play(envs, run.progress.evaluations, run.cfg.num_eval_episodes, act, film)
    run.progress.evaluations += 1
    run.log_evaluation(results)
    with run.timer.paused(), run.time_shares.spent_on("evaluation"):
        if run.cfg.save_video and video.exists():
            run.logger.log_video("eval/video", video, run.global_frame)


def require_finite(time_step: Any, where: str) -> None:
    """Check reward and discount of a time step; `where` names it in the message.

    Raises:
        NotFiniteError: one is NaN or infinite.
    """
    for name in ("reward", "discount"):
        if not math.isfinite(value := getattr(time_step, name)):
            raise NotFiniteError(f"the {name} is {value} at {where}: fix the environment")
