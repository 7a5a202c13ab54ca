"""report.py: the page, mistakes on the command line, damaged runs."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

import report
from drqv2.errors import UserError
from drqv2.report import page
from tests.report.made_runs import CONFIG, make_run

BAD_CONFIGURATIONS = {
    "task_name: [": "cannot be read",
    "[]": "task_name=None",
    "task_name: x\nseed: 1\naction_repeat: 2\nnum_train_frames: 1p000": "num_train_frames=1p000",
    "seed: 1\naction_repeat: 2\nnum_train_frames: 100": "task_name=None",
    "task_name: x\naction_repeat: 2\nnum_train_frames: 100": "seed=None",
    "task_name: x\nseed: 1\naction_repeat: .nan\nnum_train_frames: 100": "action_repeat=nan",
}


def test_runs_with_damaged_configurations_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "good", [1, 2])
    for i, config in enumerate(BAD_CONFIGURATIONS):
        make_run(tmp_path / f"bad{i}", [1, 2])
        (tmp_path / f"bad{i}" / "config.yaml").write_text(config)
    report.main([str(tmp_path)])
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("1 run:")
    text = (tmp_path / "report.html").read_text()
    for i, told in enumerate(BAD_CONFIGURATIONS.values()):
        (line,) = [line for line in out if f"bad{i}" in line]
        assert told in line
        assert f"bad{i}" in text


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


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "video with an odd number": (put("eval_video/²5.mp4", b""), ""),
    "video that is a folder": (lambda run: (run / "eval_video" / "5.mp4").mkdir(parents=True), "5.mp4"),
    "large returns": (returns("1", "1e15", "-1e15"), ""),
    "infinite returns": (returns("1", "nan", "-inf"), "2 damaged rows in eval.csv"),
    "starts": (put("starts.jsonl", b"[\n\xff\n"), "2 damaged lines in starts.jsonl"),
    "name": (lambda run: run.rename(os.fsdecode(os.fsencode(run) + b"\xff")), "name?"),
    "mathematics": (config(lr=r"$\frac$"), r"lr=$\frac$"),
}


def test_damaged_files_affect_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "good", [1, 2])
    for name, (damage, _) in ODD.items():
        damage(make_run(tmp_path / name, [1, 2]))
    report.main([str(tmp_path)])
    assert capsys.readouterr().out.startswith(f"{1 + len(ODD)} runs")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert f"{tmp_path}/good" in text
    for name, (_, told) in ODD.items():
        assert f"{tmp_path}/{name}" in text
        assert told in text, name
    assert '<div class="chart">' in text


def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe"))
    make_run(root / "good", [1, 2])
    odd = Path(os.fsdecode(os.fsencode(root) + b"/\xff"))
    put("eval_video/5.mp4", b"")(make_run(odd / "linked", [1, 2]))
    put("config.yaml", b"[]")(make_run(odd / "bad", [1, 2]))
    report.main([str(root), "videos=link"])
    out = capsys.readouterr().out
    assert out.startswith(f"2 runs: {tmp_path}/?/report.html")
    assert f"{tmp_path}/?/?/bad: config.yaml" in out
    assert 'src="%FF/linked/eval_video/5.mp4"' in (root / "report.html").read_text("utf-8")


def test_published_curves_and_a_history_of_speeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run", [1, 2])
    make_run(tmp_path / "other", [1, 2], task_name="fish_swim")  # of which nobody has published a curve
    published, history = tmp_path / "published.csv", tmp_path / "history.jsonl"
    published.write_text(
        "task,frame,mean,std,min,max,n_seeds\ncheetah_run,20000,7\ncheetah_run,0,1,0,0,2,10\ncheetah_run,10000,5,0,4,6,10\n"
    )
    history.write_bytes(
        b'{"time": "\xff", "ratios": {"caf\xe9": 2}}\n\xff\xfe\n{"ratios": {"learner": NaN}}\n'
        b'{"time": "2026-01-01", "ratios": {"learner": 5.1}}\n{"time": "2026-02-01", "rat'
    )
    report.main([str(tmp_path), f"published={published}", f"history={history}"])
    out = capsys.readouterr().out
    assert "1 damaged row in published.csv" in out
    assert "2 damaged lines in history.jsonl" in out
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "<td>DrQ-v2, published</td><td>10</td>" in text
    assert "Speed of this code" in text
    assert "times the baseline" in text


def test_videos_as_links(tmp_path: Path) -> None:
    path = make_run(tmp_path / "my runs" / "run", [1])
    (path / "eval_video").mkdir()
    (path / "eval_video" / "10.mp4").touch()
    report.main([str(tmp_path), "videos=link"])
    assert 'src="my%20runs/run/eval_video/10.mp4"' in (tmp_path / "report.html").read_text()


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main([str(tmp_path)])
    assert "contains no run" in capsys.readouterr().err
    page.write([tmp_path], tmp_path / "waiting.html", None, "none", None, refresh=60)
    assert "No runs yet" in (tmp_path / "waiting.html").read_text()
    make_run(tmp_path / "run", [1])
    for words, told in (
        ([], "directories"),
        ([str(tmp_path / "waiting.html")], "is a file"),
        (["nowhere"], "no such directory"),
        ([str(tmp_path), "video=none"], "nearest: videos"),
        ([str(tmp_path), "videos=all"], "embed, link or none"),
        ([str(tmp_path), "out=/nowhere/a.html"], "cannot be written"),
        ([str(tmp_path), "published=nowhere.csv"], "no such file"),
        ([str(tmp_path), f"published={__file__}"], "columns task"),
        ([str(tmp_path), "--watch", "videos=link"], "videos=embed"),
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
    assert told in second
    assert "60 s" in second
