"""Videos on the page, each with a frame of its own as the picture that is shown until it plays."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from drqv2.report.runs import Run

_HEIGHT = 256  # of a poster, pixels


def videos(run: Run, how: str, folder: Path) -> list[dict[str, Any]]:
    """Return what the template needs for a run's newest video; without one, an empty list.

    Args:
        run: gets a fault if the video cannot be read.
        how: "embed" it, "link" to it, or "none".
        folder: where the page is.
    """
    if how == "none" or not run.videos:
        return []
    path = run.videos[-1]
    if how == "embed":
        try:
            source = "data:video/mp4;base64," + base64.b64encode(path.read_bytes()).decode()
        except OSError as e:  # just deleted, or not a file
            run.faults.append(f"{path.name} is omitted ({e.strerror})")
            return []
    else:
        source = quote(os.fsencode(os.path.relpath(path.resolve(), folder.resolve())))
    return [{"source": source, "caption": f"{run.path.name}: seed {run.seed}, frame {path.stem}"} | _poster(path)]


def _poster(path: Path) -> dict[str, Any]:
    """Return the frame in the middle of a video, and the size at which it is shown; nothing if it cannot be read."""
    try:
        import imageio.v3 as iio
        from PIL import Image

        with iio.imopen(path, "r", plugin="FFMPEG") as video:  # type: ignore[call-overload]
            about = video.metadata()
            image = Image.fromarray(video.read(index=round(about["duration"] * about["fps"]) // 2))
    except Exception:  # decoders raise anything, and ffmpeg may be absent: the browser then shows what it finds
        return {}
    width, height = round(image.width * _HEIGHT / image.height), _HEIGHT
    if image.height > height:
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"poster": f"data:image/jpeg;base64,{data}", "width": width, "height": height}
