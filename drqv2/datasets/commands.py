"""The commands of `python -m drqv2.datasets`: functions of the places and the values of all keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from drqv2.config.formatting import counted
from drqv2.datasets.episodes import Episode, summarize
from drqv2.datasets.formats import disk_bytes, format_of, read
from drqv2.datasets.learnable import Findings, learnable
from drqv2.datasets.minari import MINARI
from drqv2.datasets.options import ReadOptions
from drqv2.datasets.origin import ABOUT, described, origin
from drqv2.datasets.writing import write
from drqv2.errors import UserError


def _list(places: list[str], values: dict[str, Any]) -> None:
    for place in places:
        print(f"{place}: {format_of(place)}; {summarize(_usable(place, values)).line()}")


def _card(places: list[str], values: dict[str, Any]) -> None:
    (place,) = places
    print(f"{place}: {format_of(place)}")
    print("\n".join(summarize(_usable(place, values)).card()))
    told = origin(place)
    if "task" in told:
        print(f"environment: {described(told)}")
    if "action_repeat" in told:
        print(f"action_repeat: {told['action_repeat']}")
    if (size := disk_bytes(place)) is not None:
        print(f"on disk: {size / 1e6:,.1f} MB")


def _check(places: list[str], values: dict[str, Any]) -> None:
    bad: list[str] = []
    for place in places:
        findings = Findings()
        episodes = learnable(place, findings, options=ReadOptions.of(values), announce=_note)
        try:
            found = summarize(episodes).line()
            print(f"{place}: {found}{'' if findings.lines else '; no problems'}")
        except UserError as error:  # what ends a run's start at once; the other places are checked as well
            bad.append(str(error))
        bad += findings.lines
    if bad:
        raise UserError("\n".join([f"{len(bad)} problem{'s' * (len(bad) > 1)}:", *bad]))


def _convert(places: list[str], values: dict[str, Any]) -> None:
    """Write the chosen episodes of all but the last place to the last; of a task alone, without its number."""
    *sources, target = places
    low, high, task = values["min_return"], values["max_return"], values["task"]

    def wanted(episode: Episode) -> bool:
        of_task = task is None or bool(np.all(episode.arrays.get("task", np.array(0)) == task))
        return of_task and (low is None or episode.total >= low) and (high is None or episode.total <= high)

    episodes = (episode for episode in _read_all(sources, values) if wanted(episode))
    if task is not None:
        episodes = (e._replace(arrays={n: a for n, a in e.arrays.items() if n != "task"}) for e in episodes)
    _write(episodes, target, sources, values)


def _split(places: list[str], values: dict[str, Any]) -> None:
    source, *targets = places
    number = sum(1 for _ in _read_all([source], values))
    order = np.random.default_rng(values["seed"]).permutation(number)
    first = set(order[: round(values["share"] * number)].tolist())
    if not 0 < len(first) < number:
        raise UserError(
            f"share={values['share']:g}: gives {targets[0]} {len(first)} of {counted(number, 'episode')}; "
            "each needs one"
        )
    for target, chosen in zip(targets, (first, set(range(number)) - first), strict=True):
        episodes = (e for i, e in enumerate(_read_all([source], values, lambda line: None)) if i in chosen)
        _write(episodes, target, [source], values)


def _write(episodes: Iterable[Episode], target: str, sources: Sequence[str], values: dict[str, Any]) -> None:
    place, summary = write(episodes, target, sources, values["frame_stack"], values["task"])
    print(f"{place}: {summary.line()}")
    if place.startswith(MINARI) and "task" not in origin(place):
        _note(f"{place}: names no environment, since the source does not; a {ABOUT} beside its files can name it")


def _usable(place: str, values: dict[str, Any]) -> Iterable[Episode]:
    return read(place, _warn, ReadOptions.of(values), _note)


def _read_all(
    sources: Sequence[str], values: dict[str, Any], announce: Callable[[str], None] | None = None
) -> Iterable[Episode]:
    report = _warn if values["skip_bad"] else _refuse
    for source in sources:
        yield from read(source, report, ReadOptions.of(values), announce or _note)


def _note(line: str) -> None:
    print(line, file=sys.stderr)


def _warn(line: str) -> None:
    print(f"left out: {line}", file=sys.stderr)


def _refuse(line: str) -> None:
    raise UserError(f"{line}\nskip_bad=true leaves out what cannot be used; `check` lists all of it.")


COMMANDS: dict[str, Callable[[list[str], dict[str, Any]], None]] = {
    "list": _list,
    "card": _card,
    "check": _check,
    "convert": _convert,
    "filter": _convert,
    "merge": _convert,
    "split": _split,
}
