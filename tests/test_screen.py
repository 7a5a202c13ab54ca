"""benchmarks.screen: plans that are refused, the report, and a queue that is killed and stopped."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

import train
from benchmarks import screen, screen_figures, screen_plan, screen_report, screen_summary
from benchmarks.screen_plan import OUTPUT, ROOT, Entry, Plan
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.report import runs
from drqv2.report.published import Reference
from drqv2.system import files, machine
from tests.markdown import tables
from tests.patience import PATIENCE
from tests.report.made_runs import make_run
from tests.short_run import rows

SMALL = (
    "preset=debug obs_type=state num_seed_frames=1000 eval_every_frames=2000 replay_buffer_num_workers=0 overlap=false "
    "precision=fp32 save_video=false save_train_video=false use_tb=false"
).split()
PLAN: dict[str, Any] = {
    "name": "tried",
    "tasks": ["cartpole_balance"],
    "seeds": [1, 2],
    "frames": 4000,
    "arms": {"narrow": [], "wide": ["agent.hidden_dim=64"]},
}


def write(folder: Path, **changed: Any) -> Path:
    """Write a plan whose runs are in a folder beside it; None removes a key."""
    values = PLAN | {"folder": str(folder / "runs")} | changed
    path = folder / "plan.yaml"
    path.write_text(
        yaml.safe_dump({name: value for name, value in values.items() if value is not None}, sort_keys=False)
    )
    return path


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sedes": [1]}, "there is no key sedes; nearest: seeds"),
        ({"tasks": None}, "tasks is missing"),
        ({"seeds": 1}, "seeds=1: must be a list of whole numbers"),
        ({"seeds": [1, 1]}, "seeds=.* holds something twice"),
        ({"frames": "many"}, "frames=many: must be a whole number"),
        ({"at": [5000]}, "at=.* must not be greater than frames=4000"),
        ({"jobs": 0}, "jobs=0: must be a whole number of at least 1"),
        ({"overrides": "lr=1"}, "overrides=lr=1: must be a list"),
        ({"overrides": ["seed=3"]}, "overrides: seed=3: does not belong in a plan; set seeds in the plan instead"),
        ({"overrides": ["hydra/launcher=joblib"]}, "hydra/launcher=joblib: does not belong in a plan"),
        ({"arms": {}}, "must be one or more arms"),
        ({"arms": {"one": [], "two": None}}, r"arms.two=null: must be a list"),
        ({"arms": {"one": [], "..": []}}, r"arms='..': must be a name"),
        ({"arms": {"one": [], "two": ["-m"]}}, r"arms.two=.* must be a list of key=value"),
        ({"known": ["nowhere.csv"]}, "known=nowhere.csv: there is no such file"),
        ({"known": [__file__]}, "known=.*test_screen.py: .* damaged rows"),
        ({"reference": ["nobody"]}, "reference=nobody: there is no such method"),
        ({"reference_fps": {"mrq": 4}, "reference": ["drqv2"]}, r"reference_fps: mrq is not one of reference=\[drqv2"),
        ({"reference_fps": {"mrq": 0}, "reference": ["mrq"]}, "must be methods with frames per second"),
    ],
)
def test_a_plan_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        screen_plan.read(write(tmp_path, **changed))
    assert len(str(error.value).splitlines()) <= 2


def test_a_name_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text() + "jobs: 1\njobs: 2\n")
    with pytest.raises(UserError, match="duplicate key jobs"):
        screen_plan.read(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"arms": {"one": [], "two": ["agent.hidden_dims=3"]}},
            "arm two, cartpole_balance: agent.hidden_dims=3: there is",
        ),
        ({"arms": {"one": [], "two": ["preset=fast"]}}, "arm two, .*: preset=fast: there is no such preset"),
        ({"tasks": ["cartpole_blance"]}, "arm narrow, cartpole_blance: task=.* there is no such task"),
        ({"at": [500], "overrides": ["eval_every_frames=1000"]}, "arm narrow has no evaluation at=500"),
    ],
)
def test_an_arm_that_does_not_compose_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        screen.main([str(write(tmp_path, **changed))])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert re.search(message, told)
    assert len(told.splitlines()) == 2
    assert not (tmp_path / "runs").exists()


DOCS = (ROOT / "docs/screening.md").read_text()


def block(kind: str) -> str:
    """Return the only block of a kind in docs/screening.md."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", DOCS, re.DOTALL)
    return str(found)


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of docs/screening.md, with its agent, in the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("my_agents").mkdir()
    Path("my_agents/huber.py").write_text(block("python"))
    Path("huber.yaml").write_text(block("yaml"))
    return screen_plan.read(Path("huber.yaml"))


