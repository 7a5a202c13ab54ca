"""What is read from run directories: runs, groups, curves over seeds, warnings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drqv2.config.formatting import counted
from drqv2.evaluation.statistics import iqm, mean
from drqv2.report import groups, published, runs, sections
from drqv2.report.curves import group_curve, thinned, values_at
from tests.report.made_runs import ROOT, make_run


def read(*paths: Path) -> list[runs.Run]:
    return [runs.read(path) for path in paths]


def test_a_run_is_read(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a" / "run", [1, 5, 3], num_train_frames=20_000)
    (path / "starts.jsonl").write_text(json.dumps({"commit": "abc"}) + "\n")
    assert list(runs.find([tmp_path])) == [path]
    (run,) = read(path)
    assert (run.task, run.seed, run.finished) == ("cheetah_run", 1, True)
    assert run.frames.tolist() == [0, 10_000, 20_000]
    assert run.returns.tolist() == [1, 5, 3]
    assert run.hours.tolist() == pytest.approx([0, 0.1, 0.2])
    assert run.speeds.tolist() == [90, 110]
    assert run.fps == 100
    assert run.config["agent.lr"] == 1e-4
    assert run.starts == [{"commit": "abc"}]
    assert run.faults == []


@pytest.mark.parametrize(
    ("stop_return", "returns", "finished"), [(5, [1, 5], True), (5, [9, 4], False), (5, [9], False)]
)
def test_a_run_that_stop_return_has_ended_is_finished(
    stop_return: float, returns: list[float], finished: bool, tmp_path: Path
) -> None:
    (run,) = read(make_run(tmp_path / "run", returns, num_train_frames=100_000, stop_return=stop_return))
    assert run.finished == finished
    assert sections._state(run) == ("finished" if finished else "running or stopped")
    (other,) = read(make_run(tmp_path / "other", [], eval_every_frames=None))
    assert sections._state(other) == "without evaluations"


def test_an_evaluation_of_impala_may_be_a_batch_of_rollouts_late(tmp_path: Path) -> None:
    sizes = {"action_repeat": 1, "num_envs": 4, "batch_size": 8, "unroll_length": 80, "total_timesteps": 600_000}
    path = make_run(tmp_path / "run", [10, 200], every=500_480, regime="impala", **sizes)
    assert values_at(read(path), 500_000).tolist() == [200]
    assert values_at(read(path), 499_000).tolist() == [10]


def test_damaged_files_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1, 2, 3])
    text = (path / "eval.csv").read_text().replace("20000,10000", "2x000,10000")
    (path / "eval.csv").write_text(text[:-4] + "\n30000,15")
    (path / "starts.jsonl").write_text('{"commit": "a"}\n{"comm')
    (path / "quarantine").mkdir()
    (path / "quarantine" / "train.csv").touch()
    (run,) = read(path)
    assert run.returns.tolist() == [1, 2]
    assert [fault.split(" ", 1)[1] for fault in run.faults] == [
        "damaged rows in eval.csv",
        "damaged line in starts.jsonl",
        "was damaged and is in quarantine",
    ]


def test_half_written_videos_are_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1])
    (path / "eval_video").mkdir()
    for name in ("9000.mp4", "10000.mp4", ".tmp-4711-3.mp4", "²5.mp4"):
        (path / "eval_video" / name).touch()
    (run,) = read(path)
    assert [video.name for video in run.videos] == ["9000.mp4", "10000.mp4"]


def test_a_run_counts_once(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a" / "run", [1])
    (tmp_path / "a" / "latest").symlink_to(path)
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert len(list(runs.find([tmp_path, path]))) == 1


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    (run,) = read(make_run(tmp_path / "run", []))
    assert len(run.frames) == 0
    assert not run.finished
    (group,) = groups.group([run])
    assert "has no evaluation yet" in groups.warnings(group, None)[0]
    assert len(group_curve(group.runs, mean, "frames").x) == 0


def test_groups_by_task_and_setting(tmp_path: Path) -> None:
    made = [
        make_run(tmp_path / "a1", [1], seed=1),
        make_run(tmp_path / "a2", [1], seed=2, num_train_frames=50_000, device="cuda"),
        make_run(tmp_path / "b", [1], seed=1, lr=3e-4),
        make_run(tmp_path / "c", [1], seed=1, agent={"hidden_dim": 256}),
        make_run(tmp_path / "d", [1], seed=1, task_name="walker_walk"),
    ]
    found = groups.group(read(*made))
    assert [(g.task, g.label, [run.path.name for run in g.runs]) for g in found] == [
        ("cheetah_run", "default settings", ["a1", "a2"]),
        ("cheetah_run", "lr=0.0003", ["b"]),
        ("cheetah_run", "agent.hidden_dim=256", ["c"]),
        ("walker_walk", "default settings", ["d"]),
    ]


def test_seeds_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    seeds = [10, 2, 1, 10, 2]
    found = read(*(make_run(tmp_path / str(i), [1], seed=seed) for i, seed in enumerate(seeds)))
    (group,) = groups.group(found)
    assert [run.seed for run in group.runs] == [1, 2, 2, 10, 10]
    assert any("seed 2, 10" in words for words in groups.warnings(group, None))


def test_a_curve_ends_where_the_first_seed_ends_and_goes_on_apart(tmp_path: Path) -> None:
    made = [make_run(tmp_path / str(s), [s, 10.0 * s, 100.0 * s][: 3 if s < 4 else 2], seed=s) for s in (1, 2, 3, 4)]
    for statistic in (mean, iqm):
        curve = group_curve(read(*made), statistic, "frames")
        assert curve.x.tolist() == [0, 10_000]
        assert curve.y.tolist() == pytest.approx([2.5, 25.0])
        assert [part.tolist() for part in curve.beyond] == [[10_000, 20_000], [25.0, 200.0]]  # the fourth is not there
    assert curve.low is not None
    assert curve.high is not None
    assert (curve.low < curve.y).all()
    assert (curve.y < curve.high).all()


@pytest.mark.parametrize("number", [1, 2])
def test_a_curve_of_fewer_than_three_seeds_has_no_interval(number: int, tmp_path: Path) -> None:
    found = read(*(make_run(tmp_path / str(s), [s, 10.0 * s], seed=s) for s in range(number)))
    curve = group_curve(found, mean, "frames")
    assert curve.low is None
    assert curve.beyond[0].tolist() == []
    (group,) = groups.group(found)
    assert group.title.endswith(f"({number} seed{'s'[: number - 1]}, no interval)")
    waiting = read(*(make_run(tmp_path / f"waiting{s}", [], seed=9 + s) for s in range(2)))
    (group,) = groups.group([*found, *waiting])
    assert sections._row(group)["seeds"] == f"{number + 2} (no interval)"  # two of them without an evaluation


def test_a_curve_begins_where_all_seeds_have_begun(tmp_path: Path) -> None:
    early, late = make_run(tmp_path / "a", [0, 10, 20, 30]), make_run(tmp_path / "b", [0, 10, 20, 30], seed=2)
    lines = (late / "eval.csv").read_text().splitlines()
    (late / "eval.csv").write_text("\n".join([lines[0], *lines[3:]]))
    curve = group_curve(read(early, late), mean, "frames")
    assert (curve.x.tolist(), curve.y.tolist()) == ([20_000, 30_000], [20, 30])
    stopped = make_run(tmp_path / "c", [0, 10], seed=3)
    curve = group_curve(read(early, late, stopped), mean, "frames")
    assert len(curve.x) == 0  # they have no frame in common
    assert curve.beyond[0].tolist() == [20_000, 30_000]


def test_curve_against_time(tmp_path: Path) -> None:
    slow, fast = (
        make_run(tmp_path / "a", [0, 10, 20], hours=1.0),
        make_run(tmp_path / "b", [0, 10, 20], hours=0.5, seed=2),
    )
    curve = group_curve(read(slow, fast), mean, "hours")
    assert curve.x.tolist() == pytest.approx([0, 0.5, 1.0])
    assert curve.y.tolist() == pytest.approx([0, 7.5, 15.0])
    assert len(curve.beyond[0]) == 0  # not as far as half of the seeds


def test_returns_at_a_frame(tmp_path: Path) -> None:
    made = read(
        make_run(tmp_path / "1", np.arange(11), seed=1),
        make_run(tmp_path / "2", np.arange(6) * 2.0, seed=2),
        make_run(tmp_path / "3", np.arange(8) * 3.0, seed=3, every=14_000),
    )
    late = make_run(tmp_path / "4", [1, 2, 3], seed=4, every=50_004, num_envs=3)
    assert values_at(read(late), 100_000).tolist() == [2]
    assert values_at(read(late), 50_000).tolist() == [2]
    assert values_at(made, 50_000).tolist() == [5, 10, 9]
    assert values_at(made, 100_000).tolist() == [10]
    assert values_at(made, 1_000_000).tolist() == []


def test_a_run_that_has_not_learned_is_found_among_negative_returns(tmp_path: Path) -> None:
    made = [make_run(tmp_path / str(s), [-1500, -300, -160 + 10 * s], seed=s) for s in (1, 2)]
    made.append(make_run(tmp_path / "dead", [-1500, -1490, -1500], seed=3))
    (group,) = groups.group(read(*made))
    assert ["seed 3" in words for words in groups.warnings(group, None)] == [True]


def test_a_seed_that_ends_before_others_is_named(tmp_path: Path) -> None:
    made = [make_run(tmp_path / f"run{s}", [s, 2, 3][: 3 - s // 3], seed=s) for s in (1, 2, 3)]
    (group,) = groups.group(read(*made))
    assert "seed 3 (run3) ends at frame 10,000, another seed at 20,000" in groups.warnings(group, None)
    row = sections._row(group)
    assert row["latest"] == "2 [2, 2] at 10,000"
    assert row["seeds"] == "3"
    four = groups.group(
        read(*(make_run(tmp_path / f"four{s}", [0, value], seed=s) for s, value in enumerate([0, 2, 4, 9])))
    )
    assert sections._row(four[0])["latest"].endswith("], IQM 3 at 10,000")


def test_warnings(tmp_path: Path) -> None:
    made = [make_run(tmp_path / f"run{s}", [5, 200, 400, 600, 800], seed=s) for s in (1, 2)]
    made.append(make_run(tmp_path / "dead", [5, 6, 5, 6, 5], seed=3))
    starts = [
        {"frame": 0, "commit": "a" * 40, "time": "2026-01-01"},
        {"frame": 9000, "commit": "b" * 40, "dirty": True},
    ]
    (made[0] / "starts.jsonl").write_text("".join(json.dumps(start) + "\n" for start in starts))
    (made[1] / "starts.jsonl").write_text(json.dumps(starts[0]) + "\n")
    (group,) = groups.group(read(*made))
    told = groups.warnings(group, None)
    assert any("seed 3 (dead)" in words and "800" in words for words in told)
    assert any("9,000" in words and "aaaaaaaaa" in words and "bbbbbbbbb" in words for words in told)
    assert any("different commits" in words for words in told)
    assert not any("seed 2" in words for words in told)
    alone = groups.group(read(made[2]))[0]
    theirs = {"frame": np.array([0, 20_000, 40_000]), "mean": np.array([5.0, 200, 400])}
    assert "400" in groups.warnings(alone, theirs)[0]
    assert groups.warnings(alone, None) == []


def test_published_curves_of_all_tasks() -> None:
    faults: list[str] = []
    found = published.read_published(ROOT / "results/published/drqv2.csv", faults)
    assert faults == []
    assert len(found) == 24
    one = found["cartpole_balance_sparse"]
    assert one["mean"][one["frame"] == 40_000] == [1000]
    for curve in found.values():
        assert (curve["min"] <= curve["mean"]).all()
        assert (curve["mean"] <= curve["max"]).all()


HEAD = "task,frame,mean,std,min,max,n_seeds\n"


GOOD = "cheetah_run,0,1,0,0,2,10\ncheetah_run,10000,5,0,4,6,10\n"


@pytest.mark.parametrize(
    ("row", "bad"),
    [
        ("", 0),
        ("cheetah_run,20000,7\n", 1),
        ("cheetah_run,20000,nan,0,6,8,10\nwalker_walk,0,1,0,0,2,inf\n", 2),
        ("cheetah_run,20000,seven,0,6,8,10\n", 1),
        ("ch\xe9etah_run,20000,7,0,6,8,10\n", 0),
    ],
)
def test_damaged_rows_of_published_curves_are_counted(tmp_path: Path, row: str, bad: int) -> None:
    path = tmp_path / "published.csv"
    path.write_bytes((HEAD + row + GOOD).encode("latin-1"))
    faults: list[str] = []
    assert published.read_published(path, faults)["cheetah_run"]["mean"].tolist() == [1, 5]
    assert [counted(bad, "damaged row") in fault for fault in faults] == [True] * bool(bad)


def test_thinned_values_keep_both_ends() -> None:
    kept = thinned(np.arange(1001.0), 400)
    assert (len(kept), kept[0], kept[-1]) == (400, 0, 1000)


def test_a_seed_that_ends_within_the_same_round_is_not_behind(tmp_path: Path) -> None:
    made = [make_run(tmp_path / str(s), [1, 2], every=10_000 + 2 * s, seed=s, num_envs=3) for s in (1, 2)]
    (group,) = groups.group([runs.read(path) for path in made])
    assert not [line for line in groups.warnings(group, None) if "ends at frame" in line]
