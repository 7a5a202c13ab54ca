"""tools/plot_learning.py draws what `make gpu` has written."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]


def test_evaluations_over_the_published_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, out = tmp_path / "learning.csv", tmp_path / "curves.png"
    runs, kinds, frames = ("cheetah_run_paper", "walker_walk_paper", "walker_walk_spq"), ("train", "eval"), (20000, 40000)
    rows = [f"{run},{kind},{frame},{frame / 100}" for run in runs for kind in kinds for frame in frames]
    table.write_text("\n".join(["run,kind,frame,episode_reward", *rows]))
    monkeypatch.setattr(sys, "argv", ["plot_learning.py", str(table), str(out)])
    plt.close("all")
    runpy.run_path(str(ROOT / "tools" / "plot_learning.py"), run_name="__main__")
    assert out.read_bytes().startswith(b"\x89PNG")
    cheetah, walker = plt.gcf().axes
    assert (cheetah.get_title(), walker.get_title()) == ("cheetah_run", "walker_walk")
    mean, *own = walker.get_lines()
    assert list(mean.get_xdata()) == [0, 20, 40]
    assert mean.get_ydata()[2] == 64.7  # results/published
    assert [line.get_label() for line in own] == ["walker_walk_paper", "walker_walk_spq"]
    assert list(own[0].get_ydata()) == [200, 400]
