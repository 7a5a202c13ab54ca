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
from collections.abc import Callable
from pathlib import Path

from drqv2.errors import UserError
from drqv2.launch.exits import clean_exit
from drqv2.programs import as_here


def main(argv: list[str] | None = None) -> None:
    """Run the command line that is described at the head of this module."""
    parser = argparse.ArgumentParser(as_here("python -m drqv2.snapshot"), description=as_here(__doc__ or ""))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, arguments, about in (
        ("inspect", ("run_dir",), "print contents and checksums; the default, if you give a directory alone"),
        ("export", ("source", "target"), "write the networks of a run or .pt file as safetensors"),
        ("import", ("source", "target"), "convert the public DrQ-v2's networks for init_from"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.set_defaults(command=name)
        for argument in arguments:
            command.add_argument(argument, type=Path, nargs="?" if argument == "target" else None)
        if "target" in arguments:
            command.add_argument("--out", type=Path, help="the same as target")
    argv = [f"--{word}" if word.startswith("out=") else word for word in (sys.argv[1:] if argv is None else argv)]
    if argv[:1] not in ([name] for name in (*commands.choices, "-h", "--help")):
        argv = ["inspect", *argv]
    args = vars(parser.parse_args(argv))
    with clean_exit():
        if "target" in args:
            given = [path for path in (args["target"], args.pop("out")) if path]
            if len(given) != 1:
                raise UserError(f"{len(given)} files to write to: give one, as the second argument or as out=FILE")
            args["target"] = given[0]
        from drqv2.snapshot import inspection, transfer  # import torch, for which help and mistakes need not wait

        runs: dict[str, Callable[..., None]] = {
            "inspect": inspection.inspect,
            "export": transfer.export,
            "import": transfer.import_weights,
        }
        runs[args.pop("command")](**args)


if __name__ == "__main__":
    main()
