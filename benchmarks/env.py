"""Milliseconds of one agent step of an environment from pixels: `python -m benchmarks.env [--json]`."""

from __future__ import annotations

import logging

import numpy as np

from benchmarks.common import Row, main, time_ms
from drqv2 import envs
from drqv2.envs.dmc import load

ABOUT = "one agent step (2 frames, one image); render_ms: that image alone; physics_ms: MuJoCo's steps alone"
TASKS = ("cartpole_balance_sparse", "cheetah_run", "quadruped_walk", "humanoid_walk")
SIZE, STACK, REPEAT = 84, 3, 2


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each of a few tasks, from light to heavy physics."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # the model files' deprecated attributes
    return [measure_task(task, seconds=0.1 if quick else 2.0) for task in TASKS]


def measure_task(task: str, seconds: float) -> Row:
    """Return the times of a task under random actions."""
    env = envs.make(task, STACK, REPEAT, seed=1, image_size=SIZE)
    spec, rng = env.action_spec(), np.random.default_rng(0)
    env.reset()
    step = time_ms(lambda: env.step(rng.uniform(-1, 1, spec.shape)), seconds, warm_up=10)
    render = time_ms(lambda: env.render(SIZE, SIZE), seconds / 4)
    env.close()

    bare, _ = load(task, seed=1)
    bare.reset()
    low, high = bare.action_spec().minimum, bare.action_spec().maximum
    substeps = REPEAT * round(bare.control_timestep() / bare.physics.timestep())

    def advance() -> None:
        bare.physics.set_control(rng.uniform(low, high))
        bare.physics.step(substeps)

    physics = time_ms(advance, seconds / 4, warm_up=10)
    bare.physics.free()
    return {"task": task, "image_size": SIZE, **step, "render_ms": render["ms"], "physics_ms": physics["ms"]}


if __name__ == "__main__":
    main("env", ABOUT, measure)
