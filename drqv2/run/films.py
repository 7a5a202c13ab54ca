"""Films of an evaluation: the first episode, or of several tasks the first of each; and episodes side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from drqv2.envs.handles import EnvHandle
from drqv2.logging import overlay
from drqv2.logging.video import VideoRecorder


class FirstEpisode:
    """Films one episode.

    Args:
        recorder: films it.
        name: of the video's file.
    """

    def __init__(self, recorder: VideoRecorder, name: str) -> None:
        self._recorder, self._name, self._steps = recorder, name, 0

    def add(self, _: int, env: Any, time_step: Any) -> None:
        """Film a time step of an environment; after the last one, save the video."""
        if time_step.first():
            self._recorder.init(env)
        elif self._steps % self._recorder.every == 0:
            self._recorder.record(env)
        self._steps += 1
        if time_step.last():
            self._recorder.save(self._name)


class FirstEpisodes:
    """Films an episode of each task in a grid; one that is over keeps its last picture.

    Args:
        recorder: films the grid.
        name: of the video's file.
        tasks: their names.
    """

    def __init__(self, recorder: VideoRecorder, name: str, tasks: Sequence[str]) -> None:
        self._recorder, self._name, self._tasks = recorder, name, tasks
        self._size = overlay.cell_size(recorder.render_size, len(tasks))
        self._cells: dict[int, np.ndarray] = {}  # the newest picture of each task
        self._playing = set(range(len(tasks)))
        self._seen: set[int] = set()  # tasks with a new picture since the last frame
        self._totals = dict.fromkeys(self._playing, 0.0)
        self._steps = dict.fromkeys(self._playing, -1)
        recorder.begin()

    def add(self, task: int, env: Any, time_step: Any) -> None:
        """Take the picture of a task's time step; once every running episode has one, film them."""
        self._totals[task] += time_step.reward
        self._steps[task] += 1
        if self._recorder.is_recording and (self._steps[task] % self._recorder.every == 0 or time_step.last()):
            if task in self._seen:  # the others of the last round have ended
                self._film()
            self._recorder.attempt(lambda: self._draw(task, env))
            self._seen.add(task)
        if time_step.last():
            self._playing.discard(task)
        if len(self._cells) == len(self._tasks) and self._seen and self._seen >= self._playing:
            self._film()
        if not self._playing:
            self._recorder.save(self._name)

    def _draw(self, task: int, env: Any) -> None:
        picture = env.render(self._size, self._size)
        self._cells[task] = overlay.caption(picture, self._tasks[task], self._totals[task])

    def _film(self) -> None:
        self._seen = set()
        cells = [self._cells[task] for task in range(len(self._tasks))]
        self._recorder.record_frame(lambda: overlay.grid(cells))


class Picture(NamedTuple):
    """An episode that is filmed beside others.

    Attributes:
        env: the handle on the environment that plays it.
        episode: its number.
        task: its task.
    """

    env: EnvHandle
    episode: int
    task: str


def side_by_side(
    pictures: Sequence[Picture],
    evaluation: int,
    act: Callable[[Any, int], np.ndarray],
    size: int,
    cameras: Sequence[int | str | None] = (None,),
    every: int = 1,
    titles: bool = False,
) -> Iterator[np.ndarray]:
    """Play episodes and yield a grid of their pictures, uint8 [H, W, 3]; one that is over keeps its last picture.

    Args:
        pictures: the episodes, each in an environment of its own.
        evaluation: index of the evaluation, which seeds them.
        act: maps a time step and the index of its picture to an action.
        size: height and width of a picture.
        cameras: the cameras, each of which draws a picture of every episode; None for the task's own.
        every: steps from one grid to the next.
        titles: whether pictures show task and return; otherwise they show episode, step, return and action.
    """
    time_steps = [picture.env.call("begin", evaluation, picture.episode) for picture in pictures]
    totals, counts = [0.0] * len(pictures), [0] * len(pictures)

    def draw(i: int) -> np.ndarray:
        env, episode, task = pictures[i]
        picture = overlay.grid([env.call("render", size, size, camera) for camera in cameras])
        if titles:
            return overlay.caption(picture, task, totals[i])
        return overlay.label(picture, episode, totals[i], counts[i], time_steps[i].action)

    frames = [draw(i) for i in range(len(pictures))]
    yield overlay.grid(frames)
    while running := [i for i, time_step in enumerate(time_steps) if not time_step.last()]:
        for i in running:
            time_steps[i] = pictures[i].env.call("step", act(time_steps[i], i))
            totals[i] += time_steps[i].reward
            counts[i] += 1
            if counts[i] % every == 0 or time_steps[i].last():
                frames[i] = draw(i)
        if max(counts) % every == 0 or all(time_step.last() for time_step in time_steps):
            yield overlay.grid(frames)
