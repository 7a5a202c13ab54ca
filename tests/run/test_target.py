"""env._target_: where it is looked up, and what is said if it is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import train
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.run.target import find, own_factory
from tests.short_run import ROOT

FILES = {
    "my_env.py": "from my_helper import make\n",
    "my_helper.py": (ROOT / "tests/dot_env.py").read_text().replace("image_size: int)", "image_size: int, length=0)"),
    "my_errors.py": "import no_such_package\n",
    "my_exit.py": "import sys\n\n\nsys.exit('no display')\n",
    "my_syntax.py": "def make(:\n",
    "my_value.py": "make = 3\n\n\nclass Maze:\n    def make(self, size, *, colour='red'): ...\n",
    "video.py": "def my_make(): ...\n",
    "wandb/readme": "an output folder, not the package",
    "my_package/envs/maze.py": "from my_helper import make\n",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with a user's files; what is imported from it is forgotten afterwards."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("my_"):
            del sys.modules[name]


@pytest.mark.parametrize("target", ["my_env.make", "my_package.envs.maze.make", "my_value.Maze.make"])
def test_the_current_directory_comes_after_the_python_path(target: str, here: Path) -> None:
    assert callable(find(target))
    assert sys.path[-1] == str(here)


def test_only_what_is_nowhere_else_is_taken_from_there() -> None:
    assert find("wandb.init").__module__.startswith("wandb.")
    assert find("os.path.join") is os.path.join
    assert str(Path.cwd()) not in sys.path


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("nope.make", "there is no module nope\nsearched the Python path and the current directory, HERE"),
        ("my_enf.make", "there is no module my_enf; nearest: my_env, "),
        ("my_env.mak", "no mak in HERE/my_env.py; nearest: make"),
        ("my_package.envs.maz.make", "no maz in my_package.envs; nearest: maze"),
        ("my_value.Maze.mak", "no mak in my_value.Maze; nearest: make"),
        ("my_value.make.real.x", "no x in my_value.make.real"),
        ("my_value.make", "is int; must be a function or a class"),
        ("my_errors.make", "No module named 'no_such_package'\nHERE/my_errors.py, line 1"),
        ("my_exit.make", "SystemExit: no display\nHERE/my_exit.py, line 4"),
        ("my_syntax.make", "SyntaxError: invalid syntax (my_syntax.py, line 1)\nHERE/my_syntax.py, line 1"),
        # Names of this project come first.
        (
            "video.my_make",
            "no my_make in ROOT/video.py\nHERE/video.py is hidden by that module of the same name: rename",
        ),
        (
            "my_env.make lengthh=3",
            "env.lengthh=3: my_env.make takes no argument lengthh; nearest: length\nIt takes: image",
        ),
        ("my_value.Maze.make colour=x self=1", "env.size is missing: my_value.Maze.make needs it; add +env.size=VALUE"),
    ],
)
def test_what_is_wrong_is_said_in_two_lines(env: str, said: str, here: Path) -> None:
    target, *others = env.split()
    with pytest.raises(UserError) as refusal:
        own_factory(OmegaConf.from_dotlist([f"_target_={target}", *others]))
    message = str(refusal.value)
    assert said.replace("HERE", str(here)).replace("ROOT", str(ROOT)) in message
    assert message.startswith("env._target_=" if not others else "env.")
    assert len(message.splitlines()) <= 2


def test_nodes_of_their_own() -> None:
    inner = {"_target_": "my_value.Maze"}
    made = own_factory(OmegaConf.create({"_target_": "my_env.make", "image_size": 8, "length": inner}))
    assert type(made.keywords["length"]).__name__ == "Maze"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"^env\.length: .*nope"):
        own_factory(OmegaConf.create({"_target_": "my_env.make", "length": {"_target_": "nope.make"}}))


@pytest.mark.parametrize("regime", ["drqv2", "ppo", "impala", "multitask"])
def test_no_traceback(regime: str, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ["tasks=[a,b]"] if regime == "multitask" else []
    with pytest.raises(SystemExit) as end:
        launch(train.main, ROOT / "cfgs", [f"regime={regime}", "env._target_=my_env.make", "+env.lengthh=3", *tasks])
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: env.lengthh=3: my_env.make takes no argument lengthh")
    assert len(message.splitlines()) == 2


SMALL = "env._target_=my_env.make image_size=32 save_video=false num_eval_episodes=1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "regime=impala obs_type=pixels num_actors=2 num_envs=2 unroll_length=4 batch_size=2 total_timesteps=64 "
        "agent.encoder=small",
        "-m hydra/launcher=joblib hydra.launcher.n_jobs=2 seed=1,2 preset=debug action_repeat=2 num_train_frames=120 "
        "overlap=true",
    ],
    ids=["actors", "joblib"],
)
def test_train_and_evaluate_from_elsewhere(words: str, here: Path) -> None:
    """With train.py somewhere else: in actors, in a launcher's jobs, and in the processes of their environments."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    folder = "hydra.sweep.dir=runs" if "-m" in words else "hydra.run.dir=runs/run"
    command = [sys.executable, str(ROOT / "train.py"), *words.split(), *SMALL.split(), folder]
    trained = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert trained.returncode == 0, trained.stderr
    run_dirs = [path.parent for path in here.glob("runs/*/snapshot.pt")]
    assert len(run_dirs) == (2 if "-m" in words else 1)
    command = [sys.executable, str(ROOT / "eval.py"), str(run_dirs[0]), "episodes=2", "num_envs=2", "film=none"]
    evaluated = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "mean" in evaluated.stdout
