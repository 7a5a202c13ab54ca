"""The command `drqv2`, and `python -m drqv2`: all programs under one name.

drqv2 train task=walker_walk            # as python train.py does in the repository
drqv2 eval RUN_DIR episodes=20          # python eval.py
drqv2 report exp_local/                 # python report.py
drqv2 play policy.onnx                  # python -m drqv2.play
drqv2 doctor                            # python -m drqv2.doctor
drqv2 snapshot RUN_DIR                  # python -m drqv2.snapshot
drqv2 datasets list DIR                 # python -m drqv2.datasets
drqv2 config                            # python -m drqv2.config
drqv2 --version

`drqv2 COMMAND --help` tells what each takes.
"""

from __future__ import annotations

import runpy
import sys

import drqv2
from drqv2.config.formatting import did_you_mean
from drqv2.programs import ROOT

_SCRIPTS = ("train", "eval", "report")
_TOOLS = ("config", "datasets", "doctor", "play", "snapshot")


def main() -> None:
    """Run the command line described above; exit codes are those of the programs."""
    command, words = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if command in ("-h", "--help", "help"):
        print((__doc__ or "").strip())
    elif command == "--version":
        print(f"drqv2 {drqv2.__version__}")
    elif command in _SCRIPTS:
        sys.argv = [f"drqv2 {command}", *words]  # which messages show
        sys.path.insert(0, str(ROOT))
        script = ROOT / f"{command}.py"
        # A file of this project; not by runpy.run_path, which would put its path into sys.argv and so into messages.
        exec(compile(script.read_text(), script, "exec"), {"__name__": "__main__", "__file__": str(script)})  # nosec B102
    elif command in _TOOLS:
        sys.argv = [f"drqv2 {command}", *words]
        runpy.run_module(f"drqv2.{command}", run_name="__main__")
    else:
        near = did_you_mean(command, (*_SCRIPTS, *_TOOLS))
        print(f"error: {command}: there is no such command{near}; see drqv2 --help", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
