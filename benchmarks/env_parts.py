"""Milliseconds of one agent step of an environment from pixels, in parts: `python -m benchmarks.env_parts [--json]`."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.alternation import timed_ms
from benchmarks.baseline.pixels import REPEAT, SIZE, STACK
from benchmarks.common import Row, main
from drqv2 import envs
from drqv2.envs import Environment
from drqv2.envs.env_process import ProcessEnv

ABOUT = (
    "one agent step (2 frames, one image), medians: dm_control's steps, MuJoCo's update of the scene, rendering until "
    "OpenGL has finished, the copy of the image to the CPU, stacking and all else; their sum; the same in a separate "
    "process, as in training; the difference, which is the pipe"
)
TASKS = ("cartpole_balance", "cheetah_run", "quadruped_walk", "humanoid_walk")
PARTS = ("simulate", "scene", "render", "copy")
SEED = 1
STEPS = 10  # in a row on each side


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each task."""
    return list(rows(quick))


def rows(quick: bool = False) -> Iterator[Row]:
    """Yield a row for each task; with `quick`, fewer of both tasks and steps."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # hides warnings on deprecated attributes in the model files
    for task in TASKS[: 2 if quick else None]:
        yield task_row(task, rounds=2 if quick else 20)


def task_row(task: str, rounds: int) -> Row:
    """Step a task here and in a separate process alternately, with the same actions; return the medians."""
    make = partial(envs.make, task, STACK, REPEAT, SEED, image_size=SIZE)
    there = ProcessEnv(make)
    here = make()
    found: dict[str, list[float]] = {name: [] for name in (*PARTS, "rest", "step", "process")}
    try:
        here.reset()
        there.call("reset")
        rng, shape = np.random.default_rng(0), here.action_spec().shape
        with parts_of(here) as step:
            for number in range(rounds + 1):
                actions = rng.uniform(-1, 1, (STEPS, *shape)).astype(np.float32)
                times = [step(action) for action in actions]
                elsewhere = [timed_ms(partial(there.call, "step", action)) for action in actions]
                if number == 0:  # warms up
                    continue
                found["process"] += elsewhere
                for name in times[0]:
                    found[name] += [parts[name] for parts in times]
    finally:
        here.close()
        there.close()
    row = {f"{name}_ms": statistics.median(values) for name, values in found.items()}
    return {"task": task, **row, "pipe_ms": row["process_ms"] - row["step_ms"], "repetitions": len(found["step"])}


@contextlib.contextmanager
def parts_of(env: Environment) -> Iterator[Callable[[np.ndarray], dict[str, float]]]:
    """Give a function that steps `env` and returns the milliseconds of PARTS, of the rest and of the whole step.

    Meanwhile, functions of `env` and of mujoco are replaced by ones that are timed.
    """
    import mujoco
    from OpenGL import GL

    seconds: defaultdict[str, float] = defaultdict(float)

    def timed(owner: Any, name: str, part: str, after: Callable[[], None] = lambda: None) -> Any:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = function(*args, **kwargs)
            after()
            seconds[part] += time.perf_counter() - begin
            return result

        return mock.patch.object(owner, name, call)

    def step(action: np.ndarray) -> dict[str, float]:
        seconds.clear()
        whole = timed_ms(partial(env.step, action))
        parts = {part: 1000 * seconds[part] for part in PARTS}
        return {**parts, "rest": whole - sum(parts.values()), "step": whole}

    with (
        timed(env._base, "step", "simulate"),
        timed(mujoco, "mjv_updateScene", "scene"),
        timed(mujoco, "mjr_render", "render", GL.glFinish),  # otherwise the copy would wait for it
        timed(mujoco, "mjr_readPixels", "copy"),
    ):
        yield step


if __name__ == "__main__":
    main("env_parts", ABOUT, measure)
