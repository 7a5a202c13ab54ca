"""tools/plot_seeds.py: its table, the copies of the curves, and the plot."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]


def test_the_table_says_when_each_seed_was_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, returns in ((1, (20.0, 480.0, 470.0)), (2, (20.0, 100.0, 200.0))):
        run_dir = tmp_path / str(seed)
        run_dir.mkdir()
        (run_dir / "config.yaml").write_text(f"seed: {seed}\n")
        rows = [f"{10_000 * i},{value},{i}.5\n" for i, value in enumerate(returns)]
        (run_dir / "eval.csv").write_text("frame,episode_reward,total_time\n" + "".join(rows))
    out = tmp_path / "out"
    argv = ["plot_seeds.py", str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(out), "--solved", "475"]
    monkeypatch.setattr(sys, "argv", argv)
    plt.close("all")
    runpy.run_path(str(ROOT / "tools" / "plot_seeds.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == [
        "| 1 | 10,000 | 1.5 | 480.0 | 470.0 at 20,000 |",
        "| 2 | never |  | 200.0 | 200.0 at 20,000 |",
    ]
    assert (out / "2.csv").read_text() == (tmp_path / "2" / "eval.csv").read_text()
    assert plt.gcf().axes[0].get_title("left") == "out, seeds 1, 2"
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
