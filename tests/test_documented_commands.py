"""Every command line of the README and the docs does what it says, shortened where it would take long."""

from __future__ import annotations

import math
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

import eval as evaluation
import report
import train
from drqv2.launch.command_line import launch
from drqv2.nn.networks import Actor, Critic, Encoder
from drqv2.snapshot import __main__ as snapshot_tool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What makes a run short: an episode of long agent steps, of small images, for a small network.
SHORT = (
    "action_repeat=8 image_size=32 render_size=64 num_train_frames=1200 num_seed_frames=1000 num_eval_episodes=1 "
    "batch_size=8 replay_buffer_num_workers=0 agent.hidden_dim=16 feature_dim=8 agent.num_expl_steps=8 "
    "overlap=false precision=fp32"
).split()
SHORT_PPO = (
    "total_timesteps=4096 eval_every_frames=4096 num_eval_episodes=1 agent.hidden_dim=16 save_video=false use_tb=false "
    "device=cpu"
).split()
# These keys need more than a checked configuration: files are found and imported, weights fit.
NEEDS_A_RUN = ("resume=", "init_from=", "agent_dir=", "env._target_=")
# Programs not written by this project; and ours that other tests run: doctor/, report/ (--watch), config/, play/.
ELSEWHERE = (
    *(".", "eval", "pip", "conda", "docker", "ray", "git", "apt-get", "srun", "pre-commit", "pip-audit"),
    *("sbatch", "tensorboard", "mkdocs"),
)
MODULES_ELSEWHERE = ("drqv2.doctor", "drqv2.config", "drqv2.datasets", "drqv2.play")


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


def parsed() -> dict[str, list[str]]:
    """Return the words of each command, without variables set before it and without what a shell does after it."""
    found = {}
    for command in documented():
        words = [word.strip("'\"") for word in shlex.split(command)]
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        ends = [i for i, word in enumerate(words) if word in (">", ">>", "&&", "|")]
        found[command] = words[: min(ends, default=len(words))]
        found[command][0] = Path(words[0]).name or words[0]  # "." is one
    return found


COMMANDS = parsed()


def of_python(script: str) -> list[list[str]]:
    """Return what follows `python SCRIPT` in each documented command, and `make train`'s arguments as such."""
    found = [words[2:] for words in COMMANDS.values() if words[:2] == ["python", script]]
    if script == "train.py":
        for words in COMMANDS.values():
            if words[:2] == ["make", "train"]:
                given = next((word.removeprefix("ARGS=") for word in words if word.startswith("ARGS=")), "preset=cpu")
                found.append(shlex.split(given))
    return sorted(words for words in found if "--watch" not in words)


def of_module(prefix: str) -> list[list[str]]:
    return [words[2:] for words in COMMANDS.values() if words[1:2] == ["-m"] and words[2].startswith(prefix)]


def needs_a_run(words: Sequence[str]) -> bool:
    return any(word.startswith(NEEDS_A_RUN) for word in words)


