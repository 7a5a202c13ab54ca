"""train.py with an end that comes at a boundary between two writes: python -m tests.faults.driver NAME COUNT ARGS...

The process kills itself when it comes to the boundary NAME for the COUNT-th time; never, if COUNT is 0.
"""

from __future__ import annotations

import os
import signal
import sys

import train
from drqv2.launch.command_line import launch
from drqv2.system import files


def main() -> None:
    wanted, count, *argv = sys.argv[1:]
    left = int(count)

    def die(name: str) -> None:
        nonlocal left
        left -= name == wanted
        if left == 0 and name == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    if left:
        files.crash_point = die
    launch(train.main, "cfgs", argv=argv)


if __name__ == "__main__":
    main()
