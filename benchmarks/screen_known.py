"""Runs of a screen that were made elsewhere: their evaluations, from tables that --report has written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drqv2.errors import UserError
from drqv2.report.runs import Run, good_enough
from drqv2.report.tables import read_table

ROOT = Path(__file__).resolve().parents[1]
_COLUMNS = ("seed", "frame", "return", "minutes")


@dataclass(frozen=True)
class Known:
    """The evaluations of a run.

    Attributes:
        file: where they are from, as the plan names it.
        values: frame, return and minutes of training of each, [N, 3].
    """

    file: str
    values: np.ndarray

    def run(self, config: Mapping[str, Any], frames: int) -> Run | None:
        """Return the run up to a length, as if read from its directory; None if it has not come to its end.

        Args:
            config: the configuration that it had.
            frames: the length.
        """
        late = config["action_repeat"] * config["num_envs"]  # an evaluation may be a round late
        values = self.values[np.argsort(self.values[:, 0])]
        x, returns, minutes = values[values[:, 0] <= frames + late].T
        stopped = good_enough(x, returns, config["stop_return"])
        if not stopped and (not len(x) or x[-1] < frames - late):
            return None
        seconds, passed = np.diff(60 * minutes), np.diff(x)
        timed = seconds > 0
        return Run(
            path=Path(self.file),
            task=config["task_name"],
            seed=config["seed"],
            config={"num_envs": config["num_envs"]},
            finished=True,
            frames=x,
            returns=returns,
            success=np.full(len(x), np.nan),
            hours=minutes / 60,
            speeds=passed[timed] / seconds[timed],
            starts=[],
            videos=[],
            faults=[],
            action_repeat=config["action_repeat"],
            stopped=stopped,
        )


def read(names: Sequence[str]) -> dict[tuple[str, str, int], list[Known]]:
    """Return what tables hold, by arm, task and seed, in the order of the tables.

    Args:
        names: CSV files, relative to the root of the repository.

    Raises:
        UserError: a file cannot be read, or is no such table.
    """
    found: dict[tuple[str, str, int], list[Known]] = {}
    for name in names:
        faults: list[str] = []
        rows = read_table(ROOT / name, _COLUMNS, faults)
        if faults or not rows:
            reason = "; ".join(faults) or "there is no such file, or nothing in it"
            raise UserError(f"known={name}: {reason}\nGive a returns.csv that --report has written.")
        own: dict[tuple[str, str, int], list[list[float]]] = {}
        for row, (seed, *values) in rows:
            own.setdefault((row.get("arm", ""), row.get("task", ""), int(seed)), []).append(values)
        for run, evaluations in own.items():
            found.setdefault(run, []).append(Known(name, np.array(evaluations)))
    return found
