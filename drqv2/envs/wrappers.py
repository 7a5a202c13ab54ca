"""Wrappers from a control environment to stacked pixels, a state vector, or both; one idea each, innermost first."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
from dm_env import StepType, TimeStep, specs

from drqv2.envs.cameras import Camera
from drqv2.envs.info import mean_of
from drqv2.envs.observed import Seen


class ExtendedTimeStep(NamedTuple):
    """A time step that also holds the action which led to it. Fields are attributes and items: `ts["action"]`.

    Attributes:
        step_type: FIRST, MID or LAST.
        reward: summed over the repeats of the action; 0.0 at FIRST.
        discount: 0.0 at a true end; 1.0 at a time-out and everywhere else.
        observation: uint8 [frame_stack * C, H, W], newest last; or the state, float32 [N]; or a dict of such parts.
        action: float32 [A] in [-1, 1], or a discrete one, int64 []; zero at FIRST.
        task: index of the task among those of the run; 0 where there is one.
        success: 1.0 if the step reached the task's goal, 0.0 if not, None where the environment does not report it.
        info: numbers in the `info` of a Gymnasium environment, mean over the repeats of the action; None without any.
    """

    step_type: Any
    reward: Any
    discount: Any
    observation: Any
    action: Any
    task: int = 0
    success: float | None = None
    info: Mapping[str, float] | None = None

    def first(self) -> bool:
        return bool(self.step_type == StepType.FIRST)

    def mid(self) -> bool:
        return bool(self.step_type == StepType.MID)

    def last(self) -> bool:
        return bool(self.step_type == StepType.LAST)

    def __getitem__(self, key: Any) -> Any:
        return getattr(self, key) if isinstance(key, str) else tuple.__getitem__(self, key)


class Wrapper(dm_env.Environment):
    """Passes everything on to `env`; attributes that it lacks are looked up there."""

    def __init__(self, env: dm_env.Environment) -> None:
        self._env = env

    def reset(self) -> TimeStep:
        return self._env.reset()

    def step(self, action: Any) -> TimeStep:
        return self._env.step(action)

    def observation_spec(self) -> Any:
        return self._env.observation_spec()

    def action_spec(self) -> Any:
        return self._env.action_spec()

    def close(self) -> None:
        self._env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_env":  # not there yet while unpickling
            raise AttributeError(name)
        return getattr(self._env, name)


class ActionDTypeWrapper(Wrapper):
    """Takes actions of another dtype and casts them to the environment's own, inside its bounds.

    Args:
        env: its action spec is a BoundedArray or DiscreteArray.
        dtype: of the actions taken.
    """

    def __init__(self, env: dm_env.Environment, dtype: Any) -> None:
        super().__init__(env)
        spec = self._inner_spec = env.action_spec()
        self._action_spec: specs.BoundedArray = (
            specs.DiscreteArray(spec.num_values, dtype, "action")
            if isinstance(spec, specs.DiscreteArray)
            else specs.BoundedArray(spec.shape, dtype, spec.minimum, spec.maximum, "action")
        )

    def step(self, action: Any) -> TimeStep:
        spec = self._inner_spec
        # Clipped after the cast: float32(0.1) lies above 0.1.
        return self._env.step(np.clip(np.asarray(action).astype(spec.dtype), spec.minimum, spec.maximum))

    def action_spec(self) -> specs.BoundedArray:
        return self._action_spec


class ActionRepeatWrapper(Wrapper):
    """Takes each action several times; the reward is the discounted sum and stops at an episode's end.

    Args:
        env: the environment.
        num_repeats: environment steps (frames) in one agent step.

    Attributes:
        success: 1.0 if one of these frames was a success, where the environment has a `success`; else None.
        info_numbers: means over these frames of `info_numbers`, where the environment has such; else None.
    """

    def __init__(self, env: dm_env.Environment, num_repeats: int) -> None:
        super().__init__(env)
        self._num_repeats = num_repeats
        self.success: float | None = None
        self.info_numbers: Mapping[str, float] | None = None
        self._has_info = hasattr(env, "info_numbers")

    def step(self, action: Any) -> TimeStep:
        reward, discount = 0.0, 1.0
        self.success = self.info_numbers = None
        frames: list[Mapping[str, float]] = []
        for _ in range(self._num_repeats):
            time_step = self._env.step(action)
            if time_step.first():  # the episode was over: a step begins the next one
                return time_step
            if (success := getattr(self._env, "success", None)) is not None:
                self.success = max(success, self.success or 0.0)
            if self._has_info and (numbers := self._env.info_numbers):
                frames.append(numbers)
            reward += discount * (time_step.reward or 0.0)
            discount *= 1.0 if time_step.discount is None else time_step.discount
            if time_step.last():
                break
        self.info_numbers = mean_of(frames) if frames else None
        return time_step._replace(reward=reward, discount=discount)


class ActionScaleWrapper(Wrapper):
    """Maps actions in [-1, 1] linearly onto the environment's bounds.

    Computed in float64; the spec keeps the dtype it had.

    Args:
        env: its action spec is a BoundedArray with finite bounds.
    """

    def __init__(self, env: dm_env.Environment) -> None:
        super().__init__(env)
        spec = env.action_spec()
        self._low = np.broadcast_to(spec.minimum, spec.shape).astype(np.float64)
        self._high = np.broadcast_to(spec.maximum, spec.shape).astype(np.float64)
        self._dtype = spec.dtype
        self._action_spec = specs.BoundedArray(spec.shape, spec.dtype, -1.0, 1.0, "action")

    def step(self, action: Any) -> TimeStep:
        share = (np.asarray(action, np.float64) + 1.0) * 0.5
        return self._env.step((self._low + share * (self._high - self._low)).astype(self._dtype))

    def action_spec(self) -> specs.BoundedArray:
        return self._action_spec


class _ObservationWrapper(Wrapper):
    """Replaces the observation by what `_observe` makes of the time step, as `_observation_spec` describes."""

    _observation_spec: Any

    def _observe(self, time_step: TimeStep) -> Any:
        raise NotImplementedError

    def _replaced(self, time_step: TimeStep) -> TimeStep:
        return time_step._replace(observation=self._observe(time_step))

    def reset(self) -> TimeStep:
        return self._replaced(self._env.reset())

    def step(self, action: Any) -> TimeStep:
        return self._replaced(self._env.step(action))

    def observation_spec(self) -> Any:
        return self._observation_spec


class ObservedWrapper(_ObservationWrapper):
    """Replaces the observation by what the agent sees of it: stacked images and vectors, or the only one of them.

    Args:
        env: its observation is an array or a mapping of arrays and numbers.
        seen: what the agent sees.
        cameras: give the images of a time step, in the order of `seen.images`.
        num_frames: stacked into one observation of an image.

    Attributes:
        drawing: while False, nothing is rendered and images are black: for replayed steps whose frames are not seen.
    """

    def __init__(self, env: dm_env.Environment, seen: Seen, cameras: Sequence[Camera], num_frames: int) -> None:
        super().__init__(env)
        self.drawing = True
        self._seen = seen
        self._cameras = {name: (camera, Frames(num_frames)) for name, camera in zip(seen.images, cameras, strict=True)}
        shapes = {name: camera.shape for name, (camera, _) in self._cameras.items()}
        self._observation_spec = seen.spec(shapes, num_frames)

    def _observe(self, time_step: TimeStep) -> Any:
        parts = {}
        for name, (camera, frames) in self._cameras.items():
            image = camera(time_step) if self.drawing else np.zeros(camera.shape, np.uint8)
            parts[name] = frames.stacked(image, time_step.first())
        return self._seen.shown(parts | self._seen.joined(time_step.observation))


class Frames:
    """The latest images of an episode, which starts with copies of its first one.

    Args:
        number: how many.
    """

    def __init__(self, number: int) -> None:
        self._frames: deque[np.ndarray] = deque(maxlen=number)
        self._number = number

    def stacked(self, image: np.ndarray, first: bool) -> np.ndarray:
        """Add an image, uint8 [H, W, C], and return all of them, [number * C, H, W], newest last."""
        frame = image.reshape(image.shape[-3:]).transpose(2, 0, 1).copy()  # [C, H, W]
        self._frames.extend([frame] * (self._number if first else 1))
        return np.concatenate(self._frames)


class FrameStackWrapper(_ObservationWrapper):
    """Stacks the latest frames along the channels, for agents' files that import it from here.

    Args:
        env: its observation is a mapping with an image uint8 [H, W, C].
        num_frames: how many.
        pixels_key: the image's key.
    """

    def __init__(self, env: dm_env.Environment, num_frames: int, pixels_key: str = "pixels") -> None:
        super().__init__(env)
        self._frames, self._pixels_key = Frames(num_frames), pixels_key
        height, width, channels = env.observation_spec()[pixels_key].shape[-3:]
        self._observation_spec = specs.BoundedArray(
            (num_frames * channels, height, width), np.uint8, 0, 255, "observation"
        )

    def _observe(self, time_step: TimeStep) -> np.ndarray:
        return self._frames.stacked(time_step.observation[self._pixels_key], time_step.first())


class ExtendedTimeStepWrapper(Wrapper):
    """Yields ExtendedTimeStep: action and success are part of it, reward and discount are numbers at FIRST too."""

    def reset(self) -> ExtendedTimeStep:
        return self._extended(self._env.reset(), None)

    def step(self, action: Any) -> ExtendedTimeStep:
        return self._extended(self._env.step(action), action)

    def _extended(self, time_step: TimeStep, action: Any) -> ExtendedTimeStep:
        if action is None or time_step.first():
            spec = self.action_spec()
            action = np.zeros(spec.shape, spec.dtype)
        return ExtendedTimeStep(
            step_type=time_step.step_type,
            reward=0.0 if time_step.reward is None else float(time_step.reward),
            discount=1.0 if time_step.discount is None else float(time_step.discount),
            observation=time_step.observation,
            action=action,
            success=None if time_step.first() else getattr(self._env, "success", None),
            info=None if time_step.first() else getattr(self._env, "info_numbers", None),
        )
