"""One `log()` in front of CSV files, the console and the sinks: TensorBoard, metrics.jsonl, Weights & Biases.

Values are averaged between two dumps. A dump writes one row to `train.csv` or `eval.csv`, one line to the
console and one TensorBoard point for each key, all placed at the dump's frame.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from drqv2.logging.console import COLUMNS, Console, PlainConsole
from drqv2.logging.sinks import Sink
from drqv2.logging.sinks.events import EventFiles
from drqv2.logging.sinks.json_lines import JsonLines
from drqv2.logging.sinks.table import CsvTable

_log = logging.getLogger(__name__)


class _Meter:
    """Running mean. Tensors are kept as they come: nothing waits for them before `total` is read.

    They are added one after another, in float64, so that the sum does not depend on when it is read.
    """

    _MOST = 1000  # tensors that wait

    def __init__(self, total: float = 0.0, count: int = 0) -> None:
        self._total = total
        self._waiting: list[torch.Tensor] = []
        self.count = count

    def update(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._waiting.append(value.detach().reshape(()).clone())  # its memory may be written to again
            if len(self._waiting) == self._MOST:
                self._read()
        else:
            self._total = self.total + float(value)
        self.count += 1

    @property
    def total(self) -> float:
        if self._waiting:
            self._read()
        return self._total

    @property
    def mean(self) -> float:
        return self.total / self.count

    def _read(self) -> None:
        for value in torch.stack(self._waiting).tolist():
            self._total += value
        self._waiting.clear()


def _write(points: Mapping[str, float], frame: int, sink: Sink) -> None:
    sink.write(points, frame)


class Logger:
    """Logs of one run: `train.csv` and `eval.csv`, console lines, `metrics.jsonl`, TensorBoard events in `tb/`.

    CSV columns begin with the public ones (frame, step, episode, ...); others follow as they come, and rows written
    before a column was known are empty there. Numbers read back exactly.

    Args:
        log_dir: Folder of the run; made when missing.
        use_tb: Whether to write TensorBoard events. Without a working tensorboard, one warning says so.
        hparams: What TensorBoard shows as the run's hyper-parameters.
        sinks: Further ones.
        console: Shows the rows; plain lines by default.
    """

    def __init__(
        self,
        log_dir: str | Path,
        use_tb: bool,
        hparams: Mapping[str, Any] | None = None,
        sinks: Sequence[Sink] = (),
        console: Console | None = None,
    ) -> None:
        log_dir = Path(log_dir)
        log_dir.mkdir(parents=True, exist_ok=True)
        self._meters: dict[str, _Meter] = {}
        self._tables = {ty: CsvTable(log_dir / f"{ty}.csv", list(columns)) for ty, columns in COLUMNS.items()}
        self._sinks: list[Sink] = [JsonLines(log_dir / "metrics.jsonl"), *sinks]
        if use_tb:
            self._sinks.append(EventFiles(log_dir / "tb", hparams))
        self._states: dict[str, Any] = {}  # of sinks, the newest known: also of those that were dropped
        self._console = console or PlainConsole()

    def log(self, key: str, value: float | torch.Tensor, frame: int) -> None:
        """Add a value to the mean that the next dump writes.

        Args:
            key: `train/NAME` or `eval/NAME`.
            value: A number or a tensor of one element; a tensor is not read (no synchronisation) before the dump.
            frame: Environment frame of the value. The dump's frame is what is written.

        Raises:
            ValueError: The key has neither prefix, or a tensor has several elements.
        """
        if key.partition("/")[0] not in self._tables or key.partition("/")[2] == "":
            raise ValueError(f"log key {key!r} must be train/NAME or eval/NAME")
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ValueError(f"{key} is a tensor of shape {tuple(value.shape)}; log one number, such as its mean()")
        self._meters.setdefault(key, _Meter()).update(value)

    def log_metrics(self, metrics: Mapping[str, float | torch.Tensor], frame: int, ty: str) -> None:
        """Log each metric under `ty` ("train" or "eval")."""
        for name, value in metrics.items():
            self.log(f"{ty}/{name}", value, frame)

    def dump(self, frame: int, ty: str | None = None) -> None:
        """Write the means since the last dump; without values there is no row.

        Args:
            frame: Environment frames so far.
            ty: "train", "eval", or None for both.
        """
        for prefix in self._tables if ty is None else (ty,):
            points = {key: meter.mean for key, meter in self._meters.items() if key.startswith(f"{prefix}/")}
            if not points:
                continue
            for key in points:
                del self._meters[key]
            row = {key.partition("/")[2].replace("/", "_"): value for key, value in points.items()} | {"frame": frame}
            self._tables[prefix].append(row)
            self._feed(partial(_write, points, frame))
            self._console.show(prefix, row)

    @contextmanager
    def log_and_dump_ctx(self, frame: int, ty: str) -> Iterator[Callable[[str, float | torch.Tensor], None]]:
        """`with logger.log_and_dump_ctx(frame, "train") as log: log("fps", fps)` logs, then dumps at the end."""
        yield lambda key, value: self.log(f"{ty}/{key}", value, frame)
        self.dump(frame, ty)

    def log_video(self, tag: str, path: Path, frame: int) -> None:
        """Hand a finished mp4 to the sinks that show such; one that fails at it goes on with figures."""
        for sink in self._sinks:
            try:
                sink.video(tag, path, frame)
            except Exception as error:  # whatever a decoder or a service raises
                _log.warning("%s does without %s (%s: %s).", sink.name, path, type(error).__name__, error)

    def _feed(self, act: Callable[[Sink], Any]) -> dict[str, Any]:
        """Return what each sink answers; one that fails is dropped."""
        answers = {}
        for sink in list(self._sinks):
            try:
                answers[sink.name] = act(sink)
            except Exception as error:  # a broken install or service fails in many ways, none worth a training run
                self._sinks.remove(sink)
                reason = f"{type(error).__name__}: {error}"
                _log.warning("%s is off from here on, the CSV files go on (%s).", sink.name, reason)
        return answers

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and containers: each file's text, undumped means, newest points."""
        self._states |= self._feed(lambda sink: sink.state_dict())
        return {
            "texts": {ty: table.text() for ty, table in self._tables.items()},
            "rows": {ty: table.rows for ty, table in self._tables.items()},
            "columns": {ty: list(table.columns) for ty, table in self._tables.items()},
            "meters": {key: [meter.total, meter.count] for key, meter in self._meters.items()},
            "sinks": dict(self._states),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to `state`: CSV rows and columns that came after it are cut, the sinks forget later points."""
        for ty, table in self._tables.items():
            table.restore(list(state["columns"][ty]), int(state["rows"][ty]), state["texts"][ty])
        self._meters = {key: _Meter(float(total), int(count)) for key, (total, count) in state["meters"].items()}
        self._states = states = dict(state["sinks"])
        self._feed(lambda sink: sink.load_state_dict(states[sink.name]) if sink.name in states else None)

    def nonfinite_loss(self) -> str | None:
        """Return the name of a loss whose mean since the last dump is NaN or infinite, or None.

        A sum that one such value went into stays NaN or infinite.
        """
        losses = (key for key in self._meters if key.startswith("train/") and "loss" in key)
        return next((key.partition("/")[2] for key in losses if not math.isfinite(self._meters[key].total)), None)

    def close(self) -> None:
        """Close all files; a later dump opens them again."""
        for table in self._tables.values():
            table.close()
        self._feed(lambda sink: sink.close())
