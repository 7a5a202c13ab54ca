"""Data sets of episodes: look at them, check them, convert them. No source is ever changed.

python -m drqv2.datasets list DIR ...                   # a line for each: episodes, transitions, returns
python -m drqv2.datasets card DIR                       # all of its numbers, with a histogram of the returns
python -m drqv2.datasets check DIR ...                  # names every file and row that regime=offline refuses
python -m drqv2.datasets convert DIR NEW                # into this project's format
python -m drqv2.datasets convert DIR FILE.hdf5          # into D4RL's
python -m drqv2.datasets convert DIR minari:NAME-v0     # into Minari's
python -m drqv2.datasets convert DIR npz:NEW            # into V-D4RL's .npz, an episode each
python -m drqv2.datasets convert DIR npz:NEW frame_stack=3  # into the public DrQ-v2's, with stacked images
python -m drqv2.datasets filter DIR NEW min_return=500  # episodes with returns in range
python -m drqv2.datasets filter RUN NEW task=0          # those of the first task of a run of several
python -m drqv2.datasets merge DIR ... NEW              # join several data sets
python -m drqv2.datasets split DIR NEW OTHER share=0.9  # at random, whole episodes

DIR is a run's directory, or one of episode files: this project's, .npz of the public DrQ-v2 or of V-D4RL, .hdf5 of
V-D4RL or D4RL; a single such file; or minari:NAME. NEW may be any of the targets of convert. The .hdf5 and Minari need
the extra `offline`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from drqv2.config.kinds import Bool, Choice, Float, Int, Key, Text
from drqv2.datasets.episodes import Episode
from drqv2.datasets.formats import disk_bytes, format_of, read
from drqv2.datasets.learnable import Findings, learnable
from drqv2.datasets.minari import MINARI
from drqv2.datasets.options import ReadOptions
from drqv2.datasets.origin import ABOUT, described, origin
from drqv2.datasets.statistics import summarize
from drqv2.datasets.writing import write
from drqv2.errors import UserError
from drqv2.launch.arguments import run_tool

KEYS = {
    Key("min_return", Float(-1e9), "Of filter: least return of an episode.", null="no bound"): None,
    Key("max_return", Float(-1e9), "Of filter: greatest return of an episode.", null="no bound"): None,
    Key("task", Int(0), "Of filter: number, from 0, of a task of a run of several.", null="all"): None,
    Key("share", Float(0, 1, above=True), "Of split: share of the episodes that the first gets."): 0.9,
    Key("seed", Int(0, 2**32 - 1), "Of split: seed of the choice."): 0,
    Key("clip_actions", Bool(), "Clip actions to [-1, 1], instead of refusing others."): False,
    Key("obs_type", Choice("auto", "pixels", "state"), "Of Minari: which parts of a Dict are read."): "auto",
    Key("image_key", Text(), "Of Minari: which part of a Dict is the image.", null="pixels, or the only image"): None,
    Key("channels", Choice("auto", "first", "last"), "Of Minari and D4RL: axis of the images' channels."): "auto",
    Key("frame_stack", Int(1), "Of npz:DIR: images in a row.", null="single images, as V-D4RL's"): None,
    Key("skip_bad", Bool(), "Leave out what cannot be used, instead of stopping."): False,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    run_tool(_run, __doc__, KEYS, sys.argv[1:] if argv is None else argv)


def _run(words: list[str], values: dict[str, Any]) -> None:
    commands: dict[str, tuple[int, int | None, Callable[[list[str], dict[str, Any]], None]]] = {
        "list": (1, None, _list),
        "card": (1, 1, _card),
        "check": (1, None, _check),
        "convert": (2, 2, _convert),
        "filter": (2, 2, _convert),
        "merge": (3, None, _convert),
        "split": (3, 3, _split),
    }
    command, places = (words[0], words[1:]) if words else ("", [])
    if command not in commands:
        raise UserError(f"{command or 'no command'}: must be {', '.join(commands)} (see --help)")
    least, most, run = commands[command]
    if len(places) < least or (most is not None and len(places) > most):
        number = f"{least}{'' if most == least else ' or more'}"
        raise UserError(f"{command} takes {number} places, got {len(places)} (see --help)")
    run(places, values)


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
            print(f"{place}: {summarize(episodes).line()}")
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
            f"share={values['share']:g}: gives {targets[0]} {len(first)} of {number} episodes; each needs one"
        )
    for target, chosen in zip(targets, (first, set(range(number)) - first), strict=True):
        episodes = (e for i, e in enumerate(_read_all([source], values, lambda line: None)) if i in chosen)
        _write(episodes, target, [source], values)


def _write(episodes: Iterable[Episode], target: str, sources: Sequence[str], values: dict[str, Any]) -> None:
    place, summary = write(episodes, target, sources, values["frame_stack"], values["task"])
    print(f"{place}: {summary.line()}")
    if place.startswith(MINARI) and "task" not in origin(place):
        _note(f"{place}: names no environment, since the source does not; a {ABOUT} beside its files can say it")


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


if __name__ == "__main__":
    main()
