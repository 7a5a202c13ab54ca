"""A finished video as a small moving picture, for pages that show no mp4."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

_SIDE = 128  # pixels
_FRAMES = 80


def gif(path: Path) -> tuple[bytes, tuple[int, int]]:
    """Return an mp4 as a GIF of at most 80 frames and 128 pixels a side, in real time, with its height and width.

    Raises:
        OSError: the file cannot be read.
    """
    import imageio.v3 as iio
    from PIL import Image

    fps = iio.immeta(path, plugin="FFMPEG")["fps"]
    frames = np.stack(list(iio.imiter(path, plugin="FFMPEG")))
    every = -(-len(frames) // _FRAMES)
    pictures = [Image.fromarray(frame) for frame in frames[::every]]
    for picture in pictures:
        picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    milliseconds = max(20, round(1000 * every / fps))  # browsers slow down what is faster
    pictures[0].save(buffer, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return buffer.getvalue(), (pictures[0].height, pictures[0].width)
