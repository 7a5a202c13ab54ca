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

`drqv2 COMMAND --help` explains its arguments.
"""

from __future__ import annotations

import os
import runpy
import sys

import drqv2
from drqv2.config.formatting import did_you_mean
from drqv2.launch.exits import clean_exit
from drqv2.programs import ROOT

_SCRIPTS = ("train", "eval", "report")
_TOOLS = ("config", "datasets", "doctor", "play", "snapshot")


def main() -> None:
    """Run the command line described above; exit codes are those of the programs."""
    command, words = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if command in ("-h", "--help", "help"):
        with clean_exit():
            print((__doc__ or "").strip())
    elif command == "--version":
        with clean_exit():
            print(f"drqv2 {drqv2.__version__}")
    elif command == "-sc" and words:
        _complete(words[0])
    elif command in _SCRIPTS:
        _run_script(command, f"drqv2 {command}", words)
    elif command in _TOOLS:
        sys.argv = [f"drqv2 {command}", *words]
        runpy.run_module(f"drqv2.{command}", run_name="__main__")
    else:
        near = did_you_mean(command, (*_SCRIPTS, *_TOOLS))
        print(f"error: {command}: there is no such command{near}; see drqv2 --help", file=sys.stderr)
        sys.exit(2)


def _run_script(name: str, shown: str, words: list[str]) -> None:
    """Run a script of this project; `shown` is its name in messages."""
    sys.argv = [shown, *words]
    sys.path.insert(0, str(ROOT))
    script = ROOT / f"{name}.py"
    # Not by runpy.run_path, which would put the script's path into sys.argv and so into messages.
    exec(compile(script.read_text(), script, "exec"), {"__name__": "__main__", "__file__": str(script)})  # nosec B102


def _complete(wanted: str) -> None:
    """Do what Hydra's Tab completion asks for: commands after `drqv2`, then the keys of `drqv2 train`."""
    program, *typed = os.environ.get("COMP_LINE", "").split(" ")
    if not wanted.startswith("query="):  # install or uninstall
        _run_script("train", "drqv2", ["-sc", wanted])
    elif len(typed) < 2:
        print(" ".join((*_SCRIPTS, *_TOOLS)))
    elif typed[0] == "train":
        os.environ["COMP_LINE"] = " ".join([program, *typed[1:]])
        _run_script("train", "drqv2", ["-sc", wanted])


if __name__ == "__main__":
    main()
