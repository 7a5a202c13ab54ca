"""Films of an evaluation: the first episode; of several tasks, the first of each, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drqv2.evaluation import overlay
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
        """Take the picture of a task's time step; when all that play have one, film them."""
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
