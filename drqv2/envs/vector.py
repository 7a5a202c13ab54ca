"""Many environments stepped at once: one interface over processes, this process alone, and EnvPool.

An episode's last observation is part of the stream: the action chosen for it is ignored, and the step after it brings
the first observation of the next episode (`first`). Nothing of an episode is lost, and no observation is there twice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from drqv2.envs.episode import IF_LONG
from drqv2.envs.handles import EnvHandle
from drqv2.envs.images import named
from drqv2.envs.info import stacked
from drqv2.envs.notices import notice
from drqv2.envs.observed import parts_of
from drqv2.errors import EnvNotFiniteError
from drqv2.parts import each


class VectorStep(NamedTuple):
    """What came back from N environments.

    Attributes:
        observation: after the step, [N, ...], uint8 images or float32 vectors; or a dict of such parts.
        reward: of the step, float32 [N]; 0 where `first`.
        terminated: whether the step ended the episode for good, so that nothing follows, bool [N].
        truncated: whether the episode stops here although it could go on (a time limit), bool [N].
        first: whether `observation` starts an episode, so that the action before it was ignored, bool [N].
        env_index: number of the environment of each row, int64 [N].
        info: numbers in the `info` of the step by their keys, float64 [N], NaN where an environment has none; None
            without any.
    """

    observation: Any
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    first: np.ndarray
    env_index: np.ndarray
    info: Mapping[str, np.ndarray] | None = None


def require_finite(step: VectorStep, name: str) -> None:
    """Check the floats of a step of environments that check none of them.

    Args:
        step: of the environments.
        name: of the environments, for the message.

    Raises:
        EnvNotFiniteError: an observation or a reward is NaN or infinite.
    """
    reward, parts = step.reward, parts_of(step.observation)
    # The sum of squares is the fastest test; that of large numbers is infinite, too.
    floats = [part for part in parts.values() if part.dtype.kind == "f"]
    if math.isfinite(np.vdot(reward, reward) + sum(np.vdot(part, part) for part in floats)):
        return
    is_dict = isinstance(step.observation, Mapping)
    checked = [(named(key if is_dict else None), part) for key, part in parts.items()]
    for what, values in (*checked, ("the reward", reward)):
        if values.dtype.kind != "f" or (finite := np.isfinite(values)).all():
            continue
        row, *where = (int(i) for i in np.argwhere(~finite)[0])
        at = f" at {where}" if where else ""
        raise EnvNotFiniteError(f"{name}, environment {step.env_index[row]}: {what} is {values[(row, *where)]}{at}")


class VectorEnv(ABC):
    """N environments: `reset`, then either `step`, or `send` and `recv` with other work between them.

    Args:
        num_envs: N.
        observation_spec: of one environment.
        action_spec: of one environment.

    Attributes:
        num_envs: N.
        name: what it is, for messages.
        long_episode: agent steps after which a notice reports an episode without an end; None: no notice, or one by
            the environments themselves.
        if_long: the last sentence of that notice.
    """

    name: str
    long_episode: int | None = None
    if_long = IF_LONG

    def __init__(self, num_envs: int, observation_spec: Any, action_spec: Any) -> None:
        self.num_envs = num_envs
        self._observation_spec, self._action_spec = observation_spec, action_spec
        self._awaited: bool | None = None  # whether a recv is due; None before the reset

    def observation_spec(self) -> Any:
        """Return the spec of one environment's observation."""
        return self._observation_spec

    def action_spec(self) -> Any:
        """Return the spec of one environment's action."""
        return self._action_spec

    def reset(self) -> VectorStep:
        """Start the next episode of every environment.

        Raises:
            RuntimeError: a step that was sent has not been received.
        """
        self._require(self._awaited is not True, "reset() between send() and recv()")
        self._awaited = False
        return self._reset()

    def send(self, actions: np.ndarray) -> None:
        """Let the environments of the last `recv` or `reset` begin a step.

        Args:
            actions: [N, A] or [N], in the order of that step's `env_index`.

        Raises:
            RuntimeError: there was no reset, or the step before has not been received.
        """
        self._require(self._awaited is False, "send() " + ("twice" if self._awaited else "before reset()"))
        self._awaited = True
        self._send(actions)

    def recv(self) -> VectorStep:
        """Wait for the step that was sent and return it.

        Raises:
            RuntimeError: none was sent.
        """
        self._require(self._awaited is True, "recv() without send()")
        self._awaited = False
        return self._recv()

    def step(self, actions: np.ndarray) -> VectorStep:
        """Take one step in every environment: `send` and `recv`."""
        self.send(actions)
        return self.recv()

    def tell_long_episode(self, steps: int) -> None:
        """Report once that an unfinished episode is long; `steps` are its agent steps so far."""
        if self.long_episode is not None and steps >= self.long_episode:
            notice(f"{self.name}: an episode has not ended after {self.long_episode} agent steps. {self.if_long}")
            self.long_episode = None

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise RuntimeError(f"{what}: the order is reset(), then step(), or send() and recv() in turn")

    @abstractmethod
    def _reset(self) -> VectorStep: ...

    @abstractmethod
    def _send(self, actions: np.ndarray) -> None: ...

    @abstractmethod
    def _recv(self) -> VectorStep: ...

    @abstractmethod
    def close(self) -> None:
        """Free the environments."""


class HandleVector(VectorEnv):
    """Environments behind handles: each in its own process (`ProcessEnv`), or all in this one (`LocalEnv`).

    Args:
        handles: one an environment, all alike.
        name: what it is, for messages.
    """

    def __init__(self, handles: Sequence[EnvHandle], name: str = "this process") -> None:
        super().__init__(len(handles), handles[0].observation_spec(), handles[0].action_spec())
        self.handles, self.name = handles, name

    def _reset(self) -> VectorStep:
        for handle in self.handles:
            handle.start("reset")
        return self._recv()

    def _send(self, actions: np.ndarray) -> None:
        for handle, action in zip(self.handles, actions, strict=True):
            handle.start("step", action)

    def _recv(self) -> VectorStep:
        steps = [handle.finish() for handle in self.handles]
        ended = np.array([step.last() for step in steps])
        terminated = ended & np.array([step.discount == 0 for step in steps])
        return VectorStep(
            each(lambda *rows: np.stack(rows), *(step.observation for step in steps)),
            np.array([step.reward for step in steps], np.float32),
            terminated,
            ended & ~terminated,
            np.array([step.first() for step in steps]),
            np.arange(self.num_envs),
            stacked([step.info for step in steps]),
        )

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each environment between two steps, see `Environment.state`."""
        return [handle.state() for handle in self.handles]

    def restore(self, states: Sequence[dict[str, Any]]) -> VectorStep:
        """Return to these states, each by playing its episode again; return the step that led to them."""
        for handle, state in zip(self.handles, states, strict=True):
            handle.start("restore", state)
        self._awaited = False
        return self._recv()

    def close(self) -> None:
        """Free the environments and end their processes."""
        for handle in self.handles:
            handle.close()
