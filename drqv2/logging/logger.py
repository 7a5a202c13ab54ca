"""The logger: CSV files, the console, and the sinks TensorBoard, metrics.jsonl and Weights & Biases."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any

import torch

from drqv2.errors import UserError
from drqv2.logging.console import COLUMNS, Console, PlainConsole
from drqv2.logging.sinks import Sink
from drqv2.logging.sinks.events import EventFiles
from drqv2.logging.sinks.json_lines import JsonLines
from drqv2.logging.sinks.table import CsvTable

_log = logging.getLogger(__name__)


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:60]


class _Recent:
    """The last 100 finite values of a metric, and how many others there were."""

    def __init__(self, values: Iterable[float] = (), nonfinite: int = 0) -> None:
        self.values, self.nonfinite = deque(values, maxlen=100), nonfinite

    def add(self, value: float) -> None:
        if math.isfinite(value):
            self.values.append(value)
        else:
            self.nonfinite += 1


class _Meter:
    """Running sum. Tensors are queued, without synchronisation, until `total` is read.

    They are summed one by one in float64, so that the sum does not depend on when it is read. `recent` gets each value.
    """

    _QUEUE_SIZE = 1000

    def __init__(self, total: float = 0.0, count: int = 0, recent: _Recent | None = None) -> None:
        self._total, self.count, self._recent = total, count, recent
        self._queue: list[torch.Tensor] = []

    def update(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._queue.append(value.detach().reshape(()).clone())  # the caller may overwrite it
            if len(self._queue) == self._QUEUE_SIZE:
                self._total = self.total
        else:
            self._total = self.total + float(value)
            if self._recent is not None:
                self._recent.add(float(value))
        self.count += 1

    @property
    def total(self) -> float:
        if self._queue:
            for value in torch.stack(self._queue).tolist():  # not sum(), which compensates from Python 3.12 on
                self._total += value
                if self._recent is not None:
                    self._recent.add(value)
            self._queue.clear()
        return self._total


class Logger:
    """Logs a run to `train.csv`, `eval.csv`, the console, `metrics.jsonl` and TensorBoard events in `tb/`.

    Values are averaged between two dumps. A dump writes a row, a console line and a TensorBoard point per key. The
    standard CSV columns (frame, step, episode, ...) come first. Others are added as they appear; earlier rows are
    empty there. Numbers are written so that they read back exactly.

    Args:
        log_dir: run directory; created if missing.
        use_tb: whether to write TensorBoard events. If tensorboard does not work, a warning is logged.
        hparams: hyper-parameters for TensorBoard.
        sinks: additional sinks.
        console: shows the rows; plain lines by default.
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
        self._recent: dict[str, _Recent] = {}  # of the metrics of agents' updates
        self._tables = {ty: CsvTable(log_dir / f"{ty}.csv", list(columns)) for ty, columns in COLUMNS.items()}
        self._sinks: list[Sink] = [JsonLines(log_dir / "metrics.jsonl"), *sinks]
        if use_tb:
            self._sinks.append(EventFiles(log_dir / "tb", hparams))
        self._states: dict[str, Any] = {}  # last known state of every sink, dropped ones included
        self._console = console or PlainConsole()

    def log(self, key: str, value: float | torch.Tensor, frame: int) -> None:
        """Add a value to the mean that the next dump writes.

        Args:
            key: `train/NAME` or `eval/NAME`.
            value: a number or a tensor of one element. A tensor is not read (no synchronisation) before the dump.
            frame: environment frame of the value. The row is written at the dump's frame.

        Raises:
            ValueError: the key has neither prefix, or the tensor has several elements.
        """
        if key.partition("/")[0] not in self._tables or key.partition("/")[2] == "":
            raise ValueError(f"log key {key!r} must be train/NAME or eval/NAME")
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise ValueError(f"{key} is a tensor of shape {tuple(value.shape)}; log one number, such as its mean()")
        self._meters.setdefault(key, _Meter()).update(value)

    def log_metrics(self, metrics: Mapping[str, float | torch.Tensor], frame: int, ty: str) -> None:
        """Log each metric of an agent's update under `ty` ("train" or "eval").

        Raises:
            UserError: they are no dict of numbers.
        """
        if not isinstance(metrics, Mapping):
            raise UserError(f"agent.update returned {_short(metrics)}: must return a dict of metrics, or {{}}")
        for name, value in metrics.items():
            try:
                if f"{ty}/{name}" not in self._meters:
                    self._meters[f"{ty}/{name}"] = _Meter(recent=self._recent.setdefault(name, _Recent()))
                self.log(f"{ty}/{name}", value, frame)
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"agent.update returned {name}={_short(value)}: a metric must be one number ({error})"
                ) from error

    def recent(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return the mean of the last 100 finite values of each metric of the agent's updates, and the others' number.

        Only metrics that had such values are named.
        """
        for meter in self._meters.values():
            _ = meter.total  # passes on what is queued
        means = {name: math.fsum(r.values) / len(r.values) for name, r in self._recent.items() if r.values}
        return means, {name: r.nonfinite for name, r in self._recent.items() if r.nonfinite}

    def dump(self, frame: int, ty: str | None = None) -> None:
        """Write the means since the last dump; without values, write nothing.

        Args:
            frame: environment frames so far.
            ty: "train", "eval", or None for both.
        """
        for prefix in self._tables if ty is None else (ty,):
            meters = {key: self._meters.pop(key) for key in list(self._meters) if key.startswith(f"{prefix}/")}
            if not meters:
                continue
            points = {key: meter.total / meter.count for key, meter in meters.items()}
            row = {key.partition("/")[2].replace("/", "_"): value for key, value in points.items()} | {"frame": frame}
            self._tables[prefix].append(row)
            self._feed(methodcaller("write", points, frame))
            self._console.show(prefix, row)

    @contextmanager
    def log_and_dump_ctx(self, frame: int, ty: str) -> Iterator[Callable[[str, float | torch.Tensor], None]]:
        """Yield a `log(name, value)` function, and dump when the context exits."""
        yield lambda key, value: self.log(f"{ty}/{key}", value, frame)
        self.dump(frame, ty)

    def log_video(self, tag: str, path: Path, frame: int) -> None:
        """Pass a finished mp4 to the sinks. A sink that fails to show it keeps receiving metrics."""
        for sink in self._sinks:
            try:
                sink.video(tag, path, frame)
            except Exception as error:  # decoders and services raise anything
                _log.warning("%s skips %s (%s: %s).", sink.name, path, type(error).__name__, error)

    def _feed(self, act: Callable[[Sink], Any]) -> dict[str, Any]:
        """Return the result of `act` for each sink; drop sinks that fail."""
        results = {}
        for sink in list(self._sinks):
            try:
                results[sink.name] = act(sink)
            except Exception as error:  # a broken installation or service must not stop the run
                self._sinks.remove(sink)
                reason = f"{type(error).__name__}: {error}"
                _log.warning("%s is disabled; the CSV files are not affected (%s).", sink.name, reason)
        return results

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and containers: text of the CSV files, means not yet dumped, sink states."""
        self._states |= self._feed(methodcaller("state_dict"))
        return {
            "texts": {ty: table.text() for ty, table in self._tables.items()},
            "rows": {ty: len(table.rows) for ty, table in self._tables.items()},
            "columns": {ty: list(table.columns) for ty, table in self._tables.items()},
            "meters": {key: [meter.total, meter.count] for key, meter in self._meters.items()},
            "recent": {name: [list(recent.values), recent.nonfinite] for name, recent in self._recent.items()},
            "sinks": dict(self._states),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`: later CSV rows and columns are removed, and the sinks drop later points."""
        for ty, table in self._tables.items():
            table.restore(list(state["columns"][ty]), state["texts"][ty])
            for row in table.values():
                self._console.remember(ty, row)
        self._recent = {name: _Recent(*saved) for name, saved in state["recent"].items()}
        self._meters = {
            key: _Meter(float(total), int(count), self._recent.get(key.removeprefix("train/")))
            for key, (total, count) in state["meters"].items()
        }
        self._states = states = dict(state["sinks"])
        self._feed(lambda sink: sink.load_state_dict(states[sink.name]) if sink.name in states else None)

    def nonfinite_loss(self) -> str | None:
        """Return the name of a loss whose mean since the last dump is NaN or infinite, or None."""
        losses = (key for key in self._meters if key.startswith("train/") and "loss" in key)
        return next((key.partition("/")[2] for key in losses if not math.isfinite(self._meters[key].total)), None)

    def close(self) -> None:
        """Close all files; a later dump reopens them."""
        for table in self._tables.values():
            table.close()
        self._feed(methodcaller("close"))
