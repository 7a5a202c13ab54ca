"""Evaluation episodes, without exploration, in several environments in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from drqv2.agents.acting import Act, batch_policy
from drqv2.agents.protocol import ActsFromStates
from drqv2.envs import ExtendedTimeStep, info
from drqv2.envs.handles import EnvHandle, Requests
from drqv2.logging.console import Console
from drqv2.logging.video import VideoRecorder
from drqv2.run import protocol
from drqv2.run.films import FirstEpisode, FirstEpisodes
from drqv2.run.finite import require_finite
from drqv2.run.stats import EpisodeResult, EvalStats, eval_stats
from drqv2.utils import Until, eval_mode


class Run(protocol.Run, Protocol):
    """What an evaluation needs of a run."""

    tasks: list[str]
    console: Console
    train_until_step: Until


Metrics = Callable[[Sequence[EpisodeResult], float], dict[str, float]]  # of episodes and the seconds that they took


def play(
    envs: Sequence[EnvHandle],
    evaluation: int,
    episodes: int,
    act: Act,
    watch: Callable[[int, EnvHandle, ExtendedTimeStep], None],
    tasks: int = 1,
    together: bool = False,
) -> list[EpisodeResult]:
    """Play episodes 0, 1, ... of an evaluation, each in the next free environment of its task, all tasks side by side.

    An episode depends only on its seed, (evaluation, episode), and on `act`, but not on the number of environments,
    unless `act` is called for several at once and rounds differently then.

    Args:
        envs: handles on environments, see `drqv2.envs.handles`: as many of each task, task by task.
        evaluation: index of the evaluation, which seeds its episodes.
        episodes: number of episodes of each task.
        act: maps time steps and the numbers of their episodes to actions. The episodes of task t have the numbers
            t * episodes and up.
        watch: called with (episode, environment, time_step) for every time step, including the first.
        tasks: number of tasks.
        together: call `act` once for all environments; otherwise for one, which steps while the next action is chosen.

    Returns:
        The result of each episode, task by task.

    Raises:
        EnvError: an environment returned something other than it declared.
    """
    results = [EpisodeResult()] * (tasks * episodes)
    upcoming = [iter(range(episodes)) for _ in range(tasks)]
    running: dict[int, int] = {}  # environment -> episode
    requests = Requests(envs)

    def begin(i: int) -> None:
        task = i // (len(envs) // tasks)
        episode = next(upcoming[task], None)
        if episode is not None:
            running[i] = task * episodes + episode
            requests.start(i, "begin", evaluation, episode)

    with requests:
        for i in range(len(envs)):
            begin(i)
        while running:
            turn = list(running)
            for some in [turn] if together else [[i] for i in turn]:
                time_steps = {i: requests.finish(i) for i in some}
                for i, time_step in time_steps.items():
                    results[running[i]] = results[running[i]].after(time_step)
                    watch(running[i], envs[i], time_step)
                acting = [i for i in some if not time_steps[i].last()]
                if acting:
                    actions = act([time_steps[i] for i in acting], [running[i] for i in acting])
                    for i, action in zip(acting, actions, strict=True):
                        requests.start(i, "step", action)
                for i in some:
                    if time_steps[i].last():
                        del running[i]
                        begin(i)
    return results


def singly(act: Callable[[ExtendedTimeStep, int], np.ndarray]) -> Act:
    """Return `act`, which maps a time step and the number of its episode to an action, as a function of several."""
    return lambda time_steps, episodes: list(map(act, time_steps, episodes))


_LONG = 2.0  # seconds after which an evaluation is shown


def evaluate(run: Run, envs: Sequence[EnvHandle], recorder: VideoRecorder, metrics: Metrics | None = None) -> EvalStats:
    """Play num_eval_episodes of each task of a run without exploration; log their returns and film the first.

    Args:
        run: the run.
        envs: handles on environments: as many of each task, task by task.
        recorder: films the first episode of each task.
        metrics: what the row has; by default `mean_metrics`.

    Raises:
        Stopped: the process was asked to stop.
        EnvError: an environment returned something other than it declared.
        NotFiniteError: a loss or a parameter is NaN or infinite.
    """
    require_finite(run, parameters=True)
    act = batch_policy(run.agent, envs[0].action_spec().shape, run.global_step)
    together = isinstance(run.agent, ActsFromStates)
    video, episodes = run.work_dir / "eval_video" / f"{run.global_frame}.mp4", run.cfg.num_eval_episodes
    film = FirstEpisodes(recorder, video.name, run.tasks) if len(run.tasks) > 1 else FirstEpisode(recorder, video.name)

    last = not run.train_until_step(run.global_step)
    filmed = run.cfg.save_video is True or (run.cfg.save_video == "last" and last)
    ended = 0

    def watch(episode: int, env: EnvHandle, time_step: ExtendedTimeStep) -> None:
        nonlocal ended
        run.stop.raise_if_requested()
        ended += time_step.last()
        if time.perf_counter() - began > _LONG:
            run.console.evaluating(run.global_frame, ended, episodes * len(run.tasks))
        if filmed and episode % episodes == 0:
            film.add(episode // episodes, env, time_step)

    began = time.perf_counter()
    with run.timer.paused(), run.time_shares.spent_on("evaluation"), eval_mode(run.agent), torch.no_grad():
        results = play(envs, run.progress.evaluations, episodes, act, watch, len(run.tasks), together)
    run.progress.evaluations += 1
    seconds = time.perf_counter() - began
    row = mean_metrics(results, run.action_repeat) if metrics is None else metrics(results, seconds)
    stats = _log(run, results, row, seconds)
    with run.timer.paused(), run.time_shares.spent_on("evaluation"):
        if run.cfg.save_video and video.exists():
            run.logger.log_video("eval/video", video, run.global_frame)
    return stats


def mean_metrics(results: Sequence[EpisodeResult], action_repeat: int) -> dict[str, float]:
    """Return the means of return, length in frames, success and numbers in `info` of episodes, and each return."""
    returns, steps, success, infos = zip(*results, strict=True)
    metrics = {"episode_reward": float(np.mean(returns)), "episode_length": float(np.mean(steps)) * action_repeat}
    if None not in success:
        metrics["success"] = float(np.mean(success))
    numbers: info.Sums = {}
    for sums in infos:
        info.add(numbers, info.means(sums or {}))
    metrics |= info.metrics(numbers)
    return metrics | {f"episode_reward/{episode}": value for episode, value in enumerate(returns)}


def _log(run: Run, results: Sequence[EpisodeResult], metrics: dict[str, float], seconds: float) -> EvalStats:
    """Write the row of an evaluation."""
    progress = run.progress
    progress.last_eval_step = run.global_step
    progress.last_return = metrics["episode_reward"]
    progress.best_return = max(progress.best_return, progress.last_return)
    with run.logger.log_and_dump_ctx(run.global_frame, ty="eval") as log:
        log("total_time", run.timer.total_time())
        log("episode", run.global_episode)
        log("step", run.global_step)
        for name, value in metrics.items():
            log(name, value)
    totals = [result.total for result in results]
    return eval_stats(run.global_step, run.global_frame, totals, metrics, seconds)
