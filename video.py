"""Record videos as H.264 mp4 files, streamed frame by frame to ffmpeg.

The ffmpeg binary comes with imageio-ffmpeg. It is not run by `imageio_ffmpeg.write_frames`, which ignores ffmpeg's exit
status and lets it read the terminal. A video that fails is dropped with one warning.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import select
import subprocess
import tempfile
import weakref
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from omegaconf import DictConfig

from drqv2.errors import UserError
from drqv2.system.files import sync_folder

_log = logging.getLogger(__name__)

_TIMEOUT = 60.0  # seconds for the encoder to accept a frame or to finish
_serial = itertools.count()
_open_pipes: weakref.WeakSet[Mp4] = weakref.WeakSet()


class Mp4:
    """Writes one video, under a temporary name until `finish`.

    Args:
        folder: directory of the video; created if missing.
        fps: frames per second; may be fractional.
        frame: first frame, uint8 [H, W, 3] or [H, W, 1]; all others must have its shape.

    Raises:
        OSError: the encoder or the folder fails (also from `write` and `finish`).
    """

    def __init__(self, folder: Path, fps: float, frame: np.ndarray) -> None:
        import imageio_ffmpeg

        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f".tmp-{os.getpid()}-{next(_serial)}.mp4"
        self._shape = frame.shape
        height, width, channels = _even(frame).shape
        pixels = "gray" if channels == 1 else "rgb24"
        rate = Fraction(fps).limit_denominator(1001)
        # Encode and label colours as BT.709; players that have to guess may show them slightly wrong.
        colours = "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709:range=tv"
        filters = f"scale=out_color_matrix=bt709:out_range=tv,format=yuv420p,{colours}"
        options = (
            f"-y -nostdin -loglevel error -threads 1 -f rawvideo -pix_fmt {pixels} -s {width}x{height} -r {rate} "
            f"-i pipe:0 -an -filter_threads 1 -vf {filters} "
            "-c:v libx264 -threads 1 -preset veryfast -crf 20 -movflags +faststart"
        )
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the encoder)
        # In a new session, neither ctrl-C nor closing the terminal reaches the encoder.
        self._process = subprocess.Popen(
            [imageio_ffmpeg.get_ffmpeg_exe(), *options.split(), str(self._path)],
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
            if not poll.poll(1000 * _TIMEOUT):
                raise OSError(f"ffmpeg accepted no data for {_TIMEOUT:.0f} seconds")
            try:
                data = data[os.write(self._pipe.fileno(), data) :]
            except BrokenPipeError as error:
                raise OSError(self._exit_message()) from error

    def finish(self, path: Path) -> None:
        """Complete the video and move it to `path`."""
        self.close_pipe()
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"ffmpeg did not finish within {_TIMEOUT:.0f} seconds") from error
        if self._process.returncode != 0:
            raise OSError(self._exit_message())
        self._errors.close()
        with open(self._path, "rb") as video:
            os.fsync(video.fileno())
        os.replace(self._path, path)
        sync_folder(path.parent)

    def discard(self) -> None:
        """Delete the video."""
        self.close_pipe()
        self._process.kill()
        self._process.wait()
        self._errors.close()
        self._path.unlink(missing_ok=True)

    def close_pipe(self) -> None:
        """Close the encoder's input."""
        _open_pipes.discard(self)
        self._pipe.close()

    def _exit_message(self) -> str:
        try:
            status: int | str = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = "unknown"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"ffmpeg exited with status {status}" + (f": {lines[-1]}" if lines else "")


def _close_pipes_after_fork() -> None:
    # The encoder would never see the end of its input while a forked worker holds the pipe open.
    for video in list(_open_pipes):
        video.close_pipe()


os.register_at_fork(after_in_child=_close_pipes_after_fork)


def _even(frame: np.ndarray) -> np.ndarray:
    """Repeat the last row or column if a side is odd: yuv420p needs even sides."""
    height, width, _ = frame.shape
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


