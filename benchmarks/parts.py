"""What a second camera and the state beside images cost: `python -m benchmarks.parts [--json] [--quick]`.

Runs of preset=cpu that differ only in what the agent sees measure alternately, once they learn.
"""

from __future__ import annotations

import math
from functools import partial

from benchmarks.alternation import alternate
from benchmarks.common import Row, main, quartiles
from benchmarks.loop import run_fps

ABOUT = "frames per second of cheetah_run with preset=cpu, by what the agent sees; ratio: to one image"
REPEAT = 4
SIDES = {
    "one image": ["obs_type=pixels"],
    "image and state": ["obs_type=pixels+state"],
    "two cameras": ["obs_type=pixels", "cameras=[0,1]"],
    "two cameras and state": ["obs_type=pixels+state", "cameras=[0,1]"],
    "state": ["obs_type=state"],
}


def measure(quick: bool = False, within: float = math.inf) -> list[Row]:
    """Return a row for each side; `within` as in `alternate`."""
    setting = ["preset=cpu", "task=cheetah_run", f"action_repeat={REPEAT}", "num_seed_frames=4000"]
    if quick:
        setting += ["batch_size=8", "agent.hidden_dim=32"]
    sides = {name: partial(run_fps, [*setting, *more], REPEAT) for name, more in SIDES.items()}
    fps = alternate(sides, 0.0 if quick else 90.0, within=within)
    rows: list[Row] = []
    for name, values in fps.items():
        ratios = [own / one for one, own in zip(fps["one image"], values, strict=True)]
        rows.append(
            {"seen": name, **quartiles(values, "fps"), **quartiles(ratios, "ratio"), "repetitions": len(values)}
        )
    return rows


if __name__ == "__main__":
    main("parts", ABOUT, measure)
