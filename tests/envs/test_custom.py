"""Your own environment: factories, pixels of any size, states, discrete actions, gymnasium, and what is refused."""

from __future__ import annotations

import functools
import logging
import re
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from dm_control import suite
from dm_control.suite.wrappers import pixels
from dm_env import specs

from drqv2.envs import make, notices
from drqv2.errors import UserError
from drqv2.utils import TRAIN_ENV, spawn_seed
from tests.envs.toys import Counter, Dice, Grid

ROOT = Path(__file__).resolve().parents[2]


def same(a: Any, b: Any) -> bool:
    return a[:3] == b[:3] and np.array_equal(a.observation, b.observation) and np.array_equal(a.action, b.action)


def made(factory: Any, **kwargs: Any) -> Any:
    return make("own", 3, 2, 1, factory=factory, **{"image_size": 8, **kwargs})


def test_image_observation():
    env = made(functools.partial(Counter, shape=(8, 8, 3)))
    env.reset()
    observation = env.step([0.0, 0.0]).observation
    assert observation.shape == env.observation_spec().shape == (9, 8, 8)
    assert observation[:, 0, 0].tolist() == [0, 0, 0, 0, 0, 0, 2, 2, 2]
    assert env.step_seconds is None


def test_the_environment_of_the_docs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/environments.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    env = make("own", 1, 1, 1, factory=functools.partial(names["make"], difficulty=2), obs_type="state")
    start = env.reset().observation
    step = env.step(np.ones(1, np.float32))
    assert step.observation == pytest.approx(start + 0.1)
    assert step.reward == pytest.approx(np.exp(-2 * step.observation[0] ** 2), rel=1e-5)


@pytest.mark.parametrize("shape", [(16, 24, 1), (16, 24)])
def test_dict_observation_of_another_size_is_averaged(shape):
    inner = Dice(shape=shape)
    env = made(lambda: inner)
    observation = env.reset().observation
    assert observation.shape == env.observation_spec().shape == (3, 8, 8)
    spawned = Dice(shape=shape)
    spawned.random_state = np.random.default_rng(spawn_seed(1, TRAIN_ENV, 0, 0))
    blocks = spawned.reset().observation["pixels"].reshape(8, 2, 8, 3).mean((1, 3))
    assert np.abs(observation[0] - blocks).max() <= 0.5


def test_video_without_physics_shows_the_pixels():
    env = made(functools.partial(Counter, shape=(8, 8, 1)))
    env.reset()
    env.step([0, 0])
    frame = env.render(32, 48)
    assert frame.shape == (32, 48, 3)
    assert frame.dtype == np.uint8
    assert (frame[:, 8:40] == 2).all()  # a square picture in the middle
    assert (frame[:, :8] == 0).all()
    assert (frame[:, 40:] == 0).all()


def test_factory_is_given_what_its_signature_names():
    seen: list[dict[str, Any]] = []

    def factory(seed: int, task_name: str = "", *, image_size: int = 0, other: int = 5, **rest: Any) -> Counter:
        seen.append({"seed": seed, "task_name": task_name, "image_size": image_size, "other": other, **rest})
        return Counter(shape=(image_size, image_size, 3))

    made(factory)
    made(functools.partial(factory, task_name="mine", other=6), stream=1, image_size=9)
    assert seen[0] | {"seed": 0} == {"seed": 0, "task_name": "own", "image_size": 8, "other": 5}
    assert seen[1] | {"seed": 0} == {"seed": 0, "task_name": "mine", "image_size": 9, "other": 6}
    assert seen[0]["seed"] != seen[1]["seed"]
    made(functools.partial(Counter, shape=(8, 8, 3)))  # names none


def test_dm_control_without_pixels_is_rendered():
    env = made(functools.partial(suite.load, "pendulum", "swingup"), image_size=20)
    assert env.reset().observation.std() > 0
    assert env.render(40, 50).shape == (40, 50, 3)
    assert env.step_seconds == pytest.approx(0.04)
    env.close()


def test_dm_control_with_its_own_pixels_is_filmed_by_the_same_camera():
    def factory() -> Any:
        env = suite.load("walker", "walk", task_kwargs={"random": 1})
        return pixels.Wrapper(env, render_kwargs={"height": 64, "width": 64, "camera_id": 1})

    env = made(factory, image_size=64)
    observation = env.reset().observation
    assert np.array_equal(env.render(64, 64).transpose(2, 0, 1), observation[-3:])
    before = env.begin(0, 4).observation
    env.reset()
    assert np.array_equal(env.begin(0, 4).observation, before)
    env.close()


@pytest.mark.parametrize("kind", ["image", "dict", "render"])
@pytest.mark.parametrize("truncates", [False, True])
def test_gymnasium(kind, truncates):
    inner = Grid(kind, truncates, render_mode="rgb_array" if kind == "render" else None)
    env = made(lambda: inner, render="rgb_array" if kind == "render" else "exact")
    first = env.reset()
    assert first.observation.shape == (9, 8, 8)
    assert np.array_equal(first.observation[6:], inner.image.transpose(2, 0, 1))
    assert env.action_spec().shape == (2,)
    assert env.step_seconds == 2 / 25
    steps = [env.step([1, -1]) for _ in range(4)]
    assert [s.reward for s in steps] == [2, 2, 2, 1]
    assert [s.last() for s in steps] == [False, False, False, True]
    assert [s.discount for s in steps] == [1, 1, 1, 1.0 if truncates else 0.0]
    assert inner.renders == (5 if kind == "render" else 0)
    assert env.render(16, 16).shape == (16, 16, 3)
    assert env.step([0, 0]).first()
    assert len(set(inner.seeds)) == 2
    replayed = env.restore({"index": 0, "episode": 0, "actions": np.array([[1, -1]] * 4)})
    assert np.array_equal(replayed.observation, steps[-1].observation)
    assert replayed.discount == steps[-1].discount
    env.close()


