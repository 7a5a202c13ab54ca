"""TensorBoard's points, through resumes and failures."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drqv2.logging.logger import Logger
from drqv2.system.files import Appender
from tests.logging.test_logger import log_episode, log_evaluation, rows, through_file


def resumed(logger: Logger, folder: Path) -> Logger:
    """Close the logger; return another one in its folder that goes on from its state."""
    state = through_file(logger.state_dict(), folder)
    logger.close()
    again = Logger(folder, use_tb=True)
    again.load_state_dict(state)
    return again


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    accumulator = EventAccumulator(str(folder / "tb"), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_tensorboard_points_stand_at_frames(tmp_path):
    logger = Logger(tmp_path, use_tb=True)
    assert not (tmp_path / "tb").exists()  # opened with the first point
    log_episode(logger, 1000, loss=torch.tensor(0.5))
    log_evaluation(logger, 1000)
    log_episode(logger, 2000, loss=torch.tensor(0.25))
    assert points(tmp_path, "train/loss") == [(1000, 0.5), (2000, 0.25)]  # on file before close
    assert points(tmp_path, "eval/episode_reward") == [(1000, 812.25)]
    logger.close()


def test_tensorboard_drops_points_after_the_snapshot(tmp_path):
    logger = Logger(tmp_path, use_tb=True)
    for frame in (1000, 2000):
        log_episode(logger, frame, loss=frame)
    state = through_file(logger.state_dict(), tmp_path)
    log_evaluation(logger, 2000)  # at the snapshot's very frame, yet after it
    log_episode(logger, 3000, loss=-3000)
    log_episode(logger, 4000, loss=-4000)
    logger.close()

    logger = Logger(tmp_path, use_tb=True)
    logger.load_state_dict(state)
    log_evaluation(logger, 2000)
    log_episode(logger, 3000, loss=3000)
    logger.close()
    assert points(tmp_path, "train/loss") == [(1000, 1000.0), (2000, 2000.0), (3000, 3000.0)]
    assert points(tmp_path, "eval/episode_reward") == [(2000, 812.25)]


def test_without_tensorboard_warns_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)  # importing it now fails
    logger = Logger(tmp_path, use_tb=True)
    log_episode(logger, 1000)
    log_episode(logger, 2000)
    assert len(rows(tmp_path / "train.csv")) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_tensorboard_keeps_all_episodes_that_ended_together(tmp_path):
    logger = Logger(tmp_path, use_tb=True)
    for loss in (1.0, 2.0, 3.0):
        log_episode(logger, 1000, loss=loss)
    logger = resumed(logger, tmp_path)
    log_episode(logger, 2000, loss=4.0)
    logger.close()
    assert points(tmp_path, "train/loss") == [(1000, 1.0), (1000, 2.0), (1000, 3.0), (2000, 4.0)]


def test_tensorboard_catches_up_after_a_full_disk(tmp_path, monkeypatch, caplog):
    append = Appender.append

    def full(self, data):
        if b"train/loss" in data and not data.startswith(b"{"):  # the events
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, data)

    logger = Logger(tmp_path, use_tb=True)
    log_episode(logger, 1000, loss=1.0)
    with monkeypatch.context() as m:
        m.setattr(Appender, "append", full)
        for frame in (2000, 3000):
            log_episode(logger, frame, loss=frame)
    logger = resumed(logger, tmp_path)
    log_episode(logger, 4000, loss=4.0)
    logger.close()
    assert points(tmp_path, "train/loss") == [(1000, 1.0), (2000, 2000.0), (3000, 3000.0), (4000, 4.0)]
    assert sum("retrying with the next row" in record.message for record in caplog.records) == 1
