"""Milliseconds of one agent step of an environment from pixels: `python -m benchmarks.env [--json]`."""

from __future__ import annotations

import inspect
import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.alternation import Side, alternate, timed_ms
from benchmarks.baseline import pixels
from benchmarks.baseline.pixels import REPEAT, SIZE, STACK
from benchmarks.common import Row, main, quartiles
from drqv2 import envs, utils
from drqv2.config import cfgs
from drqv2.envs.dm_control import load

ABOUT = (
    "one agent step (2 frames, one image); ratio: speed-up over dm_control's pixels wrapper; fast: render=fast; "
    "limit_ms: MuJoCo's physics steps and a bare mjr_render of a reused scene"
)
QUICK = ("cartpole_balance", "cheetah_run")
SEED = 1
STEPS = 10  # per measurement
WARM_UP = 5  # steps of each task


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each task of the paper, and the geometric mean."""
    tasks, rounds = (QUICK, 2) if quick else (cfgs.tasks(), 8)
    sides: dict[str, Side] = {name: partial(times, name, tasks, rounds) for name in ("baseline", "ours")}
    if "render" in inspect.signature(envs.make).parameters:
        sides["fast"] = partial(times, "fast", tasks, rounds)
    # Each side ends by itself; it makes and warms up each task's environment untimed.
    figures = alternate({**sides, "limit": partial(limits, tasks, rounds)}, float("inf"), warm_up=0)
    rows = [
        task_row(task, {name: values[i * rounds : (i + 1) * rounds] for name, values in figures.items()})
        for i, task in enumerate(tasks)
    ]
    means = {key: statistics.geometric_mean([row[key] for row in rows]) for key in rows[0] if key != "task"}
    return [*rows, {"task": "geometric mean", **means}]


def task_row(task: str, figures: dict[str, list[Any]]) -> Row:
    """Return the medians of a task's measurements in milliseconds, and the ratios by round."""
    median, baseline = statistics.median, figures["baseline"]
    row = {"task": task, "baseline_ms": median(baseline), "ms": median(figures["ours"])}
    row |= quartiles([slow / own for slow, own in zip(baseline, figures["ours"], strict=True)], "ratio")
    if "fast" in figures:
        ratios = [slow / own for slow, own in zip(baseline, figures["fast"], strict=True)]
        row |= {"fast_ms": median(figures["fast"]), "fast_ratio": median(ratios)}
    render, physics = (median(values) for values in zip(*figures["limit"], strict=True))
    row |= {"render_ms": render, "limit_ms": render + physics}
    return {**row, "times_limit": row["ms"] / row["limit_ms"]}


def make(side: str, task: str) -> Any:
    """Return a task's environment: `baseline`, `ours` or `fast`. Their first episodes are identical."""
    if side == "baseline":
        return pixels.make(task, utils.spawn_seed(SEED, utils.TRAIN_ENV, 0, 0))
    fast: dict[str, Any] = {"render": "fast"} if side == "fast" else {}
    return envs.make(task, STACK, REPEAT, SEED, image_size=SIZE, **fast)


def times(side: str, tasks: Sequence[str], rounds: int) -> Iterator[float]:
    """Yield `rounds` step times for each task, with the same random actions on every side."""
    _quiet()
    for task in tasks:
        yield from task_times(make(side, task), rounds)


def task_times(env: Any, rounds: int) -> Iterator[float]:
    """Yield `rounds` step times, then close the environment."""
    rng, shape = np.random.default_rng(0), env.action_spec().shape
    env.reset()

    def step() -> None:
        env.step(rng.uniform(-1, 1, shape).astype(np.float32))

    timed_ms(step, WARM_UP)
    for _ in range(rounds):
        yield timed_ms(step, STEPS)
    env.close()


def limits(tasks: Sequence[str], rounds: int) -> Iterator[tuple[float, float]]:
    """Yield `rounds` times of one image and of one agent step's physics for each task, by bare MuJoCo calls."""
    _quiet()
    for task in tasks:
        yield from task_limits(*load(task, SEED), rounds)


def task_limits(env: Any, camera: int | str, rounds: int) -> Iterator[tuple[float, float]]:
    """Yield `rounds` times of one image and of one agent step's physics, then free the simulation."""
    env.reset()
    physics, rng, spec = env.physics, np.random.default_rng(0), env.action_spec()
    substeps = REPEAT * round(env.control_timestep() / physics.timestep())
    physics.model.vis.global_.offwidth = physics.model.vis.global_.offheight = SIZE
    draw = drawing(physics, camera)

    def advance() -> None:
        physics.set_control(rng.uniform(spec.minimum, spec.maximum))
        physics.step(substeps)

    timed_ms(draw, WARM_UP)
    for _ in range(rounds):
        both = [(timed_ms(draw), timed_ms(advance)) for _ in range(STEPS)]
        image, moving = (statistics.fmean(values) for values in zip(*both, strict=True))
        yield image, moving
    pixels.free(env)


def drawing(physics: Any, camera: int | str) -> Callable[[], None]:
    """Return a function that renders the simulation into a reused array, with a reused scene and no overhead."""
    import mujoco
    from dm_control.mujoco.engine import Camera

    view = Camera(physics, SIZE, SIZE, camera)
    image = np.empty((SIZE, SIZE, 3), np.uint8)
    rect, context = mujoco.MjrRect(0, 0, SIZE, SIZE), physics.contexts

    def draw() -> None:
        view.update()
        mujoco.mjr_render(rect, view.scene.ptr, context.mujoco.ptr)
        mujoco.mjr_readPixels(image, None, rect, context.mujoco.ptr)

    def in_context() -> None:
        with context.gl.make_current() as gl:
            gl.call(draw)

    return in_context


def _quiet() -> None:
    logging.getLogger("absl").setLevel(logging.ERROR)  # hides warnings on deprecated attributes in the model files


if __name__ == "__main__":
    main("env", ABOUT, measure)
