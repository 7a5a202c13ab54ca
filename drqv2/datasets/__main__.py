"""Data sets of episodes: look at them, check them, make others of them. No source is ever changed.

python -m drqv2.datasets list DIR ...                   # a line for each: episodes, transitions, returns
python -m drqv2.datasets card DIR                       # all of its numbers, with a histogram of the returns
python -m drqv2.datasets check DIR ...                  # names every file and row that regime=offline refuses
python -m drqv2.datasets convert DIR NEW                # into this project's format
python -m drqv2.datasets filter DIR NEW min_return=500  # those with such returns
python -m drqv2.datasets filter RUN NEW task=0          # those of the first task of a run of several
python -m drqv2.datasets merge DIR ... NEW              # all of several
python -m drqv2.datasets split DIR NEW OTHER share=0.9  # at random, whole episodes

DIR is a run's directory, or one of episode files: this project's, .npz of the public DrQ-v2 or of V-D4RL, .hdf5 of
V-D4RL or D4RL; or minari:NAME. The .hdf5 and Minari need the extra `offline`.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as to_safetensors

from drqv2.config.kinds import Bool, Choice, Float, Int, Key, Text
from drqv2.datasets.episodes import Episode
from drqv2.datasets.formats import disk_bytes, format_of, read
from drqv2.datasets.learnable import Findings, learnable
from drqv2.datasets.options import ReadOptions
from drqv2.datasets.origin import ABOUT, common_origin
from drqv2.datasets.statistics import Summary, summarize
from drqv2.errors import UserError
from drqv2.launch.arguments import run_tool
from drqv2.replay.storage import episode_path
from drqv2.system import files

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
    print(f"{target}: {write(episodes, Path(target), sources).line()}")


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
        print(f"{target}: {write(episodes, Path(target), [source]).line()}")


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


def write(episodes: Iterable[Episode], target: Path, sources: Sequence[str]) -> Summary:
    """Write episodes to a new directory, which appears when all of them are in it.

    Args:
        episodes: all with arrays of the same shapes.
        target: the directory.
        sources: where the episodes are from, for `dataset.json`.

    Raises:
        UserError: the directory exists, an episode's arrays have other shapes, or there is no episode.
        DiskError: the disk is full.
    """
    if target.exists():
        raise UserError(f"{target}: exists; give another directory")
    for source in sources:
        if Path(source).resolve() in target.resolve().parents:
            raise UserError(f"{target}: is inside {source}, which would change; give a directory elsewhere")
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    summary = Summary()
    try:
        unfinished.mkdir(parents=True)
        for number, episode in enumerate(episodes):
            _require_same(summary.shapes, episode)
            summary.add(episode)
            files.write_atomically(episode_path(unfinished, number), to_safetensors(dict(episode.arrays)))
        if not summary.returns:
            raise UserError(f"{target}: there is no episode to write")
        about = {"sources": list(sources), "episodes": len(summary.returns), "transitions": sum(summary.lengths)}
        about |= common_origin(sources)
        files.write_atomically(unfinished / ABOUT, json.dumps(about, indent=1).encode())
        unfinished.rename(target)
    except OSError as error:
        raise files.cannot_write(target, error, "choose a directory elsewhere") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return summary


def _require_same(shapes: dict[str, str], episode: Episode) -> None:
    own = {name: f"{array.dtype} {list(array.shape[1:])}" for name, array in episode.arrays.items()}
    if shapes and own != shapes:
        odd = next(name for name in sorted(own.keys() | shapes.keys()) if own.get(name) != shapes.get(name))
        wanted = shapes.get(odd, "none before")
        raise UserError(f"{episode.where}: {odd} is {own.get(odd, 'missing')}, and {wanted} in the episodes before it")


if __name__ == "__main__":
    main()
