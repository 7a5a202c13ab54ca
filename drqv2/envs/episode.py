"""Numbered episodes: each is seeded by its number, and its state is that number and the actions so far."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import numpy as np
from dm_env import specs

from drqv2.envs.cameras import Camera, PhysicsCamera
from drqv2.envs.checks import CheckedEnvironment, explained
from drqv2.envs.notices import notice
from drqv2.envs.observed import Seen
from drqv2.envs.render import require_backend
from drqv2.envs.wrappers import (
    ActionDTypeWrapper,
    ActionRepeatWrapper,
    ActionScaleWrapper,
    ExtendedTimeStep,
    ExtendedTimeStepWrapper,
    ObservedWrapper,
    Wrapper,
)
from drqv2.errors import EnvError, UserError
from drqv2.seeds import EVAL_ENV, spawn_seed

LONG_EPISODE = 10_000  # agent steps
IF_LONG = "max_episode_steps=N truncates episodes."
_ACTORS = 1_000_000  # from here on, an index is a spawned seed of an actor's


def _reseed(bits: np.random.BitGenerator, seed: int) -> None:
    bits.state = type(bits)(seed).state


def find_seeder(env: Any) -> Callable[[int], Any] | None:
    """Return the function that seeds what `env` draws at its next reset; None if none is known.

    Known are a method `seed(int)`, and a numpy generator named `random_state` (dm_control's composer) or
    `task.random` (its suite), in `env` or in the environment it wraps (`_env`, `_environment`).
    """
    while env is not None:
        if callable(getattr(env, "seed", None)):
            seed_method: Callable[[int], Any] = env.seed
            return seed_method
        for generator in (getattr(env, "random_state", None), getattr(getattr(env, "task", None), "random", None)):
            if isinstance(generator, np.random.RandomState):
                return generator.seed
            if isinstance(generator, np.random.Generator):
                return functools.partial(_reseed, generator.bit_generator)
        env = getattr(env, "_env", None) or getattr(env, "_environment", None)
    return None


def episode_state(index: int, episode: int, actions: Sequence[np.ndarray], action_spec: Any) -> dict[str, Any]:
    """Return {"index": int, "episode": int, "actions": tensor [t, *action shape] of the episode so far}."""
    import torch  # only here: an environment's process does not call this, and torch takes 150 MB

    stacked = np.stack(actions) if actions else np.zeros((0, *action_spec.shape), action_spec.dtype)
    return {"index": index, "episode": episode, "actions": torch.from_numpy(stacked)}


class Environment(Wrapper):
    """What `make` returns: a dm_env.Environment of ExtendedTimeStep whose episodes are numbered.

    Episode e of environment i is seeded from (seed, stream, i, e), whatever was played before, so (i, e, actions so
    far) is the environment's whole state: `state` and `restore`.

    Args:
        env: the control environment; its actions are one vector between finite bounds, or (several) discrete ones.
        seen: what the agent sees of its observation.
        make_cameras: makes the cameras of the images that the agent sees, at once; where it sees none, one for videos,
            at the first `render`.
        frame_stack: frames in one observation of an image.
        action_repeat: environment frames in one agent step.
        seed: the run's seed.
        stream: the stream of random numbers (drqv2.utils).
        index: the environment's number i.
        name: of the environment, for messages.
        max_episode_steps: agent steps after which an episode is truncated, to be bootstrapped; None: the environment's
            own limit alone.
        long_episode: agent steps after which a notice reports an episode without an end, if there is no such limit.
        if_long: the last sentence of that notice.

    Attributes:
        index: number i of this environment.
        episode: number e of the current episode; -1 before the first reset.
        step_seconds: simulated seconds in one agent step; None when unknown.
    """

    def __init__(
        self,
        env: dm_env.Environment,
        seen: Seen,
        make_cameras: Callable[[], Sequence[Camera]],
        frame_stack: int,
        action_repeat: int,
        seed: int,
        stream: int,
        index: int,
        name: str = "",
        max_episode_steps: int | None = None,
        long_episode: int = LONG_EPISODE,
        if_long: str = IF_LONG,
    ) -> None:
        self._base: Any = env
        self.name = name or type(env).__name__
        self._make_cameras = make_cameras
        discrete = np.issubdtype(env.action_spec().dtype, np.integer)
        self._checked = CheckedEnvironment(env, self.name)
        typed = ActionDTypeWrapper(self._checked, np.int64 if discrete else np.float32)
        acting: Wrapper = ActionRepeatWrapper(typed, action_repeat)
        if not discrete:
            acting = ActionScaleWrapper(acting)
        self._draws = bool(seen.images)
        self._observing = ObservedWrapper(acting, seen, self._cameras if self._draws else (), frame_stack)
        seen.tell(self.name, self._observing.observation_spec(), getattr(env, "left_out", {}))
        super().__init__(ExtendedTimeStepWrapper(self._observing))
        spec = self.action_spec()  # continuous actions out of bounds are clipped, not refused
        self._accepted: specs.Array = spec if discrete else specs.Array(spec.shape, spec.dtype, "action")
        self._others: dict[int | str, PhysicsCamera] = {}  # other cameras, for videos
        with explained(f"{self.name}: control_timestep()"):
            seconds = getattr(env, "control_timestep", lambda: None)()
        self.step_seconds = None if seconds is None else float(seconds) * action_repeat
        self.index = index
        self.episode = -1
        self._frame_stack = frame_stack if self._draws else 0
        self._seed = (seed, stream)
        self._seeder = find_seeder(env)
        if self._seeder is None:
            notice(
                f"{type(env).__name__} cannot be seeded: it has neither seed(int) nor a generator random_state or "
                "task.random. Its episodes may differ from run to run, and a resumed run cannot return to where it was."
            )
        self._max_steps, self._long_episode, self._if_long = max_episode_steps, long_episode, if_long
        self._played = 0  # actions of the current episode that a `restore` plays again
        self._actions: list[np.ndarray] = []
        self._over = True

    @functools.cached_property
    def _cameras(self) -> Sequence[Camera]:
        return self._make_cameras()

    def reset(self) -> ExtendedTimeStep:
        """Start the next episode; the first is number 0."""
        return self.begin(self.index, self.episode + 1)

    def begin(self, index: int, episode: int) -> ExtendedTimeStep:
        """Start episode `episode` of environment `index` and become that environment.

        Raises:
            UserError: there is no OpenGL for pixels.
        """
        if self._draws and hasattr(self._base, "physics"):
            require_backend()  # only now, see `make`
        self.index, self.episode, self._over = int(index), int(episode), False
        self._actions, self._played = [], 0
        place = "an actor's environment" if index >= _ACTORS else f"environment {index}"
        if self._seed[1] == EVAL_ENV:
            place = f"evaluation {index}" if index < _ACTORS else "the evaluation"  # eval.py's have no index
        self._checked.episode = f"episode {episode} of {place}"
        if self._seeder is not None:
            with explained(f"{self.name}: its seeding"):
                self._seeder(spawn_seed(*self._seed, self.index, self.episode))
        time_step: ExtendedTimeStep = self._env.reset()
        return time_step

    def step(self, action: Any) -> ExtendedTimeStep:
        """Take one agent step; after an episode's last, start the next episode instead.

        Args:
            action: [A], cast to float32; or a discrete action, cast to int64, [] or [A] of several.

        Raises:
            ValueError: the action's shape is not the spec's, or a discrete action is out of range.
        """
        if self._over:
            return self.reset()
        action = np.array(action, self._accepted.dtype)
        self._accepted.validate(action)
        self._actions.append(action)
        time_step: ExtendedTimeStep = self._env.step(action)
        steps = len(self._actions)
        if self._max_steps is not None:
            if steps >= max(self._max_steps, self._played) and not time_step.last():
                time_step = time_step._replace(step_type=dm_env.StepType.LAST)
        elif steps == self._long_episode and steps > self._played and not time_step.last():
            notice(f"{self.name}: an episode has not ended after {steps} agent steps. {self._if_long}")
        self._over = time_step.last()
        return time_step

    def own_action_spec(self) -> specs.Array:
        """Return the spec of the actions that the environment itself takes; `step` maps its own to these."""
        spec: specs.Array = getattr(self._base, "own_action_spec", self._base.action_spec)()
        return spec

    def state(self) -> dict[str, Any]:
        """Return the whole state, which `restore` takes; see `episode_state`."""
        return episode_state(self.index, self.episode, self._actions, self.action_spec())

    def progress(self) -> tuple[int, int, int, list[np.ndarray]]:
        """Return what a step may change: index, episode, number of actions so far, and the last of them, if any."""
        return self.index, self.episode, len(self._actions), self._actions[-1:]

    def restore(self, state: dict[str, Any]) -> ExtendedTimeStep:
        """Return to `state` by playing its episode again; return the time step of that state.

        Only the frames that the last observation shows are rendered.

        Args:
            state: from `state()` of an environment made with the same arguments.

        Raises:
            UserError: the episode ends before the actions do, so it is a different one.
        """
        actions = np.asarray(state["actions"], self.action_spec().dtype)
        unseen = len(actions) - self._frame_stack  # frames up to this one are not in the last observation
        try:
            self._observing.drawing = unseen < 0
            time_step = self.begin(state["index"], state["episode"])
            self._played = len(actions)  # where max_episode_steps is lower than before, the last of them is the end
            for t, action in enumerate(actions):
                if self._over:
                    raise UserError(
                        f"episode {self.episode} ends after {t} of the {len(actions)} steps that were played: the "
                        "task, action_repeat or seed has changed, or the environment cannot be seeded"
                    )
                self._observing.drawing = t >= unseen
                time_step = self.step(action)
        finally:
            self._observing.drawing = True
        return time_step

    def render(self, height: int, width: int, camera: int | str | None = None) -> np.ndarray:
        """Return the current frame, uint8 [height, width, 3].

        Args:
            height: of the picture, pixels.
            width: of the picture, pixels.
            camera: MuJoCo camera, number or name; None for the environment's own, of several the first.

        Raises:
            UserError: there is no such camera, or the environment renders nothing.
        """
        if camera is None:
            return np.ascontiguousarray(self._cameras[0].render(height, width))
        if not hasattr(self._base, "physics"):
            raise UserError(f"camera={camera}: {type(self._base).__name__} is not a MuJoCo simulation")
        if camera not in self._others:
            self._others[camera] = PhysicsCamera(self._base, max(height, width), camera)
        return self._others[camera].render(height, width)

    def close(self) -> None:
        """Free the simulation and its OpenGL context; the environment cannot be used afterwards."""
        if self._base is None:
            return
        physics = getattr(self._base, "physics", None)
        # dm_control's suite does not free its physics; its composer returns a proxy and frees the physics itself.
        leftover: Any = None if isinstance(physics, weakref.ProxyType) else physics
        try:
            with explained(f"{self.name}: close()"):
                self._base.close()
        except EnvError as error:  # the run's results are not affected
            notice(str(error))
        if hasattr(leftover, "free"):
            leftover.free()
        self._base = None
