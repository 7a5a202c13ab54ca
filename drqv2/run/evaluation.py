"""Evaluation episodes, without exploration, in several environments in parallel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from omegaconf import DictConfig

from drqv2.agents.acting import Act, batch_policy
from drqv2.envs.handles import EnvHandle
from drqv2.envs.info import Sums, add
from drqv2.envs.info import metrics as info_metrics
from drqv2.logging.console import Console
from drqv2.logging.logger import Logger
from drqv2.logging.usage import TimeShares
from drqv2.logging.video import VideoRecorder
from drqv2.run.films import FirstEpisode, FirstEpisodes
from drqv2.run.progress import Progress
from drqv2.run.stats import EvalStats, eval_stats
from drqv2.system.signals import StopSignals
from drqv2.utils import Timer, eval_mode


class EpisodeResult(NamedTuple):
    """The result of an episode.

    Attributes:
        total: its return.
        steps: its length, agent steps.
        success: 1.0 if a step of it succeeded, 0.0 if none did, None where the environment does not report it.
        info: sums of the numbers in `info` over its steps; None without any.
    """

    total: float = 0.0
    steps: int = -1
    success: float | None = None
    info: Sums | None = None

    def after(self, time_step: Any) -> EpisodeResult:
        """Return the result with one more time step; `info` is changed in place."""
        success = self.success if time_step.success is None else max(time_step.success, self.success or 0.0)
        sums = self.info
        if time_step.info:
            add(sums := {} if sums is None else sums, time_step.info)
        return EpisodeResult(self.total + time_step.reward, self.steps + 1, success, sums)

    def metrics(self, action_repeat: int) -> dict[str, float]:
        """Return return, length in environment frames, success where there is one, and numbers in `info`, by name."""
        found = {"episode_reward": self.total, "episode_length": self.steps * action_repeat, "success": self.success}
        found |= info_metrics(self.info or {})
        return {name: float(value) for name, value in found.items() if value is not None}


class Run(Protocol):
    """What an evaluation needs of a run; `BaseWorkspace` says what these are."""

    cfg: DictConfig
    work_dir: Path
    tasks: list[str]
    agent: Any
    progress: Progress
    stop: StopSignals
    timer: Timer
    time_shares: TimeShares
    logger: Logger
    console: Console

    @property
    def global_step(self) -> int: ...  # noqa: D102
    @property
    def global_frame(self) -> int: ...  # noqa: D102
    @property
    def global_episode(self) -> int: ...  # noqa: D102
    @property
    def num_frames(self) -> int: ...  # noqa: D102
    def require_finite(self, parameters: bool) -> None: ...  # noqa: D102
    def evaluation_metrics(self, results: Sequence[EpisodeResult], seconds: float) -> dict[str, float]: ...  # noqa: D102


def play(
    envs: Sequence[Any],
    evaluation: int,
    episodes: int,
    act: Act,
    watch: Callable[[int, Any, Any], None],
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

    def begin(i: int) -> None:
        task = i // (len(envs) // tasks)
        episode = next(upcoming[task], None)
        if episode is not None:
            running[i] = task * episodes + episode
            envs[i].start("begin", evaluation, episode)

    for i in range(len(envs)):
        begin(i)
    while running:
        turn = list(running)
        for some in [turn] if together else [[i] for i in turn]:
            time_steps = {i: envs[i].finish() for i in some}
            for i, time_step in time_steps.items():
                results[running[i]] = results[running[i]].after(time_step)
                watch(running[i], envs[i], time_step)
            acting = [i for i in some if not time_steps[i].last()]
            if acting:
                actions = act([time_steps[i] for i in acting], [running[i] for i in acting])
                for i, action in zip(acting, actions, strict=True):
                    envs[i].start("step", action)
            for i in some:
                if time_steps[i].last():
                    del running[i]
                    begin(i)
    return results


def singly(act: Callable[[Any, int], np.ndarray]) -> Act:
    """Return `act`, which maps a time step and the number of its episode to an action, as a function of several."""
    return lambda time_steps, episodes: list(map(act, time_steps, episodes))


_LONG = 2.0  # seconds after which an evaluation is shown


def evaluate(run: Run, envs: Sequence[EnvHandle], recorder: VideoRecorder) -> EvalStats:
    """Play num_eval_episodes of each task of a run without exploration; log their returns and film the first.

    Args:
        run: the run.
        envs: handles on environments: as many of each task, task by task.
        recorder: films the first episode of each task.

    Raises:
        Stopped: the process was asked to stop.
        EnvError: an environment returned something other than it declared.
        NotFiniteError: a loss or a parameter is NaN or infinite.
    """
    run.require_finite(parameters=True)
    act = batch_policy(run.agent, envs[0].action_spec().shape, run.global_step)
    together = hasattr(run.agent, "act_from")  # these agents act on batches
    video, episodes = run.work_dir / "eval_video" / f"{run.global_frame}.mp4", run.cfg.num_eval_episodes
    film = FirstEpisodes(recorder, video.name, run.tasks) if len(run.tasks) > 1 else FirstEpisode(recorder, video.name)

    filmed = run.cfg.save_video is True or (run.cfg.save_video == "last" and run.global_frame >= run.num_frames)

    ended = 0

    def watch(episode: int, env: Any, time_step: Any) -> None:
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
    stats = _log(run, results, time.perf_counter() - began)
    with run.timer.paused(), run.time_shares.spent_on("evaluation"):
        if run.cfg.save_video and video.exists():
            run.logger.log_video("eval/video", video, run.global_frame)
    return stats


def _log(run: Run, results: Sequence[EpisodeResult], seconds: float) -> EvalStats:
    """Write the row of an evaluation and of the seconds it took."""
    progress, metrics = run.progress, run.evaluation_metrics(results, seconds)
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
