"""Recorders: what the mp4 holds, where it lies, and that no failure of the encoder reaches the caller."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import imageio.v2 as imageio
import imageio_ffmpeg
import numpy as np
import pytest
from dm_env import specs
from omegaconf import OmegaConf

from drqv2.errors import UserError
from drqv2.run.factory import train_film_settings
from video import TrainVideoRecorder, VideoRecorder

IMAGE, GREY = (specs.BoundedArray((n, 16, 16), np.uint8, 0, 255) for n in (9, 3))
VECTOR = specs.Array((5,), np.float32)
RED, GREEN, BLUE, ORANGE = (220, 30, 20), (20, 200, 40), (30, 40, 210), (200, 100, 30)


def picture(height: int, width: int) -> np.ndarray:
    """Four quarters of four colours, uint8 [height, width, 3]."""
    frame = np.empty((height, width, 3), np.uint8)
    h, w = height // 2, width // 2
    frame[:h, :w], frame[:h, w:], frame[h:, :w], frame[h:, w:] = RED, GREEN, BLUE, ORANGE
    return frame


def corners(frame: np.ndarray) -> np.ndarray:
    """Colours near the four corners [4, 3]."""
    return frame[[2, 2, -3, -3], [2, -3, 2, -3]].astype(int)


class Env:
    """Renders the four quarters; the n-th picture has a white block at its n-th place."""

    def __init__(self) -> None:
        self.count = 0

    def render(self, height: int, width: int) -> np.ndarray:
        frame = picture(height, width)
        frame[height // 2 - 4 : height // 2 + 4, 8 * self.count : 8 * self.count + 8] = 255
        self.count += 1
        return frame


def probe(path: Path) -> str:
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return next(line for line in done.stderr.splitlines() if "Video:" in line)


def frames(path: Path) -> list[np.ndarray]:
    return [np.asarray(frame) for frame in imageio.mimread(path, memtest=False)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def record_evaluation(root: Path, length: int = 5, **kwargs: object) -> Path:
    env, recorder = Env(), VideoRecorder(root, **kwargs)  # type: ignore[arg-type]
    recorder.init(env)
    for _ in range(length - 1):
        recorder.record(env)
    recorder.save("1000.mp4")
    return root / "eval_video" / "1000.mp4"


@pytest.mark.parametrize(("fps", "shown"), [(1 / (0.04 * 2), "12.50"), (1 / 0.03, "33.33")])
def test_browsers_play_it_in_real_time(tmp_path, fps, shown):
    path = record_evaluation(tmp_path, length=11, fps=fps)
    stream = probe(path)
    assert "h264" in stream
    assert "yuv420p" in stream
    assert "256x256" in stream
    assert f" {shown} fps" in stream
    count, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert count == 11
    assert seconds == pytest.approx(11 / fps, abs=0.02)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # faststart: plays before it is loaded
    assert names(path.parent) == ["1000.mp4"]


def test_frames_and_their_order(tmp_path):
    shown = frames(record_evaluation(tmp_path, render_size=96))
    assert len(shown) == 5
    for index, frame in enumerate(shown):
        np.testing.assert_allclose(corners(frame), [RED, GREEN, BLUE, ORANGE], atol=12)
        assert frame[48, 8 * index + 4].min() > 225


@pytest.mark.parametrize("size", [63, 255])
def test_odd_sizes_gain_one_row_and_column(tmp_path, size):
    path = record_evaluation(tmp_path, render_size=size)
    shown = frames(path)[0]
    assert shown.shape == (size + 1, size + 1, 3)
    np.testing.assert_allclose(corners(shown), [RED, GREEN, BLUE, ORANGE], atol=12)
    middle = size // 2  # the border between the quarters stays where it was: nothing was scaled
    np.testing.assert_allclose(shown[4, middle - 3], RED, atol=25)
    np.testing.assert_allclose(shown[4, middle + 3], GREEN, atol=25)


def stack(*pictures: np.ndarray) -> np.ndarray:
    return np.concatenate([frame.transpose(2, 0, 1) for frame in pictures])


def test_training_video_shows_the_newest_frame(tmp_path):
    recorder = TrainVideoRecorder(tmp_path, render_size=128, fps=12.5)
    black = np.zeros((84, 84, 3), np.uint8)
    recorder.init(stack(black, black, picture(84, 84)))
    recorder.record(stack(black, picture(84, 84), black))
    recorder.save("7.mp4")
    first, second = frames(tmp_path / "train_video" / "7.mp4")
    assert first.shape == (128, 128, 3)
    np.testing.assert_allclose(corners(first), [RED, GREEN, BLUE, ORANGE], atol=12)
    assert second.max() < 25


def test_training_video_of_states_shows_the_environment(tmp_path, caplog):
    recorder, obs = TrainVideoRecorder(tmp_path, render_size=128, env=Env()), np.zeros(5, np.float32)
    recorder.init(obs)
    recorder.record(obs)
    recorder.save("7.mp4")
    first, _ = frames(tmp_path / "train_video" / "7.mp4")
    np.testing.assert_allclose(corners(first), [RED, GREEN, BLUE, ORANGE], atol=12)

    class Blind:
        def render(self, height, width):
            raise UserError("it cannot be filmed")

    TrainVideoRecorder(tmp_path, env=Blind()).init(obs)
    assert "it cannot be filmed" in caplog.text


def test_grey_and_oblong_observations(tmp_path):
    obs = np.zeros((3, 40, 81), np.uint8)
    obs[-1, :, :40] = 180
    recorder = TrainVideoRecorder(tmp_path, render_size=162, frame_channels=1)
    recorder.init(obs)
    recorder.record(obs)
    recorder.save("grey.mp4")
    path = tmp_path / "train_video" / "grey.mp4"
    assert "yuv420p" in probe(path)
    shown = frames(path)
    assert len(shown) == 2
    assert shown[0].shape == (80, 162, 3)  # height in proportion
    np.testing.assert_allclose(corners(shown[0])[:, 0], [180, 0, 180, 0], atol=8)


@pytest.mark.parametrize("more", [1, 3, 6])
def test_of_more_channels_the_first_three_are_shown(tmp_path, more):
    frame = np.concatenate([picture(84, 84), np.full((84, 84, more), 99, np.uint8)], axis=2)
    recorder = TrainVideoRecorder(tmp_path, render_size=128, frame_channels=3 + more)
    recorder.init(stack(np.zeros_like(frame), frame))
    recorder.record(stack(np.zeros_like(frame), frame))
    recorder.save("7.mp4")
    shown = frames(tmp_path / "train_video" / "7.mp4")
    assert len(shown) == 2
    for one in shown:
        np.testing.assert_allclose(corners(one), [RED, GREEN, BLUE, ORANGE], atol=12)


def test_images_of_a_dict_side_by_side(tmp_path):
    recorder = TrainVideoRecorder(tmp_path, render_size=128, frame_channels={"pixels": 3, "depth": 1})
    black, depth = np.zeros((84, 84, 3), np.uint8), np.full((3, 42, 84), 180, np.uint8)
    recorder.init({"pixels": stack(black, picture(84, 84)), "state": np.zeros(4, np.float32), "depth": depth})
    recorder.record({"pixels": stack(picture(84, 84), black), "state": np.zeros(4, np.float32), "depth": depth})
    recorder.save("7.mp4")
    first, second = frames(tmp_path / "train_video" / "7.mp4")
    assert first.shape == (128, 256, 3)
    np.testing.assert_allclose(corners(first[:, :128]), [RED, GREEN, BLUE, ORANGE], atol=12)
    grey = corners(first[:, 128:])
    np.testing.assert_allclose(grey[:2], 180, atol=8)
    np.testing.assert_allclose(grey[2:], 0, atol=8)  # it is half as high
    assert second[8:-8, 8:120].max() < 25


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (IMAGE, {"frame_channels": 3}),
        (VECTOR, {"env": None}),
        ({"pixels": IMAGE, "depth": GREY, "state": VECTOR}, {"frame_channels": {"pixels": 3, "depth": 1}}),
        ({"position": VECTOR, "state": VECTOR}, {"env": None}),
    ],
)
def test_training_videos_show_the_images_of_observations(spec, shown):
    env = SimpleNamespace(observation_spec=lambda: spec, step_seconds=0.1)
    settings = train_film_settings(OmegaConf.create({"render_size": 64, "frame_stack": 3}), env)
    wanted = {"env": env} if "env" in shown else shown
    assert settings == {"render_size": 64, "fps": 10.0} | wanted


def test_a_new_video_discards_an_unsaved_one(tmp_path):
    env, recorder = Env(), VideoRecorder(tmp_path, render_size=64)
    recorder.init(env)
    recorder.record(env)
    recorder.init(env)
    recorder.save("second.mp4")
    recorder.save("nothing is open.mp4")
    recorder.record(env)  # nothing is open here either
    assert names(tmp_path / "eval_video") == ["second.mp4"]
    assert len(frames(tmp_path / "eval_video" / "second.mp4")) == 1


@pytest.mark.parametrize(("root", "enabled"), [(None, True), ("here", False)])
def test_nothing_is_rendered_or_written_when_off(tmp_path, monkeypatch, root, enabled):
    monkeypatch.chdir(tmp_path)
    env, recorder = Env(), VideoRecorder(root)
    recorder.init(env, enabled=enabled)
    recorder.record(env)
    recorder.save("x.mp4")
    assert env.count == 0
    assert names(tmp_path) == []


def test_other_kinds_of_environments(tmp_path, caplog):
    class Physics:
        def render(self, height: int, width: int, camera_id: int) -> np.ndarray:
            return picture(height, width)

    class WithPhysics:
        physics = Physics()

    class Gymnasium:
        def render(self) -> np.ndarray:
            return picture(50, 70)

    class Blind:
        pass

    for env, shape in ((WithPhysics(), (64, 64, 3)), (Gymnasium(), (50, 70, 3))):
        recorder = VideoRecorder(tmp_path, render_size=64)
        recorder.init(env)
        recorder.save("x.mp4")
        assert frames(tmp_path / "eval_video" / "x.mp4")[0].shape == shape
    assert caplog.text == ""
    recorder.init(Blind())
    recorder.record(Blind())
    recorder.save("y.mp4")
    assert len(caplog.records) == 1
    assert names(tmp_path / "eval_video") == ["x.mp4"]


def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = tmp_path / "ffmpeg"
    path.write_text(f"#!/bin/sh\nREAL={imageio_ffmpeg.get_ffmpeg_exe()}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(path))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "No such file"),
        ("echo no such codec >&2; exit 3", "status 3: no such codec"),
        ("head -c 500000 >/dev/null; echo lost the disk >&2; exit 4", "status 4: lost the disk"),  # in the middle
        ('"$REAL" "$@"; echo at the end >&2; exit 5', "status 5: at the end"),
        ("cat >/dev/null", "No such file"),  # ends well, writes nothing
    ],
    ids=["missing", "at once", "in the middle", "at the end", "no file"],
)
def test_a_failing_encoder_warns_once_and_the_next_video_works(tmp_path, monkeypatch, caplog, script, reason):
    with monkeypatch.context() as patch:
        if script is None:
            patch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "nowhere"))
        else:
            encoder(tmp_path, patch, script)
        record_evaluation(tmp_path, length=12)
    assert len(caplog.records) == 1
    assert re.search(reason, caplog.text)
    assert not (tmp_path / "eval_video").exists() or names(tmp_path / "eval_video") == []
    assert len(frames(record_evaluation(tmp_path))) == 5


@pytest.mark.slow
def test_without_imageio_ffmpeg_there_are_no_videos(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # then an import fails as if it were not installed
    record_evaluation(tmp_path, length=12)
    (record,) = caplog.records
    assert "imageio_ffmpeg" in record.getMessage()
    code = "import sys; sys.modules['imageio_ffmpeg'] = None; import train, eval, report"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk(tmp_path, monkeypatch, caplog):
    encoder(tmp_path, monkeypatch, 'for last; do :; done; ln -sf /dev/full "$last"; exec "$REAL" "$@"')
    record_evaluation(tmp_path)
    assert len(caplog.records) == 1
    assert names(tmp_path / "eval_video") == []


def test_invalid_frames(tmp_path, caplog):
    class Odd(Env):
        def render(self, height: int, width: int) -> np.ndarray:
            return super().render(height + 2 * self.count, width)

    class Floats(Env):
        def render(self, height: int, width: int) -> np.ndarray:
            return super().render(height, width) / 255

    for env in (Odd(), Floats()):
        recorder = VideoRecorder(tmp_path, render_size=64)
        recorder.init(env)
        recorder.record(env)
        recorder.record(env)
        recorder.save("x.mp4")
    assert len(caplog.records) == 2
    assert names(tmp_path / "eval_video") == []


def test_a_worker_forked_while_recording_does_not_hold_the_encoder(tmp_path):
    # In an interpreter of its own: this one has threads, which a fork would not survive with certainty.
    code = """
import os, sys, time
import numpy as np
from video import TrainVideoRecorder
recorder, obs = TrainVideoRecorder(sys.argv[1]), np.zeros((9, 84, 84), np.uint8)
recorder.init(obs)
worker = os.fork()
if worker == 0:
    time.sleep(1000)
recorder.save("x.mp4")
print(os.path.exists(sys.argv[1] + "/train_video/x.mp4"), os.waitpid(worker, os.WNOHANG))
os.kill(worker, 9)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, tmp_path],
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        timeout=50,  # below the encoder's patience
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True (0, 0)\n", done.stderr
