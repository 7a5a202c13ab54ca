"""The snapshots of a run: the two newest, from which it can be resumed, and the weights of milestones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from drqv2.errors import DiskError, NotFiniteError, UserError
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_weights import not_finite, weights
from drqv2.system import files
from drqv2.system.files import SNAPSHOTS

_log = logging.getLogger(__name__)


class Checkpoints:
    """Writes a run's snapshots in a background thread, from copies, and reads the newest readable one.

    The entry `needs` of a snapshot is the number of the first episode that it refers to. Episode files from `needed`
    on must be kept.

    Args:
        run_dir: the run's directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._writer = ThreadPoolExecutor(1, "snapshot")
        self._writing: Future[None] | None = None
        self._weights: dict[str, dict[str, Any]] = {}  # still to be written, by the name of their file
        self._outdated: list[int] = []  # frames of weights still to be deleted
        self._frame = 0  # of the snapshot being written
        self._failure: OSError | None = None  # of the newest one
        self._needs: list[int] = []  # of the two newest snapshots on disk and of the one being written

    @property
    def needed(self) -> int | None:
        """Number of the first episode that a snapshot refers to; None while there is no snapshot."""
        return min(self._needs, default=None)

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, state: dict[str, Any], milestone: bool = False, outdated: Sequence[int] = ()) -> None:
        """Start writing a snapshot, once the one before it is on disk.

        Args:
            state: nested dicts and lists of tensors, numbers, strings and None; copied before this returns.
            milestone: also keep the weights, as weights_FRAME.pt.
            outdated: frames of weights that are deleted when all is written.

        Raises:
            NotFiniteError: a parameter is NaN or infinite; nothing is written.
        """
        self.wait()
        if name := not_finite(state["agent"], "agent"):
            raise NotFiniteError(f"{name} is not finite at frame {state['frame']}")
        state = {**snapshot.copied(state), "needed_before": self._needs[-1] if self._needs else state["needs"]}
        self._frame = state["frame"]
        self._needs.append(state["needs"])
        self._writing = self._writer.submit(self._write, state, milestone, outdated)

    def _write(self, state: dict[str, Any], milestone: bool, outdated: Sequence[int]) -> None:
        newest, previous = (self._dir / name for name in SNAPSHOTS)
        if milestone:
            kept = {name: state[name] for name in ("frame", "config")} | {"agent": weights(state["agent"])}
            self._weights[f"weights_{state['frame']}.pt"] = kept
        for frame in outdated:
            self._weights.pop(f"weights_{frame}.pt", None)
        self._outdated += outdated
        snapshot.save(newest, state, keep=previous)
        self._write_weights()
        while self._outdated:
            (self._dir / f"weights_{self._outdated.pop()}.pt").unlink(missing_ok=True)

    def _write_weights(self) -> None:
        for name, content in list(self._weights.items()):
            try:
                snapshot.save(self._dir / name, content)
                del self._weights[name]
            except OSError as e:
                words = "%s: the weights of frame %d cannot be written (%s); retrying with the next snapshot."
                _log.warning(words, name, content["frame"], e.strerror or e)

    def save_best(self, frame: int, config: dict[str, Any], agent: dict[str, Any]) -> None:
        """Write the weights of an agent's state to best.pt; if the disk is full, log a warning and try again later."""
        self.wait()
        self._weights[files.BEST] = snapshot.copied({"frame": frame, "config": config, "agent": weights(agent)})
        self._write_weights()

    def wait(self, last: bool = False) -> None:
        """Wait until the snapshot being written is on disk; log a warning if it could not be written.

        Raises:
            DiskError: it could not, or could not before, and it is the `last` one.
        """
        if self._writing is not None:
            writing, self._writing, self._failure = self._writing, None, None
            try:
                writing.result()
            except OSError as e:
                self._needs.pop()
                self._failure = e
                if not last:
                    _log.warning("%s; the previous one is kept, and the run continues.", self._told(e))
            del self._needs[:-2]
        if last and self._failure is not None:
            advice = f"The previous one is intact: free some disk space, then resume={self._dir}"
            raise DiskError(f"{self._told(self._failure)}\n{advice}") from self._failure

    def _told(self, error: OSError) -> str:
        return f"the snapshot of frame {self._frame} cannot be written ({error.strerror or error})"

    def load(self) -> dict[str, Any] | None:
        """Return the newest readable snapshot, or None if there is none; a damaged newer one goes to quarantine.

        Raises:
            UserError: none is readable; they stay where they are.
        """
        found = newest_readable(self._dir)
        if found is None:
            return None
        path, state = found
        newest = self._dir / SNAPSHOTS[0]
        if path != newest and newest.is_file():
            files.quarantine(newest, self._dir, "cannot be resumed from")
        # Also keep what the previous snapshot refers to: it may be needed if this one is damaged later.
        self._needs = [min(state["needed_before"], state["needs"]), state["needs"]]
        return state

    def close(self) -> None:
        """Wait for the snapshot being written, and end the thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()


def newest_readable(run_dir: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the path and the content of a run's newest readable snapshot; None where there is no snapshot at all.

    Raises:
        UserError: there are snapshots, and none is readable; says what is wrong with the newest.
    """
    damaged: UserError | None = None
    for path in (run_dir / name for name in SNAPSHOTS if (run_dir / name).is_file()):
        try:
            state = snapshot.load(path)
            if "progress" not in state:
                raise UserError(f"{path}: not a run's snapshot, but weights alone")
        except UserError as e:
            damaged = damaged or e
        else:
            if damaged is not None:
                _log.warning("%s; using the previous snapshot, of frame %d.", damaged, state["frame"])
            return path, state
    if damaged is not None:
        raise damaged
    return None
