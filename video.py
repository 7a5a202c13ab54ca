"""Videos of a run, streamed frame by frame into H.264 mp4 files that browsers play.

The ffmpeg that imageio-ffmpeg brings does the encoding. It is started here rather than through `write_frames`, which
never looks at ffmpeg's exit status and leaves it the terminal. A video that fails is dropped with one warning.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import os
import select
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from omegaconf import DictConfig

from drqv2.errors import UserError
from drqv2.system.files import sync_folder

_log = logging.getLogger(__name__)

_PATIENCE = 60.0  # seconds for an encoder to take a frame or to finish; beyond that it is taken for dead
_STALE = 3600.0  # seconds after which an untouched temporary file belongs to a run that was killed
_serial = itertools.count()
_open_pipes: weakref.WeakSet[Mp4] = weakref.WeakSet()


class Mp4:
    """One video on its way to disk, under a temporary name until `finish`.

    Args:
        folder: Where the video goes; made when missing.
        fps: Frames a second of playing time; may be fractional.
        frame: The first frame, uint8 [H, W, 3] or [H, W, 1]; all others have its shape.

    Raises:
        OSError: The encoder or the folder fails (also from `write` and `finish`).
    """

    def __init__(self, folder: Path, fps: float, frame: np.ndarray) -> None:
        import imageio_ffmpeg

        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder.glob(".tmp-*.mp4"))
        self._path = folder / f".tmp-{os.getpid()}-{next(_serial)}.mp4"
        self._shape = frame.shape
        height, width, channels = _even(frame).shape
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-nostdin", "-loglevel", "error", "-threads", "1"]
        command += ["-f", "rawvideo", "-pix_fmt", "gray" if channels == 1 else "rgb24", "-s", f"{width}x{height}"]
        command += ["-r", str(Fraction(fps).limit_denominator(1001)), "-i", "pipe:0", "-an"]
        # Colours by the HD standard, and said so: a player that has to guess may show them a little off.
        colours = "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709:range=tv"
        command += [
            "-filter_threads",
            "1",
            "-vf",
            f"scale=out_color_matrix=bt709:out_range=tv,format=yuv420p,{colours}",
        ]
        command += ["-c:v", "libx264", "-threads", "1", "-preset", "veryfast", "-crf", "20"]
        command += ["-movflags", "+faststart", str(self._path)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the encoder)
        # A session of its own: neither ctrl-C nor the closing of a terminal reaches the encoder.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
        )
        _open_pipes.add(self)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)
        try:
            self.write(frame)
        except BaseException:
            self.discard()
            raise

    def write(self, frame: np.ndarray) -> None:
        """Add a frame."""
        if frame.shape != self._shape:
            raise OSError(f"frame of shape {frame.shape} in a video of {self._shape}")
        data = memoryview(_even(frame).tobytes())
        poll = select.poll()
        poll.register(self._pipe, select.POLLOUT)
        while data:
            if not poll.poll(1000 * _PATIENCE):
                raise OSError(f"ffmpeg took no data for {_PATIENCE:.0f} seconds")
            try:
                data = data[os.write(self._pipe.fileno(), data) :]
            except BrokenPipeError as error:
                raise OSError(self._last_words()) from error

    def finish(self, path: Path) -> None:
        """Give the video its final name."""
        _open_pipes.discard(self)
        self._pipe.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"ffmpeg did not finish within {_PATIENCE:.0f} seconds") from error
        if self._process.returncode != 0:
            raise OSError(self._last_words())
        self._errors.close()
        with open(self._path, "rb") as video:
            os.fsync(video.fileno())
        os.replace(self._path, path)
        sync_folder(path.parent)

    def discard(self) -> None:
        """Throw it away."""
        self.close_pipe()
        self._process.kill()
        self._process.wait()
        self._errors.close()
        self._path.unlink(missing_ok=True)

    def close_pipe(self) -> None:
        """Let go of the encoder's input."""
        _open_pipes.discard(self)
        self._pipe.close()

    def _last_words(self) -> str:
        try:
            status: int | str = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = "none yet"
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"ffmpeg ended with status {status}" + (f": {words[-1]}" if words else "")


def _close_pipes_after_fork() -> None:
    # A forked worker that kept a pipe's writing end would keep its encoder waiting for more for ever.
    for video in list(_open_pipes):
        video.close_pipe()


os.register_at_fork(after_in_child=_close_pipes_after_fork)