@pytest.mark.slow
def test_the_plans_of_the_docs_are_accepted(documented: Plan) -> None:
    screen_plan.check(documented)
    described = tables(DOCS)[0][1]
    assert {row[0].strip("`") for row in described} == {key.name for key in screen_plan.KEYS}


PLANS = sorted((ROOT / "benchmarks/plans").glob("*.yaml"))


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem.startswith("successor") else []) for p in PLANS],
)
def test_the_plans_of_the_repository_are_accepted(path: Path) -> None:
    screen_plan.check(screen_plan.read(path))


@pytest.mark.slow
def test_the_agent_of_the_docs_learns(documented: Plan) -> None:
    entry = next(entry for entry in documented.entries if entry.arm == "huber")
    own = [override for override in entry.overrides if override != "preset=cpu"]
    more = ["num_train_frames=2400", "use_tb=true", "hydra.run.dir=run"]
    launch(train.main, "cfgs", argv=[*own, *SMALL, *more])
    assert float(rows(Path("run"), "train")[-1]["critic_loss"]) > 0


def made(entry: Entry, code: int | None, returns: list[float]) -> None:
    """Write what a run has left: evaluations every 1,000 frames and its exit code."""
    make_run(entry.folder, returns, every=1000, task_name=entry.task, seed=entry.seed, num_train_frames=4000)
    screen_plan.write_record(entry, code)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of three seeds, in which arm b is better by 10, 20 and 30, and arm c has failed or is unfinished."""
    arms = {"a": [], "b": ["lr=1e-3"], "c": ["lr=1"]}
    often = ["eval_every_frames=1000"]
    found = screen_plan.read(write(tmp_path, seeds=[1, 2, 3], arms=arms, at=[2000, 4000], overrides=often))
    for entry in found.entries:
        more = {"a": 0.0, "b": 10.0 * entry.seed, "c": 4.0}[entry.arm]
        returns = [value + more for value in (0.0, 100.0, 200.0, 200.0, 200.0)]
        if entry.arm != "c":
            made(entry, 0, returns)
        elif entry.seed < 3:
            made(entry, [-9, 76][entry.seed - 1], returns[:3])
    (found.entries[5].folder / OUTPUT).write_text("some\nerror: a loss is nan\nresume with: train.py\n")
    return found


def test_the_order_is_seeds_then_tasks_then_arms(tmp_path: Path) -> None:
    found = screen_plan.read(write(tmp_path, tasks=["walker_walk", "cheetah_run"]))
    names = [entry.name for entry in found.entries]
    assert names[:3] == ["narrow/walker_walk/seed_1", "wide/walker_walk/seed_1", "narrow/cheetah_run/seed_1"]
    assert names[4] == "narrow/walker_walk/seed_2"


def test_the_report_pairs_runs(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "out"
    screen_report.write(plan, screen_plan.look(plan), out)
    text = (out / "report.md").read_text()
    assert "\n8 runs of 4,000 frames: 6 finished, 1 interrupted, 1 failed. Not started: 1 of the plan's 9. " in text
    arms, unfinished, task, means, reached, differences = tables(text)
    assert arms[1][0] == ["a", "none"]
    assert [row[0] for row in unfinished[1]] == ["c/cartpole_balance/seed_1", "c/cartpole_balance/seed_2"]
    assert unfinished[1][0][1:] == ["2,000", "interrupted"]
    assert unfinished[1][1][2] == "failed with exit code 76: error: a loss is nan resume with: train.py"
    # Up to 2,000 frames, to which c came with seed 1, the mean over frames is 100, up to 4,000 it is 150.
    assert task[0] == ["arm", "return at 2,000", "return at 4,000", "area", "frames/s"]
    assert task[1][0][1:3] == ["200.0 (200.0, 200.0, 200.0)"] * 2
    assert task[1][0][3:] == ["133.3 (100.0\\*, 150.0, 150.0)", "100.0"]
    assert task[1][2][1:4] == ["204.0 (204.0, -, -)", "-", "104.0 (104.0\\*, -, -)"]
    assert means[1] == [
        ["a", "200 (200 to 200)", "200 (200 to 200)"],
        ["b", *["220 (195 to 245)"] * 2],  # t of 2 degrees of freedom
        ["c", "204 (1 seed)", "-"],
    ]
    assert reached[1][0] == ["cartpole_balance", "a", "-", "-", "-", "-"]
    found = {(row[0], row[2]): row[3:] for row in differences[1]}
    assert found["b", "area"] == ["3", "+20.0", "+10.0 to +30.0", "above 0", "1.00 [1.00, 1.00]"]
    assert found["b", "return at 4,000"] == found["b", "area"]
    assert found["c", "area"] == ["1", "+4.0", "-", "fewer than 3 pairs: no interval", "1.00"]
    assert found["c", "return at 4,000"][:2] == ["0", "-"]
    for name in ("returns.png", "means.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    with (out / "returns.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[1].values()) == ["a", "cartpole_balance", "1", "1000", "100.0", "6.0"]
    assert len(table) == 6 * 5 + 2 * 3


@pytest.mark.slow
def test_runs_made_elsewhere_are_not_repeated(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    screen_report.write(plan, screen_plan.look(plan), out)
    before = (out / "report.md").read_text(), (out / "returns.csv").read_text()
    plan.path.write_text(plan.path.read_text().replace("runs", "here") + f"known: [{out / 'returns.csv'}]\n")
    again = screen_plan.read(plan.path)
    assert [entry.arm for entry in screen.Queue(again, 1, retry=False).waiting()] == [
        "c"
    ] * 3  # these have 2,000 frames
    source = f"read from {out / 'returns.csv'}: a/cartpole_balance/seed_1, b/cartpole_balance/seed_1, a/"
    screen.main([str(again.path), "--status"])
    told = capsys.readouterr().out
    assert f"made elsewhere, {source}" in told
    assert "6 finished, 3 queued" in told
    assert "c/cartpole_balance/seed_2  queued" in told
    screen.main([str(again.path), "--report", "--out", str(out)])
    page = (out / "report.md").read_text()
    assert f"Made elsewhere, {source}" in page
    differences = [[row for row in tables(text)[-1][1] if row[0] == "b"] for text in (before[0], page)]
    assert differences[0] == differences[1]
    assert tables(page)[1][1][1][-1] == "2.8"  # frames a second: 1,000 in 6 minutes
    assert (out / "returns.csv").read_text().splitlines() == [
        row for row in before[1].splitlines() if not row.startswith("c")
    ]
    first = again.entries[0]
    made(first, -9, [5.0, 6.0])  # its own directory counts
    found = screen_plan.look(again)
    assert (found[first].state, found[first].frame) == ("interrupted", 2000)
    assert f"{out / 'returns.csv'}: b/" in screen_report.page(again, found)


def evaluated(path: Path, rows: list[tuple[int, float]], arm: str = "narrow", seed: int = 1) -> str:
    """Write a table of a run's evaluations as --report does; return its name."""
    lines = [f"{arm},cartpole_balance,{seed},{frame},{value},{frame / 1000}" for frame, value in rows]
    path.write_text("\n".join(["arm,task,seed,frame,return,minutes", *lines]) + "\n")
    return str(path)


