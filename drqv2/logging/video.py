"""Record videos as H.264 mp4 files, streamed frame by frame to ffmpeg.

The ffmpeg binary comes with imageio-ffmpeg. It is not run by `imageio_ffmpeg.write_frames`, which ignores ffmpeg's exit
status and lets it read the terminal.
"""

from __future__ import annotations

import logging
import os
import subprocess
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from drqv2.logging import overlay
from drqv2.system.files import sync_folder

_log = logging.getLogger(__name__)

_pipes: weakref.WeakSet[Any] = weakref.WeakSet()  # to encoders


def _close_pipes() -> None:
    for pipe in list(_pipes):
        pipe.close()


# The encoder would never see the end of its input while a forked worker holds the pipe open.
os.register_at_fork(after_in_child=_close_pipes)


class Mp4:
    """Writes one video, under a temporary name until `finish`.

    Args:
        folder: directory of the video; created if missing.
        fps: frames per second; may be fractional.
        shape: (H, W, 3) or (H, W, 1), of every frame.

    Raises:
        OSError: the encoder or the folder fails (also from `write` and `finish`).
        RuntimeError: there is no ffmpeg.
    """

    def __init__(self, folder: Path, fps: float, shape: tuple[int, ...]) -> None:
        import imageio_ffmpeg  # only here: runs without videos do without it

        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f".tmp-{os.getpid()}.mp4"
        self._shape = shape
        height, width, channels = shape
        pixels = "gray" if channels == 1 else "rgb24"
        even = "pad=ceil(iw/2)*2:ceil(ih/2)*2"  # as yuv420p needs it
        # Encode and label colours as BT.709; players that have to guess may show them slightly wrong.
        colours = "setparams=colorspace=bt709:color_primaries=bt709:color_trc=bt709:range=tv"
        filters = f"{even},scale=out_color_matrix=bt709:out_range=tv,format=yuv420p,{colours}"
        options = (
            f"-y -nostdin -loglevel error -threads 1 -f rawvideo -pix_fmt {pixels} -s {width}x{height} -r {fps} "
            f"-i pipe:0 -an -filter_threads 1 -vf {filters} "
            "-c:v libx264 -threads 1 -preset veryfast -crf 20 -movflags +faststart"
        )
        # In a new session, neither ctrl-C nor closing the terminal reaches the encoder.
        self._process = subprocess.Popen(
            [imageio_ffmpeg.get_ffmpeg_exe(), *options.split(), str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._pipe: Any = self._process.stdin
        _pipes.add(self._pipe)

    def write(self, frame: np.ndarray) -> None:
        """Add a frame, uint8."""
        if frame.shape != self._shape:
            raise OSError(f"frame of shape {frame.shape} in a video of {self._shape}")
        data = memoryview(frame.tobytes())
        try:
            while data:
                data = data[self._pipe.write(data) :]
        except BrokenPipeError:
            self._end()  # raises ffmpeg's reason
            raise

    def finish(self, path: Path) -> None:
        """Complete the video and move it to `path`."""
        self._end()
        with open(self._path, "rb") as video:
            os.fsync(video.fileno())
        os.replace(self._path, path)
        sync_folder(path.parent)

    def close(self) -> None:
        """Stop the encoder; delete the video, unless it is finished."""
        with self._process:
            self._process.kill()
        self._path.unlink(missing_ok=True)

    def _end(self) -> None:
        try:
            _, errors = self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            raise OSError("ffmpeg has not finished the video within 60 s") from None
        if status := self._process.returncode:
            last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"ffmpeg exited with status {status}: {last_line}")


class VideoRecorder:
    """Records an environment by its `render` method into `root_dir/eval_video`, at most one video at a time.

    A video that fails is dropped with one warning.

    Args:
        root_dir: run directory; None disables recording.
        render_size: height and width of the frames in pixels.
        fps: frames per second. For real time: 1 / (control time step in seconds * action repeat).
        every: time steps between two frames.

    Attributes:
        render_size: as given.
        every: as given.
    """

    _folder_name = "eval_video"

    def __init__(self, root_dir: str | Path | None, render_size: int = 256, fps: float = 20, every: int = 1) -> None:
        self.every = every
        self._folder = None if root_dir is None else Path(root_dir) / self._folder_name
        self.render_size = render_size
        self._fps = fps
        self._video: Mp4 | None = None
        self._active = False

    @property
    def is_recording(self) -> bool:
        """Whether a video has begun, and nothing has gone wrong with it."""
        return self._folder is not None and self._active

    def attempt(self, draw: Callable[[], None]) -> None:
        """Call what draws a part of a frame; if it fails, drop the video with a warning."""
        try:
            draw()
        except Exception as error:  # whatever it is, the run is worth more than its video
            self._drop(error)

    def begin(self) -> None:
        """Start a video, still without a frame; discard an unsaved video."""
        self.close()
        self._active = True

    def init(self, env: Any, enabled: bool = True) -> None:
        """Start a video with the environment's current frame; discard an unsaved video."""
        self.begin()
        self._active = enabled
        self.record(env)

    def record(self, env: Any) -> None:
        """Add the current frame of `env`, from `env.render(height, width)`, `env.render()` or `env.physics.render`."""
        self.record_frame(lambda: self._frame(env))

    def record_frame(self, draw: Callable[[], Any]) -> None:
        """Add the frame, uint8 [H, W, 3] or [H, W, 1], that `draw` returns; it may fail."""
        if self._folder is None or not self._active:
            return
        try:
            frame = np.asarray(draw())
            if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (1, 3):
                raise ValueError(f"a frame must be uint8 [H, W, 3] or [H, W, 1], not {frame.dtype} {list(frame.shape)}")
            self._video = self._video or Mp4(self._folder, self._fps, frame.shape)
            self._video.write(frame)
        except Exception as error:  # whatever it is, the run is worth more than its video
            self._drop(error)

    def save(self, file_name: str) -> None:
        """Finish the video as `file_name` in the recorder's folder."""
        if self._folder is not None and self._video is not None:
            try:
                self._video.finish(self._folder / file_name)
            except OSError as error:
                self._drop(error)
        self.close()

    def close(self) -> None:
        """Discard an unsaved video and stop its encoder."""
        if self._video is not None:
            self._video.close()
        self._video, self._active = None, False

    def _drop(self, reason: Exception) -> None:
        _log.warning("A video for %s is dropped; the run continues: %s", self._folder, reason)
        self.close()

    def _frame(self, env: Any) -> Any:
        size = {"height": self.render_size, "width": self.render_size}
        if not hasattr(env, "render"):
            return env.physics.render(**size, camera_id=0)
        try:
            return env.render(**size)
        except TypeError:  # Gymnasium's render takes no size
            return env.render()


class TrainVideoRecorder(VideoRecorder):
    """Records the agent's images, enlarged, into `root_dir/train_video`; its environment, if it learns from states.

    Args:
        root_dir: run directory; None disables recording.
        render_size: longer side of each image in pixels.
        fps: as in `VideoRecorder`.
        frame_channels: channels of one frame; three or more: the first three are shown as RGB; else the first as grey.
            Of observations that are dicts, those of each image by its name; images are shown side by side.
        env: record this environment through its camera instead of the observations.
    """

    _folder_name = "train_video"

    def __init__(
        self,
        root_dir: str | Path | None,
        render_size: int = 256,
        fps: float = 20,
        frame_channels: int | Mapping[str, int] = 3,
        env: Any = None,
    ) -> None:
        super().__init__(root_dir, render_size, fps)
        self._channels = frame_channels
        self._env = env

    def init(self, obs: Any, enabled: bool = True) -> None:
        """Start a video with `obs`; discard an unsaved video."""
        super().init(obs, enabled)

    def record(self, obs: Any) -> None:
        """Add the newest frame of `obs`, uint8 [frame_stack * C, H, W], newest frame last; or what the camera sees.

        Of a dict with such images, the newest frame of each is added.
        """
        super().record(obs)

    def _frame(self, obs: Any) -> Any:
        if self._env is not None:
            return super()._frame(self._env)
        if isinstance(self._channels, int):
            return self._enlarged(obs, self._channels)
        return overlay.grid(overlay.alike([self._enlarged(obs[name], n) for name, n in self._channels.items()]))

    def _enlarged(self, image: np.ndarray, channels: int) -> np.ndarray:
        """Return the newest frame of an image, uint8 [H, W, 3] or [H, W, 1]."""
        shown = 3 if channels >= 3 else 1
        newest = image[-channels:][:shown]
        frame = np.ascontiguousarray(newest.transpose(1, 2, 0))  # [H, W, C]
        height, width, _ = frame.shape
        scale = self.render_size / max(height, width)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        frame = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
        return frame.reshape(size[1], size[0], shown)  # cv2 drops a single channel