def _remove_stale(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another process may tidy up too
            if time.time() - path.stat().st_mtime > _STALE:
                path.unlink()


def _even(frame: np.ndarray) -> np.ndarray:
    """Repeat the last row or column where a side is odd: yuv420p halves both sides."""
    height, width, _ = frame.shape
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


class _Recording:
    """At most one video at a time; whatever fails about it is told once, and the video is dropped."""

    def __init__(self, folder: Path | None, fps: float) -> None:
        self._folder = folder
        self._fps = fps
        self._video: Mp4 | None = None
        self.active = False

    def start(self, enabled: bool) -> None:
        if self._video is not None:
            self._video.discard()
            self._video = None
        self.active = enabled and self._folder is not None

    def add(self, frame: np.ndarray) -> None:
        assert self._folder is not None
        try:
            if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (1, 3):
                raise OSError(f"a frame must be uint8 [H, W, 3] or [H, W, 1], not {frame.dtype} {list(frame.shape)}")
            if self._video is None:
                self._video = Mp4(self._folder, self._fps, frame)
            else:
                self._video.write(frame)
        except (OSError, RuntimeError, ImportError) as error:  # RuntimeError: imageio-ffmpeg finds no ffmpeg
            self.fail(error)

    def add_rendered(self, render: Callable[[], np.ndarray | None]) -> None:
        try:
            frame = render()
        except UserError as error:  # the environment renders nothing
            self.fail(error)
            return
        if frame is None:
            self.fail("the environment has neither render(height, width) nor physics")
        else:
            self.add(frame)

    def finish(self, file_name: str) -> None:
        if self._video is None:
            return
        assert self._folder is not None
        try:
            self._video.finish(self._folder / file_name)
            self._video, self.active = None, False
        except OSError as error:
            self.fail(error)

    def fail(self, reason: object) -> None:
        _log.warning("A video for %s is dropped, the run goes on: %s", self._folder, reason)
        self.start(enabled=False)


class VideoRecorder:
    """Records an environment through its own camera into `root_dir/eval_video`.

    Args:
        root_dir: Folder of the run; None records nothing.
        render_size: Height and width of the picture in pixels.
        fps: Frames a second. For real time: 1 / (control time step in seconds * action repeat).
    """

    def __init__(self, root_dir: str | Path | None, render_size: int = 256, fps: float = 20) -> None:
        self._recording = _Recording(None if root_dir is None else Path(root_dir) / "eval_video", fps)
        self._size = render_size

    def close(self) -> None:
        """Throw away a video that was not saved, and end its encoder."""
        self._recording.start(False)

    def init(self, env: Any, enabled: bool = True) -> None:
        """Begin a video with the environment's present picture; one that was not saved is thrown away."""
        self._recording.start(enabled)
        self.record(env)

    def record(self, env: Any) -> None:
        """Add the present picture of `env`.

        It comes from `env.render(height, width)`, else from `env.physics.render`, else from `env.render()`.
        """
        if self._recording.active:
            self._recording.add_rendered(lambda: self._render(env))

    def save(self, file_name: str) -> None:
        """Finish the video as `eval_video/file_name`."""
        self._recording.finish(file_name)

    def _render(self, env: Any) -> np.ndarray | None:
        size = {"height": self._size, "width": self._size}
        render = getattr(env, "render", None)
        if render is not None and _takes(render, *size):
            return np.asarray(render(**size))
        if hasattr(env, "physics"):
            return np.asarray(env.physics.render(**size, camera_id=0))
        frame = None if render is None else render()
        return None if frame is None else np.asarray(frame)


def _takes(function: Any, *names: str) -> bool:
    try:
        inspect.signature(function).bind(**dict.fromkeys(names))
    except (TypeError, ValueError):
        return False
    return True


class TrainVideoRecorder:
    """Records what the agent saw, enlarged, into `root_dir/train_video`; or its environment, if that is not pixels.

    Args:
        root_dir: Folder of the run; None records nothing.
        render_size: Longer side of the picture in pixels.
        fps: Frames a second. For real time: 1 / (control time step in seconds * action repeat).
        frame_channels: Channels of one frame: 3 for RGB, 1 for grey.
        env: Records this environment through its camera instead of the observations.
    """

    def __init__(
        self,
        root_dir: str | Path | None,
        render_size: int = 256,
        fps: float = 20,
        frame_channels: int = 3,
        env: Any = None,
    ) -> None:
        self._recording = _Recording(None if root_dir is None else Path(root_dir) / "train_video", fps)
        self._size = render_size
        self._channels = frame_channels
        self._env = env

    def close(self) -> None:
        """Throw away a video that was not saved, and end its encoder."""
        self._recording.start(False)

    def init(self, obs: Any, enabled: bool = True) -> None:
        """Begin a video with `obs`; one that was not saved is thrown away."""
        self._recording.start(enabled)
        self.record(obs)

    def record(self, obs: Any) -> None:
        """Add the newest frame of `obs`, uint8 [frame_stack * C, H, W], newest frame last; or what the camera sees."""
        if not self._recording.active:
            return
        if self._env is not None:
            self._recording.add_rendered(lambda: self._env.render(self._size, self._size))
            return
        frame = np.ascontiguousarray(obs[-self._channels :].transpose(1, 2, 0))  # [H, W, C]
        height, width, _ = frame.shape
        scale = self._size / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
        self._recording.add(frame.reshape(size[1], size[0], self._channels))  # cv2 drops a single channel

    def save(self, file_name: str) -> None:
        """Finish the video as `train_video/file_name`."""
        self._recording.finish(file_name)


def make_recorders(cfg: DictConfig, env: Any, work_dir: Path) -> tuple[VideoRecorder, TrainVideoRecorder]:
    """Return the recorders of evaluation and of training; one that is not wanted does nothing.

    Args:
        cfg: the run's configuration.
        env: one of the run's environments, for its pace and its channels.
        work_dir: the run's directory.
    """
    fps = 1 / env.step_seconds if env.step_seconds else 20.0
    shape: tuple[int, ...] = getattr(env.observation_spec(), "shape", ())  # of a dict there is none
    pixels = len(shape) == 3
    channels = shape[0] // cfg.frame_stack if pixels else 3
    return (
        VideoRecorder(work_dir if cfg.save_video else None, cfg.render_size, fps),
        TrainVideoRecorder(
            work_dir if cfg.save_train_video else None, cfg.render_size, fps, channels, None if pixels else env
        ),
    )
