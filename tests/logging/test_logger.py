"""Logger: files, columns, means, console lines, and the return to a snapshot."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console as Terminal

from drqv2.errors import UserError
from drqv2.logging.console import Dashboard, PlainConsole, Status
from drqv2.logging.logger import Logger

ROOT = Path(__file__).resolve().parents[2]


TRAIN = ["frame", "step", "episode", "episode_length", "episode_reward", "buffer_size", "fps", "total_time"]


EVAL = ["frame", "step", "episode", "episode_length", "episode_reward", "total_time"]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def log_episode(logger: Logger, frame: int, **metrics: object) -> None:
    values = {
        "step": frame // 2,
        "episode": frame // 1000,
        "episode_length": 500,
        "episode_reward": 5.51771,
        "buffer_size": frame // 2,
        "fps": 96.7586,
        "total_time": 42.9,
    }
    with logger.log_and_dump_ctx(frame, ty="train") as log:
        for key, value in (values | metrics).items():
            log(key, value)  # type: ignore[arg-type]


def log_evaluation(logger: Logger, frame: int) -> None:
    with logger.log_and_dump_ctx(frame, ty="eval") as log:
        for key, value in {
            "episode_reward": 812.25,
            "episode_length": 1000.0,
            "episode": 6,
            "step": frame // 2,
            "total_time": 3725.2,
        }.items():
            log(key, value)


def test_console_lines(tmp_path, capsys):
    logger = Logger(tmp_path, use_tb=False)
    log_episode(logger, 6000)
    log_evaluation(logger, 6000)
    assert capsys.readouterr().out.partition("\n")[2] == (  # without what explains the letters
        "| train | F: 6000 | S: 3000 | E: 6 | L: 500 | R: 5.5177 | BS: 3000 | FPS: 96.7586 | T: 0:00:42\n"
        "| eval  | F: 6000 | S: 3000 | E: 6 | L: 1000 | R: 812.2500 | T: 1:02:05\n"
    )


def test_colour_on_a_terminal_only(tmp_path, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    logger = Logger(tmp_path, use_tb=False)
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        log_evaluation(logger, 2)
    assert terminal.getvalue().splitlines()[1].startswith("| \033[32meval\033[0m  | F: 2 |")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", plain := Terminal())
        patch.setenv("NO_COLOR", "1")
        log_evaluation(logger, 4)
    assert "\033" not in plain.getvalue()


def test_public_columns_come_first(tmp_path):
    logger = Logger(tmp_path, use_tb=False)
    log_episode(logger, 1000, zeta=1, alpha=2)
    log_evaluation(logger, 1000)
    assert list(rows(tmp_path / "train.csv")[0]) == [*TRAIN, "alpha", "zeta"]
    assert list(rows(tmp_path / "eval.csv")[0]) == EVAL


def test_columns_grow_and_older_rows_stay(tmp_path):
    logger = Logger(tmp_path, use_tb=False)
    log_episode(logger, 1000)
    before = rows(tmp_path / "train.csv")[0]
    log_episode(logger, 2000, critic_loss=0.5)
    log_episode(logger, 3000, actor_loss=-1.5)
    log_episode(logger, 4000)
    table = rows(tmp_path / "train.csv")
    assert list(table[0]) == [*TRAIN, "critic_loss", "actor_loss"]
    assert table[0] == before | {"critic_loss": "", "actor_loss": ""}
    assert [row["critic_loss"] for row in table] == ["", "0.5", "", ""]
    assert [row["actor_loss"] for row in table] == ["", "", "-1.5", ""]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "train.csv"]


def test_numbers_read_back_exactly(tmp_path):
    logger = Logger(tmp_path, use_tb=False)
    values = {"a": 0.1 + 0.2, "b": 1e-300, "c": 2.0**53 + 2, "d": float("inf"), "e": 1 / 3}
    log_episode(logger, 30_100_000, **values)
    row = rows(tmp_path / "train.csv")[0]
    assert {key: float(row[key]) for key in values} == values
    assert (row["frame"], row["step"], row["episode_length"]) == ("30100000", "15050000", "500")


def test_means_of_numbers_and_tensors(tmp_path):
    logger = Logger(tmp_path, use_tb=False)
    for step in range(1, 5):
        logger.log_metrics({"number": step, "tensor": torch.tensor(float(step), requires_grad=True)}, step, ty="train")
    reused = torch.zeros(1)  # a buffer that the learner writes again and again
    for step in range(3):
        reused.fill_(step)
        logger.log("train/reused", reused, step)
    logger.dump(8)
    logger.log("train/number", 7.0, 10)
    logger.dump(10, ty="train")
    logger.dump(12)  # nothing was logged: no row
    first, second = rows(tmp_path / "train.csv")
    assert (first["number"], first["tensor"], first["reused"]) == ("2.5", "2.5", "1.0")
    assert (second["number"], second["tensor"]) == ("7.0", "")
    assert not (tmp_path / "eval.csv").exists()


def test_a_tensor_is_not_read_before_the_dump(tmp_path):
    logger = Logger(tmp_path, use_tb=False)
    logger.log("train/x", torch.empty((), device="meta"), 0)  # a meta tensor has no value to read
    with pytest.raises(RuntimeError):
        logger.dump(0)


@pytest.mark.parametrize("key", ["loss", "train/", "test/loss", "training/loss"])
def test_keys_need_a_prefix(tmp_path, key):
    with pytest.raises(ValueError, match="train/NAME"):
        Logger(tmp_path, use_tb=False).log(key, 1.0, 0)


def test_a_tensor_of_several_elements_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train/x is a tensor of shape \(3,\)"):
        Logger(tmp_path, use_tb=False).log("train/x", torch.zeros(3), 0)


def test_rows_are_written_immediately(tmp_path):
    code = (
        "import os, sys\nfrom drqv2.logging.logger import Logger\nlogger = Logger(sys.argv[1], use_tb=False)\n"
        "for frame in (2, 4):\n    logger.log('train/x', frame, frame)\n    logger.dump(frame)\n"
        "logger.log('train/x', 6, 6)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, env=os.environ, check=False)
    assert done.returncode == -9
    assert [row["x"] for row in rows(tmp_path / "train.csv")] == ["2.0", "4.0"]


def through_file(state: dict, folder: Path) -> dict:
    torch.save(state, folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def test_resumed_files_equal_uninterrupted_ones(tmp_path):
    def run(logger: Logger, frames: range) -> None:
        for frame in frames:
            for step in range(3):
                logger.log_metrics({"loss": torch.tensor(1 / (frame + step + 1))}, frame, ty="train")
            if frame % 2 == 0:  # otherwise the means are still open when the next frame begins
                log_episode(logger, frame, **({"late": frame} if frame > 7 else {}))
                log_evaluation(logger, frame)

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(Logger(whole, use_tb=False), range(1, 13))

    logger = Logger(cut, use_tb=False)
    run(logger, range(1, 6))
    state = through_file(logger.state_dict(), tmp_path)
    run(logger, range(6, 11))  # lost by the kill: rows, and the column "late"
    with (cut / "train.csv").open("a") as file:
        file.write("12,6,")  # the row being written
    logger = Logger(cut, use_tb=False)
    logger.load_state_dict(state)
    assert len(rows(cut / "train.csv")) == len(rows(cut / "eval.csv")) == 2
    run(logger, range(6, 13))
    for name in ("train.csv", "eval.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("damage", [b"", b"frame,step\n1,2\n", b"\xff\x00\n", b'"'])
def test_damaged_file_is_restored(tmp_path, caplog, damage):
    logger = Logger(tmp_path, use_tb=False)
    for frame in (1000, 2000):
        log_episode(logger, frame)
    state, whole = logger.state_dict(), (tmp_path / "train.csv").read_bytes()
    logger.close()
    (tmp_path / "train.csv").write_bytes(damage)
    again = Logger(tmp_path, use_tb=False)
    again.load_state_dict(state)
    assert (tmp_path / "train.csv").read_bytes() == whole
    if damage:
        assert (tmp_path / "quarantine" / "train.csv").read_bytes() == damage
        assert "train.csv: does not match what was logged; restored from the snapshot; moved to" in caplog.text


def test_a_later_column_is_not_damage(tmp_path, caplog):
    logger = Logger(tmp_path, use_tb=False)
    log_episode(logger, 1000)
    state, whole = logger.state_dict(), (tmp_path / "train.csv").read_bytes()
    log_episode(logger, 2000, critic_loss=1.0)
    logger.close()
    again = Logger(tmp_path, use_tb=False)
    again.load_state_dict(state)
    assert (tmp_path / "train.csv").read_bytes() == whole
    assert not caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), torch.tensor(float("nan"))])
def test_a_loss_that_is_not_finite_is_named(tmp_path, value):
    logger = Logger(tmp_path, use_tb=False)
    logger.log("train/critic_loss", value, 0)
    logger.log("train/critic_loss", 1.0, 0)
    logger.log("train/q_bias", float("nan"), 0)
    assert logger.nonfinite_loss() == "critic_loss"
    logger.dump(0)
    logger.log("train/critic_loss", torch.tensor(1.0), 0)
    assert logger.nonfinite_loss() is None


def test_starting_again_in_the_same_folder_replaces_earlier_rows(tmp_path, caplog):
    logger = Logger(tmp_path, use_tb=False)
    for frame in (1000, 2000, 3000):
        log_episode(logger, frame, loss=frame)
    log_episode(Logger(tmp_path, use_tb=False), 2000)
    assert [row["frame"] for row in rows(tmp_path / "train.csv")] == ["2000"]
    assert not (tmp_path / "quarantine").exists()
    assert "train.csv of an earlier run in this directory is replaced" in caplog.text


def test_damage_during_a_run_does_not_reach_the_snapshot(tmp_path):
    logger = Logger(tmp_path, use_tb=False)
    log_episode(logger, 1000, loss=2.5)
    written = (tmp_path / "train.csv").read_text()
    (tmp_path / "train.csv").write_bytes(written.replace("2.5", "9.5").encode() + b"\xff")
    assert logger.state_dict()["texts"]["train"] == written
    log_episode(logger, 2000, loss=2.5, q=1.0)  # a new column: the file is written anew
    assert [row["loss"] for row in rows(tmp_path / "train.csv")] == ["2.5", "2.5"]


@pytest.mark.parametrize("content", [b"a" * 200_000 + b"\n1\n", b"\xff\xfe,x\n1,2\n", b"name,x\nme,1\n"])
def test_foreign_file_is_quarantined(tmp_path, caplog, content):
    (tmp_path / "train.csv").write_bytes(content)
    log_episode(Logger(tmp_path, use_tb=False), 1000, loss=2.5)
    assert [row["loss"] for row in rows(tmp_path / "train.csv")] == ["2.5"]
    (moved,) = (tmp_path / "quarantine").glob("train.csv*")
    assert moved.read_bytes() == content
    assert "is not a log of this project" in caplog.text


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (None, "agent.update returned None: must return a dict"),
        ({"loss": "high"}, "agent.update returned loss='high': a metric must be one number"),
        ({"loss": torch.ones(2)}, "agent.update returned loss=tensor.*one number"),
    ],
)
def test_what_is_not_metrics_is_refused(tmp_path, metrics, message):
    with pytest.raises(UserError, match=message):
        Logger(tmp_path, use_tb=False).log_metrics(metrics, 2, "train")


@pytest.mark.parametrize("terminal", [False, True], ids=["lines", "dashboard"])
def test_plots_of_tasks_go_on_after_a_resume(tmp_path, capsys, terminal):
    def console() -> PlainConsole | Dashboard:
        status = lambda: Status(frame=2000, num_frames=4000)  # noqa: E731
        return Dashboard("two tasks", status, tasks=["a", "b"]) if terminal else PlainConsole(["a", "b"])

    def evaluate(logger: Logger, frame: int, a: float) -> None:
        with logger.log_and_dump_ctx(frame, ty="eval") as log:
            log("episode_reward", a / 2)
            log("episode_reward_a", a)
            log("episode_reward_b", 0.0)

    logger = Logger(tmp_path, use_tb=False, console=console())
    for frame, a in enumerate((0.0, 5.0)):
        evaluate(logger, 1000 * frame, a)
    state = logger.state_dict()
    logger.close()
    capsys.readouterr()

    shown = console()
    resumed = Logger(tmp_path, use_tb=False, console=shown)
    resumed.load_state_dict(state)
    assert capsys.readouterr().out == ""  # the lines of earlier rows have been printed already
    evaluate(resumed, 2000, 10.0)
    resumed.close()
    output = capsys.readouterr().out
    if isinstance(shown, Dashboard):
        drawn = io.StringIO()
        Terminal(file=drawn, width=100).print(shown.render())
        output = drawn.getvalue()
    assert "▁▅█" in output
    assert "▁▁▁" in output
