"""Small environments, each of which does one thing other than it declared, or in an unusual way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

LENGTH = 6  # steps of an episode


class Plain(gymnasium.Env[Any, Any]):
    """Does what it declares: a vector of three floats, the number of the step."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self) -> None:
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.t = 0

    def observe(self) -> Any:
        return np.full(3, self.t, np.float32)

    def reward(self) -> Any:
        return 1.0

    def info(self) -> Any:
        return {}

    def over(self) -> Any:
        return self.t == LENGTH

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), self.reward(), self.over(), False, self.info()


def observes(value: Callable[[int], Any], space: Any = None) -> type[Plain]:
    """Return a kind of environment that observes `value(step)`."""

    class Observes(Plain):
        observation_space = Plain.observation_space if space is None else space

        def observe(self) -> Any:
            return value(self.t)

    return Observes


def rewards(value: Any) -> type[Plain]:
    """Return a kind of environment whose rewards are `value`."""

    class Rewards(Plain):
        def reward(self) -> Any:
            return value

    return Rewards


def informs(info: Any) -> type[Plain]:
    """Return a kind of environment whose steps return `info`."""

    class Informs(Plain):
        def info(self) -> Any:
            return info

    return Informs


def ends(flag: Any) -> type[Plain]:
    """Return a kind of environment whose steps return `flag` as terminated."""

    class Ends(Plain):
        def over(self) -> Any:
            return flag

    return Ends


def three(value: Any, step: int = 3) -> Callable[[int], Any]:
    """Return an observation that is `value` from a step on."""
    return lambda t: value if t >= step else np.zeros(3, np.float32)


def image(step: int, *shape: int) -> np.ndarray:
    """Return an image full of the number of the step."""
    return np.full(shape or (8, 8, 3), step, np.uint8)


IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
BOTH = spaces.Dict({"a": Plain.observation_space, "b": Plain.observation_space})


class NoSeed(Plain):
    def reset(self) -> Any:  # type: ignore[override] # that is its fault
        return self.observe(), {}


class OnlyObservation(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observe()


class FourValues(Plain):
    def step(self, action: Any) -> Any:
        return self.observe(), 1.0, False, {}


class Divides(Plain):
    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), 1 / (3 - self.t), False, False, {}


class FailsInside(Plain):
    """Its error comes from a library that its own code calls."""

    def observe(self) -> Any:
        return np.concatenate([np.zeros(3)] if self.t < 2 else [])


class Exits(Plain):
    def step(self, action: Any) -> Any:
        if self.t == 1:
            sys.exit(0)
        return super().step(action)


class FailsAtReset(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise KeyError("level\nof two lines")


class FailsAtOnce(Plain):
    def __init__(self) -> None:
        super().__init__()
        raise FileNotFoundError(2, "No such file or directory", "level.xml")


class FailsToSeed(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=f"seed {seed}")  # type: ignore[arg-type] # that is its fault


class FailsToClose(Plain):
    def close(self) -> None:
        raise ConnectionError("the simulator is gone")


class NaNLater(Plain):
    """Its observation is NaN at step 4 of its third episode and later, unless it is `repaired`."""

    episodes = 0

    def __init__(self, repaired: bool = False) -> None:
        super().__init__()
        self.repaired = repaired

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def observe(self) -> Any:
        bad = self.episodes >= 3 and self.t == 4 and not self.repaired
        return np.array([self.t, np.nan if bad else 0.0, 1.0], np.float32)


class TurnsGrey(Plain):
    observation_space = spaces.Box(0, 255, (84, 84, 3), np.uint8)

    def observe(self) -> Any:
        return image(self.t, 84, 84, 3) / np.float32(255) if self.t >= 3 else image(self.t, 84, 84, 3)


class Endless(Plain):
    def over(self) -> Any:
        return False


class Machine(dm_env.Environment):
    """A dm_env of two numbers; `script` maps a step to the time step that it returns in place of a plain one."""

    def __init__(self, script: Callable[[int], Any] = lambda t: None) -> None:
        self.script, self.t = script, 0

    def seed(self, seed: int) -> None:
        """Its episodes are all alike."""

    def reset(self) -> Any:
        self.t = 0
        scripted = self.script(0)
        return dm_env.restart(np.zeros(2)) if scripted is None else scripted

    def step(self, action: Any) -> Any:
        self.t += 1
        scripted = self.script(self.t)
        plain = (dm_env.termination if self.t == LENGTH else dm_env.transition)(1.0, np.zeros(2))
        return plain if scripted is None else scripted

    def observation_spec(self) -> Any:
        return specs.Array((2,), np.float64, "observation")

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float64, -1.0, 1.0)


def machine(step: int, time_step: Any) -> Callable[[], Machine]:
    """Return what makes a `Machine` that returns `time_step` at a step."""
    return lambda: Machine(lambda t: time_step if t == step else None)
