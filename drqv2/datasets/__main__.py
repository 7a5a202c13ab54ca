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
python -m drqv2.datasets filter RUN NEW task=0          # the first task of a multi-task run
python -m drqv2.datasets merge DIR ... NEW              # join several data sets
python -m drqv2.datasets split DIR NEW OTHER share=0.9  # at random, whole episodes

DIR is a run's directory, or one of episode files: this project's, .npz of the public DrQ-v2 or of V-D4RL, .hdf5 of
V-D4RL or D4RL; a single such file; or minari:NAME. NEW may be any of the targets of convert. The .hdf5 and Minari need
the extra `offline`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from drqv2.config.formatting import counted
from drqv2.config.keys import Key
from drqv2.config.kinds import Bool, Choice, Float, Int, Several, Text
from drqv2.errors import UserError
from drqv2.launch.arguments import run_tool

PARTS = Several(Text(), "a list of different names ([pixels,position])")
KEYS = {
    Key("min_return", Float(-1e9), "Of filter: least return of an episode.", null="no bound"): None,
    Key("max_return", Float(-1e9), "Of filter: greatest return of an episode.", null="no bound"): None,
    Key("task", Int(0), "Of filter: index of a task of a multi-task run.", null="all"): None,
    Key("share", Float(0, 1, above=True), "Of split: share of the episodes that the first gets."): 0.9,
    Key("seed", Int(0, 2**32 - 1), "Of split: seed of the choice."): 0,
    Key("clip_actions", Bool(), "Clip actions to [-1, 1] instead of refusing others."): False,
    Key("obs_type", Choice("auto", "pixels", "state", "pixels+state"), "Which parts of a dict are read."): "auto",
    Key("observation_parts", PARTS, "The only parts of a dict that are read.", null="all"): None,
    Key("image_key", Text(), "Which part of a dict is the image.", null="pixels, or the only image"): None,
    Key("channels", Choice("auto", "first", "last"), "Of Minari and D4RL: axis of the images' channels."): "auto",
    Key("frame_stack", Int(1), "Of npz:DIR: images in a row.", null="single images, as V-D4RL's"): None,
    Key("skip_bad", Bool(), "Leave out what cannot be used instead of stopping."): False,
}


_MANY = sys.maxsize
_PLACES = {  # how many a command takes, at least and at most
    "list": (1, _MANY),
    "card": (1, 1),
    "check": (1, _MANY),
    "convert": (2, 2),
    "filter": (2, 2),
    "merge": (3, _MANY),
    "split": (3, 3),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    run_tool(_run, __doc__, KEYS, sys.argv[1:] if argv is None else argv)


def _run(words: list[str], values: dict[str, Any]) -> None:
    command, places = (words[0], words[1:]) if words else ("", [])
    if command not in _PLACES:
        raise UserError(f"{command or 'no command'}: must be {', '.join(_PLACES)} (see --help)")
    least, most = _PLACES[command]
    if not least <= len(places) <= most:
        number = counted(least, "place") if most == least else f"{least} or more places"
        raise UserError(f"{command} takes {number}, got {len(places)} (see --help)")
    from drqv2.datasets import commands  # imports torch, for which help and mistakes need not wait

    commands.COMMANDS[command](places, values)


if __name__ == "__main__":
    main()
