"""The environment: action repeat, dm_control's pixels wrapper, frame stack."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import dm_env
import numpy as np
from dm_control import manipulation, suite
from dm_control.suite.wrappers import action_scale, pixels

SIZE, STACK, REPEAT = 84, 3, 2
EPISODE = 100  # frames per short episode


class ActionRepeat(dm_env.Environment):
    """Repeats each action REPEAT times and sums the rewards."""

    def __init__(self, env: Any) -> None:
        self._env = env

    @property
    def physics(self) -> Any:
        """The simulation; dm_control's composer creates a new one at every reset."""
        return self._env.physics

    def reset(self) -> dm_env.TimeStep:
        """Start an episode."""
        return self._env.reset()

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Take the action REPEAT times."""
        reward = 0.0
        for _ in range(REPEAT):
            time_step = self._env.step(action)
            reward += time_step.reward or 0.0
            if time_step.last():
                break
        return time_step._replace(reward=reward)

    def observation_spec(self) -> Any:
        """Return the observation spec."""
        return self._env.observation_spec()

    def action_spec(self) -> Any:
        """Return the action spec."""
        return self._env.action_spec()


class FrameStack:
    """Stacks the latest STACK images along the channels, uint8 [3 * STACK, H, W].

    Args:
        env: environment whose observations contain `pixels`.
        base: the unwrapped dm_control environment.
    """

    def __init__(self, env: Any, base: Any) -> None:
        self._env = env
        self._base = base
        self._frames: deque[np.ndarray] = deque(maxlen=STACK)
        self.action_spec = env.action_spec

    def reset(self) -> dm_env.TimeStep:
        """Start an episode."""
        time_step = self._env.reset()
        for _ in range(STACK):
            self._add(time_step)
        return time_step._replace(observation=np.concatenate(self._frames))

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """Take one agent step."""
        time_step = self._env.step(action)
        self._add(time_step)
        return time_step._replace(observation=np.concatenate(self._frames))

    def close(self) -> None:
        """Free the simulation and its OpenGL context."""
        free(self._base)

    def _add(self, time_step: dm_env.TimeStep) -> None:
        self._frames.append(time_step.observation["pixels"].transpose(2, 0, 1).copy())


def load(task: str, seed: int) -> tuple[Any, int | str]:
    """Return dm_control's environment for one of the paper's tasks, and its camera."""
    if task == "reach_duplo":
        env = manipulation.load("reach_duplo_vision", seed=seed)
        for observable in env.task.observables.values():
            observable.enabled = False  # otherwise its camera renders in every repeat
        return env, "front_close"
    domain, name = task.split("_", 1)
    env = suite.load({"cup": "ball_in_cup"}.get(domain, domain), name, task_kwargs={"random": seed})
    return env, 2 if domain == "quadruped" else 0


def free(env: Any) -> None:
    """Free the simulation of a dm_control environment, which the suite's `close` does not do."""
    physics = env.physics
    env.close()
    if not isinstance(physics, weakref.ProxyType):
        physics.free()


def wrap(env: Any, camera: int | str) -> FrameStack:
    """Wrap `env` for the agent: actions in [-1, 1], stacked images of SIZE pixels."""
    scaled = action_scale.Wrapper(ActionRepeat(env), minimum=-1.0, maximum=1.0)
    render = {"height": SIZE, "width": SIZE, "camera_id": camera}
    return FrameStack(pixels.Wrapper(scaled, pixels_only=True, render_kwargs=render), env)


def make(task: str, seed: int) -> FrameStack:
    """Return one of the paper's tasks, wrapped."""
    return wrap(*load(task, seed))


def short_cartpole() -> Any:
    """Return cartpole_balance_sparse with short episodes of EPISODE frames (0.01 s each)."""
    return suite.load("cartpole", "balance_sparse", task_kwargs={"time_limit": EPISODE * 0.01, "random": 1})
