"""The snapshots of a run: the two newest, from which it can be resumed, and the weights of milestones."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

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
        self._milestones: list[dict[str, Any]] = []  # still to be written
        self._frame = 0  # of the snapshot being written
        self._needs: list[int] = []  # of the two newest snapshots on disk and of the one being written

    @property
    def needed(self) -> int | None:
        """Number of the first episode that a snapshot refers to; None while there is no snapshot."""
        return min(self._needs, default=None)

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, state: dict[str, Any], milestone: bool = False) -> None:
        """Start writing a snapshot, once the one before it is on disk.

        Args:
            state: nested dicts and lists of tensors, numbers, strings and None; copied before this returns.
            milestone: also keep the weights for good, as weights_FRAME.pt.

        Raises:
            NotFiniteError: a parameter is NaN or infinite; nothing is written.
        """
        self.wait()
        if name := not_finite(state["agent"], "agent"):
            raise NotFiniteError(f"{name} is not finite at frame {state['frame']}")
        state = {**snapshot.copied(state), "needed_before": self._needs[-1] if self._needs else state["needs"]}
        self._frame = state["frame"]
        self._needs.append(state["needs"])
        self._writing = self._writer.submit(self._write, state, milestone)

    def _write(self, state: dict[str, Any], milestone: bool) -> None:
        newest, previous = (self._dir / name for name in SNAPSHOTS)
        snapshot.save(newest, state, keep=previous)
        if milestone:
            kept = {name: state[name] for name in ("frame", "config")} | {"agent": weights(state["agent"])}
            self._milestones.append(kept)
        try:
            while self._milestones:
                snapshot.save(self._dir / f"weights_{self._milestones[0]['frame']}.pt", self._milestones[0])
                del self._milestones[0]
        except OSError as e:
            words = "the weights of frame %d cannot be written (%s); retrying with the next snapshot."
            _log.warning(words, self._milestones[0]["frame"], e.strerror or e)

    def wait(self, last: bool = False) -> None:
        """Wait until the snapshot being written is on disk; log a warning if it could not be written.

        Args:
            last: no later snapshot will follow.

        Raises:
            DiskError: the last snapshot could not be written.
        """
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except OSError as e:
            self._needs.pop()
            words = f"the snapshot of frame {self._frame} cannot be written ({e.strerror or e})"
            if last:
                advice = f"The previous one is intact: free some disk space, then resume={self._dir}"
                raise DiskError(f"{words}\n{advice}") from e
            _log.warning("%s; the previous one is kept, and the run continues.", words)
        del self._needs[:-2]

    def load(self) -> dict[str, Any] | None:
        """Return the newest readable snapshot, or None if there is none; a damaged newer one goes to quarantine.

        Raises:
            UserError: none is readable; they stay where they are.
        """
        newest = newest_readable(self._dir)
        if newest is None:
            return None
        _, state, damaged = newest
        if damaged is not None:
            files.quarantine(self._dir / SNAPSHOTS[0], self._dir, str(damaged).partition(": ")[2])
        # Also keep what the previous snapshot refers to: it may be needed if this one is damaged later.
        self._needs = [min(state["needed_before"], state["needs"]), state["needs"]]
        return state

    def close(self) -> None:
        """Wait for the snapshot being written, and end the thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()


def newest_readable(run_dir: Path) -> tuple[Path, dict[str, Any], UserError | None] | None:
    """Return the newest readable snapshot of a run: its path, its content and, if a newer one is damaged, the error.

    Returns:
        None where there is no snapshot at all.

    Raises:
        UserError: there are snapshots, and none is readable; says what is wrong with the newest.
    """
    damaged: UserError | None = None
    for path in (run_dir / name for name in SNAPSHOTS):
        if path.is_file():
            try:
                state = snapshot.load_run(path)
                if damaged is not None:
                    _log.warning("%s; using the previous snapshot, of frame %d.", damaged, state["frame"])
                return path, state, damaged
            except UserError as e:
                damaged = damaged or e
    if damaged is not None:
        raise damaged
    return None


def last_return_of_finished_run(cfg: DictConfig, run_dir: Path) -> float | None:
    """Return the last evaluation's return of a run that is finished and has deleted its replay; None for any other.

    Such a run (keep_replay=false) cannot be resumed; starting it again, as a scheduler may, does nothing.

    Raises:
        UserError: it is asked to train for longer, or its replay is missing though it has not finished.
    """
    if not files.has_snapshot(run_dir) or (run_dir / files.REPLAY).exists():
        return None
    newest = newest_readable(run_dir)
    assert newest is not None
    path, saved, _ = newest
    length = saved["config"]["num_train_frames"]
    finished = saved["frame"] + saved["config"]["action_repeat"] * saved["config"]["num_envs"] > length
    if not finished or cfg.num_train_frames > length:
        why = "is finished and its replay is deleted (keep_replay=false)" if finished else "lacks its replay"
        raise UserError(f"{run_dir} {why}: it cannot be resumed\ninit_from={path} starts a new run with its weights.")
    print(f"nothing left to do: all num_train_frames={length} are done, and the run's replay is deleted")
    return float(saved["progress"]["last_return"])
