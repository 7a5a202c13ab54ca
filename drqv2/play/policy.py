"""A policy's ONNX file, acting in its world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from drqv2.errors import UserError, not_installed
from drqv2.play.world import World, named, parts_of


class Played(NamedTuple):
    """An episode so far.

    Attributes:
        total: sum of its rewards.
        steps: agent steps.
        action: the last one; zeros before the first.
    """

    total: float
    steps: int
    action: np.ndarray


class Policy:
    """A policy that was exported by `eval.py export=NAME.onnx`.

    Args:
        path: of its file.

    Attributes:
        world: what it acts in.

    Raises:
        UserError: it is not an exported policy, has several tasks, or onnxruntime is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._session = Path(path), _session(path)
        try:
            self.world = World.read(self._session.get_modelmeta().custom_metadata_map)
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        inputs = {one.name: one.shape for one in self._session.get_inputs()}
        if "task" in inputs:
            raise UserError(f"{path}: has several tasks; play them by eval.py RUN_DIR")
        for name, part in self.world.parts.items():
            if name not in inputs or inputs[name][1:] != part["shape"]:
                shown = inputs.get(name, "missing")
                raise UserError(f"{path}: its metadata are those of another policy: {name} is {shown}")
        self._zeros = {name: np.zeros((1, inputs[name][1]), np.float32) for name in ("h", "c") if name in inputs}
        self._state = self._zeros

    def reset(self) -> None:
        """Begin an episode: an LSTM forgets the last one."""
        self._state = self._zeros

    def act(self, obs: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the action for one observation of the world, an array or a dict, neither with the axis of a batch.

        Raises:
            UserError: the observation is of another world.
        """
        parts = parts_of(obs)
        if parts.keys() != self.world.parts.keys():
            shown = f"its parts are {named(parts)}; the policy's are {named(self.world.parts)}"
            raise UserError(f"{self._path}: observation from a different environment: {shown}")
        batch = {}
        for name, part in parts.items():
            wanted = self.world.parts[name]
            if list(part.shape) != wanted["shape"] or str(part.dtype) != wanted["dtype"]:
                shown = f"{part.dtype} {list(part.shape)}; the policy's are {wanted['dtype']} {wanted['shape']}"
                which = "" if name == "obs" else f"{name} "
                raise UserError(f"{self._path}: observation from a different environment: {which}{shown}")
            batch[name] = part[None]
        action, *state = self._session.run(None, batch | self._state)
        self._state = dict(zip(self._state, state, strict=True))
        chosen: np.ndarray = action[0]
        return chosen

    def play(self, env: Any, seed: int | None = None) -> Iterator[Played]:
        """Play an episode; yield where it is at its start and after each step.

        Args:
            env: a gymnasium.Env of the world.
            seed: of the environment's reset; None for the next episode.
        """
        obs, _ = env.reset(seed=seed)
        self.reset()
        shape, dtype = env.action_space.shape, env.action_space.dtype
        played, over = Played(0.0, 0, np.zeros(shape, dtype)), False
        yield played
        while not over:
            action = self.act(obs)
            obs, reward, terminated, truncated, _ = env.step(action)
            played = Played(played.total + float(reward), played.steps + 1, action)
            yield played
            over = terminated or truncated


def _session(path: str | Path) -> Any:
    if not Path(path).is_file():
        raise UserError(f"{path}: {'a directory; give one of its files' if Path(path).is_dir() else 'no such file'}")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise UserError(not_installed("onnxruntime", "export")) from error
    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds
        raise UserError(
            f"{path}: not a runnable ONNX file ({' '.join(str(error).split())[:150]})"
            "\nGive a file that python eval.py RUN_DIR export=NAME.onnx has written."
        ) from error
