"""Inspect the snapshots of a run; export and import weights.

python -m drqv2.snapshot RUN_DIR                          # contents and checksums; is each file intact?
python -m drqv2.snapshot export RUN_DIR out.safetensors   # the newest snapshot's networks (or those of a .pt file)
python -m drqv2.snapshot import weights.pt out.pt         # the public DrQ-v2's networks, for init_from=out.pt

`import` reads a plain state dict: {"encoder": {...}, "actor": {...}, "critic": {...}, "critic_target": {...}}, or flat
with dotted names. A pickled agent is refused: it could run any code. With the public code installed, convert it by
torch.save({name: getattr(agent, name).state_dict() for name in ("encoder", "actor", "critic", "critic_target")}, path).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drqv2.launch.exits import clean_exit
from drqv2.snapshot.tool import describe, export, import_weights


def main(argv: list[str] | None = None) -> None:
    """Run the command line that is described at the head of this module."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser("python -m drqv2.snapshot", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    with clean_exit():
        if argv[:1] in (["export"], ["import"]):
            parser.add_argument("source", type=Path)
            parser.add_argument("target", type=Path)
            args = parser.parse_args(argv[1:])
            (export if argv[0] == "export" else import_weights)(args.source, args.target)
        else:
            parser.add_argument("run_dir", type=Path)
            for line in describe(parser.parse_args(argv).run_dir):
                print(line)


if __name__ == "__main__":
    main()
