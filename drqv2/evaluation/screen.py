"""Show the frames of episodes in a window, or write them to a video."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np

from drqv2.errors import UserError
from drqv2.logging.video import Mp4


def require_display() -> None:
    """Raise UserError if no window can be opened: without a display, Qt would abort the process."""
    trial = [sys.executable, "-c", "import cv2; cv2.namedWindow('drqv2')"]
    if subprocess.run(trial, capture_output=True, timeout=60).returncode:
        raise UserError("live=true: there is no display here; omit it to write a video instead")


def write(frames: Iterator[np.ndarray], fps: float, path: Path) -> None:
    """Write frames, uint8 [H, W, 3], to an mp4 file, which appears when it is complete.

    Raises:
        UserError: it cannot be written.
    """
    first = next(frames)
    try:
        with closing(Mp4(path.parent, fps, first.shape)) as video:
            for frame in itertools.chain([first], frames):
                video.write(frame)
            video.finish(path)
    except (OSError, RuntimeError) as e:
        raise UserError(f"{path}: the video cannot be written ({e})") from e
    print(f"video: {path}")


def show(frames: Iterator[np.ndarray], fps: float) -> None:
    """Show frames, uint8 [H, W, 3], in a window, until q is pressed or it is closed.

    Raises:
        UserError: no window can be opened.
    """
    title = "drqv2 (press q to quit)"
    os.environ.setdefault("QT_LOGGING_RULES", "default.warning=false")  # OpenCV's Qt warns about missing fonts
    try:
        cv2.namedWindow(title, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)
        due = time.perf_counter()
        for frame in frames:
            cv2.imshow(title, cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
            due = max(due + 1 / fps, time.perf_counter())
            if cv2.waitKey(max(1, round(1000 * (due - time.perf_counter())))) in (ord("q"), 27):
                break
            if cv2.getWindowProperty(title, cv2.WND_PROP_VISIBLE) < 1:
                break
    except cv2.error as e:
        raise UserError(f"live=true: no window can be opened here ({str(e).strip().splitlines()[-1]})") from e
    finally:
        cv2.destroyAllWindows()
