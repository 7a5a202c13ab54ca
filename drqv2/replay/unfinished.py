"""Episodes that are still being played: their newest steps in memory, older ones on disk, whatever the length."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors

from drqv2.system.files import digest, retry_on_full_disk, write_atomically

_log = logging.getLogger(__name__)

PART_STEPS = 512  # steps in memory before they go to disk: more than an episode of the paper's tasks has
PARTS = "unfinished_*.safetensors"
BEGUN = "begun"  # in the metadata of an episode file that was written from parts


class UnfinishedEpisode:
    """The steps of an episode so far.

    Whenever PART_STEPS are in memory, they are written to a file, which stays until the episode is over.

    Args:
        folder: where its files go.
        number: of the episode among those begun.
        names: of the arrays.
    """

    def __init__(self, folder: Path, number: int, names: Iterable[str]) -> None:
        self.folder, self.number = folder, number
        self.steps: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self.digests: list[bytes] = []  # SHA-256 of its files

    def add(self, step: Mapping[str, np.ndarray]) -> None:
        """Add a step; its arrays belong to the episode from now on.

        Raises:
            DiskError: the disk is full or failing.
        """
        for name, value in step.items():
            self.steps[name].append(value)
        if len(next(iter(self.steps.values()))) >= PART_STEPS:
            self._write_part()

    def _write_part(self) -> None:
        data = to_safetensors({name: np.stack(values) for name, values in self.steps.items()})
        path = self._path(len(self.digests))
        retry_on_full_disk(lambda: write_atomically(path, data), str(path))
        self.digests.append(sha256(data).digest())
        self.steps = {name: [] for name in self.steps}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all steps of each array, [T + 1, ...]."""
        parts = [from_safetensors(path.read_bytes()) for path in self.paths()]
        return {
            name: np.concatenate([*(part[name] for part in parts), *([np.stack(values)] if values else [])])
            for name, values in self.steps.items()
        }

    @property
    def metadata(self) -> dict[str, str] | None:
        """What the file of the whole episode says, so that a snapshot from before its end finds these steps there."""
        return {BEGUN: str(self.number)} if self.digests else None

    def discard(self) -> None:
        """Delete its files."""
        for path in self.paths():
            path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """Return its files."""
        return [self._path(i) for i in range(len(self.digests))]

    def state_dict(self) -> dict[str, Any]:
        """Return the steps in memory, and checksums of those on disk."""
        return {
            "number": self.number,
            "digests": torch.tensor([list(x) for x in self.digests], dtype=torch.uint8).reshape(-1, 32),
            "steps": {name: torch.from_numpy(np.stack(x)) for name, x in self.steps.items() if x},
        }

    def load_state_dict(self, saved: Mapping[str, Any], later_episodes: Iterable[Path]) -> bool:
        """Restore a `state_dict`; return whether all of its steps are still there.

        Args:
            saved: the state.
            later_episodes: files of episodes that were finished after the state was taken, maybe this one.
        """
        self.digests = [bytes(row) for row in saved["digests"].tolist()]
        steps = saved["steps"]
        if self.digests and not self._parts_are_intact():
            whole = self._whole_episode(later_episodes)
            rows = len(self.digests) * PART_STEPS + (len(next(iter(steps.values()))) if steps else 0)
            self.digests = []
            if whole is None:
                _log.warning("%s: steps of an unfinished episode are lost; what follows is stored.", self.folder)
                return False
            for t in range(rows):
                self.add({name: whole[name][t] for name in self.steps})
        else:
            self.steps |= {name: list(values.numpy()) for name, values in steps.items()}
        return True

    def _parts_are_intact(self) -> bool:
        parts = zip(self.paths(), self.digests, strict=True)
        return all(path.is_file() and digest(path) == expected for path, expected in parts)

    def _whole_episode(self, paths: Iterable[Path]) -> dict[str, np.ndarray] | None:
        for path in paths:
            try:
                with safe_open(path, framework="numpy") as file:
                    if (file.metadata() or {}).get(BEGUN) == str(self.number):
                        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            except (OSError, SafetensorError):
                continue  # damaged files are reported where they are needed
        return None

    def _path(self, part: int) -> Path:
        return self.folder / f"unfinished_{self.number:08d}_{part:06d}.safetensors"
