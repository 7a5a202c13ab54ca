"""Weights & Biases (the extra `wandb`). Configure it by WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE and so on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class WeightsAndBiases:
    """Logs to the W&B server, or to disk with WANDB_MODE=offline. A resumed run keeps its id.

    The x-axis is the metric `frame`, not W&B's own step, so that points logged again after a resume coincide. W&B's
    own files go to `run_dir/wandb`. Opening the run prints its location.

    Args:
        run_dir: the run's directory.
        config: shown with the run.
        name: of the run.
        group: under which W&B shows it together with other seeds; WANDB_RUN_GROUP overrides it.
    """

    name = "Weights & Biases"

    def __init__(self, run_dir: Path, config: Mapping[str, Any], name: str, group: str | None = None) -> None:
        self._run_dir, self._config, self._run_name = run_dir, dict(config), name
        self._group = os.environ.get("WANDB_RUN_GROUP", group)
        self._id: str | None = None
        self._run: Any = None

    def _open(self) -> Any:
        if self._run is None:
            import wandb

            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "drqv2"),
                id=self._id,
                resume="allow",
                dir=str(self._run_dir),
                name=self._run_name,
                group=self._group,
                config=self._config,
                settings=wandb.Settings(silent=True, console="off"),
            )
            self._id = self._run.id
            self._run.define_metric("frame")
            self._run.define_metric("*", step_metric="frame")
            print(f"{self.name}: {_place(self._run)}", flush=True)
        return self._run

    def write(self, points: Mapping[str, float], frame: int) -> None:
        self._open().log({**points, "frame": frame})

    def video(self, tag: str, path: Path, frame: int) -> None:
        import wandb

        self._open().log({tag: wandb.Video(str(path), format="mp4"), "frame": frame})

    def state_dict(self) -> dict[str, Any]:
        self._open()
        return {"id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._id = state["id"]

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=int(sys.exc_info()[0] is not None))  # nonzero while an exception propagates


def _place(run: Any) -> str:
    """Return where a run is: its address, or how to send its folder to the server."""
    folder = Path(run.dir).parent  # run.dir is its folder `files`
    group = f", group {run.group}" if run.group else ""
    if run.disabled:
        return "disabled by WANDB_MODE"
    if run.offline:
        return f"{folder}{group}; upload it with: wandb sync {folder}"
    return f"{run.url}{group}; files in {folder}"
