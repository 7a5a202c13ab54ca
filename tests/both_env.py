"""An environment whose image and vector tell nothing alone: what to do is in both together."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 16  # of the image, pixels: the least that the encoder takes
STEPS = 20  # of an episode


class Both(gymnasium.Env):
    """The image shows a goal, red or green; the vector where the hand is, left or right of it.

    Towards a green goal, and away from a red one, is right: the action 0.5 to the right, -0.5 to the left. Which of the
    four there is, is drawn anew at each step. The reward is 1 less four times the squared error, so that the best
    return is `STEPS`, and 0 is the best mean for an agent that sees only one of the two. With `discrete`, the actions
    are 0 for left and 1 for right, and the reward is 1 or -1.
    """

    def __init__(self, discrete: bool = False) -> None:
        self.discrete = discrete
        image = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "hand": spaces.Box(-1.0, 1.0, (2,), np.float32)})
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.at = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        right = self.green * self.left
        reward = (
            (2.0 * int(action) - 1.0) * right if self.discrete else 1.0 - 4.0 * (float(action[0]) - 0.5 * right) ** 2
        )
        self.at += 1
        return self._observation(), reward, False, self.at == STEPS, {}

    def _observation(self) -> dict[str, np.ndarray]:
        self.green, self.left = (int(sign) for sign in self.np_random.choice([-1, 1], 2))
        image = np.zeros((SIDE, SIDE, 3), np.uint8)
        image[4:12, 4:12, 1 if self.green == 1 else 0] = 255
        return {"image": image, "hand": np.array([-self.left, self.np_random.uniform(-1, 1)], np.float32)}


class Mirrored(Both):
    """The same with what is right the other way round: another task."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return super().step(1 - int(action) if self.discrete else -np.asarray(action))


def make(discrete: bool = False) -> Both:
    """Return the environment."""
    return Both(discrete)


gymnasium.register("Both-v0", f"{__name__}:Both")
gymnasium.register("Mirrored-v0", f"{__name__}:Mirrored")
