"""The report: one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from drqv2.config.formatting import show
from drqv2.errors import UserError
from drqv2.report import charts, groups, published, runs, tables
from drqv2.report.aggregate import aggregate
from drqv2.report.charts import Chart
from drqv2.report.groups import Group
from drqv2.report.runs import Run
from drqv2.report.sections import Others, section
from drqv2.system.files import write_atomically

_FOLDER = Path(__file__).parent
_FEW_TASKS = 6  # up to here the sections of tasks are open from the start


def write(
    roots: list[Path],
    out: Path,
    published_file: Path | None,
    videos: str,
    history: Path | None,
    refresh: int | None = None,
    references: Path | None = None,
    shown: Sequence[str] = (),
) -> tuple[int, list[str]]:
    """Read the runs below `roots` and write the page; return the number of runs, and what is omitted and why.

    Args:
        roots: directories that contain runs.
        out: the page; links are relative to its folder.
        published_file: CSV file of DrQ-v2's published curves.
        videos: "embed" the newest video of each run, "link" to it, or "none".
        history: JSON lines of benchmark results.
        refresh: interval in seconds at which a browser checks for a newer page.
        references: CSV file of curves of other methods.
        shown: methods of these that charts show from the start.

    Raises:
        UserError: a file of curves is invalid, or there is no run and `refresh` is None.
        OSError: the page cannot be written.
    """
    found: list[Run] = []
    omitted: list[str] = []
    for path in runs.find(roots):
        try:
            found.append(runs.read(path))
        except UserError as e:
            omitted.append(f"{path}: {e}")
    if not found and refresh is None:
        where = ", ".join(map(str, roots))
        damaged = f"\n{len(omitted)} cannot be read: {omitted[0]}" if omitted else ""
        raise UserError(
            f"{where}: contains no run, that is, a directory with config.yaml and train.csv or eval.csv{damaged}"
        )
    others = Others(
        published.read_published(published_file, omitted) if published_file else {},
        published.read_references(references, shown, omitted) if references else {},
        shown,
    )
    speed = _history(history, omitted) if history else None
    wholes: dict[str, list[Group]] = {}
    tasks: dict[str, list[Group]] = {}
    for group in groups.group(found):
        (wholes if group.runs[0].several else tasks).setdefault(group.task, []).append(group)
    sections = [section(name, members, others, videos, out.parent) for name, members in tasks.items()]
    entries = {entry.name: entry for each in sections for entry in each["chart"].entries if entry.on}
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string((_FOLDER / "page.html").read_text("utf-8")).render(
        made=datetime.now().astimezone().isoformat(" ", "minutes"),
        plotly=get_plotlyjs(),
        script=(_FOLDER / "charts.js").read_text("utf-8"),
        number=len(found),
        refresh=refresh,
        unreadable=omitted,
        entries=entries.values(),
        aggregate=aggregate(tasks),
        wholes=[section(name, members, others, videos, out.parent) for name, members in wholes.items()],
        tasks=sections,
        folded=len(tasks) > _FEW_TASKS,
        configs=_configurations(found),
        names=[run.path.name for run in found],
        history=speed,
    )
    write_atomically(out, page.encode(errors="replace"))  # file names may not be valid UTF-8
    return len(found), omitted


def _configurations(found: Sequence[Run]) -> dict[str, Any]:
    """Return the keys in which runs differ, with the value of each run, and the keys that are the same in all."""
    keys = sorted({key for run in found for key in run.config})
    values = {key: [show(run.config.get(key)) for run in found] for key in keys}
    return {
        "differing": {key: row for key, row in values.items() if len(set(row)) > 1},
        "same": {key: row[0] for key, row in values.items() if len(set(row)) == 1},
    }


def _history(path: Path, faults: list[str]) -> Chart | None:
    series: dict[str, list[tuple[str, float]]] = {}
    for entry in tables.read_json_lines(path, faults):
        ratios = entry.get("ratios")
        for name, ratio in ratios.items() if isinstance(ratios, dict) else ():
            series.setdefault(name, []).append((entry.get("time", "")[:10], ratio))
    return charts.history_chart(series)
