"""Store the episodes of an evaluation as a data set, played with or without noise."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from dm_env import specs

from drqv2 import utils
from drqv2.datasets.origin import ABOUT
from drqv2.errors import UserError
from drqv2.replay.storage import ReplayBufferStorage
from drqv2.system import files

Act = Callable[[Any, int], np.ndarray]


class EpisodeStore:
    """Context that writes episodes to a new directory, which appears when the context is left without an error.

    Args:
        target: the directory.
        env: has the specs.
        frame_stack: frames in one observation.
        about: the episodes' origin, for `dataset.json`.

    Raises:
        UserError: the directory exists, or cannot be made.
    """

    def __init__(self, target: Path, env: Any, frame_stack: int, about: dict[str, Any]) -> None:
        if target.exists():
            raise UserError(f"store={target}: exists; give another directory")
        self.target, self.about = target, about
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        numbers = [specs.Array((1,), np.float32, name) for name in ("reward", "discount")]
        kept = (env.observation_spec(), env.action_spec(), *numbers)
        try:
            self._storage = ReplayBufferStorage(kept, self._temporary, frame_stack=frame_stack)
        except OSError as e:
            raise files.cannot_write(target, e, "give store=DIR elsewhere") from e

    def watch(self, episode: int, env: Any, time_step: Any) -> None:
        """Add a time step of an episode."""
        self._storage.add(time_step, episode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            return
        files.write_atomically(self._temporary / ABOUT, json.dumps(self.about, indent=1).encode())
        os.replace(self._temporary, self.target)


def with_noise(act: Act, spec: Any, noise: float, random_share: float, seed: int) -> Act:
    """Return a policy that explores, inside [-1, 1] as the environment acts.

    Its draws in an episode depend on the seed and the episode's number alone.

    Args:
        act: maps a time step and the number of its episode to an action.
        spec: of actions, floats or integers.
        noise: standard deviation of Gaussian noise, clipped to [-1, 1] with the action.
        random_share: probability of a uniform action instead, at each step.
        seed: of the draws.

    Raises:
        UserError: noise for discrete actions.
    """
    discrete = np.issubdtype(spec.dtype, np.integer)
    if discrete and noise:
        raise UserError(f"noise={noise:g}: these actions are discrete; use random_share")
    generators: dict[int, np.random.Generator] = {}

    def explore(time_step: Any, episode: int) -> np.ndarray:
        if episode not in generators:
            generators[episode] = np.random.default_rng(utils.spawn_seed(seed, utils.AGENT, episode))
        generator, action = generators[episode], act(time_step, episode)
        if generator.random() < random_share:
            if discrete:
                return np.asarray(generator.integers(spec.minimum, spec.maximum, spec.shape, endpoint=True), spec.dtype)
            return generator.uniform(-1, 1, spec.shape).astype(action.dtype)
        if discrete:
            return action
        noisy = action + noise * generator.standard_normal(spec.shape) if noise else action
        return np.asarray(noisy.clip(-1, 1), action.dtype)

    return explore
