"""report.py: reading runs, grouping, curves, warnings, the page in a browser."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import report
from drqv2.errors import UserError
from drqv2.evaluation.statistics import iqm, mean
from drqv2.report import figures, groups, page, runs
from tests.test_train import run as train_run
from video import Mp4

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"task_name": "cheetah_run", "seed": 1, "action_repeat": 2, "num_train_frames": 100_000, "lr": 1e-4}
CONFIG |= {"agent": {"lr": "${lr}", "hidden_dim": 1024}}


def make_run(path: Path, returns: Any, every: int = 10_000, hours: float = 0.1, **config: Any) -> Path:
    """Write what a run leaves: an evaluation every `every` frames, which takes `hours` of training to come to."""
    path.mkdir(parents=True)
    OmegaConf.save(OmegaConf.merge(CONFIG, config), path / "config.yaml")
    with (path / "eval.csv").open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["frame", "step", "episode", "episode_length", "episode_reward", "total_time", "more"])
        for i, value in enumerate(returns):
            writer.writerow([i * every, i * every // 2, i, 1000, value, 3600 * hours * i, 0.5])
    with (path / "train.csv").open("w", newline="") as f:
        csv.writer(f).writerows([["frame", "fps"], [1000, 90.0], [2000, 110.0]])
    return path


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
    assert run.fps == 100
    assert run.config["agent.lr"] == 1e-4
    assert run.starts == [{"commit": "abc"}]
    assert run.faults == []


def test_damaged_files_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("task_name: [", "cannot be read"),
        ("[]", "not a configuration"),
        ("task_name: x\naction_repeat: 2\nnum_train_frames: 1p000", "num_train_frames=1p000"),
        ("action_repeat: 2\nnum_train_frames: 100", "no task_name"),
        ("task_name: x\naction_repeat: .nan\nnum_train_frames: 100", "action_repeat=nan"),
        ("task_name: x\naction_repeat: .inf\nnum_train_frames: 100", "action_repeat=inf"),
        ("task_name: x\naction_repeat: 2\nnum_train_frames: -.inf", "num_train_frames=-inf"),
        ("task_name: x\naction_repeat: 1.0e+308\nnum_train_frames: 100", "action_repeat=1e+308"),
        ("a: &a [*a]", "cannot be read"),
    ],
)
def test_run_with_a_damaged_configuration_is_omitted(tmp_path: Path, config: str, told: str, capsys) -> None:
    make_run(tmp_path / "good", [1, 2])
    make_run(tmp_path / "bad", [1, 2])
    (tmp_path / "bad" / "config.yaml").write_text(config)
    report.main([str(tmp_path)])
    out = capsys.readouterr().out
    assert out.startswith("1 runs")
    assert told in out
    assert told in (tmp_path / "report.html").read_text()


def test_half_written_videos_are_no_videos(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", [1])
    (path / "eval_video").mkdir()
    for name in ("9000.mp4", "10000.mp4", ".tmp-4711-3.mp4", "²5.mp4"):
        (path / "eval_video" / name).touch()
    (run,) = read(path)
    assert [video.name for video in run.videos] == ["9000.mp4", "10000.mp4"]


def returns(*values: str) -> Callable[[Path], None]:
    """Return what gives a run other returns."""

    def write(run: Path) -> None:
        rows = [f"{i * 10_000},{value},0" for i, value in enumerate(values)]
        (run / "eval.csv").write_text("\n".join(["frame,episode_reward,total_time", *rows, ""]))

    return write


def put(name: str, data: bytes) -> Callable[[Path], None]:
    """Return what writes a file in a run, in the place of the one that is there."""

    def write(run: Path) -> None:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(data)

    return write


def config(**keys: Any) -> Callable[[Path], None]:
    """Return what gives a run other keys."""
    return lambda run: OmegaConf.save(OmegaConf.merge(CONFIG, keys), run / "config.yaml")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (put("eval_video/²5.mp4", b""), ""),
        (lambda run: (run / "eval_video" / "5.mp4").mkdir(parents=True), "5.mp4 is omitted (Is a directory)"),
        (returns("1", "1e308", "-1e308"), "2 damaged rows in eval.csv"),
        (returns("1", "1e15", "-1e15"), ""),
        (returns("1", "nan", "-inf"), "2 damaged rows in eval.csv"),
        (put("starts.jsonl", b"[" * 100_000 + b"\n\xff\n"), "a damaged line in starts.jsonl"),
        (lambda run: run.rename(os.fsdecode(os.fsencode(run) + b"\xff")), "odd?"),
        (config(lr=r"$\frac$"), r"lr=$\frac$"),
        (config(lr="\ud800"), "lr=?"),
        (config(seed="\ud800"), ""),
        (config(seed=10**400), ""),
        (config(seed=[1]), ""),
    ],
)
def test_one_damaged_file_affects_no_other_run(
    tmp_path: Path, damage: Callable[[Path], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good", [1, 2])
    damage(make_run(tmp_path / "odd", [1, 2]))
    report.main([str(tmp_path)])
    assert capsys.readouterr().out.startswith("2 runs")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert f"{tmp_path}/good" in text
    assert told in text
    assert '<div class="chart">' in text
    assert "<noscript><img" in text


def test_a_root_and_a_left_out_run_whose_names_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe"))
    make_run(root / "good", [1, 2])
    odd = Path(os.fsdecode(os.fsencode(root) + b"/\xff"))
    put("eval_video/5.mp4", b"")(make_run(odd / "linked", [1, 2]))
    put("config.yaml", b"[]")(make_run(odd / "bad", [1, 2]))
    report.main([str(root), "videos=link"])
    out = capsys.readouterr().out
    assert out.startswith(f"2 runs: {tmp_path}/?/report.html")
    assert f"omitted: {tmp_path}/?/?/bad: config.yaml is not a configuration" in out
    assert 'src="%FF/linked/eval_video/5.mp4"' in (root / "report.html").read_text("utf-8")


def test_failed_chart_is_omitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for task in ("a", "b"):
        make_run(tmp_path / task, [1, 2], task_name=task)
    real = figures.interactive_figure

    def refuses(members: Any, *args: Any) -> str:
        if members[0].task == "a":
            raise ValueError("no such axis")
        return real(members, *args)

    monkeypatch.setattr(figures, "interactive_figure", refuses)
    report.main([str(tmp_path)])
    text = (tmp_path / "report.html").read_text()
    assert "the chart is omitted (ValueError: no such axis)" in text
    assert text.count('<div class="chart">') == 1
    assert text.count("<noscript><img") == 2


HEAD = "task,frame,mean,std,min,max,n_seeds\n"
GOOD = "cheetah_run,0,1,0,0,2,10\ncheetah_run,10000,5,0,4,6,10\n"


@pytest.mark.parametrize(
    ("row", "bad"),
    [
        ("", 0),
        ("cheetah_run,20000,7\n", 1),
        ("cheetah_run,20000,nan,0,6,8,10\nwalker_walk,0,1,0,0,2,inf\n", 2),
        ("cheetah_run,20000,1e308,0,-1e308,1e308,10\n", 1),
        ("cheetah_run,20000,seven,0,6,8,10\n", 1),
        ("ch\xe9etah_run,20000,7,0,6,8,10\n", 0),
    ],
)
def test_damaged_rows_of_published_curves(
    tmp_path: Path, row: str, bad: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run", [1, 2])
    path = tmp_path / "published.csv"
    path.write_bytes((HEAD + row + GOOD).encode("latin-1"))
    faults: list[str] = []
    one = groups.read_published(path, faults)["cheetah_run"]
    assert one["mean"].tolist() == [1, 5]
    assert faults == ([f"published={path}: {bad} damaged rows"] if bad else [])
    report.main([str(tmp_path), f"published={path}"])
    assert (f"omitted: published={path}: {bad} damaged rows" in capsys.readouterr().out) == bool(bad)
    assert "<td>DrQ-v2, published (mean)</td><td>10</td>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        (b"", 0),
        (b'{"time": "\xff", "ratios": {"caf\xe9": 2}}\n', 0),
        (b'{"time": ["x"], "ratios": {"\\ud800": 2}}\n', 0),
        (b"\xff\xfe\n", 1),
        (b'{"ratios": {"learner": NaN}}\n{"ratios": {"learner": 1e400}}\n', 2),
        (b"[" * 100_000 + b"\n", 1),
    ],
)
def test_damaged_lines_of_a_history(tmp_path: Path, line: bytes, bad: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(line + b'{"time": "2026-01-01", "ratios": {"learner": 5.1}}\n')
    make_run(tmp_path / "run", [1])
    report.main([str(tmp_path), f"history={path}"])
    assert (f"omitted: {path}: {bad} damaged lines" in capsys.readouterr().out) == bool(bad)
    assert "Speed of this code" in (tmp_path / "report.html").read_text("utf-8")


def test_a_run_counts_once(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a" / "run", [1])
    (tmp_path / "a" / "latest").symlink_to(path)
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert len(list(runs.find([tmp_path, path]))) == 1


def test_negative_returns(tmp_path: Path) -> None:
    made = [make_run(tmp_path / str(s), [-1500, -300, -160 + 10 * s], seed=s) for s in (1, 2)]
    made.append(make_run(tmp_path / "dead", [-1500, -1490, -1500], seed=3))
    (group,) = groups.group(read(*made))
    assert ["seed 3" in words for words in groups.warnings(group, None)] == [True]


def test_videos_as_links_and_a_history(tmp_path: Path) -> None:
    path = make_run(tmp_path / "my runs" / "run", [1])
    (path / "eval_video").mkdir()
    (path / "eval_video" / "10.mp4").touch()
    history = tmp_path / "history.jsonl"
    history.write_text('{"time": "2026-01-01", "ratios": {"learner": 5.1}}\n[1]\n{"time": "2026-02-01", "rat')
    report.main([str(tmp_path), "videos=link", f"history={history}"])
    text = (tmp_path / "report.html").read_text()
    assert 'src="my%20runs/run/eval_video/10.mp4"' in text
    assert "Speed of this code" in text
    assert "times the baseline" in text


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    (run,) = read(make_run(tmp_path / "run", []))
    assert len(run.frames) == 0
    assert not run.finished
    (group,) = groups.group([run])
    assert "has no evaluation yet" in groups.warnings(group, None)[0]
    assert len(groups.group_curve(group.runs, mean, "frames").x) == 0


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
        ("walker_walk", "all runs", ["d"]),
    ]


def test_seeds_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    seeds = [10, 2, None, 1, "x", 10, 2]
    found = read(*(make_run(tmp_path / str(i), [1], seed=seed) for i, seed in enumerate(seeds)))
    (group,) = groups.group(found)
    assert [run.seed for run in group.runs] == [1, 2, 2, 10, 10, None, "x"]
    assert "seed 2, 10 occurs more than once" in groups.warnings(group, None)


def test_curve_over_seeds(tmp_path: Path) -> None:
    made = [make_run(tmp_path / str(s), [s, 10.0 * s, 100.0 * s][: 3 if s < 4 else 2], seed=s) for s in (1, 2, 3, 4)]
    curve = groups.group_curve(read(*made), mean, "frames")
    assert curve.x.tolist() == [0, 10_000, 20_000]
    assert curve.y.tolist() == [2.5, 25.0, 200.0]  # the fourth seed ends before the third point
    assert curve.low is not None
    assert curve.high is not None
    assert (curve.low < curve.y).all()
    assert (curve.y < curve.high).all()
    assert groups.group_curve(read(*made), iqm, "frames").y.tolist() == pytest.approx([2.5, 25.0, 200.0])
    one = groups.group_curve(read(*made[:1]), mean, "frames")
    assert one.low is None
    assert one.y.tolist() == [1, 10, 100]


def test_curve_against_time(tmp_path: Path) -> None:
    slow, fast = (
        make_run(tmp_path / "a", [0, 10, 20], hours=1.0),
        make_run(tmp_path / "b", [0, 10, 20], hours=0.5, seed=2),
    )
    curve = groups.group_curve(read(slow, fast), mean, "hours")
    assert curve.x.tolist() == [0, 0.5, 1.0]  # as far as half of the seeds come
    assert curve.y.tolist() == [0, 7.5, 15.0]


def test_downsampled_curves_keep_their_extremes() -> None:
    x = np.arange(100_000.0)
    y = np.sin(x / 1000)
    y[4321], y[77_777] = 9.0, -9.0
    thin_x, thin_y = groups.downsample(x, y)
    assert len(thin_x) <= 400
    assert (thin_y.max(), thin_y.min()) == (9.0, -9.0)
    assert (thin_x[0], thin_x[-1]) == (0, 99_999)
    assert (np.diff(thin_x) > 0).all()
    assert np.array_equal(groups.downsample(x[:300], y[:300])[1], y[:300])


def test_returns_at_a_frame(tmp_path: Path) -> None:
    made = read(
        make_run(tmp_path / "1", np.arange(11), seed=1),
        make_run(tmp_path / "2", np.arange(6) * 2.0, seed=2),
        make_run(tmp_path / "3", np.arange(8) * 3.0, seed=3, every=14_000),
    )
    late = make_run(tmp_path / "4", [1, 2, 3], seed=4, every=50_004, num_envs=3)
    assert groups.returns_at(read(late), 100_000).tolist() == [2]
    assert groups.returns_at(read(late), 50_000).tolist() == [2]
    assert groups.returns_at(made, 50_000).tolist() == [5, 10, 9]
    assert groups.returns_at(made, 100_000).tolist() == [10]
    assert groups.returns_at(made, 1_000_000).tolist() == []


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
    assert any("seed 3 (dead) has not learnt: its return is 5, that of the other seeds 800" in words for words in told)
    assert any("resumed at frame 9,000" in words and "aaaaaaaaa before, bbbbbbbbb after" in words for words in told)
    assert any("uncommitted changes" in words for words in told)
    assert any("different commits" in words for words in told)
    assert not any("seed 2" in words for words in told)
    alone = groups.group(read(made[2]))[0]
    theirs = {"frame": np.array([0, 20_000, 40_000]), "mean": np.array([5.0, 200, 400])}
    assert "the published mean 400" in groups.warnings(alone, theirs)[0]
    assert groups.warnings(alone, None) == []


def test_published_curves_of_all_tasks() -> None:
    faults: list[str] = []
    published = groups.read_published(ROOT / "results/published/drqv2.csv", faults)
    assert faults == []
    assert len(published) == 24
    one = published["cartpole_balance_sparse"]
    assert one["mean"][one["frame"] == 40_000] == [1000]
    for curve in published.values():
        assert (curve["min"] <= curve["mean"]).all()
        assert (curve["mean"] <= curve["max"]).all()


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_static_figure(tmp_path: Path, kind: str) -> None:
    made = [make_run(tmp_path / str(s), [1, 2, s], seed=s) for s in (1, 2)]
    picture = figures.static_figure(groups.group(read(*made)), None, kind)
    assert picture.startswith(b"<?xml" if kind == "svg" else b"\x89PNG")


def test_empty_page_and_user_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main([str(tmp_path)])
    assert "contains no run" in capsys.readouterr().err
    page.write([tmp_path], tmp_path / "waiting.html", None, "none", None, refresh=60)
    assert "No runs yet" in (tmp_path / "waiting.html").read_text()
    make_run(tmp_path / "run", [1])
    for words, told in (
        ([], "give one or more directories"),
        ([str(tmp_path / "waiting.html")], "is a file"),
        (["nowhere"], "no such directory"),
        ([str(tmp_path), "video=none"], "nearest: videos"),
        ([str(tmp_path), "videos=all"], "embed, link or none"),
        ([str(tmp_path), "out=/nowhere/a.html"], "cannot be written"),
        ([str(tmp_path), "published=nowhere.csv"], "no such file"),
        ([str(tmp_path), f"published={__file__}"], "must have the columns task"),
        ([str(tmp_path), "--watch", "videos=link"], "Use videos=embed"),
        ([str(tmp_path), "--watch", "every=1e12"], "every=1000000000000: must be"),
        ([str(tmp_path), "port=1e9"], "port=1000000000: must be"),
    ):
        with pytest.raises(SystemExit) as leaving:
            report.main(words)
        assert leaving.value.code == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [1, 2], experiment="<script>alert(1)</script>")
    report.main([str(tmp_path)])
    text = (tmp_path / "report.html").read_text()
    head, _, rest = text.partition("</script>")  # plotly's own code talks of addresses
    assert "src=" not in head.partition("<script>")[0]
    assert "<script>alert" not in rest
    assert 'src="http' not in rest
    assert 'href="http' not in rest
    assert "<noscript><img" in rest


# --- in a browser ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, headless."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        if os.environ.get("DRQV2_NEEDS_BROWSER"):
            pytest.fail("chromium and chromium-driver are not installed")
        pytest.skip("needs Debian's chromium and chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in (
        "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync window-size=1100,1600 disable-dev-shm-usage"
    ).split():
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def drawn(browser: Any) -> list[dict[str, Any]]:
    """Return what plotly has drawn: for each trace its name, whether it is seen, and its number of points."""
    script = """return document.querySelector('.js-plotly-plot')._fullData.map(
        t => ({name: t.name, visible: t.visible, points: (t.x || []).length}))"""
    traces: list[dict[str, Any]] = browser.execute_script(script)
    return traces


def show(browser: Any, page: Path) -> None:
    """Open a page, and wait until all of its charts are drawn."""
    browser.get(page.as_uri())
    charts = "return ['.chart', '.chart .js-plotly-plot .legend'].map(s => document.querySelectorAll(s).length)"
    until(lambda: (found := browser.execute_script(charts))[0] > 0 and found[0] == found[1])


def until(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.1)


@pytest.mark.slow
def test_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Curves are drawn, the legend and the buttons work, a video plays, and the console holds no error."""
    from selenium.webdriver.common.by import By

    real = train_run(tmp_path / "real", "num_train_frames=240")
    for seed, hidden in ((1, 1024), (2, 1024), (1, 256), (2, 256)):
        returns = 1000 * (1 - np.exp(-np.arange(20) / (4 * seed)))
        make_run(tmp_path / f"{hidden}_{seed}", returns, seed=seed, agent={"hidden_dim": hidden})
    report.main([str(tmp_path), "out=" + str(tmp_path / "report.html")])
    show(browser, tmp_path / "report.html")
    heads = browser.find_elements(By.CSS_SELECTOR, "section:not(#speed) h2")
    assert [head.text for head in heads] == ["cartpole_balance_sparse", "cheetah_run"]
    browser.execute_script("document.querySelector('.js-plotly-plot').closest('section').remove()")  # the first

    def seen() -> set[str]:
        return {t["name"] for t in drawn(browser) if t["visible"] is True and "hidden" in str(t["name"])}

    assert len(browser.find_elements(By.CSS_SELECTOR, ".scatterlayer .trace path.js-line")) >= 6
    names = sorted(seen())
    assert len(names) == 1  # "default settings" and agent.hidden_dim=...
    before = [t["visible"] for t in drawn(browser)]
    entry = browser.find_elements(By.CSS_SELECTOR, ".chart .legendtoggle")[-1]
    browser.execute_script("arguments[0].scrollIntoView()", entry)
    entry.click()
    until(lambda: [t["visible"] for t in drawn(browser)] != before)
    assert "legendonly" in [t["visible"] for t in drawn(browser)]

    buttons = browser.find_elements(By.CSS_SELECTOR, ".updatemenu-button")
    assert [b.text for b in buttons] == ["mean, frames", "mean, time", "IQM, frames", "IQM, time"]
    buttons[1].click()
    title = "return document.querySelector('.js-plotly-plot')._fullLayout.xaxis.title.text"
    until(lambda: browser.execute_script(title) == "hours of training")

    show(browser, tmp_path / "report.html")
    (video,) = browser.find_elements(By.TAG_NAME, "video")
    assert real.name in browser.find_element(By.TAG_NAME, "figcaption").text
    browser.execute_script("arguments[0].play()", video)
    until(lambda: browser.execute_script("return arguments[0].currentTime", video) > 0.2)
    assert browser.execute_script("return arguments[0].videoWidth", video) == 32
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