def test_a_longer_run_made_elsewhere_counts_up_to_the_plans_length(tmp_path: Path) -> None:
    longer = evaluated(tmp_path / "a.csv", [(0, 1.0), (2000, 2.0), (4000, 3.0), (6000, 900.0)])
    plan = screen_plan.read(write(tmp_path, arms={"narrow": []}, seeds=[1], known=[longer]))
    (run,) = plan.elsewhere.values()
    assert (run.frames.tolist(), run.returns.tolist()) == ([0, 2000, 4000], [1, 2, 3])


def test_the_first_table_that_has_all_of_a_run_counts(tmp_path: Path) -> None:
    part = evaluated(tmp_path / "a.csv", [(0, 1.0), (2000, 2.0)])
    whole = evaluated(tmp_path / "b.csv", [(0, 1.0), (2000, 2.0), (4000, 3.0)])
    for known in ([part, whole], [whole, part]):
        (run,) = screen_plan.read(write(tmp_path, known=known)).elsewhere.values()
        assert str(run.path) == whole
    assert not screen_plan.read(write(tmp_path, known=[part])).elsewhere


def test_a_run_that_stop_return_has_ended_counts_with_its_last_return(tmp_path: Path) -> None:
    early = evaluated(tmp_path / "a.csv", [(0, 1.0), (2000, 950.0)])
    late = evaluated(tmp_path / "b.csv", [(0, 1.0), (2000, 100.0), (4000, 200.0)], seed=2)
    overrides = ["stop_return=900", "eval_every_frames=2000"]
    path = write(tmp_path, arms={"narrow": []}, overrides=overrides, at=[2000, 4000], known=[early, late])
    plan = screen_plan.read(path)
    assert len(plan.elsewhere) == 2
    cells = tables(screen_report.page(plan, screen_plan.look(plan)))[1][1][0][1:3]
    assert cells == ["525.0 (950.0, 100.0)", "575.0 (950.0, 200.0)"]


