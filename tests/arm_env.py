"""The dot of `dot_env`, seen by two cameras and two sensors, in no order: its observation is a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_env import specs

from tests.dot_env import Dot


class Arm(Dot):
    """Its observation also has where the dot is, and how far from the middle."""

    def _image(self) -> Any:
        pixels = super()._image()
        place = np.array([self._at, abs(self._at)], np.float32)
        return {"zone": place[1:], "wrist": pixels[::-1, :, :1], "pixels": pixels, "arm": place}

    def observation_spec(self) -> Any:
        image, size = super().observation_spec(), self._size
        grey = specs.BoundedArray((size, size, 1), np.uint8, 0, 255, "wrist")
        vectors = {name: specs.Array((n,), np.float32, name) for name, n in (("zone", 1), ("arm", 2))}
        return {"zone": vectors["zone"], "wrist": grey, "pixels": image, "arm": vectors["arm"]}


def make(image_size: int) -> Arm:
    return Arm(image_size)