@pytest.mark.slow
def test_fifty_long_runs(browser: Any, tmp_path: Path) -> None:
    """Fifty runs of 3M frames: a page below 20 MB, all of whose curves are drawn."""
    rng = np.random.default_rng(0)
    for i in range(50):
        path = make_run(tmp_path / f"run{i}", rng.uniform(0, 1000, 301), seed=i % 10, task_name=f"task_{i // 10}")
        with (path / "train.csv").open("w", newline="") as f:
            csv.writer(f).writerows([["frame", "fps"], *([1000 * j, 100.0] for j in range(3000))])
    report.main([str(tmp_path)])
    size = (tmp_path / "report.html").stat().st_size
    assert size < 20e6
    began = time.perf_counter()
    show(browser, tmp_path / "report.html")
    print(f"{size / 1e6:.1f} MB, drawn within {time.perf_counter() - began:.1f} s")
    plots = "return [...document.querySelectorAll('.chart .js-plotly-plot')].map(p => p._fullData.length)"
    until(lambda: len(browser.execute_script(plots)) == 5)
    assert min(browser.execute_script(plots)) >= 10
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


class Watch:
    """A process that watches a folder, anew each second.

    Args:
        folder: with runs.
    """

    def __init__(self, folder: Path) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        command = [sys.executable, str(ROOT / "report.py"), str(folder), "--watch", "every=1", f"port={self.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.told = [self.process.stdout.readline() for _ in range(2)]

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *args: object) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.slow
def test_watch(tmp_path: Path) -> None:
    """The page is served to this machine alone, without its neighbours, and follows the runs."""
    make_run(tmp_path / "run", [1, 2])
    (tmp_path / "secret.txt").write_text("no")
    with Watch(tmp_path) as watch:
        assert "1 runs" in watch.told[0]
        assert f"http://127.0.0.1:{watch.port}" in watch.told[1]

        def get(name: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{watch.port}/{name}", timeout=10) as answer:
                return str(answer.read().decode())

        assert "cheetah_run" in get("")
        for name in ("secret.txt", "../secret.txt", "run/config.yaml"):
            with pytest.raises(urllib.error.HTTPError):
                get(name)
        make_run(tmp_path / "other", [1, 2], task_name="walker_walk")
        until(lambda: "walker_walk" in get(""))


@pytest.mark.slow
def test_a_watched_page_reloads_only_where_nothing_is_lost(browser: Any, tmp_path: Path) -> None:
    """It follows the runs while it is only looked at; once it is used it offers a reload; it outlives the watch."""
    from selenium.webdriver.common.by import By

    for seed in (1, 2):
        make_run(tmp_path / f"run{seed}", [1, 2, 3], seed=seed, lr=seed)
    frame = np.zeros((32, 32, 3), np.uint8)
    video = Mp4(tmp_path / "run1" / "eval_video", 10, frame)
    for _ in range(50):
        video.write(frame)
    video.finish(tmp_path / "run1" / "eval_video" / "10.mp4")

    def marked() -> bool:
        return bool(browser.execute_script("return window.mark === true && document.readyState === 'complete'"))

    def held() -> bool:
        if not marked():
            script = "window.mark = true; window.asks = window.fetch; window.fetch = () => Promise.reject()"
            browser.execute_script(script)
            time.sleep(0.5)  # a reload that is on its way
        return marked()

    def let_go() -> None:
        browser.execute_script("window.fetch = window.asks")

    def loaded() -> bool:
        return bool(browser.execute_script("return !window.mark && document.readyState === 'complete'"))

    def offered() -> bool:
        return bool(browser.find_element(By.ID, "newer").is_displayed())

    def toggle() -> None:
        browser.find_elements(By.CSS_SELECTOR, ".chart .legendtoggle")[-1].click()
        until(lambda: "legendonly" in [t["visible"] for t in drawn(browser)])

    def zoom() -> None:
        from selenium.webdriver import ActionChains

        area = browser.find_element(By.CSS_SELECTOR, ".nsewdrag")
        ActionChains(browser).move_to_element(area).click_and_hold().move_by_offset(90, 60).release().perform()
        ranged = "return document.querySelector('.js-plotly-plot')._fullLayout.xaxis.autorange"
        until(lambda: browser.execute_script(ranged) is False)

    def play() -> None:
        (element,) = browser.find_elements(By.TAG_NAME, "video")
        browser.execute_script("arguments[0].play()", element)

    def unfold() -> None:
        browser.find_element(By.TAG_NAME, "summary").click()

    with Watch(tmp_path) as watch:
        browser.get(f"http://127.0.0.1:{watch.port}/")
        for use in (toggle, zoom, play, unfold):
            browser.execute_script("window.mark = true")
            until(loaded)  # by itself
            until(held)
            use()
            let_go()
            until(offered)
            time.sleep(2.5)  # further pages are written meanwhile
            assert marked(), use.__name__
            browser.find_element(By.ID, "newer").click()
            until(loaded)
            assert not offered()
        until(held)
    let_go()
    time.sleep(2.5)
    assert marked()
    assert browser.title == "DrQ-v2 runs"
    browser.get_log("browser")  # of requests to the watch that is no more


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (UserError("published=x: cannot be read\nfor now"), "published=x: cannot be read for now"),
    ],
)
def test_watch_survives_a_transient_failure(
    tmp_path: Path,
    failure: Exception,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(tmp_path / "run", [1, 2])
    real, turns = page.write, iter(range(9))

    def write(*args: Any) -> Any:
        if next(turns) == 1:
            raise failure
        return real(*args)

    pauses = iter([None, None])

    def sleep(_: float) -> None:
        if next(pauses, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(report, "write", write)
    monkeypatch.setattr(report, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(SystemExit) as leaving:
        report.main([str(tmp_path), "--watch", "port=0"])
    assert leaving.value.code == 130
    first, _, second, third = capsys.readouterr().out.splitlines()
    assert first == third
    assert second.startswith("the page was not updated: ")
    assert told in second
    assert second.endswith("; retrying in 60 s")


def test_full_disk_for_the_log_does_not_stop_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run", [1, 2])
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as leaving:  # once the page is there
            report.main([str(tmp_path)])
        monkeypatch.undo()
    assert leaving.value.code == 74
    assert (tmp_path / "report.html").is_file()