def test_runs_of_different_code_are_named(plan: Plan) -> None:
    first, *others = plan.entries[:3]
    for entry in (first, *others):
        (entry.folder / "starts.jsonl").write_text('{"commit": "a", "dirty": false}\n')
    assert "the same code" not in screen_report.page(plan, screen_plan.look(plan))
    (first.folder / "starts.jsonl").write_text('{"commit": "b", "dirty": false}\n')
    assert "**Not all runs were started with the same code.**" in screen_report.page(plan, screen_plan.look(plan))


def test_one_arm_is_reported_without_differences(plan: Plan) -> None:
    alone = replace(plan, arms={"b": plan.arms["b"]})
    page = screen_report.page(alone, screen_plan.look(alone))
    arms, task, means, reached = tables(page)
    assert [row[0] for row in arms[1] + task[1] + means[1]] == ["b", "b", "b"]
    assert len(reached[1]) == 1
    assert "Differences" not in page


def test_tasks_without_a_pair_are_not_called_all(plan: Plan) -> None:
    other = replace(plan, tasks=["cartpole_balance", "acrobot_swingup"])
    differences = tables(screen_report.page(other, screen_plan.look(plan)))[-1]
    assert {row[1] for row in differences[1]} == {
        "cartpole_balance",
        "acrobot_swingup",
        "**1 of 2 tasks**",
        "**0 of 2 tasks**",
    }


def test_references_are_drawn_and_listed(plan: Plan) -> None:
    other = replace(plan, tasks=["cartpole_balance", "acrobot_swingup"], reference=["drqv2"])
    page = screen_report.page(other, screen_plan.look(plan))
    assert any(row[0] == "DrQ-v2, published (facebookresearch/drqv2, 10 seeds)" for row in tables(page)[-4][1])
    means = {row[0]: row[1:] for row in tables(page)[-3][1]}
    assert means["a"] == ["-", "-"]  # of one task alone
    assert means["DrQ-v2, published"] == ["-", "-"]  # at 2,000 and 4,000 frames there is nothing yet
    assert screen_report.plot(other, screen_plan.look(plan)).startswith(b"\x89PNG")


