"""Settings: what runs of the same method share on all tasks, and how a setting is called in a legend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from drqv2.config.checks import leaves
from drqv2.config.dm_control import every_task
from drqv2.config.formatting import counted, show
from drqv2.config.schema import CFGS, defaults, free_in_a_setting
from drqv2.config.tables.multitask import TASK_GROUPS
from drqv2.config.tables.shared import FIRST_REGIME
from drqv2.errors import UserError
from drqv2.report.runs import Run

_TASK = {"task_name", "env_id"}  # a setting is the same on all tasks
_OF_TASK = "the task's default"
_LONGEST, _LONGEST_VALUE = 44, 20  # characters of a short label, and of a value in it


@dataclass(frozen=True)
class Setting:
    """A setting and its names.

    Attributes:
        index: its number among the settings of the page, by which it gets its colour.
        label: every key in which it differs from most runs.
        short: the same in at most about 44 characters, for legends; different settings have different ones.
    """

    index: int
    label: str
    short: str


def settings(runs: Sequence[Run]) -> dict[int, Setting]:
    """Return the setting of each run and of its parts, by `id`, numbered in the order of the runs."""
    values = [_values(run) for run in runs]
    names = sorted({name for own in values for name in own})
    differing = [name for name in names if len({own.get(name, "null") for own in values}) > 1]
    members: dict[tuple[str, ...], list[int]] = {}
    for i, own in enumerate(values):
        members.setdefault(tuple(own.get(name, "null") for name in differing), []).append(i)
    rows = [_readable(dict(zip(differing, key, strict=True)), runs) for key in members]
    families = [_family(runs[numbers[0]]) for numbers in members.values()]
    counts = [len(numbers) for numbers in members.values()]
    labels = [_full(row, _usual(rows, counts)) for row in rows]
    shorts = _shorts(rows, counts, families)
    found: dict[int, Setting] = {}
    for index, (label, short, numbers) in enumerate(zip(labels, shorts, members.values(), strict=True)):
        setting = Setting(index, label or ("default settings" if differing else "all runs"), short)
        for i in numbers:
            found |= dict.fromkeys(map(id, (runs[i], *runs[i].parts)), setting)
    return found


def _values(run: Run) -> dict[str, str]:
    """Return the keys that affect learning, without those that only repeat another."""
    own = {name: value for name, value in run.config.items() if name not in free_in_a_setting() | _TASK}
    shown = {}
    usual = {} if run.several else _task_defaults(run.task, str(run.config.get("regime", FIRST_REGIME)))
    for name, value in own.items():
        if name.startswith("agent.") and name[6:] in own and own[name[6:]] == value:
            continue  # agent.lr is lr
        if name == "replay_buffer_size" and run.config.get("data") and not run.config.get("then"):
            continue  # it follows the data, which are shown
        shown[name] = _OF_TASK if name in usual and usual[name] == value else show(value)
    return shown


def _readable(row: dict[str, str], runs: Sequence[Run]) -> dict[str, str]:
    """Return a setting's values with the task's default as a value where it is the same on all tasks of the page."""
    readable = dict(row)
    for name in (name for name, value in row.items() if value == _OF_TASK):
        every = {_task_defaults(run.task, str(run.config.get("regime", FIRST_REGIME))).get(name) for run in runs}
        if len(every) == 1:
            readable[name] = show(every.pop())
    return readable


@cache
def _task_defaults(task: str, regime: str) -> dict[str, Any]:
    """Return what a task that is run alone has by itself, for the keys that files in cfgs/task set.

    humanoid_run has a smaller learning rate than walker_run: the same setting, two values.
    """
    try:
        base = leaves(defaults(regime))
    except UserError:
        return {}
    files = {path.stem: path for path in CFGS.glob("task/*.yaml")}
    own = _task_keys(task if task in files else "medium") if task in every_task() else {}
    every = {key for name in files for key in _task_keys(name)} - _TASK
    return {key: own.get(key, base.get(key)) for key in every}


@cache
def _task_keys(name: str) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(CFGS / f"task/{name}.yaml"))
    found: dict[str, Any] = {}
    for base in content.pop("defaults", ()):
        found |= {} if base == "_self_" else _task_keys(base)
    return found | leaves(content)


def _family(run: Run) -> tuple[str, str]:
    """Return whose keys are much the same, runs of a regime or of a list of tasks, and what to call them."""
    regime = str(run.config.get("regime", FIRST_REGIME))
    if not run.several:
        return regime, regime
    names = run.config["tasks"]
    return show(names), f"{regime} {run.task if run.task in TASK_GROUPS else counted(len(names), 'task')}"


def _usual(rows: Sequence[Mapping[str, str]], counts: Sequence[int]) -> dict[str, str]:
    """Return the value of each key that most runs have."""
    votes: dict[str, Counter[str]] = {}
    for row, count in zip(rows, counts, strict=True):
        for name, value in row.items():
            votes.setdefault(name, Counter())[value] += count
    return {name: counter.most_common(1)[0][0] for name, counter in votes.items()}


def _full(row: Mapping[str, str], usual: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items() if value != usual[name])


def _shorts(rows: Sequence[Mapping[str, str]], counts: Sequence[int], families: Sequence[tuple[str, str]]) -> list[str]:
    """Return a short label for each setting: its family if there are several, and what differs within it."""
    texts = []
    for row, family in zip(rows, families, strict=True):
        mine = [i for i, other in enumerate(families) if other == family]
        usual = _usual([rows[i] for i in mine], [counts[i] for i in mine])
        unusual = {name: value for name, value in row.items() if value != usual[name]}
        short_names = Counter(_last(name) for name in unusual)
        parts = [middle(family[1], _LONGEST_VALUE)] if len(set(families)) > 1 else []
        for name, value in unusual.items():
            if name == "num_envs" and row.get("envs_per_task") == value:
                continue  # the same again
            parts.append(f"{_last(name) if short_names[_last(name)] == 1 else name}={_short_value(name, value)}")
        texts.append(_joined(parts) or ("default settings" if any(rows) else "all runs"))
    seen: Counter[str] = Counter()
    repeated = {text for text, count in Counter(texts).items() if count > 1}
    for i, text in enumerate(texts):
        seen[text] += 1
        if text in repeated:
            texts[i] = f"{text} ({seen[text]})"
    return texts


def _joined(parts: Sequence[str]) -> str:
    """Return as many parts as fit, and the number of the others."""
    for number in range(len(parts), 1, -1):
        more = f" +{len(parts) - number}" if number < len(parts) else ""
        if len(text := ", ".join(parts[:number]) + more) <= _LONGEST:
            return text
    more = f" +{len(parts) - 1}" if len(parts) > 1 else ""
    return middle(parts[0], _LONGEST) + more if parts else ""


def _last(name: str) -> str:
    return "agent" if name == "agent._target_" else name.rpartition(".")[2]


def _short_value(name: str, value: str) -> str:
    return middle(value.rpartition(".")[2] if name.endswith("_target_") else value, _LONGEST_VALUE)


def middle(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters, with an ellipsis in place of the middle of a longer one."""
    head = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - head]}…{text[-head:]}"