def test_each_command_is_tried_by_one_of_these_tests() -> None:
    assert len(COMMANDS) > 40
    scripts = ("train.py", "eval.py", "report.py", "tools/plot.py")
    for command, (program, *rest) in COMMANDS.items():
        if program == "python" and rest[0] == "-c":
            done = subprocess.run([sys.executable, *rest], cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, command + done.stderr
        elif program == "python" and rest[0] == "-m" and rest[1] != "build":  # which is not this project's
            assert rest[1].startswith(("benchmarks", "drqv2.snapshot", *MODULES_ELSEWHERE)), command
            assert find_spec(rest[1]), command
        elif program == "python" and rest[0] != "-m":
            assert rest[0] in scripts, command
        else:
            assert program in ("make", "python", *ELSEWHERE), command


def test_make_knows_its_targets() -> None:
    targets = {word for words in COMMANDS.values() if words[0] == "make" for word in words[1:] if "=" not in word}
    assert len(targets) > 8
    subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory like the repository's root in which a run has ended, with files such as readers have."""
    project = tmp_path_factory.mktemp("project")
    for name in ("cfgs", "tests"):
        (project / name).symlink_to(ROOT / name)
    run_dir = project / "exp_local" / "2026.01.02" / "030405_cartpole_balance_sparse_1"
    launch(train.main, "cfgs", argv=["preset=cpu", *SHORT, f"hydra.run.dir={run_dir}"])

    (project / "my_agents").mkdir()
    (project / "my_agents" / "my_file.py").write_text(
        "from drqv2 import DrQV2Agent\n\n\nclass MyAgent(DrQV2Agent):\n"
        "    def __init__(self, my_key, **kwargs):\n        super().__init__(**kwargs)\n"
    )
    (project / "my_package").mkdir()
    (project / "my_package" / "my_module.py").write_text(
        "from tests.dot_env import Dot\n\n\ndef make(difficulty):\n    return Dot(32)\n"
    )
    (project / "my_envs.py").write_text(
        "import gymnasium\n\n\ndef make(num_envs, seed, length=500):\n    return gymnasium.make_vec(\n"
        "        'CartPole-v1', num_envs, vectorization_mode='vector_entry_point', max_episode_steps=length\n    )\n"
    )
    encoder = Encoder((9, 84, 84))
    heads = (encoder.repr_dim, (6,), 50, 1024)
    modules = {"encoder": encoder, "actor": Actor(*heads), "critic": Critic(*heads)}
    torch.save({name: module.state_dict() for name, module in modules.items()}, project / "weights.pt")
    snapshot_tool.main(["import", str(project / "weights.pt"), str(project / "out.pt")])
    return project


@pytest.fixture
def run_dir(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a copy of the example, which becomes the current directory."""
    project = tmp_path / "project"
    shutil.copytree(example, project, symlinks=True)
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    (found,) = (project / "exp_local").glob("*/*")
    return found


def named(words: list[str], run_dir: Path) -> list[str]:
    """Return the words with names of this run in place of the documentation's."""
    milestone = min(path.name for path in run_dir.glob("weights_*.pt"))
    real = {"exp_local/DATE/TIME_task_seed": run_dir, "RUN_DIR": run_dir, "weights_30000.pt": milestone}
    for old, new in real.items():
        words = [word.replace(old, str(new)) for word in words]
    return words


def launcher_of(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith(("hydra/launcher=", "hydra.launcher."))]


LAUNCHERS = {tuple(launcher_of(words)) for words in of_python("train.py")} - {()}
# Without their launchers, several commands are the same sweep.
CONFIGURED = {tuple(w for w in words if w not in launcher_of(words)) for words in of_python("train.py")}


def checked(words: Sequence[str]) -> int:
    """Have the configuration of each job composed and checked; return the number of jobs. Nothing is learned."""
    jobs = []

    def run(cfg: DictConfig, work_dir: Path) -> float:
        jobs.append(cfg)
        return 1.0

    launch(run, ROOT / "cfgs", argv=words)
    return len(jobs)


@pytest.mark.parametrize("words", sorted(w for w in CONFIGURED if not needs_a_run(w)), ids=" ".join)
def test_train_accepts(words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if {"--help", "--cfg"} & set(words):
        assert checked(words) == 0
    elif "hydra/sweeper=search" in words:
        assert checked([*words, "hydra.sweeper.n_trials=1"]) == 1
    else:
        assert checked(words) == math.prod(1 + word.count(",") for word in words if re.match(r"(task|seed)=", word))


@pytest.mark.parametrize("words", sorted(LAUNCHERS), ids=" ".join)
def test_launchers_are_configured(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert checked([*words, "--cfg", "hydra", "-p", "hydra.launcher"]) == 0
    assert "_target_" in capsys.readouterr().out


@pytest.mark.parametrize("words", [w for w in of_python("train.py") if needs_a_run(w)], ids=" ".join)
def test_train_runs(words: list[str], run_dir: Path) -> None:
    words = named(words, run_dir)
    if any(word.startswith("resume=") for word in words):
        words = [re.sub(r"num_train_frames=.*", "num_train_frames=2400", word) for word in words]
    else:  # weights fit networks of their size
        fixed = ("image_size", "agent.hidden_dim", "feature_dim") if "init_from=out.pt" in words else ()
        short = SHORT_PPO if "regime=ppo" in words else SHORT
        words += [setting for setting in short if setting.partition("=")[0] not in fixed]
    launch(train.main, "cfgs", argv=words)


@pytest.mark.parametrize("words", of_python("eval.py"), ids=" ".join)
def test_eval_runs(words: list[str], run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation.main([*named(words, run_dir), *([] if "--help" in words else ["episodes=1"])])
    assert "episodes" in capsys.readouterr().out


def test_report_runs(run_dir: Path) -> None:
    for words in of_python("report.py"):
        report.main(words)
    assert Path("exp_local/report.html").exists()


def test_snapshot_tool_runs(run_dir: Path) -> None:
    Path("out.pt").unlink()
    for _, *words in of_module("drqv2.snapshot"):
        if "--help" not in words:
            snapshot_tool.main(named(words or ["RUN_DIR"], run_dir))
    assert Path("out.pt").exists()


def test_plot_runs(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in of_python("tools/plot.py"):
        monkeypatch.setattr(sys, "argv", ["plot.py", *named(words, run_dir)])
        runpy.run_path(str(ROOT / "tools" / "plot.py"), run_name="__main__")
        assert list(Path("results/NAME").glob("*.png"))
