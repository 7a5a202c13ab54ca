"""This project's environments for other libraries: `gymnasium.make("drqv2/cheetah_run-v0")`.

    import gymnasium
    import drqv2.envs.as_gymnasium  # registers the tasks

    env = gymnasium.make("drqv2/cheetah_run-v0")
    env = gymnasium.make("drqv2/cheetah_run-v0", obs_type="state")
    env = gymnasium.make("drqv2/env-v0", task="envpool:Pong-v5", frame_stack=1, action_repeat=1)

`gymnasium.make("drqv2.envs.as_gymnasium:drqv2/cheetah_run-v0")` needs no import: for programs that only take a name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from drqv2.config.dm_control import every_task
from drqv2.envs import libraries
from drqv2.envs.make_env import make
from drqv2.errors import UserError
from drqv2.parts import each

Info = dict[str, Any]


class DrQV2Env(gymnasium.Env[Any, Any]):
    """A task as an agent of this project sees it: stacked images, a state vector, or a dict of both; repeated actions.

    A reset with a seed begins the same episode each time; without one, each reset begins another episode of the
    environment that the last seed named.

    Args:
        task: dm_control's, such as cheetah_run; or another library's, such as gymnasium:CartPole-v1.
        obs_type: "pixels", observations uint8 [frame_stack * C, image_size, image_size], newest image last; "state",
            float32 [N]; or "pixels+state", a dict of such parts.
        image_size: height and width, pixels.
        frame_stack: images in one observation.
        action_repeat: environment frames in one step; the reward is their sum.
        channels_last: images as [H, W, frame_stack * C].
        camera: MuJoCo camera, number or name; None for the task's own.
        cameras: several of them instead, of which the observation is a dict.
        render: "exact", "fast" or "rgb_array", see `drqv2.envs.make`.
        image_key, channels: of another library's images, see `drqv2.envs.make`.
        observation_parts: names of the only parts of a dict that are seen; None: all.
        episode_steps: truncate episodes after this many steps, in place of the task's own limit.
        options: arguments of the task, or of the other library's own `make`.
        render_mode: "rgb_array", or None.
        render_size: height and width of what `render()` returns, pixels.

    Attributes:
        arguments: all of the above on which the episodes depend.

    Raises:
        UserError: there is no such task, camera or `render_mode`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 (gymnasium's own form)

    def __init__(
        self,
        task: str,
        obs_type: str = "pixels",
        image_size: int = 84,
        frame_stack: int = 3,
        action_repeat: int = 2,
        channels_last: bool = False,
        camera: int | str | None = None,
        cameras: Sequence[int | str] | None = None,
        render: str = "exact",
        image_key: str | None = None,
        channels: str = "auto",
        observation_parts: Sequence[str] | None = None,
        episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
        render_size: int = 256,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UserError(f"render_mode={render_mode!r}: must be 'rgb_array' or None")
        seen: dict[str, Any] = {"obs_type": obs_type, "image_size": image_size, "camera": camera, "render": render}
        seen |= {
            "image_key": image_key,
            "channels": channels,
            "cameras": cameras,
            "observation_parts": observation_parts,
        }
        own: dict[str, Any] = {"options": options}
        if ":" in task:
            frames = None if episode_steps is None else episode_steps * action_repeat
            own = {"factory": libraries.factory(task, libraries.of_length(task, options or {}, frames))}
        self._env = make(task, frame_stack, action_repeat, 0, **seen, **own, max_episode_steps=episode_steps)
        self.arguments = seen | {"task": task, "frame_stack": frame_stack, "action_repeat": action_repeat}
        self.arguments |= {"channels_last": channels_last, "episode_steps": episode_steps, "options": options}
        self.render_mode, self._render_size = render_mode, render_size
        self._channels_last = channels_last
        if self._env.step_seconds:
            self.metadata = self.metadata | {"render_fps": round(1 / self._env.step_seconds)}
        found = each(self._box, self._env.observation_spec())
        self.observation_space = spaces.Dict(found) if isinstance(found, dict) else found
        self.action_space = _space(self._env.action_spec())
        self._seeded = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin an episode: the first of the environment that `seed` names, or else the next.

        Raises:
            UserError: there is no OpenGL to render with.
        """
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            time_step = self._env.begin(int(self.np_random.integers(2**31)), 0)
            self._seeded = True
        else:
            time_step = self._env.reset()
        return self._shown(time_step), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Hold an action, float32 [A] in [-1, 1] or discrete, for action_repeat frames.

        Returns:
            Observation, reward, whether a terminal state was reached, whether the time is up, and info, with `success`
            where the task reports it.
        """
        time_step = self._env.step(action)
        terminated = time_step.last() and time_step.discount == 0.0
        info = {} if time_step.success is None else {"success": time_step.success}
        return self._shown(time_step), time_step.reward, terminated, time_step.last() and not terminated, info

    def render(self) -> np.ndarray | None:
        """Return the current picture, uint8 [render_size, render_size, 3], if `render_mode` is "rgb_array"."""
        return None if self.render_mode is None else self._env.render(self._render_size, self._render_size)

    def close(self) -> None:
        """Free the simulation."""
        self._env.close()

    def _box(self, spec: specs.Array) -> spaces.Box:
        if len(spec.shape) == 1:
            return spaces.Box(-np.inf, np.inf, spec.shape, spec.dtype)
        shape = (*spec.shape[1:], spec.shape[0]) if self._channels_last else spec.shape
        return spaces.Box(0, 255, shape, spec.dtype)

    def _shown(self, time_step: Any) -> Any:
        return each(self._moved, time_step.observation) if self._channels_last else time_step.observation

    @staticmethod
    def _moved(part: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(part.transpose(1, 2, 0)) if part.ndim == 3 else part


def _space(spec: Any) -> spaces.Space[Any]:
    """Return the space of actions with a spec: a vector in [-1, 1], or (several) discrete ones from 0."""
    if isinstance(spec, specs.DiscreteArray):
        return spaces.Discrete(spec.num_values)
    if np.issubdtype(spec.dtype, np.integer):
        return spaces.MultiDiscrete(np.broadcast_to(spec.maximum, spec.shape) + 1)
    return spaces.Box(-1.0, 1.0, spec.shape, np.float32)


_ENTRY = f"{__name__}:{DrQV2Env.__name__}"
gymnasium.register("drqv2/env-v0", _ENTRY)
for _task in every_task():
    gymnasium.register(f"drqv2/{_task}-v0", _ENTRY, kwargs={"task": _task})
