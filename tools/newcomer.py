"""Follow the README as a new user would: `python tools/newcomer.py CLONE OUT.md`, with a fresh clone.

Runs every command in the order of its text, as it stands there but for the names of directories and files, and writes
what was seen and how long it took. What would take hours is left by ctrl-C, as a user may. The two files that the
README asks the user for are WRITTEN before.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 45.0  # seconds before ctrl-C
TO_THE_END = re.compile(r"make (train|test)$|resume=exp_local|eval\.py|report\.py exp_local/$|--help|-m drqv2|plot_run")
COMMANDS = re.compile(r"```bash\n(?P<block>.*?)```|```.*?```|`(?P<words>(?:python|make) [^`]+)`", re.DOTALL)
WRITTEN = {
    "my_package/my_module.py": """from dm_control import suite
from dm_control.suite.wrappers import pixels


def make(difficulty):
    return pixels.Wrapper(suite.load("cartpole", "balance"), render_kwargs={"height": 84, "width": 84})
""",
    "my_agents/my_file.py": """from drqv2 import DrQV2Agent


class MyAgent(DrQV2Agent):
    def __init__(self, my_key, **kwargs):
        super().__init__(**kwargs)
""",
}
SHOWN = 8  # lines at the beginning and at the end
LEFT_OUT = re.compile(r"is ignored: it is neither")  # of a machine whose package index is a folder
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_activations: list[str] = []  # what a terminal remembers


def main() -> None:
    """Run the commands, one after another; each adds its lines to the transcript."""
    clone, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    for name, text in WRITTEN.items():
        (clone / name).parent.mkdir()
        (clone / name).write_text(text)
    done: set[str] = set()
    for found in COMMANDS.finditer((clone / "README.md").read_text()):
        for line in (found["block"] or found["words"] or "").splitlines():
            command = " ".join(shlex.split(line, comments=True, posix=False))
            if command and command not in done:
                done.add(command)
                with out.open("a") as f:
                    f.write(follow(command, clone))


def follow(command: str, clone: Path) -> str:
    """Return the transcript of one command."""
    names = named(clone)
    for old, new in names.items():
        command = command.replace(old, new)
    if command.startswith(". "):
        _activations.append(command)
    limit = None if TO_THE_END.search(command) else PATIENCE
    began = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", "\n".join([*_activations, command])],
        cwd=clone,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job's children ignore it
    )
    left = ""
    try:
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        left = f", ctrl-C after {PATIENCE:.0f} s"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate()
    took = time.monotonic() - began
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode  # as a shell has it
    print(f"{took:6.0f} s, exit code {code}{left}: {command}", flush=True)
    said = COLOURS.sub("", said).replace(str(clone), "~/drqv2")
    lines = [line for line in said.splitlines() if line.strip() and not LEFT_OUT.search(line)]
    lines = [line if len(line) < 150 else f"{line[:147]}..." for line in lines]
    if len(lines) > 2 * SHOWN:
        lines = [*lines[:SHOWN], f"... {len(lines) - 2 * SHOWN} lines", *lines[-SHOWN:]]
    seen = "\n".join(lines)
    return f"### `{command}`\n\n{took:.0f} s, exit code {code}{left}\n\n```\n{seen}\n```\n\n"


def named(clone: Path) -> dict[str, str]:
    """Return what the README's placeholders stand for: the first run and its first milestone."""
    runs = sorted(path.parent for path in (clone / "exp_local").glob("*/*/config.yaml"))
    if not runs:
        return {}
    weights = sorted(runs[0].glob("weights_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    run_dir = str(runs[0].relative_to(clone))
    milestone = weights[len(weights) // 2].name if weights else "weights_30000.pt"
    return {"exp_local/DATE/TIME_task_seed": run_dir, "RUN_DIR": run_dir, "weights_30000.pt": milestone}


if __name__ == "__main__":
    main()