class _Recorder:
    """Records at most one video at a time; a video that fails is dropped with one warning."""

    def __init__(self, folder: Path | None, fps: float) -> None:
        self._folder = folder
        self._fps = fps
        self._video: Mp4 | None = None
        self._active = False

    def _start(self, source: Any, enabled: bool) -> None:
        self.close()
        self._active = enabled and self._folder is not None
        self._add(source)

    def _add(self, source: Any) -> None:
        if not self._active:
            return
        try:
            frame = self._frame(source)
        except UserError as error:  # the environment renders nothing
            self._drop(error)
            return
        assert self._folder is not None
        try:
            if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (1, 3):
                raise OSError(f"a frame must be uint8 [H, W, 3] or [H, W, 1], not {frame.dtype} {list(frame.shape)}")
            if self._video is None:
                self._video = Mp4(self._folder, self._fps, frame)
            else:
                self._video.write(frame)
        except (OSError, RuntimeError, ImportError) as error:  # RuntimeError: imageio-ffmpeg finds no ffmpeg
            self._drop(error)

    def save(self, file_name: str) -> None:
        """Finish the video as `file_name` in the recorder's folder."""
        if self._video is None:
            return
        assert self._folder is not None
        try:
            self._video.finish(self._folder / file_name)
            self._video, self._active = None, False
        except OSError as error:
            self._drop(error)

    def close(self) -> None:
        """Discard an unsaved video and stop its encoder."""
        if self._video is not None:
            self._video.discard()
        self._video, self._active = None, False

    def _frame(self, source: Any) -> np.ndarray:
        raise NotImplementedError

    def _drop(self, reason: object) -> None:
        _log.warning("A video for %s is dropped; the run continues: %s", self._folder, reason)
        self.close()


class VideoRecorder(_Recorder):
    """Records an environment by its `render` method into `root_dir/eval_video`.

    Args:
        root_dir: run directory; None disables recording.
        render_size: height and width of the frames in pixels.
        fps: frames per second. For real time: 1 / (control time step in seconds * action repeat).
    """

    def __init__(self, root_dir: str | Path | None, render_size: int = 256, fps: float = 20) -> None:
        super().__init__(None if root_dir is None else Path(root_dir) / "eval_video", fps)
        self._size = render_size

    def init(self, env: Any, enabled: bool = True) -> None:
        """Start a video with the environment's current frame; discard an unsaved video."""
        self._start(env, enabled)

    def record(self, env: Any) -> None:
        """Add the current frame of `env`, from `env.render(height, width)`, `env.physics.render` or `env.render()`."""
        self._add(env)

    def _frame(self, source: Any) -> np.ndarray:
        size = {"height": self._size, "width": self._size}
        render = getattr(source, "render", None)
        if render is not None and _accepts(render, *size):
            return np.asarray(render(**size))
        if hasattr(source, "physics"):
            return np.asarray(source.physics.render(**size, camera_id=0))
        frame = None if render is None else render()
        if frame is None:
            raise UserError("the environment has neither render(height, width) nor physics")
        return np.asarray(frame)


def _accepts(function: Any, *names: str) -> bool:
    try:
        inspect.signature(function).bind(**dict.fromkeys(names))
    except (TypeError, ValueError):
        return False
    return True


class TrainVideoRecorder(_Recorder):
    """Records the agent's images, enlarged, into `root_dir/train_video`; its environment, if it learns from states.

    Args:
        root_dir: run directory; None disables recording.
        render_size: longer side of the frames in pixels.
        fps: frames per second. For real time: 1 / (control time step in seconds * action repeat).
        frame_channels: channels of one frame: 3 for RGB, 1 for grey.
        env: record this environment through its camera instead of the observations.
    """

    def __init__(
        self,
        root_dir: str | Path | None,
        render_size: int = 256,
        fps: float = 20,
        frame_channels: int = 3,
        env: Any = None,
    ) -> None:
        super().__init__(None if root_dir is None else Path(root_dir) / "train_video", fps)
        self._size = render_size
        self._channels = frame_channels
        self._env = env

    def init(self, obs: Any, enabled: bool = True) -> None:
        """Start a video with `obs`; discard an unsaved video."""
        self._start(obs, enabled)

    def record(self, obs: Any) -> None:
        """Add the newest frame of `obs`, uint8 [frame_stack * C, H, W], newest frame last; or what the camera sees."""
        self._add(obs)

    def _frame(self, source: Any) -> np.ndarray:
        if self._env is not None:
            return np.asarray(self._env.render(self._size, self._size))
        frame = np.ascontiguousarray(source[-self._channels :].transpose(1, 2, 0))  # [H, W, C]
        height, width, _ = frame.shape
        scale = self._size / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
        return frame.reshape(size[1], size[0], self._channels)  # cv2 drops a single channel


def make_recorders(cfg: DictConfig, env: Any, work_dir: Path) -> tuple[VideoRecorder, TrainVideoRecorder]:
    """Return the recorders for evaluation and training; a disabled one does nothing.

    Args:
        cfg: the run's configuration.
        env: one of the run's environments, for its frame rate and channels.
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
