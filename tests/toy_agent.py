"""An agent that has what a test gives it, and does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from drqv2.agents.protocol import Agent


class ToyAgent(SimpleNamespace, Agent):
    """Its attributes are the arguments."""

    def train(self, training: bool = True) -> None: ...

    def act(self, obs: np.ndarray, step: int, eval_mode: bool) -> np.ndarray:
        return np.zeros(1, np.float32)

    def update(self, replay_iter: Iterator[Any], step: int) -> dict[str, Any]:
        return {}
