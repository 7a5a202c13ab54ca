"""Frames per second with several tasks, and with as many environments of one: `python -m benchmarks.multitask`."""

from __future__ import annotations

from functools import partial

from benchmarks.alternation import alternate
from benchmarks.common import Row, main, quartiles
from benchmarks.loop import run_fps

ABOUT = "frames per second once updates have begun, from pixels; ratio: over num_envs=3 of one task"
REPEAT = 4
# Both make an update for each step of an environment, of the same batch.
SIDES = {
    "one task, num_envs=3": ["task=walker_walk", "num_envs=3", "num_seed_frames=3000"],
    "three tasks": ["regime=multitask", "tasks=[walker_stand,walker_walk,walker_run]", "updates_per_step=3"],
    "three tasks, DrQV2Agent": [
        *("regime=multitask", "tasks=[walker_stand,walker_walk,walker_run]", "updates_per_step=3"),
        "agent._target_=drqv2.agents.drqv2.DrQV2Agent",
    ],
}


def measure(quick: bool = False) -> list[Row]:
    """Return a row for each side."""
    # The first update needs a stored episode: 1,000 frames of a task, or 3,000 of three environments counted together.
    common = ["preset=cpu", "obs_type=pixels", "num_seed_frames=1000", "nstep=1", "batch_size=64"]
    if quick:
        common += ["image_size=32", "agent.hidden_dim=16", "batch_size=8"]
    sides = {name: partial(run_fps, [*common, *own], 3 * REPEAT) for name, own in SIDES.items()}
    fps = alternate(sides, seconds=0.0 if quick else 120.0)
    first = next(iter(SIDES))
    rows = []
    for name, values in fps.items():
        ratios = [own / one for one, own in zip(fps[first], values, strict=True)]
        rows.append(
            {"side": name, **quartiles(values, "fps"), **quartiles(ratios, "ratio"), "repetitions": len(values)}
        )
    return rows


if __name__ == "__main__":
    main("multitask", ABOUT, measure)
