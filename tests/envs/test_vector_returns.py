"""What a gymnasium.vector.VectorEnv of a user's may return that is wrong, or odd; and how one ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from drqv2 import envs
from drqv2.envs import notices
from drqv2.envs.gymnasium_vector import GymnasiumVector, make_vector_env
from drqv2.envs.observed import Choice
from drqv2.errors import EnvError, EnvNotFiniteError, UserError
from tests.patience import PATIENCE
from tests.walk_env import Walk

UNIT = spaces.Box(0, 1, (6, 6, 3), np.float32)
PAIR = spaces.Box(-9, 9, (2,), np.float32)
Spoil = Callable[[dict[str, Any]], Any]


class Odd(VectorEnv[Any, Any, Any]):
    """Episodes of 4 steps, all at once; `spoil` gets what step() is to return by its names, and may change it."""

    def __init__(self, num_envs: int, space: Any = PAIR, spoil: Spoil | None = None, mode: str = "NEXT_STEP") -> None:
        self.num_envs, self.spoil, self.t = num_envs, spoil, 0
        self.metadata = {"autoreset_mode": AutoresetMode[mode]}
        self.single_observation_space, self.single_action_space = space, spaces.Discrete(2)
        self.observation_space, self.action_space = batch_space(space, num_envs), spaces.MultiDiscrete([2] * num_envs)

    def _observed(self) -> Any:
        return spaces.utils.unflatten(self.observation_space, np.full(spaces.flatdim(self.observation_space), 0.5))

    def reset(self, **_: Any) -> Any:
        self.t = 0
        return self._observed(), {}

    def step(self, actions: Any) -> Any:
        self.t = self.t % 4 + 1 if self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP else (self.t + 1) % 5
        n, never = self.num_envs, np.zeros(self.num_envs, bool)
        step = {"observation": self._observed(), "reward": np.ones(n), "terminated": np.full(n, self.t == 4)}
        step |= {"truncated": never, "infos": {"t": np.full(n, self.t)}}
        if self.spoil is not None and (spoilt := self.spoil(step)) is not None:
            return spoilt
        return tuple(step.values())

    def close_extras(self, **_: Any) -> None:
        if self.spoil is broken:
            raise RuntimeError("the simulator is gone")


def broken(step: dict[str, Any]) -> None: ...


def setting(name: str, value: Any) -> Spoil:
    """Return a function that puts something else into a step."""
    return lambda step: step.update({name: value(step[name])})


def played(env: GymnasiumVector, steps: int = 9) -> Any:
    step = env.reset()
    for _ in range(steps):
        step = env.step(np.zeros(len(step.env_index), np.int64))
    return step


def set_one(place: tuple[int, ...], value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        changed = array.copy()
        changed[place] = value
        return changed

    return change


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (np.nan, EnvNotFiniteError, r"Odd, environment 1: the observation is nan at \[2, 0, 1\]"),
        (np.inf, EnvNotFiniteError, "Odd, environment 1: the observation is inf at"),
        (20.0, EnvError, "Odd, environment 1: the observation has values from 0.5 to 20.0: declared 0 to 1"),
        (-0.1, EnvError, "Odd, environment 1: .* from -0.1.* to 0.5: declared 0 to 1"),
    ],
)
def test_float_images_are_finite_and_within_their_bounds(mode: str, value: float, kind: Any, words: str) -> None:
    rounding = setting("observation", set_one((1, 2, 0, 1), 1 + 1e-6))
    assert played(GymnasiumVector(Odd(2, UNIT, rounding, "NEXT_STEP"), 0, Choice("pixels"), 6)).observation.max() == 255
    spoil = setting("observation", set_one((1, 2, 0, 1), value))
    with pytest.raises(kind, match=words) as refusal:
        played(GymnasiumVector(Odd(2, UNIT, spoil, mode), 0, Choice("pixels"), 6))
    assert refusal.value.code == (76 if kind is EnvNotFiniteError else 2)


DICT = spaces.Dict(a=PAIR, b=spaces.Box(-1, 1, (1,), np.float32))
WRONG: list[tuple[Any, Spoil, str]] = [
    (PAIR, setting("observation", lambda x: x[:-1]), r"is float32 \[2, 2\]: declared float32 \[3, 2\]"),
    (PAIR, setting("observation", lambda x: x[:1]), r"is float32 \[1, 2\]: declared float32 \[3, 2\]"),
    (PAIR, setting("observation", lambda x: None), "the observation is None: must be an array of numbers"),
    (PAIR, setting("observation", lambda x: [[1], [1, 2], []]), "is a list of 3 values, which numpy cannot read"),
    (
        PAIR,
        setting("observation", lambda x: torch.ones(3, 2, requires_grad=True)),
        r"is torch.float32 \[3, 2\], which numpy cannot read: must be an array of numbers",
    ),
    (
        DICT,
        setting("observation", lambda x: {"a": x["a"]}),
        "'b' is declared and not there: the observation has a",
    ),
    (
        DICT,
        setting("observation", lambda x: x["a"]),
        "'a' is declared and not there: the observation is float32",
    ),
    (PAIR, setting("reward", lambda x: torch.ones(3, requires_grad=True)), r"step\(\) returned torch.*cannot read"),
    (PAIR, setting("reward", lambda x: [None] * 3), "returned a list of 3 values: must be an array of numbers"),
    (PAIR, setting("terminated", lambda x: x + 0.5), "terminated and truncated .*0.5.*: must be flags"),
    (PAIR, setting("infos", lambda x: None), r"step\(\) returned observations, .*, None: must return .* and a dict"),
    (PAIR, lambda step: tuple(step.values())[:4], r"returned a tuple of 4 values: must return \(observations, rew"),
    (PAIR, lambda step: list(step.values()), "returned a list of 5 values: must return"),
]


@pytest.mark.parametrize(("space", "spoil", "words"), WRONG)
def test_what_is_wrong_is_said_in_two_lines(space: Any, spoil: Spoil, words: str) -> None:
    with pytest.raises(EnvError, match=f"^Odd: .*{words}") as refusal:
        played(GymnasiumVector(Odd(3, space, spoil), 0, Choice("state"), 6))
    assert len(str(refusal.value).splitlines()) <= 2


def test_what_is_wrong_with_a_vector_of_one_is_said_too() -> None:
    for space, spoil, _ in WRONG[2:]:
        one = envs.make("odd", 1, 1, 0, factory=lambda s=space, f=spoil: Odd(1, s, f), obs_type="state")
        one.reset()
        with pytest.raises(EnvError, match="step 1 of episode 0"):
            one.step(0)


def test_what_is_no_vector_is_refused() -> None:
    def nothing(num_envs: int) -> None: ...

    with pytest.raises(UserError, match=r"nothing returned None\nIt must return a gymnasium.vector.VectorEnv, a "):
        make_vector_env(nothing, 3)
    with pytest.raises(UserError, match=r"returned a list of 1 value\nIt must return"):
        make_vector_env(lambda num_envs: [1], 3)
    bare = Odd(3)
    del bare.single_observation_space, bare.single_action_space
    words = r"Odd has no single_observation_space and no single_action_space\n.* must have both"
    with pytest.raises(UserError, match=words):
        GymnasiumVector(bare, 0, Choice("state"), 6)
    bare.num_envs = 1
    with pytest.raises(UserError, match=words):
        envs.make("odd", 1, 1, 0, factory=lambda: bare, obs_type="state")


BIG = spaces.Box(np.zeros((30, 30)), 1 + np.arange(900.0).reshape(30, 30), dtype=np.float64)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((BIG, spaces.Discrete(3))),
        spaces.Discrete(200_000),
        spaces.Dict(a=spaces.Dict(x=PAIR)),
        spaces.Tuple((spaces.MultiBinary(4),)),
    ],
)
def test_a_space_that_is_refused_is_shown_in_a_line_with_a_remedy_that_works(space: Any) -> None:
    class One(gymnasium.Env[Any, Any]):
        observation_space, action_space = space, spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return space.sample(), {}

        def step(self, action: Any) -> Any:
            return space.sample(), 1.0, False, False, {}

    with pytest.raises(UserError, match=r"must be a Box, discrete .* or a Dict of such\nReturn one") as refusal:
        envs.make("one", 1, 1, 0, factory=One, obs_type="state")
    assert [len(line) < 300 for line in str(refusal.value).splitlines()] == [True, True]
    with pytest.raises(UserError, match="that in gymnasium"):
        GymnasiumVector(SyncVectorEnv([One] * 2), 0, Choice("state"), 6)
    one = envs.make("one", 1, 1, 0, factory=lambda: gymnasium.wrappers.FlattenObservation(One()), obs_type="state")
    one.reset()
    one.step(0)
    flat = gymnasium.wrappers.vector.FlattenObservation(SyncVectorEnv([One] * 2))
    played(GymnasiumVector(flat, 0, Choice("state"), 6))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([True, False, True], [1, np.nan, 3]),
        (np.array([1, 0, 1]), [1, np.nan, 3]),
        (np.array([1.0, 0.0, 1.0]), [1, np.nan, 3]),
        (np.array([True, None, True], object), [1, np.nan, 3]),
        (np.ones((3, 1), bool), [1, 2, 3]),
        (np.array([True]), [1, 2, 3]),
    ],
)
def test_masks_of_numbers_in_info(mask: Any, expected: list[float]) -> None:
    infos = {"x": np.array([1.0, 2.0, 3.0]), "_x": mask, "huge": np.array([10**400, 1, 2], object)}
    step = played(GymnasiumVector(Odd(3, spoil=setting("infos", lambda _: infos)), 0, Choice("state"), 6), 2)
    np.testing.assert_array_equal(step.info["x"], expected)
    np.testing.assert_array_equal(step.info["huge"], [np.nan, 1, 2])


def test_a_close_that_fails_is_reported_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    notices.forget()
    GymnasiumVector(Odd(2, spoil=broken), 0, Choice("state"), 6).close()
    assert "Odd: close() raised RuntimeError: the simulator is gone" in caplog.text


class Dying(Walk):
    def __init__(self, number: int, dies: int) -> None:
        super().__init__(longest=10**6)
        self.dies = number == dies

    def step(self, action: Any) -> Any:
        if self.dies:
            os._exit(3)
        return super().step(action)


DEATH = """
import sys
from functools import partial
import numpy as np
from gymnasium.vector import AsyncVectorEnv
from drqv2 import envs
from drqv2.envs.gymnasium_vector import GymnasiumVector
from drqv2.envs.observed import Choice
from drqv2.errors import EnvError
from tests.envs.test_vector_returns import Dying
number, dies = map(int, sys.argv[1:])
vector = AsyncVectorEnv([partial(Dying, i, dies) for i in range(number)])
if number == 1:
    env = envs.make("one", 1, 1, 0, factory=lambda: vector, obs_type="state")
else:
    env = GymnasiumVector(vector, 0, Choice("state"), 6)
env.reset()
try:
    env.step(np.zeros((number, 2)) if number > 1 else np.zeros(2))
except EnvError as error:
    print(str(error).splitlines()[0])
env.close()
print([process.exitcode for process in vector.processes])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "dies", "codes"), [(3, 1, [-9, 3, -9]), (1, 0, [3])])
def test_a_worker_that_dies_ends_the_run(number: int, dies: int, codes: list[int]) -> None:
    command = [sys.executable, "-c", DEATH, str(number), str(dies)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    first, last = done.stdout.splitlines()
    assert first.endswith(f"the process of environment {dies} ended with status 3")
    assert last == str(codes), done.stderr