def reference(task: str, mean: list[float]) -> Reference:
    frames = np.array([10_000.0, 20_000.0, 30_000.0])
    values = {"frame": frames, "mean": np.array(mean), "std": np.full(3, 12.0), "n_seeds": np.full(3, 9.0)}
    return Reference("mrq", "", values, 0)


def test_intervals_of_arms_are_those_of_published_methods_with_the_same_seeds() -> None:
    ours = [np.array([80.0, 100.0, 120.0]), np.array([10.0, 40.0, 10.0, 20.0])]
    one = screen_summary.students_t(ours)
    assert one is not None
    low, high = one
    error = 2.571 * np.sqrt(20**2 / 3 + 200 / 4) / 2  # t of 5 degrees of freedom
    assert (low, high) == pytest.approx((60 - error, 60 + error), rel=1e-4)
    both = screen_summary.students_t([np.stack([own, 2 * own], axis=1) for own in ours])
    assert both is not None
    np.testing.assert_allclose(np.array(both), [[low, 2 * low], [high, 2 * high]])
    assert screen_summary.students_t([ours[0], ours[1][:2]]) is None
    same = []
    for own in ours:
        values = {"mean": np.mean(own), "std": np.std(own), "n_seeds": float(len(own))}
        curve = {"frame": np.arange(3.0)} | {name: np.full(3, value) for name, value in values.items()}
        same.append(Reference("mrq", "", curve, 0))
    assert screen_summary.of_published(same, 2)[1:3] == pytest.approx((low, high))


def test_means_of_published_methods_have_the_intervals_of_their_seeds() -> None:
    curves = [reference("a", [100.0, 200.0, 300.0]), reference("b", [0.0, 0.0, 0.0])]
    value, low, high, _ = screen_summary.of_published(curves, 15_000)
    assert value == 75
    sample_variance = 12**2 * 9 / 8  # the files have the deviation of the seeds themselves
    error = 2.120 * np.sqrt(2 * sample_variance / 9) / 2  # t of 16 degrees of freedom; of a mean of independent means
    assert (low, high) == pytest.approx((75 - error, 75 + error), rel=1e-4)
    assert np.isnan(screen_summary.of_published(curves, 31_000).value)
    few = [one._replace(curve=one.curve | {"n_seeds": np.full(3, 2.0)}) for one in curves]
    assert str(screen_summary.of_published(few, 20_000)) == "100 (2 seeds)"
    unknown = [one._replace(curve=one.curve | {"std": np.full(3, np.nan)}) for one in curves]
    assert str(screen_summary.of_published(unknown, 20_000)) == "100 (9 seeds)"


