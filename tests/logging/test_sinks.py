"""metrics.jsonl, TensorBoard's clips and hyper-parameters, Weights & Biases, and sinks that fail."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drqv2.logging.logger import Logger
from drqv2.logging.provenance import git_commit
from drqv2.system.files import Appender
from tests.patience import PATIENCE
from video import VideoRecorder

ROOT = Path(__file__).resolve().parents[2]


def log(logger: Logger, frame: int, ty: str = "train", **metrics: float) -> None:
    with logger.log_and_dump_ctx(frame, ty) as write:
        for name, value in metrics.items():
            write(name, value)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def mp4(tmp_path: Path) -> Path:
    """200 frames at 50 a second, in which a bright bar moves from left to right."""

    class Env:
        t = 0

        def render(self, height: int, width: int) -> np.ndarray:
            picture = np.zeros((height, width, 3), np.uint8)
            picture[:, self.t * width // 200 : self.t * width // 200 + 20] = 255
            self.t += 1
            return picture

    recorder, env = VideoRecorder(tmp_path, 192, fps=50), Env()
    recorder.init(env)
    for _ in range(199):
        recorder.record(env)
    recorder.save("1000.mp4")
    return tmp_path / "eval_video" / "1000.mp4"


def test_json_lines_hold_every_metric(tmp_path: Path) -> None:
    logger = Logger(tmp_path, use_tb=False)
    log(logger, 1000, episode_reward=5.25, loss=math.nan)
    log(logger, 1000, "eval", episode_reward=7.5)
    assert lines(tmp_path) == [
        {"frame": 1000, "train/episode_reward": 5.25, "train/loss": "nan"},
        {"frame": 1000, "eval/episode_reward": 7.5},
    ]


def test_json_lines_restore_a_snapshot(tmp_path: Path) -> None:
    logger = Logger(tmp_path, use_tb=False)
    log(logger, 1000, loss=1.0)
    state = logger.state_dict()
    log(logger, 2000, loss=-2.0)
    logger.close()
    with open(tmp_path / "metrics.jsonl", "a") as f:
        f.write('{"frame": 3000, "train/lo')  # killed while writing
    logger = Logger(tmp_path, use_tb=False)
    logger.load_state_dict(state)
    log(logger, 2000, loss=2.0)
    assert [(line["frame"], line["train/loss"]) for line in lines(tmp_path)] == [(1000, 1.0), (2000, 2.0)]


def test_damaged_json_lines_are_quarantined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = Logger(tmp_path, use_tb=False)
    log(logger, 1000, loss=1.0)
    state = logger.state_dict()
    logger.close()
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b"1.0", b"7.0"))
    logger = Logger(tmp_path, use_tb=False)
    logger.load_state_dict(state)
    log(logger, 2000, loss=2.0)
    assert lines(tmp_path) == [{"frame": 2000, "train/loss": 2.0}]
    assert (tmp_path / "quarantine" / "metrics.jsonl").exists()
    assert "does not match what was logged" in caplog.text


def test_json_lines_are_kept_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Appender.append

    def full(self: Appender, data: bytes) -> None:
        if data.startswith(b"{"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, data)

    logger = Logger(tmp_path, use_tb=False)
    with monkeypatch.context() as m:
        m.setattr(Appender, "append", full)
        log(logger, 1000, loss=1.0)
    state = logger.state_dict()
    logger.close()
    logger = Logger(tmp_path, use_tb=False)
    logger.load_state_dict(state)
    log(logger, 2000, loss=2.0)
    assert [line["frame"] for line in lines(tmp_path)] == [1000, 2000]


class _Broken:
    name = "a broken sink"

    def __init__(self) -> None:
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object) -> None:
            self.asked += 1
            raise RuntimeError("no connection")

        return fail


def test_a_sink_that_fails_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = _Broken()
    logger = Logger(tmp_path, use_tb=False, sinks=[broken])
    for frame in (1000, 2000):
        log(logger, frame, loss=1.0)
    logger.state_dict()
    logger.close()
    assert broken.asked == 1
    assert len(lines(tmp_path)) == 2
    told = [record.getMessage() for record in caplog.records]
    assert told == ["a broken sink is disabled; the CSV files are not affected (RuntimeError: no connection)."]


def test_dropped_sink_works_again_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    logger = Logger(tmp_path, use_tb=True)
    log(logger, 1000, loss=1.0)
    logger.state_dict()
    for sink in logger._sinks:
        monkeypatch.setattr(sink, "write", denied)
    log(logger, 2000, loss=2.0)
    state = logger.state_dict()
    logger.close()
    logger = Logger(tmp_path, use_tb=True)
    logger.load_state_dict(state)
    log(logger, 3000, loss=3.0)
    logger.close()
    assert [line["frame"] for line in lines(tmp_path)] == [1000, 3000]
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [p.step for p in events.Scalars("train/loss")] == [1000, 3000]


def test_tensorboard_knows_the_hyper_parameters(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    logger = Logger(
        tmp_path, use_tb=True, hparams={"lr": 1e-4, "agent.shape": [9, 84, 84], "use_tb": True, "none": None}
    )
    log(logger, 1000, loss=1.0)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    data = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    found = data.session_start_info.hparams
    assert found["lr"].number_value == 1e-4
    assert found["agent.shape"].string_value == "[9, 84, 84]"
    assert found["use_tb"].string_value == "True"


WANDB_RUN = """
import json, sys
from pathlib import Path
from drqv2.logging.logger import Logger
from drqv2.logging.sinks.weights_and_biases import WeightsAndBiases

folder, video, frame, state = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
sink = WeightsAndBiases(folder, {"lr": 1e-4}, "run", "walker_walk_12ab")
logger = Logger(folder, use_tb=False, sinks=[sink])
if state:
    sink.load_state_dict(state)
with logger.log_and_dump_ctx(frame, "eval") as log:
    log("episode_reward", frame / 10)
logger.log_video("eval/video", video, frame)
print(json.dumps(logger.state_dict()["sinks"]["Weights & Biases"]))
logger.close()
"""


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path: Path, mp4: Path) -> None:
    pytest.importorskip("wandb")
    state: dict[str, Any] = {}
    ids = []
    for frame in (1000, 2000):  # a process each, as a run and its resume are
        command = [sys.executable, "-c", WANDB_RUN, str(tmp_path), str(mp4), str(frame), json.dumps(state)]
        env = {**os.environ, "WANDB_MODE": "offline", "WANDB_X_SERVICE_WAIT": "200"}  # seconds: it may be busy here
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        assert "Weights & Biases" not in done.stderr  # neither dropped nor without the video
        (place,) = [line for line in done.stdout.splitlines() if line.startswith("Weights & Biases: ")]
        assert place.startswith(f"Weights & Biases: {tmp_path / 'wandb'}/offline-run-")
        assert "group walker_walk_12ab; upload it with: wandb sync" in place
        state = json.loads(done.stdout.splitlines()[-1])
        ids.append(state["id"])
    assert ids[0]
    assert ids[0] == ids[1]
    written = list((tmp_path / "wandb").glob(f"offline-run-*/run-{ids[0]}.wandb"))
    assert len(written) == 2
    assert all(b"eval/episode_reward" in path.read_bytes() for path in written)
    assert list((tmp_path / "wandb").rglob("media/videos/**/*.mp4"))


def test_git_commit(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x", *words], check=True)

    assert git_commit(tmp_path / "nowhere") == (None, None)
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "first")
    commit, dirty = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    assert not dirty
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == (commit, True)
