"""tools/plot.py: its tables, the copies of the curves, and the plots. `run` is in test_documented_commands.py, too."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[1]
Plot = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "plot.py"))


@pytest.fixture
def plot(tool: dict[str, Any]) -> Plot:
    """Returns a function that runs a command line and returns the axes of the last figure."""

    def draw(*words: object) -> list[Any]:
        plt.close("all")
        tool["main"](list(map(str, words)))
        return list(plt.gcf().axes)

    return draw


def make(run_dir: Path, head: str, *rows: tuple[float, ...], **cfg: Any) -> Path:
    run_dir.mkdir()
    OmegaConf.save(cfg, run_dir / "config.yaml")
    lines = [head, *(",".join(map(str, row)) for row in rows)]
    (run_dir / "eval.csv").write_text("\n".join(lines) + "\n")
    return run_dir


def test_a_run_beside_others_and_the_published_range(tmp_path: Path, plot: Plot) -> None:
    head, out = "frame,episode_reward", tmp_path / "out"
    run_dir = make(tmp_path / "run", head, (0, 20), (40_000, 400), task_name="walker_walk", seed=3)
    (run_dir / "train.csv").write_text("frame,episode_reward\n1000,10\n2000,\n")
    other = make(tmp_path / "other", head, (0, 10), (20_000, 80)) / "eval.csv"
    words = ("--label", "seed 3", "--beside", f"seed 1={other}")
    (axes,) = plot("run", run_dir, "--out", out, *words, "--published", ROOT / "results/published/drqv2.csv")
    assert axes.get_title("left") == "walker_walk, seeds 1, 3"
    own, beside, training, mean = axes.get_lines()
    assert [line.get_label() for line in (own, beside, mean)] == ["seed 3", "seed 1", "DrQ-v2, published"]
    assert np.asarray(mean.get_xdata()).tolist() == [0, 20_000, 40_000]
    assert np.asarray(training.get_xdata()).tolist() == [1000, 2000]
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "eval.csv").read_text() == (run_dir / "eval.csv").read_text()
    with pytest.raises(SystemExit):
        plot("run", run_dir, "--out", out, "--videos")  # there are none


def test_the_table_says_when_each_seed_was_solved(
    tmp_path: Path, plot: Plot, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, returns in ((1, (20.0, 480.0, 470.0)), (2, (20.0, 100.0, 200.0))):
        rows = [(10_000 * i, value, i + 0.5) for i, value in enumerate(returns)]
        make(tmp_path / str(seed), "frame,episode_reward,total_time", *rows, seed=seed)
    out = tmp_path / "out"
    axes, _ = plot("seeds", tmp_path / "1", tmp_path / "2", "--out", out, "--solved", 475)
    assert capsys.readouterr().out.splitlines() == [
        "| 1 | 10,000 | 1.5 | 480.0 | 470.0 at 20,000 |",
        "| 2 | never |  | 200.0 | 200.0 at 20,000 |",
    ]
    assert (out / "2.csv").read_text() == (tmp_path / "2" / "eval.csv").read_text()
    assert axes.get_title("left") == "out, seeds 1, 2"
    alone = plot("seeds", out / "1.csv", out / "2.csv", "--out", out, "--solved", 475, "--no-seconds")
    assert [one.get_xlabel() for one in alone] == ["environment frames"]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_tasks_are_compared_at_the_last_common_frame(
    tmp_path: Path, plot: Plot, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "frame,episode_reward,episode_reward_a,episode_reward_b"
    rows = (0, 1, 1, 1), (100, 20, 10, 30)
    first = make(tmp_path / "first", head, *rows, seed=1, tasks=["a", "b"])
    other = make(tmp_path / "other", head, *rows, (200, 50, 50, 50), seed=2, tasks=["a", "b"])
    axes = plot("tasks", f"own={first}", f"own={other}", "--out", tmp_path / "out")
    lines = ["| return at 100 frames | own |", "|---|---|", "| a | 10 |", "| b | 30 |", "| mean | 20 |"]
    assert capsys.readouterr().out.splitlines() == lines
    assert [one.get_title("left") for one in axes] == ["mean", "a", "b"]
    plot("tasks", f"own={tmp_path / 'out' / 'own_1.csv'}", "--out", tmp_path / "again")
    assert capsys.readouterr().out.splitlines() == lines


def test_agents_beside_the_data(tmp_path: Path, plot: Plot, capsys: pytest.CaptureFixture[str]) -> None:
    table = ROOT / "results" / "offline" / "returns.csv"
    plot("offline", table, "--out", tmp_path)
    assert (tmp_path / "returns.csv").read_text() == table.read_text()
    assert "| cup_catch | cup_expert | 943 | 853 (818, 880, 862) |" in capsys.readouterr().out


def test_learning_over_the_published_range(tmp_path: Path, plot: Plot) -> None:
    table, out = tmp_path / "learning.csv", tmp_path / "curves.png"
    runs = ("cartpole_swingup_sparse_paper", "walker_walk_paper", "walker_walk_spq")
    kinds, frames = ("train", "eval"), (20000, 40000)
    rows = [f"{run},{kind},{frame},{frame / 100}" for run in runs for kind in kinds for frame in frames]
    table.write_text("\n".join(["run,kind,frame,episode_reward", *rows]))
    sparse, walker = plot("learning", table, out)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert (sparse.get_title("left"), walker.get_title("left")) == ("cartpole_swingup_sparse", "walker_walk")
    mean, *own = walker.get_lines()
    assert mean.get_label() == "DrQ-v2, published"
    assert np.asarray(mean.get_xdata()).tolist() == [0, 20_000, 40_000]
    assert np.asarray(mean.get_ydata())[2] == 64.7  # results/published
    assert [line.get_label() for line in own] == ["walker_walk_paper", "walker_walk_spq"]
    assert np.asarray(own[0].get_ydata()).tolist() == [200, 400]
