"""Settings: what runs of the same method share on all tasks, and how a setting is called in a legend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from drqv2.config.cfgs import CFGS, leaves
from drqv2.config.dm_control import every_task
from drqv2.config.formatting import counted, show
from drqv2.config.regimes.multitask import TASK_GROUPS
from drqv2.config.schema import FIRST, defaults, free_in_a_setting
from drqv2.errors import UserError
from drqv2.report.runs import Run

_TASK = {"task_name", "env_id"}  # a setting is the same on all tasks
_AGENT = "agent._target_"
_OF_TASK = "the task's default"
_LONGEST, _LONGEST_VALUE = 44, 20  # characters of a short label, and of a value in it


@dataclass(frozen=True)
class Setting:
    """A setting and its names.

    Attributes:
        index: its number among the settings of the page, by which it gets its colour.
        label: every key in which it differs from most runs.
        short: what tells it from the others, in at most about 44 characters, for legends; different settings have
            different ones.
    """

    index: int
    label: str
    short: str


class _Members(NamedTuple):
    """The runs of a setting.

    Attributes:
        numbers: of these runs.
        row: the keys in which settings differ, with their values.
        given: the keys that the user has given.
        tasks: the regime, and the list of tasks of runs of several; settings of the same are alike but for some keys.
        family: what to call these.
        preset: "" without one.
    """

    numbers: list[int]
    row: dict[str, str]
    given: dict[str, str]
    tasks: tuple[str, str]
    family: str
    preset: str


def settings(runs: Sequence[Run]) -> dict[int, Setting]:
    """Return the setting of each run and of its parts, by `id`, numbered in the order of the runs."""
    values = [_values(run) for run in runs]
    names = sorted({name for own in values for name in own})
    differing = [name for name in names if len({own.get(name, "null") for own in values}) > 1]
    alike: dict[tuple[str, ...], list[int]] = {}
    for i, own in enumerate(values):
        alike.setdefault(tuple(own.get(name, "null") for name in differing), []).append(i)
    members = [_members(runs, numbers, dict(zip(differing, key, strict=True))) for key, numbers in alike.items()]
    usual = _usual(members)
    found: dict[int, Setting] = {}
    for index, (one, short) in enumerate(zip(members, _shorts(members), strict=True)):
        label = ", ".join(f"{name}={value}" for name, value in one.row.items() if value != usual[name])
        setting = Setting(index, label or ("default settings" if differing else "all runs"), short)
        for i in one.numbers:
            found |= dict.fromkeys(map(id, (runs[i], *runs[i].parts)), setting)
    return found


def _members(runs: Sequence[Run], numbers: list[int], row: dict[str, str]) -> _Members:
    """Return the runs of a setting; a task's default is named where it is the same on all tasks of the page."""
    for name in (name for name, value in row.items() if value == _OF_TASK):
        every = {_task_defaults(run.task, _regime(run)).get(name) for run in runs}
        if len(every) == 1:
            row[name] = show(every.pop())
    given = {name: value for i in numbers for name, value in runs[i].given.items()}
    run = runs[numbers[0]]
    regime, tasks = _regime(run), run.config["tasks"] if run.several else []
    called = run.task if run.task in TASK_GROUPS else counted(len(tasks), "task")
    family = f"{regime} {called}" if tasks else regime
    return _Members(numbers, row, given, (regime, show(tasks)), family, run.given.get("preset", ""))


def _regime(run: Run) -> str:
    return str(run.config.get("regime", FIRST))


def _values(run: Run) -> dict[str, str]:
    """Return the keys that affect learning, without those that only repeat another."""
    own = {name: value for name, value in run.config.items() if name not in free_in_a_setting() | _TASK}
    shown = {}
    usual = {} if run.several else _task_defaults(run.task, _regime(run))
    for name, value in own.items():
        if name.startswith("agent.") and name[6:] in own and own[name[6:]] == value:
            continue  # agent.lr is lr
        if name == "replay_buffer_size" and run.config.get("data") and not run.config.get("then"):
            continue  # it follows the data, which are shown
        shown[name] = _OF_TASK if name in usual and usual[name] == value else show(value)
    return shown


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


def _usual(members: Sequence[_Members]) -> dict[str, str]:
    """Return the value of each key that most runs have."""
    votes: dict[str, Counter[str]] = {}
    for one in members:
        for name, value in one.row.items():
            votes.setdefault(name, Counter())[value] += len(one.numbers)
    return {name: counter.most_common(1)[0][0] for name, counter in votes.items()}


def _shorts(members: Sequence[_Members]) -> list[str]:
    """Return a short label for each setting: its family if there are several, and what differs within it.

    What the user has not given follows from preset and agent. It is named where these do not tell settings apart.
    """
    brief, whole = [], []
    everywhere = _usual(members)
    for one in members:
        usual = _usual([other for other in members if (other.tasks, other.preset) == (one.tasks, one.preset)])
        unusual = {
            name: value
            for name, value in sorted(one.row.items(), key=lambda item: (item[0] != _AGENT, item[0] not in one.given))
            if value != usual[name] or (name in one.given and value != everywhere[name])
        }
        parts = [middle(one.family, _LONGEST_VALUE)] if len({other.tasks for other in members}) > 1 else []
        if one.preset and len({other.preset for other in members}) > 1:
            parts.append(f"preset={one.preset}")
        told = {name: value for name, value in unusual.items() if name in {_AGENT, *one.given} or not one.given}
        brief.append(_text(parts, told, one))
        whole.append(_text(parts, unusual, one))
    unclear = {text for text, count in Counter(brief).items() if count > 1}
    usual_name = "default settings" if everywhere else "all runs"
    texts = [
        (every if text in unclear else text or every) or usual_name for text, every in zip(brief, whole, strict=True)
    ]
    repeated = {text for text, count in Counter(texts).items() if count > 1}
    return [f"{text} ({texts[: i + 1].count(text)})" if text in repeated else text for i, text in enumerate(texts)]


def _text(parts: Sequence[str], told: Mapping[str, str], members: _Members) -> str:
    """Return a short label of a family's name and of keys with their values, of which some say nothing more."""
    implied = {"agent_dir"} if _AGENT in told else set()
    row, given = members.row, members.given
    if row.get("envs_per_task") == row.get("num_envs"):
        implied.add("num_envs")
    shown = {name: value for name, value in told.items() if name not in implied}
    shown = {name: value for name, value in shown.items() if value != "null" or name in given} or shown
    short_names = Counter(_last(name) for name in shown)
    found = list(parts)
    for name, value in shown.items():
        value = given.get("agent", value) if name == _AGENT else value
        found.append(f"{_last(name) if short_names[_last(name)] == 1 else name}={_short_value(name, value)}")
    return _joined(found)


def _joined(parts: Sequence[str]) -> str:
    """Return as many parts as fit, and the number of the others."""
    for number in range(len(parts), 1, -1):
        more = f" +{len(parts) - number}" if number < len(parts) else ""
        if len(text := ", ".join(parts[:number]) + more) <= _LONGEST:
            return text
    more = f" +{len(parts) - 1}" if len(parts) > 1 else ""
    return middle(parts[0], _LONGEST) + more if parts else ""


def _last(name: str) -> str:
    return "agent" if name == _AGENT else name.rpartition(".")[2]


def _short_value(name: str, value: str) -> str:
    return middle(value.rpartition(".")[2] if name.endswith("_target_") else value, _LONGEST_VALUE)


def middle(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters, with an ellipsis in place of the middle of a longer one."""
    head = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - head]}…{text[-head:]}"
