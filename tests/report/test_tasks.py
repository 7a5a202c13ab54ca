"""Runs of several tasks: their parts, the settings they share with others, scores over tasks, the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import report
from drqv2.report import groups, runs, sections
from drqv2.report.aggregate import aggregate
from drqv2.report.groups import Group
from drqv2.report.scores import score_of
from tests.report.made_runs import make_run, make_run_of_tasks

REACH, PUSH = "metaworld:reach-v3", "metaworld:push-v3"


def grouped(*paths: Path) -> tuple[dict[str, list[Group]], dict[str, list[Group]]]:
    """Return the groups of tasks, and those of runs of several tasks."""
    tasks: dict[str, list[Group]] = {}
    wholes: dict[str, list[Group]] = {}
    for group in groups.group([runs.read(path) for path in paths]):
        (wholes if group.runs[0].several else tasks).setdefault(group.task, []).append(group)
    return tasks, wholes


@pytest.mark.parametrize("names", ["task", "env_index"])
def test_a_run_of_several_tasks_has_a_part_of_each(tmp_path: Path, names: str) -> None:
    path = make_run_of_tasks(
        tmp_path / "run",
        {REACH: [1, 2, 3], PUSH: [10, 20, 30]},
        {REACH: [0, 0.5, 1], PUSH: [0, 0, 0.5]},
        names,
        num_train_frames=20_000,
    )
    run = runs.read(path)
    assert run.several
    assert run.returns.tolist() == [5.5, 11, 16.5]
    assert run.success.tolist() == [0, 0.25, 0.75]
    assert [(part.task, part.whole, part.several) for part in run.parts] == [
        ("reach-v3", "reach-v3+push-v3", False),
        ("push-v3", "reach-v3+push-v3", False),
    ]
    reach, push = run.parts
    assert reach.frames.tolist() == [0, 10_000, 20_000]
    assert reach.success.tolist() == [0, 0.5, 1]
    assert push.returns.tolist() == [10, 20, 30]
    assert push.finished


def test_a_task_has_frames_of_its_own_action_repeat(tmp_path: Path) -> None:
    path = make_run_of_tasks(
        tmp_path / "run",
        {"walker_walk": [1, 2], "cheetah_run": [3, 4]},
        per_task={"cheetah_run": {"action_repeat": 4}},
        exclude_tasks=["walker_walk"],
    )
    walk, cheetah = runs.read(path).parts
    assert walk.frames.tolist() == [0, 10_000]
    assert cheetah.frames.tolist() == [0, 20_000]  # of 5,000 steps
    assert cheetah.frames_per_round == 4
    assert not walk.has_success
    assert (walk.learnt, cheetah.learnt) == (False, True)


def test_damaged_values_of_a_task_are_left_out(tmp_path: Path) -> None:
    path = make_run_of_tasks(tmp_path / "run", {REACH: [1, 2, 3], PUSH: [10, 20, 30]})
    text = (path / "eval.csv").read_text().replace(",20,", ",nan,").replace(",20\n", ",\n")
    (path / "eval.csv").write_text(text)
    for part, values in zip(runs.read(path).parts, ([1, 2, 3], [10, 30]), strict=True):
        assert part.returns.tolist() == values


def test_a_single_task_in_regime_multitask_is_a_run_like_others(tmp_path: Path) -> None:
    run = runs.read(make_run(tmp_path / "run", [1, 2], regime="multitask", tasks=None))
    assert not run.several
    assert run.parts == []


def test_settings_are_the_same_on_all_tasks(tmp_path: Path) -> None:
    """humanoid_run has another learning rate and length in cfgs/task: the default on either task is one setting."""
    tasks, wholes = grouped(
        make_run(tmp_path / "a", [1]),
        make_run(tmp_path / "b", [1], task_name="humanoid_run", lr=8e-5),
        make_run(tmp_path / "c", [1], task_name="humanoid_run", lr=1e-4),
        make_run_of_tasks(tmp_path / "d", {"cheetah_run": [1], "humanoid_run": [2]}),
    )
    found = {(group.task, group.short): group.setting for every in tasks.values() for group in every}
    assert sorted(found) == [
        ("cheetah_run", "drqv2"),
        ("cheetah_run", "multitask 2 tasks"),
        ("humanoid_run", "drqv2"),
        ("humanoid_run", "drqv2, lr=0.0001"),
        ("humanoid_run", "multitask 2 tasks"),
    ]
    assert found["cheetah_run", "drqv2"] == found["humanoid_run", "drqv2"]
    assert found["cheetah_run", "multitask 2 tasks"] == wholes["cheetah_run+humanoid_run"][0].setting
    assert "tasks=[cheetah_run,humanoid_run]" in wholes["cheetah_run+humanoid_run"][0].label


def test_the_size_of_a_replay_that_follows_the_data_is_no_setting(tmp_path: Path) -> None:
    tasks, _ = grouped(
        make_run(tmp_path / "a", [1], regime="offline", data="one", then=None, replay_buffer_size=100),
        make_run(tmp_path / "b", [1], regime="offline", data="two", then=None, replay_buffer_size=200),
        make_run(tmp_path / "c", [1], regime="offline", data="two", then=None, replay_buffer_size=200),
    )
    assert sorted(group.short for group in tasks["cheetah_run"]) == ["data=one", "default settings"]


def test_the_defaults_of_a_task_without_a_file_are_those_of_medium(tmp_path: Path) -> None:
    medium, easy = "linear(1.0,0.1,500000)", "linear(1.0,0.1,100000)"
    tasks, _ = grouped(
        make_run(tmp_path / "a", [1], task_name="fish_swim", stddev_schedule=medium),
        make_run(tmp_path / "b", [1], task_name="walker_walk", stddev_schedule=easy),
        make_run(tmp_path / "c", [1], task_name="cheetah_run", stddev_schedule=medium),
    )
    assert len({group.setting for every in tasks.values() for group in every}) == 1


def test_table_of_tasks(tmp_path: Path) -> None:
    made = [
        make_run_of_tasks(
            tmp_path / str(s), {REACH: [0, 400 + s], PUSH: [0, s]}, {REACH: [0, 1], PUSH: [0, s / 4]}, seed=s
        )
        for s in (1, 2, 3)
    ]
    _, wholes = grouped(*made)
    rows = sections.several_tasks(wholes["reach-v3+push-v3"])
    assert [row["name"] for row in rows] == ["reach-v3", "push-v3", "mean over tasks"]
    assert rows[1]["cells"] == [{"return": "2 [1, 3]", "success": "0.50 [0.25, 0.75]"}]
    assert rows[2]["cells"][0]["success"] == "0.75 [0.62, 0.88]"
    assert rows[0]["cells"][0]["success"] == "1.00 [1.00, 1.00]"
    _, two = grouped(*made[:2])
    assert sections.several_tasks(two["reach-v3+push-v3"])[1]["cells"] == [{"return": "2", "success": "0.38"}]


def test_scores(tmp_path: Path) -> None:
    tasks, _ = grouped(
        make_run(tmp_path / "a", [1], task_name="walker_walk"),
        make_run(tmp_path / "b", [1], task_name="reach_duplo"),
        make_run(tmp_path / "c", [1], task_name="walker_of_mine", env={"_target_": "my.env"}),
        make_run(tmp_path / "d", [1], task_name="dog_run"),
        make_run(tmp_path / "f", [1], task_name="fish_swim", env={"_target_": None, "time_limit": 5}),
        make_run(tmp_path / "g", [1], task_name="cartpole_balance", max_episode_steps=1000),
        make_run_of_tasks(tmp_path / "e", {REACH: [1], "cup_catch": [1], "gymnasium:cheetah_2": [1]}, {REACH: [1]}),
    )
    assert {task: score_of(members) for task, members in tasks.items()} == {
        "walker_walk": "return / 1000",
        "reach_duplo": "",
        "walker_of_mine": "",
        "dog_run": "return / 1000",
        "fish_swim": "",
        "cartpole_balance": "",
        "reach-v3": "success",
        "cup_catch": "return / 1000",
        "cheetah_2": "",
    }


def test_aggregate_over_tasks(tmp_path: Path) -> None:
    """Two settings on three tasks, one of them unscored; a third setting on one task only."""
    made = []
    for seed in (1, 2, 3):
        for lr, gain in ((1e-4, 1), (5e-4, 2)):
            for task, scale in (("walker_walk", 100), ("cup_catch", 200), ("my_task", 1)):
                values = [0, scale * gain * seed] if seed == 1 else [0, scale * gain * seed, 999]
                made.append(make_run(tmp_path / f"{task}{lr}{seed}", values, seed=seed, task_name=task, lr=lr))
    made.append(make_run(tmp_path / "alone", [0, 1, 2], task_name="walker_walk", lr=7e-4))
    tasks, _ = grouped(*made)
    found = aggregate(tasks)
    assert found is not None
    assert found.tasks == {"cup_catch": "return / 1000", "walker_walk": "return / 1000"}
    assert found.unscored == ["my_task"]
    assert found.left_out == ["lr=0.0007: no scores on cup_catch"]
    assert [entry.name for entry in found.curve.entries] == ["default settings", "lr=0.0005"]
    first, beyond, second, _ = found.curve.traces
    assert first.x == [0, 10_000]  # where the first seed ends
    assert first.y[1] == pytest.approx((0.2 + 0.2 + 0.3 + 0.4) / 4)  # without 0.1 and 0.6
    assert second.y[1] == pytest.approx((0.4 + 0.4 + 0.6 + 0.8) / 4)
    assert first.low[1] < first.y[1] < first.high[1]
    assert (beyond.kind, beyond.x, beyond.y[1]) == ("beyond", [10_000, 20_000], 0.999)


def test_settings_are_compared_where_all_runs_have_arrived(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for lr, gain in ((1e-4, 100), (5e-4, 150)):
            for task in ("walker_walk", "cup_catch"):
                values = [0, gain * seed, 999][: 2 if (seed, lr, task) == (3, 5e-4, "cup_catch") else 3]
                make_run(tmp_path / f"{task}{lr}{seed}", values, seed=seed, task_name=task, lr=lr)
    tasks, _ = grouped(*sorted(tmp_path.iterdir()))
    found = aggregate(tasks)
    assert found is not None
    assert found.comparison is not None
    common, profile, (first, second) = found.comparison
    assert common.frame == 10_000
    assert common.shortest == f"seed 3 ({tmp_path}/cup_catch0.00053) of lr=0.0005 on cup_catch"
    assert (first.short, first.seeds, first.better) == ("default settings", "3", "")
    assert first.cells == ["0.20 [0.12, 0.28]", "0.20 [0.13, 0.27]", "0.80 [0.73, 0.87]"]
    assert second.cells[0].startswith("0.30 [")
    # Of nine pairs of 0.15, 0.3 and 0.45 with 0.1, 0.2 and 0.3, six are better, and one is equal.
    assert second.better.startswith(f"{6.5 / 9:.2f} [")
    above = dict(zip(profile.traces[0].x, profile.traces[0].y, strict=True))
    assert (above[0.05], above[0.15], above[0.25], above[0.5]) == (1, 0.66667, 0.33333, 0)


def test_settings_without_a_common_frame_are_not_compared(tmp_path: Path) -> None:
    made = [make_run(tmp_path / task, [0, 10, 20], task_name=task) for task in ("walker_walk", "cup_catch")]
    made += [make_run(tmp_path / f"b{task}", [0], task_name=task, lr=1) for task in ("walker_walk", "cup_catch")]
    lines = (made[0] / "eval.csv").read_text().splitlines()
    (made[0] / "eval.csv").write_text("\n".join([lines[0], lines[-1]]))
    tasks, _ = grouped(*made)
    found = aggregate(tasks)
    assert found is not None
    assert found.comparison is None
    report.main([str(tmp_path)])
    assert "No frame is reached by all runs" in (tmp_path / "report.html").read_text("utf-8")


def test_a_task_with_more_seeds_does_not_weigh_more(tmp_path: Path) -> None:
    """lr=0.0005 is better on both tasks, but was run more often on the hard one: with pooled seeds it was behind."""
    for lr, walk, catch in ((1e-4, [900] * 6, [100] * 2), (5e-4, [950] * 2, [150] * 6)):
        for task, values in (("walker_walk", walk), ("cup_catch", catch)):
            for seed, value in enumerate(values):
                make_run(tmp_path / f"{task}{lr}{seed}", [0, value], seed=seed, task_name=task, lr=lr)
    tasks, _ = grouped(*sorted(tmp_path.iterdir()))
    found = aggregate(tasks)
    assert found is not None
    assert [trace.y[1] for trace in found.curve.traces] == pytest.approx([0.5, 0.55])
    assert found.comparison is not None
    first, second = found.comparison.rows
    assert (first.cells, second.cells) == (["0.50", "0.50", "0.50"], ["0.55", "0.55", "0.45"])
    assert (first.seeds, second.better) == ("2-6 (no interval)", "1.00")
    assert "no interval" in found.curve.entries[0].title
    assert [trace.low for trace in (*found.curve.traces, *found.comparison.profile.traces)] == [[]] * 4


def test_two_settings_of_a_task_are_compared_where_both_have_arrived(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        make_run(tmp_path / f"a{seed}", [0, seed, 50], seed=seed)
        make_run(tmp_path / f"b{seed}", [0, seed + 1], seed=seed, lr=1)
        make_run(tmp_path / f"c{seed}", [0, 0, seed, 100], seed=seed, lr=3)
    make_run(tmp_path / "none", [], lr=2)
    tasks, _ = grouped(*sorted(tmp_path.iterdir()))
    found = sections.section("cheetah_run", tasks["cheetah_run"], sections.Others(), "none", tmp_path)
    assert found["compared_with"] == "default settings"
    better = {row["short"]: row["better"] for row in found["rows"]}
    assert better["lr=1"].startswith(f"{(6 + 0.5 * 2) / 9:.2f} [")
    assert better["lr=1"].endswith("]")  # at the frame of its latest value
    assert better["lr=3"] == "0.00 [0.00, 0.00] at 20,000"
    assert (better["default settings"], better["lr=2"]) == ("", "")


def test_no_aggregate_of_a_single_scored_task(tmp_path: Path) -> None:
    tasks, _ = grouped(make_run(tmp_path / "a", [1]), make_run(tmp_path / "b", [1], task_name="my_task"))
    assert aggregate(tasks) is None


def test_settings_without_success_are_named(tmp_path: Path) -> None:
    tasks, _ = grouped(
        make_run_of_tasks(tmp_path / "a", {REACH: [1], PUSH: [1]}, {REACH: [1], PUSH: [1]}),
        make_run(tmp_path / "b", [1], task_name="reach-v3", env_id=REACH),
    )
    found = aggregate(tasks)
    assert found is not None
    assert found.left_out == ["drqv2: no scores"]


def test_scores_of_tasks_that_are_not_learnt_from_do_not_count(tmp_path: Path) -> None:
    tasks, _ = grouped(
        make_run_of_tasks(tmp_path / "all", {REACH: [1], PUSH: [1]}, {REACH: [0.5], PUSH: [0.5]}),
        make_run_of_tasks(tmp_path / "one", {REACH: [1], PUSH: [1]}, {REACH: [1], PUSH: [0]}, exclude_tasks=[PUSH]),
    )
    found = aggregate(tasks)
    assert found is not None
    assert [trace.y for trace in found.curve.traces] == [[0.5]]
    assert [reason.endswith("no scores on push-v3") for reason in found.left_out] == [True]


def test_a_task_whose_name_has_a_slash_has_its_part(tmp_path: Path) -> None:
    path = make_run_of_tasks(tmp_path / "run", {"envpool:own/Long-v0": [1, 2], REACH: [3, 4]})
    text = (path / "eval.csv").read_text()
    (path / "eval.csv").write_text(text.replace("own/Long-v0", "own_Long-v0"))  # as the logger writes it
    assert [(part.task, part.returns.tolist()) for part in runs.read(path).parts] == [
        ("own_Long-v0", [1, 2]),
        ("reach-v3", [3, 4]),
    ]


def test_the_version_of_rewards_is_named_with_every_table_of_meta_world(tmp_path: Path) -> None:
    make_run_of_tasks(tmp_path / "mt", {REACH: [1, 2], "cup_catch": [3, 4]}, {REACH: [0, 1]})
    report.main([str(tmp_path)])
    text = (tmp_path / "report.html").read_text("utf-8")
    parts = {part.partition('"')[0]: part for part in text.split('<section id="')[1:]}
    named = {name for name, part in parts.items() if "Meta-World v3 with rewards of version 2." in part}
    assert named == {"all_tasks", "several-reach-v3+cup_catch", "reach-v3"}


def test_page_of_runs_of_several_tasks(tmp_path: Path) -> None:
    """They are in the charts of their tasks beside runs of these tasks alone, and have a section of their own."""
    for seed in (1, 2):
        returns = {"walker_walk": [0, 10.0 * seed, 40], "walker_run": [0, 5.0, 20]}
        make_run_of_tasks(tmp_path / f"both{seed}", returns, seed=seed)
        make_run(tmp_path / f"walk{seed}", [0, 20, 80], seed=seed, task_name="walker_walk")
    report.main([str(tmp_path)])
    text = (tmp_path / "report.html").read_text("utf-8")
    assert text.partition('<p class="soft">')[2].startswith("4 runs")
    parts = {part.partition('"')[0]: part for part in text.split('<section id="')[1:]}
    assert list(parts)[:4] == ["all_tasks", "several-walker_walk+walker_run", "walker_run", "walker_walk"]
    assert "<span>multitask 2 tasks</span>" in parts["walker_walk"]
    assert "<span>drqv2</span>" in parts["walker_walk"]
    assert "<span>drqv2</span>" not in parts["walker_run"]
    assert "mean over 2 tasks" in parts["several-walker_walk+walker_run"]
    assert "<td>walker_run</td>" in parts["several-walker_walk+walker_run"]
    assert re.findall('data-panel="(.*?)"', parts["all_tasks"]) == ["walker_run", "walker_walk"]
    for name in ("multitask 2 tasks", "drqv2"):
        assert f"<span>{name}</span>" in parts["all_tasks"]
    assert "return / 1000 (walker_run, walker_walk)" in parts["all_tasks"]
    assert "drqv2: no scores on walker_run" in parts["all_tasks"]


def test_success_is_selectable_where_there_is_any(tmp_path: Path) -> None:
    make_run_of_tasks(tmp_path / "a", {REACH: [1, 2], PUSH: [1, 2]}, {REACH: [0, 1], PUSH: [0, 1]})
    make_run(tmp_path / "b", [1, 2])
    tasks, wholes = grouped(tmp_path / "a", tmp_path / "b")
    nothing = sections.Others()
    for members in (tasks["reach-v3"], wholes["reach-v3+push-v3"]):
        chart = sections.section("x", members, nothing, "none", tmp_path)["chart"]
        assert chart.choices["metric"] == ["success", "return"]
        (curve,) = [t for t in chart.traces if t.view == {"metric": "success", "statistic": "mean", "x": "frames"}]
        assert curve.y == [0, 1]
    chart = sections.section("x", tasks["cheetah_run"], nothing, "none", tmp_path)["chart"]
    assert "metric" not in chart.choices
    assert np.isnan(tasks["cheetah_run"][0].runs[0].success).all()
