"""Every command line of the README and the docs, run as it stands there, but for what would make it take long."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from drqv2.nn.networks import Actor, Critic, Encoder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What makes a run short: two episodes of long agent steps, of small images, for a small network.
SHORT = (
    "action_repeat=8 image_size=32 render_size=64 num_train_frames=1200 num_seed_frames=1000 num_eval_episodes=1 "
    "batch_size=8 replay_buffer_num_workers=0 agent.hidden_dim=16 feature_dim=8 agent.num_expl_steps=8"
).split()
# Installing, and other people's programs: that they are there is not ours to test.
OTHERS = (".", "pip", "conda", "docker", "ray", "git", "apt-get", "srun", "pre-commit", "pip-audit")
# Each launcher on this machine alone, with what it has.
LAUNCHERS = {
    "hydra/launcher=joblib": ["hydra/launcher=joblib"],
    "hydra/launcher=slurm": ["hydra/launcher=submitit_local"],
    "hydra/launcher=ray": ["hydra/launcher=ray"]
    + [f"hydra.launcher.ray.{setting}" for setting in ("init.address=null", "init.object_store_memory=80000000")]
    + [f"hydra.launcher.ray.remote.{setting}" for setting in ("num_cpus=1", "num_gpus=0", "memory=null")],
    "hydra/sweeper=search": ["hydra/sweeper=search", "hydra.sweeper.n_trials=1"],
}


def documented() -> list[str]:
    """Return the command lines, each once: those of shell blocks, and those in the text."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            found += block.replace("\\\n", " ").splitlines()
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        found += re.findall(r"`((?:[A-Z_]+=\S+ )*(?:\.venv/bin/\w+|python|make) [^`]+)`", prose)
    commands = [" ".join(shlex.split(line, comments=True, posix=False)) for line in found]
    return sorted({command for command in commands if command and " ..." not in command})


def test_commands_are_found():
    assert len(documented()) > 40


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory like the repository's root in which a run has ended, with files such as readers have."""
    project = tmp_path_factory.mktemp("project")
    for path in ROOT.iterdir():
        if path.name not in ("exp_local", "results", ".git", "build"):
            (project / path.name).symlink_to(path)
    run_dir = project / "exp_local" / "2026.01.02" / "030405_cartpole_balance_sparse_1"
    call(project, [sys.executable, "train.py", *SHORT, f"hydra.run.dir={run_dir}"])

    (project / "my_agents").mkdir()
    (project / "my_agents" / "my_file.py").write_text(
        "from drqv2 import DrQV2Agent\n\n\nclass MyAgent(DrQV2Agent):\n"
        "    def __init__(self, my_key, **kwargs):\n        super().__init__(**kwargs)\n"
    )
    (project / "my_package").mkdir()
    (project / "my_package" / "my_module.py").write_text(
        "from tests.short_env import make as short\n\n\ndef make(difficulty):\n    return short(image_size=84)\n"
    )
    encoder = Encoder((9, 84, 84))
    heads = (encoder.repr_dim, (6,), 50, 1024)
    parts = {"encoder": encoder, "actor": Actor(*heads), "critic": Critic(*heads)}
    torch.save({name: part.state_dict() for name, part in parts.items()}, project / "weights.pt")
    call(project, [sys.executable, "-m", "drqv2.snapshot", "import", "weights.pt", "out.pt"])
    return project


def call(project: Path, words: list[str], until: str = "") -> None:
    """Run a command to its end, or until it says `until`; it must end well either way."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(project)}
    process = subprocess.Popen(
        words,
        cwd=project,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        # A shell's background jobs ignore ctrl-C, and so would all that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    said = ""
    if until:
        for line in process.stdout:
            said += line
            if until in line:
                # As people do. TensorBoard would answer ctrl-C with a traceback so early.
                process.send_signal(signal.SIGTERM if "tensorboard" in words[0] else signal.SIGINT)
                break
        assert until in said, said
    said += process.communicate()[0]
    assert until or process.returncode == 0, said
    assert "Traceback" not in said, said


@pytest.mark.parametrize("command", documented())
def test_documented_command(command, example, tmp_path):
    words = [word.strip("'\"") for word in shlex.split(command)]
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    program, *rest = words
    program = Path(program).name or program  # "." is one
    if program in OTHERS:
        return
    if program == "make":
        rest = rest[: rest.index("&&")] if "&&" in rest else rest
        targets = [word for word in rest if "=" not in word]
        subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        if targets != ["train"]:
            return
        given = next((word.removeprefix("ARGS=") for word in rest if word.startswith("ARGS=")), "preset=cpu")
        program, rest = "python", ["train.py", *shlex.split(given)]

    project = tmp_path / "project"
    shutil.copytree(example, project, symlinks=True)
    (run_dir,) = (project / "exp_local").glob("*/*")
    named = {
        "exp_local/DATE/TIME_task_seed": str(run_dir),
        "RUN_DIR": str(run_dir),
        "weights_30000.pt": min(path.name for path in run_dir.glob("weights_*.pt")),
        "results/NAME": str(tmp_path / "plots"),
    }
    for old, new in named.items():
        rest = [word.replace(old, new) for word in rest]
    if ">" in rest:
        rest = rest[: rest.index(">")]

    if program in ("tensorboard", "mkdocs"):
        call(project, [str(Path(sys.executable).with_name(program)), *rest], until="http://")
        return
    assert program == "python", f"nobody knows how to try {command}"
    if rest[0] == "train.py" and not {"--help", "--cfg"} & set(rest):
        rest = shortened(rest)
    elif rest[0] == "eval.py" and "--help" not in rest:
        rest += ["episodes=1"]
    elif rest[:2] == ["-m", "drqv2.snapshot"] and len(rest) == 2:
        rest += [str(run_dir)]
    elif rest[0] == "-m" and rest[1].startswith("benchmarks"):
        rest = [*rest[:2], "--help"]  # they are run by tests/test_benchmarks.py
    elif "import" in rest:
        (project / "out.pt").unlink()
    call(project, [sys.executable, *rest], until="http://" if "--watch" in rest else "")


def shortened(rest: list[str]) -> list[str]:
    if any(word.startswith("resume=") for word in rest):
        return [re.sub(r"num_train_frames=.*", "num_train_frames=2400", word) for word in rest]
    settings = SHORT
    if any(word.startswith("init_from=") for word in rest):  # weights fit networks of their size
        fixed = ("image_size", "agent.hidden_dim", "feature_dim") if "init_from=out.pt" in rest else ()
        settings = [setting for setting in SHORT if setting.partition("=")[0] not in fixed]
    if "-m" in rest:
        rest = [re.sub(r"seed=.*", "seed=1", word) for word in rest if not word.startswith("hydra.launcher.partition")]
        rest = [new for word in rest for new in LAUNCHERS.get(word, [word])]
    return rest + settings