def test_dm_env_is_seeded_by_its_generator():
    env = made(functools.partial(Dice, shape=(8, 8, 3)))
    env.reset()
    env.step([0, 0])
    second = env.reset().observation
    again = made(functools.partial(Dice, shape=(8, 8, 3)))
    assert np.array_equal(again.begin(0, 1).observation, second)
    assert not np.array_equal(again.begin(1, 1).observation, second)


def test_unseeded_environment_is_warned_about_once(caplog):
    notices.forget()
    with caplog.at_level(logging.WARNING):
        env = made(functools.partial(Counter, shape=(8, 8, 3)))
        made(functools.partial(Counter, shape=(8, 8, 3)))
        made(functools.partial(Dice, shape=(8, 8, 3)))
    assert [record.getMessage().split()[0] for record in caplog.records] == ["Counter"]
    env.reset()


class _Buttons(Grid):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(4, start=5)


class _Discrete(Counter):
    def action_spec(self) -> Any:
        return specs.DiscreteArray(4)


class _Levers(Counter):
    """Observes a dict of arrays and numbers, and an image."""

    def _image(self) -> Any:
        return {"a": np.full((2, 2), self.t, np.float64), "pixels": super()._image(), "b": float(-self.t)}

    def observation_spec(self) -> Any:
        return {"a": specs.Array((2, 2), np.float64), "pixels": super().observation_spec(), "b": specs.Array((), float)}


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (_Levers, [2, 2, 2, 2, -2]),
        (functools.partial(Grid, "render"), [0, 0, 0]),
        (functools.partial(Grid, "dict"), [0, 0, 0]),
    ],
)
def test_state_is_the_observation_in_one_vector(factory, expected):
    env = made(factory, obs_type="state")
    env.reset()
    time_step = env.step([0, 0])
    assert env.observation_spec().shape == (len(expected),)
    assert (time_step.observation.tolist(), time_step.observation.dtype) == (expected, np.float32)
    assert same(env.restore(env.state()), time_step)
    with pytest.raises(UserError, match=r"rgb_array|cannot be filmed"):
        env.render(16, 16)


def test_state_is_filmed_by_the_camera_there_is():
    env = made(functools.partial(Grid, "render", render_mode="rgb_array"), obs_type="state")
    env.reset()
    assert env.render(16, 16).shape == (16, 16, 3)


@pytest.mark.parametrize("factory", [functools.partial(_Discrete, shape=(8, 8, 3)), _Buttons])
def test_discrete_actions(factory):
    inner = factory()
    env = made(lambda: inner)
    spec = env.action_spec()
    assert isinstance(spec, specs.DiscreteArray)
    assert (spec.num_values, spec.dtype) == (4, np.int64)
    first = env.reset()
    assert (first.action.shape, first.action.dtype) == ((), np.int64)
    time_step = env.step(3)
    assert time_step.action == 3
    assert inner.taken[-1] == (3 if isinstance(inner, Counter) else 8)
    assert env.state()["actions"].tolist() == [3]
    assert same(env.restore(env.state()), time_step)
    with pytest.raises(ValueError, match="4"):
        env.step(4)


class _Unbounded(Counter):
    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float64, -np.inf, 1.0)


class _Plain(Counter):
    def action_spec(self) -> Any:
        return specs.Array((2,), np.float64)


class _Matrix(Counter):
    def action_spec(self) -> Any:
        return specs.BoundedArray((2, 2), np.float64, -1, 1)


class _Knobs(Grid):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.MultiBinary(3)


class _Float(Counter):
    def observation_spec(self) -> Any:
        return specs.Array((8, 8, 3), np.float32)


class _Vector(Counter):
    def observation_spec(self) -> Any:
        return {"state": specs.Array((8,), np.float32)}


class _Words(_Plain):
    def observation_spec(self) -> Any:
        return {"text": specs.StringArray(())}

    def action_spec(self) -> Any:
        return specs.BoundedArray((2,), np.float32, -1.0, 1.0)


def test_observations_without_a_number_are_refused_alike():
    for obs_type, words in {
        "state": "text: .*: no numbers to learn from$",
        "pixels": r"have no image.*text: [^\n]*$",
    }.items():
        with pytest.raises(UserError, match=words):
            made(_Words, obs_type=obs_type)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (_Unbounded, "finite bounds"),
        (_Plain, "finite bounds"),
        (_Matrix, "one vector"),
        (_Knobs, "MultiBinary(3): must be one vector"),
        (_Float, "uint8"),
        (_Vector, "obs_type=pixels"),
        (functools.partial(Counter, shape=(8, 8, 8)), "which axis holds the channels"),
        (functools.partial(Grid, "render"), "rgb_array"),
        (lambda: [1], "dm_env.Environment or a gymnasium.Env"),
        (lambda: types.SimpleNamespace(action_space=1, observation_space=1), "older gym"),
    ],
)
def test_what_cannot_be_used_is_refused(factory, words):
    with pytest.raises(UserError) as error:
        made(factory)
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


def test_without_gymnasium_its_install_line_is_given(monkeypatch):
    def imports() -> None:
        import gymnasium  # noqa: F401

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "drqv2.envs.gymnasium", raising=False)
    for factory in (lambda: types.SimpleNamespace(action_space=1, observation_space=1), imports):
        with pytest.raises(UserError, match=r'pip install -e "\.\[gym\]"'):
            made(factory)