def test_intervals_that_do_not_overlap_are_named_and_frames_of_returns_are_listed(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = {"frame": np.array([0.0, 2000.0, 4000.0]), "mean": np.array([0.0, 205.0, 600.0])}
    curve |= {"std": np.full(3, 3.0), "n_seeds": np.full(3, 9.0)}
    references = {"cartpole_balance": [Reference("mrq", "", curve, 0)]}
    monkeypatch.setattr(Plan, "references", lambda _: references)
    monkeypatch.setattr(screen_summary, "REACHED", (215, 300))
    made(next(one for one in plan.entries if one.name == "c/cartpole_balance/seed_3"), None, [0.0, 250.0])
    page = screen_report.page(plan, screen_plan.look(plan))
    assert "at 4,000 frames that do not overlap:\n\n- a: below MR.Q, published\n- b: below MR.Q, published\n\n" in page
    assert {row[1]: row[2:] for row in tables(page)[-2][1]} == {
        "a": ["-", "-", "-", "-"],
        "b": ["2,000 (-; 2,000; 2,000)", "12 (-; 12; 12)", "-", "-"],
        "c": ["(?; 1,000)", "(?; 6)", "?", "?"],  # the first may still come to it, the second has failed
        "MR.Q, published": ["4,000", "", "4,000", ""],
    }
    timed = replace(plan, reference_fps={"mrq": 10.0})
    page = screen_report.page(timed, screen_plan.look(plan))
    assert tables(page)[-2][1][-1][2:] == ["4,000", "7", "4,000", "7"]
    assert "from the frames per second that the plan names: mrq 10." in page


def test_means_over_tasks_are_drawn_against_frames_and_minutes(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    two = replace(plan, tasks=["cartpole_balance", "acrobot_swingup"], reference=["drqv2"])
    assert "means.png" not in screen_report.page(two, screen_plan.look(plan))  # no arm has runs of both
    for entry in two.entries:
        if entry.task == "acrobot_swingup" and entry.arm != "c":
            made(entry, 0, [0.0, 0.0, 0.0, 0.0, 20.0])
    curves = [reference(task, [100.0, 200.0, 300.0]) for task in two.tasks]
    near = [one._replace(curve=one.curve | {"frame": one.curve["frame"] / 10}) for one in curves]
    monkeypatch.setattr(Plan, "references", lambda _: dict(zip(two.tasks, [[one] for one in near], strict=True)))
    two = replace(two, reference_fps={"mrq": 2.0})
    drawn = []

    def png(figure: Any, *_: Any) -> bytes:
        drawn.append(figure)
        return b""

    monkeypatch.setattr(screen_figures, "_png", png)
    found = screen_plan.look(two)
    assert "![means over tasks](means.png)" in screen_report.page(two, found)
    screen_report.plot_means(two, found)
    lines = [{line.get_label(): line.get_xydata() for line in axes.get_lines()} for axes in drawn[0].axes]
    assert lines[0]["a"].tolist() == [[0, 0], [1000, 50], [2000, 100], [3000, 100], [4000, 110]]
    np.testing.assert_allclose(lines[1]["a"], lines[0]["a"] / [1000 / 6, 1])  # 1,000 frames in 6 minutes
    assert lines[0]["MR.Q, published"].tolist() == [[1000, 100], [2000, 200], [3000, 300]]
    np.testing.assert_allclose(lines[1]["MR.Q, published"][:, 0], [1000 / 120, 2000 / 120, 3000 / 120])
    assert "c" not in lines[0]


def test_status_and_the_time_left(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    screen.main([str(plan.path), "--status"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "state", "frame", "return", "frames/s"]
    assert lines[3].split() == ["c/cartpole_balance/seed_1", "interrupted", "2,000", "204.0", "100.0"]
    assert lines[6].split()[1:3] == ["failed", "(76)"]
    assert lines[-2] == "6 finished, 1 interrupted, 1 failed, 1 queued"
    assert lines[-1] == "time left: 1 minute with jobs=2, without evaluations"
    # 2,000 and 4,000 frames at 100 a second are left: with two jobs, as long as the longer one.
    assert screen.remaining_hours(plan, screen_plan.look(plan), jobs=1) == pytest.approx(60 / 3600)
    assert screen.remaining_hours(plan, screen_plan.look(plan), jobs=2) == pytest.approx(40 / 3600)


def test_failed_runs_are_continued_with_retry_alone(plan: Plan) -> None:
    first, second, third = plan.entries[2::3]  # of arm c: interrupted, failed, queued
    assert list(screen.Queue(plan, 1, retry=False).waiting()) == [first, third]
    assert list(screen.Queue(plan, 1, retry=True).waiting()) == [first, second, third]


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this system has no groups of sessions")
def test_runs_leave_the_processors_to_other_sessions() -> None:
    script = "import os; print(os.nice(0), open('/proc/self/autogroup').read())"
    options: dict[str, Any] = {"start_new_session": True, "preexec_fn": screen._as_child, "text": True}
    found = subprocess.check_output([sys.executable, "-c", script], **options)
    assert re.fullmatch(rf"{min(19, os.nice(0) + 10)} /autogroup-\d+ nice 10\s*", found)


def test_changed_overrides_are_not_continued(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    plan.path.write_text(plan.path.read_text().replace("lr=1e-3", "lr=2e-3"))
    with pytest.raises(SystemExit) as ended:
        screen.main([str(plan.path)])
    assert ended.value.code == 2
    assert "was started with other overrides (lr=1e-3, lr=2e-3)" in capsys.readouterr().err
    with pytest.raises(SystemExit):  # nor reported as if it had the new ones
        screen.main([str(plan.path), "--report"])
    assert "was started with other overrides" in capsys.readouterr().err


def start(path: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.screen", str(path), *words]
    settings = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not reached():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)


def starts(entry: Entry) -> int:
    return len((entry.folder / "starts.jsonl").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.waits
def test_a_queue_that_is_killed_and_stopped_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = ["agent.hidden_dim=64"]
    arms = {"narrow": [], "broken": ["env._target_=tests.none.make"], "wide": wide, "also": wide}
    path = write(tmp_path, seeds=[1], arms=arms, overrides=SMALL, jobs=1)
    plan = screen_plan.read(path)
    first, broken, third, fourth = plan.entries

    def states() -> list[str]:
        return [one.state for one in screen_plan.look(plan).values()]

    def learning(entry: Entry) -> bool:
        found = screen_plan.look(plan)[entry]
        return found.state == "running" and found.frame >= 1000 and files.has_snapshot(entry.folder)

    assert set(states()) == {"queued"}
    queue = start(path)
    wait_for(queue, lambda: learning(first))
    assert states() == ["running"] + ["queued"] * 3
    threads = {"OMP_NUM_THREADS": str(max(1, int(machine.cores())))}  # one run has all of them
    (run,) = psutil.Process(queue.pid).children()
    assert threads.items() <= run.environ().items()
    with pytest.raises(SystemExit):
        screen.main([str(path)])
    assert f"is in use by process {queue.pid}" in capsys.readouterr().err
    queue.kill()  # its run is stopped, too
    queue.communicate()
    until = time.monotonic() + PATIENCE
    while files.in_use(first.folder):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert states() == ["interrupted"] + ["queued"] * 3

    queue = start(path)
    wait_for(queue, lambda: learning(third))
    queue.send_signal(signal.SIGTERM)
    output = queue.communicate()[0]
    assert queue.returncode == 75
    assert f"continue with: python -m benchmarks.screen {path}" in output
    assert states() == ["finished", "failed", "interrupted", "queued"]

    queue = start(path, "jobs=2")
    output = queue.communicate()[0]
    assert queue.returncode == 1, output  # for there are failed ones
    assert states() == ["finished", "failed", "finished", "finished"]
    assert [starts(entry) for entry in (first, third, fourth)] == [2, 2, 1]
    assert (broken.folder / OUTPUT).read_text().count("error: ") == 1
    text = (plan.folder / "report.md").read_text()
    assert "broken/cartpole_balance/seed_1 | 0 | failed with exit code 2: error: " in text

    undisturbed = tmp_path / "undisturbed"
    command = [sys.executable, str(ROOT / "train.py"), *first.overrides, "console=off", f"hydra.run.dir={undisturbed}"]
    subprocess.run(command, env=os.environ | threads, check=True, stdout=subprocess.DEVNULL)
    for name in ("train", "eval"):
        assert rows(first.folder, name) == rows(undisturbed, name)


def test_a_return_at_frame_0_is_not_reached_by_learning(tmp_path: Path) -> None:
    run = runs.read(make_run(tmp_path / "run", [600.0, 0.0, 550.0], num_train_frames=20_000))
    assert screen_summary.first(run, 500)[0] == 20_000


def test_an_evaluation_of_a_run_made_elsewhere_may_be_a_round_late(tmp_path: Path) -> None:
    known = evaluated(tmp_path / "a.csv", [(0, 1.0), (2004, 2.0), (4002, 3.0)])
    path = write(tmp_path, arms={"narrow": []}, seeds=[1], known=[known], overrides=["num_envs=3"])
    (run,) = screen_plan.read(path).elsewhere.values()
    assert run.frames.tolist() == [0, 2004, 4002]
