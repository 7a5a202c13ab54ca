"""The snapshots of a run: the two newest, from which it can be gone on with, and the weights of milestones."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from drqv2.errors import DiskError, NotFiniteError, UserError
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_state import weights
from drqv2.system import files
from drqv2.system.files import SNAPSHOTS

_log = logging.getLogger(__name__)


class Checkpoints:
    """Writes snapshots in a thread, from copies, so that the run goes on meanwhile, and reads the newest good one.

    Each snapshot says in `needs` which episode is the first that it refers to. Files from `needed` on must stay.

    Args:
        run_dir: where they go.
    """

    def __init__(self, run_dir: Path) -> None:
        self._dir = run_dir
        self._writer = ThreadPoolExecutor(1, "snapshot")
        self._writing: Future[None] | None = None
        self._milestones: list[dict[str, Any]] = []  # not yet written
        self._frame = 0  # of the snapshot that is being written
        self._needs: list[int] = []  # of the two newest snapshots on disk, and of the one that is being written

    @property
    def needed(self) -> int | None:
        """Number of the first episode that a snapshot refers to; None while there is no snapshot."""
        return min(self._needs, default=None)

    @property
    def busy(self) -> bool:
        """Whether a snapshot is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, state: dict[str, Any], milestone: bool = False) -> None:
        """Begin to write a snapshot, after the one before it is written.

        Args:
            state: nested dicts and lists of tensors, numbers, strings and None; copied before this returns. `frame`
                and `needs` are read here.
            milestone: keep its weights for good, under their frame.

        Raises:
            NotFiniteError: a parameter is NaN or infinite; nothing is written.
        """
        self.settle()
        if name := snapshot.not_finite(state["agent"], "agent"):
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
            words = "the weights of frame %d cannot be written (%s); the next snapshot tries again."
            _log.warning(words, self._milestones[0]["frame"], e.strerror or e)

    def settle(self, last: bool = False) -> None:
        """Wait for what is being written.

        Args:
            last: there will be no other attempt.

        Raises:
            DiskError: it could not be written, and it was the last.

        Warns:
            By the log: it could not be written; the older snapshots are still there.
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
                advice = f"The one before it is whole; make room, then go on with resume={self._dir}"
                raise DiskError(f"{words}\n{advice}") from e
            _log.warning("%s; the one before it is kept, and the run goes on.", words)
        del self._needs[:-2]

    def load(self) -> dict[str, Any] | None:
        """Return the newest good snapshot, None where there is none at all; a bad one goes to quarantine.

        Raises:
            UserError: none is good; they are left where they are.
        """
        reason: UserError | None = None
        for name in SNAPSHOTS:
            path = self._dir / name
            if not path.exists():
                continue
            try:
                state = snapshot.load_run(path)
            except UserError as e:
                reason = reason or e
                continue
            if reason is not None:
                files.quarantine(self._dir / SNAPSHOTS[0], self._dir, str(reason).partition(": ")[2])
                _log.warning("Going on from the snapshot before it, of frame %d.", state["frame"])
            # The one before the newest needs the files, too; so does what it was made from, after a fall back to it.
            self._needs = [min(state["needed_before"], state["needs"]), state["needs"]]
            return state
        if reason is not None:
            raise reason
        return None

    def close(self) -> None:
        """Wait for what is being written, and end the thread."""
        try:
            self.settle()
        finally:
            self._writer.shutdown()


def has_ended(cfg: DictConfig, run_dir: Path) -> dict[str, Any] | None:
    """Return how far the run in `run_dir` came if it has ended and given up its replay (keep_replay=false); say so.

    Raises:
        UserError: it has, and is asked to go on for longer; or its replay is missing though it has not ended.
    """
    if not files.has_snapshot(run_dir) or (run_dir / files.REPLAY).exists():
        return None
    path, saved = _newest(run_dir)
    length = saved["config"]["num_train_frames"]
    ended = saved["frame"] + saved["config"]["action_repeat"] * saved["config"]["num_envs"] > length
    if not ended or cfg.num_train_frames > length:
        why = "has ended and its replay is deleted (keep_replay=false)" if ended else "has lost its replay"
        raise UserError(
            f"{run_dir} {why}: it cannot be gone on with\ninit_from={path} begins another run with its weights."
        )
    print(f"nothing left to do: the run has had its num_train_frames={length}, and its replay is deleted")
    progress: dict[str, Any] = saved["progress"]
    return progress


def _newest(run_dir: Path) -> tuple[Path, dict[str, Any]]:
    """Return the newest snapshot that is whole, and its path; if none is, say what ails the newest."""
    reason: UserError | None = None
    for path in (run_dir / name for name in files.SNAPSHOTS):
        if path.is_file():
            try:
                return path, snapshot.load_run(path)
            except UserError as e:
                reason = reason or e
    assert reason is not None, "the caller has seen a snapshot"
    raise reason
