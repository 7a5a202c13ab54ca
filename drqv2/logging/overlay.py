"""Overlays for evaluation videos: return, step and action on each frame; several episodes in a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np

_WHITE, _SHADE, _UP, _DOWN = (255, 255, 255), 0.45, (120, 220, 120), (250, 150, 90)
_FONT = cv2.FONT_HERSHEY_SIMPLEX


def label(frame: np.ndarray, episode: int, total: float, step: int, action: np.ndarray) -> np.ndarray:
    """Return a copy of a frame with episode, return and step at the top and the action at the bottom.

    A vector is drawn as a bar for each dimension; discrete actions are written.

    Args:
        frame: uint8 [H, W, 3].
        episode: index of the episode.
        total: return so far.
        step: agent steps so far.
        action: float32 [A] in [-1, 1], whose bars point up where it is positive; or int64 [] or [A].

    Returns:
        uint8 [H, W, 3].
    """
    out = frame.copy()
    height, width = out.shape[:2]
    scale, top = width / 520, max(12, width // 14)
    out[:top] = (out[:top] * _SHADE).astype(np.uint8)
    at = (max(2, width // 64), round(top * 0.75))
    cv2.putText(out, f"#{episode}  return {total:.1f}  step {step}", at, _FONT, scale, _WHITE, 1, cv2.LINE_AA)
    bars = max(10, height // 9)
    out[-bars:] = (out[-bars:] * _SHADE).astype(np.uint8)
    if np.issubdtype(np.asarray(action).dtype, np.integer):
        chosen = "action " + " ".join(map(str, np.ravel(action)))
        cv2.putText(out, chosen, (at[0], height - bars // 3), _FONT, scale, _WHITE, 1, cv2.LINE_AA)
        return out
    middle, half = height - bars // 2 - 1, bars // 2 - 1
    slot = width / max(1, len(action))
    for i, value in enumerate(np.clip(action, -1, 1)):
        left, right = round(i * slot + 0.15 * slot), round((i + 1) * slot - 0.15 * slot)
        end = middle - round(float(value) * half)
        cv2.rectangle(out, (left, middle), (max(left, right), end), _UP if value >= 0 else _DOWN, -1)
    cv2.line(out, (0, middle), (width - 1, middle), _WHITE, 1)
    return out


def caption(frame: np.ndarray, name: str, total: float) -> np.ndarray:
    """Return a copy of a frame, uint8 [H, W, 3], with a task's name and the return so far at the top."""
    out = frame.copy()
    height, width = out.shape[:2]
    top = max(14, height // 9)
    out[:top] = (out[:top] * _SHADE).astype(np.uint8)
    text = f"{name.rpartition(':')[2]} {total:.0f}"
    scale = min(top / 34, (width - 6) / cv2.getTextSize(text, _FONT, 1.0, 1)[0][0])
    cv2.putText(out, text, (3, round(top * 0.7)), _FONT, scale, _WHITE, 1, cv2.LINE_AA)
    return out


def cell_size(render_size: int, number: int) -> int:
    """Return the side of each of a number of pictures in a grid, at most `render_size`; a grid is twice as wide."""
    columns = math.ceil(math.sqrt(number))
    return min(render_size, max(64, 2 * render_size // columns) // 2 * 2)


def alike(frames: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return frames, uint8 [H, W, 3] or [H, W, 1], of one shape: below and beside smaller ones, black; grey as RGB."""
    height, width, channels = (max(frame.shape[axis] for frame in frames) for axis in range(3))
    made = []
    for frame in frames:
        picture = np.zeros((height, width, channels), np.uint8)
        picture[: frame.shape[0], : frame.shape[1]] = frame  # one channel for all
        made.append(picture)
    return made


def grid(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Tile frames of one shape, uint8 [H, W, C], into a nearly square grid; empty cells are black."""
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    cells = [*frames, *[np.zeros_like(frames[0])] * (rows * columns - len(frames))]
    return np.vstack([np.hstack(cells[row * columns : (row + 1) * columns]) for row in range(rows)])
