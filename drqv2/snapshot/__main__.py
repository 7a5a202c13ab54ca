"""Inspect the snapshots of a run; export and import weights.

python -m drqv2.snapshot RUN_DIR                          # contents and checksums; is each file intact?
python -m drqv2.snapshot export RUN_DIR out.safetensors   # the newest snapshot's networks (or those of a .pt file)
python -m drqv2.snapshot import weights.pt out.pt         # the public DrQ-v2's networks, for init_from=out.pt

`import` reads a plain state dict: {"encoder": {...}, "actor": {...}, "critic": {...}, "critic_target": {...}}, or flat
with dotted names. A pickled agent is refused: it could run any code. With the public code installed, convert it by
torch.save({name: getattr(agent, name).state_dict() for name in ("encoder", "actor", "critic", "critic_target")}, path).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drqv2.config.keys import Key
from drqv2.config.kinds import Text
from drqv2.errors import UserError
from drqv2.launch.arguments import run_tool

KEYS = {Key("out", Text(), "Of export and import: the file to write.", null="the second argument"): None}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line described in the module's docstring."""
    run_tool(_run, __doc__, KEYS, sys.argv[1:] if argv is None else argv)


def _run(words: list[str], values: dict[str, Any]) -> None:
    given = words + [values["out"]] * (values["out"] is not None)
    command, *places = given if given[:1] and given[0] in ("inspect", "export", "import") else ["inspect", *given]
    if len(places) != (1 if command == "inspect" else 2):
        what = "RUN_DIR, or export RUN_DIR FILE, or import FILE FILE"
        raise UserError(f"give {what}; got {' '.join(given) or 'nothing'} (see --help)")
    from drqv2.snapshot import inspection, transfer  # import torch, for which help and mistakes need not wait

    runs: dict[str, Callable[..., None]] = {
        "inspect": inspection.inspect,
        "export": transfer.export,
        "import": transfer.import_weights,
    }
    runs[command](*map(Path, places))


if __name__ == "__main__":
    main()
