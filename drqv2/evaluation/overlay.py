"""What is drawn on the pictures of an evaluation: return, step, action; and several episodes in a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np

_WHITE, _SHADE, _UP, _DOWN = (255, 255, 255), 0.45, (120, 220, 120), (250, 150, 90)
_FONT = cv2.FONT_HERSHEY_SIMPLEX


def label(picture: np.ndarray, episode: int, total: float, step: int, action: np.ndarray) -> np.ndarray:
    """Return a picture with its episode, return and step at the top, and a bar for each action at the bottom.

    Args:
        picture: uint8 [H, W, 3].
        episode: its number.
        total: return so far.
        step: agent steps so far.
        action: float32 [A] in [-1, 1]; bars go up from the middle for what is positive, down for the rest.

    Returns:
        uint8 [H, W, 3]; the same array is not changed.
    """
    out = picture.copy()
    height, width = out.shape[:2]
    scale, top = width / 520, max(12, width // 14)
    out[:top] = (out[:top] * _SHADE).astype(np.uint8)
    at = (max(2, width // 64), round(top * 0.75))
    cv2.putText(out, f"#{episode}  return {total:.1f}  step {step}", at, _FONT, scale, _WHITE, 1, cv2.LINE_AA)
    bars = max(10, height // 9)
    out[-bars:] = (out[-bars:] * _SHADE).astype(np.uint8)
    middle, half = height - bars // 2 - 1, bars // 2 - 1
    slot = width / max(1, len(action))
    for i, value in enumerate(np.clip(action, -1, 1)):
        left, right = round(i * slot + 0.15 * slot), round((i + 1) * slot - 0.15 * slot)
        end = middle - round(float(value) * half)
        cv2.rectangle(
            out, (left, min(middle, end)), (max(left, right), max(middle, end)), _UP if value >= 0 else _DOWN, -1
        )
    cv2.line(out, (0, middle), (width - 1, middle), _WHITE, 1)
    return out


def grid(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return pictures, uint8 [H, W, 3] each, side by side in rows as near a square as may be; free places are black."""
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    height, width, channels = pictures[0].shape
    out = np.zeros((rows * height, columns * width, channels), np.uint8)
    for i, picture in enumerate(pictures):
        row, column = divmod(i, columns)
        out[row * height : (row + 1) * height, column * width : (column + 1) * width] = picture
    return out
