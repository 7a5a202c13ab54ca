"""Observations that are dicts: what each kind of environment shows, and that it is the same again."""

from __future__ import annotations

import functools
import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
from dm_control import suite
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from drqv2.envs import make, notices
from drqv2.envs.env_process import ProcessEnv
from drqv2.envs.gymnasium_vector import GymnasiumVector
from drqv2.envs.handles import LocalEnv, as_tasks
from drqv2.envs.libraries import factory, natural_obs_type
from drqv2.envs.observed import Choice
from drqv2.envs.pool import PoolVector
from drqv2.envs.vector import HandleVector
from drqv2.errors import EnvError, EnvNotFiniteError, UserError
from tests.envs.toys import Dice, Grid

SIDE = 12
BOTH = "pixels+state"


class Maze(gymnasium.Env[Any, Any]):
    """Shows two images, a discrete direction, switches, buttons and a text; all random, and the frame's number."""

    observation_space: Any = spaces.Dict(
        {
            "map": spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8),
            "direction": spaces.Discrete(4, start=1),
            "image": spaces.Box(0, 255, (6, 6, 3), np.uint8),
            "switches": spaces.MultiBinary(3),
            "dials": spaces.MultiDiscrete([2, 3]),
            "frame": spaces.Box(0, 99, (1,), np.float64),
            "mission": spaces.Text(9),
        }
    )
    action_space: Any = spaces.Discrete(2)

    def _observe(self) -> Any:
        draw = self.np_random
        return {
            "map": draw.integers(0, 256, (SIDE, SIDE, 1), np.uint8),
            "direction": draw.integers(1, 5),
            "image": draw.integers(0, 256, (6, 6, 3), np.uint8),
            "switches": draw.integers(0, 2, 3, np.int8),
            "dials": draw.integers(0, [2, 3]),
            "frame": np.array([self.t], np.float64),
            "mission": "go",
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.shown = self._observe()
        return self.shown, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.shown = self._observe()
        return self.shown, 1.0, False, self.t == 9, {}


def hot(index: int, size: int) -> list[float]:
    return [float(i == index) for i in range(size)]


def shapes(spec: Any) -> dict[str, tuple[int, ...]]:
    return {name: part.shape for name, part in spec.items()}


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a
    )


def made(factory: Any = Maze, **kwargs: Any) -> Any:
    return make("own", 2, 1, 1, factory=factory, **{"image_size": SIDE, "obs_type": BOTH, **kwargs})


PARTS = {
    "image": (6, SIDE, SIDE),
    "map": (2, SIDE, SIDE),
    "dials": (5,),
    "direction": (4,),
    "frame": (1,),
    "switches": (3,),
}


def test_a_dict_has_images_first_then_vectors_under_their_own_keys(caplog: pytest.LogCaptureFixture) -> None:
    notices.forget()
    inner = Maze()
    with caplog.at_level(logging.WARNING):
        env = made(lambda: inner)
    assert list(shapes(env.observation_spec()).items()) == list(PARTS.items())
    assert [record.getMessage().partition("Maze: ")[2] for record in caplog.records] == [
        "the agent sees image uint8 [6, 12, 12], map uint8 [2, 12, 12], dials float32 [5], direction float32 [4], "
        "frame float32 [1], switches float32 [3]",
        "left out of the observation: mission (Text)",
    ]
    before, after = env.reset().observation, env.step(0).observation
    for name, part in env.observation_spec().items():
        part.validate(after[name])
    shown = inner.shown
    assert after["direction"].tolist() == hot(shown["direction"] - 1, 4)
    assert after["dials"].tolist() == hot(shown["dials"][0], 2) + hot(shown["dials"][1], 3)
    assert after["switches"].tolist() == shown["switches"].tolist()
    assert after["frame"].tolist() == [1]
    np.testing.assert_array_equal(after["map"][1], shown["map"][..., 0])
    np.testing.assert_array_equal(after["map"][0], before["map"][1])
    np.testing.assert_array_equal(after["image"][3:, ::2, ::2], shown["image"].transpose(2, 0, 1))
    np.testing.assert_array_equal(env.render(SIDE, SIDE).transpose(2, 0, 1), after["image"][3:])


def test_other_choices_of_the_same_observation() -> None:
    state = made(obs_type="state")
    assert state.observation_spec().shape == (13,)
    joined = np.concatenate([made().reset().observation[name] for name in ("dials", "direction", "frame", "switches")])
    np.testing.assert_array_equal(state.reset().observation, joined)
    assert shapes(made(obs_type="pixels").observation_spec()) == {name: PARTS[name] for name in ("map", "image")}
    assert made(obs_type="pixels", image_key="map").observation_spec().shape == PARTS["map"]
    assert list(made(image_key="image").observation_spec()) == ["image", "dials", "direction", "frame", "switches"]
    parts = made(observation_parts=["frame", "map"])
    assert list(parts.observation_spec()) == ["map", "frame"]
    assert made(obs_type="pixels", observation_parts=["image"]).observation_spec().shape == PARTS["image"]
    only = made(obs_type="state", observation_parts=["frame", "direction"])
    assert only.reset().observation[4:].tolist() == [0]  # in the order of the environment


def test_parts_that_do_not_exist_are_named_with_those_that_do() -> None:
    with pytest.raises(
        UserError, match="no part 'fram'; nearest: frame\nobs_type=pixels\\+state has image, map, dials"
    ):
        made(observation_parts=["fram"])
    with pytest.raises(UserError, match="no part 'map'\nobs_type=state has dials, direction, frame, switches"):
        made(obs_type="state", observation_parts=["map"])
    with pytest.raises(UserError, match="obs_type=pixels has image, map; obs_type=pixels\\+state has frame, too"):
        made(obs_type="pixels", observation_parts=["frame"])


@pytest.mark.parametrize("handle", [LocalEnv, ProcessEnv])
def test_an_episode_is_restored_to_the_same_bits(handle: Any) -> None:
    env = handle(made)
    env.call("reset")
    for t in range(4):
        step = env.call("step", t % 2)
    state, before = env.state(), step.observation
    after = env.call("step", 0).observation
    env.call("reset")
    assert same(env.call("restore", state).observation, before)
    assert same(env.call("step", 0).observation, after)
    env.close()


def test_auto_takes_both_where_a_dict_has_both() -> None:
    assert natural_obs_type(Maze, "own", 1) == BOTH
    assert natural_obs_type(Maze, "own", 1, parts=["map"]) == "pixels"
    assert natural_obs_type(Maze, "own", 1, parts=["frame"]) == "state"
    assert natural_obs_type(functools.partial(Grid, "image"), "own", 1) == "pixels"


def test_goals_of_a_goal_environment_are_vectors() -> None:
    class Goal(Maze):
        names = "observation", "achieved_goal", "desired_goal"
        observation_space: Any = spaces.Dict({name: spaces.Box(-9, 9, (2,), np.float64) for name in names})

        def _observe(self) -> Any:
            return {name: np.full(2, i, np.float64) for i, name in enumerate(self.names)}

    env = made(Goal, obs_type="state", observation_parts=["observation", "desired_goal"])
    assert sorted(env.reset().observation.tolist()) == [0, 0, 2, 2]
    assert made(Goal, obs_type="state").observation_spec().shape == (6,)
    with pytest.raises(UserError, match="have no image"):
        made(Goal)


@pytest.mark.parametrize(
    ("space", "value", "vector"),
    [
        (spaces.Discrete(3), 2, [0, 0, 1]),
        (spaces.Discrete(3, start=-1), np.int64(-1), [1, 0, 0]),
        (spaces.MultiDiscrete(np.array([[2], [3]])), np.array([[1], [0]]), [0, 1, 1, 0, 0]),
        (spaces.MultiBinary([2, 2]), np.eye(2, dtype=np.int8), [1, 0, 0, 1]),
    ],
)
def test_discrete_observations_are_one_hot(space: Any, value: Any, vector: list[float]) -> None:
    class Plain(Maze):
        observation_space = space

        def _observe(self) -> Any:
            return value

    observation = made(Plain, obs_type="state").reset().observation
    assert (observation.tolist(), observation.dtype) == (vector, np.float32)
    both = GymnasiumVector(SyncVectorEnv([Plain] * 2), 0, Choice("state"), SIDE).reset().observation
    assert both.tolist() == [vector] * 2


@pytest.mark.parametrize("value", [3, -1, 0.5, "a", None, np.array([0, 1])])
def test_what_is_not_in_a_discrete_space_is_refused(value: Any) -> None:
    class Wrong(Maze):
        observation_space = spaces.Discrete(3)

        def _observe(self) -> Any:
            return value

    with pytest.raises(EnvError, match=r"reset of episode 0 .*: the observation is .*declared "):
        made(Wrong, obs_type="state").reset()


@pytest.mark.parametrize(("toy", "size"), [("FrozenLake-v1", 16), ("Taxi-v", 500)])
def test_toys_with_discrete_observations(toy: str, size: int) -> None:
    name = next(each for each in gymnasium.registry if each.startswith(toy))  # Gymnasium's version decides about Taxi's
    env = make("own", 1, 1, 1, factory=factory(f"gymnasium:{name}", {}), obs_type="state")
    for observation in (env.reset().observation, env.step(1).observation):
        assert observation.shape == (size,)
        assert sorted(observation)[-2:] == [0, 1]
    env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vector_of_dicts_shows_what_single_environments_show(mode: AutoresetMode) -> None:
    vector = GymnasiumVector(SyncVectorEnv([Maze] * 2, autoreset_mode=mode), 3, Choice(BOTH), SIDE)
    ones = [Maze(), Maze()]
    assert shapes(vector.observation_spec()) == {**PARTS, "map": (1, SIDE, SIDE), "image": (3, SIDE, SIDE)}
    step, ends = vector.reset(), 0
    for i, one in enumerate(ones):
        one.reset(seed=3 + i)
    for _ in range(25):
        for row, i in enumerate(step.env_index):
            if step.first[row] and ends:
                ones[i].reset()
            shown = ones[i].shown
            assert step.observation["frame"][row].tolist() == shown["frame"].tolist()
            assert step.observation["direction"][row].tolist() == hot(shown["direction"] - 1, 4)
            np.testing.assert_array_equal(step.observation["map"][row, 0], shown["map"][..., 0])
            if not (step.terminated[row] or step.truncated[row]):
                ones[i].step(0)
        ends += int(step.truncated.sum())
        step = vector.step(np.zeros(len(step.env_index), np.int64))
    assert ends >= 4
    vector.close()


def test_a_number_that_is_not_finite_is_named_by_its_part() -> None:
    class Nan(Maze):
        def _observe(self) -> Any:
            return super()._observe() | {"frame": np.array([np.nan])}

    with pytest.raises(EnvNotFiniteError, match="the observation 'frame' is nan"):
        made(Nan).reset()
    with pytest.raises(EnvNotFiniteError, match="environment 0: the observation 'frame' is nan"):
        GymnasiumVector(SyncVectorEnv([Nan] * 2), 0, Choice(BOTH), SIDE).reset()


def test_handles_are_stacked_part_by_part() -> None:
    vector = HandleVector([LocalEnv(made), LocalEnv(functools.partial(made, index=1))])
    step = vector.reset()
    assert {name: part.shape for name, part in step.observation.items()} == {n: (2, *s) for n, s in PARTS.items()}
    states, step = vector.state(), vector.step(np.array([0, 1]))
    again = vector.restore(states)
    assert not same(again.observation, step.observation)
    assert same(vector.step(np.array([0, 1])).observation, step.observation)
    vector.close()


def test_environments_of_envpool() -> None:
    name = "MiniGrid-Empty-5x5-v0"
    vector = PoolVector(name, 2, 0, choice=Choice(BOTH))
    step = vector.reset()
    assert step.observation["image"].shape == (2, 3, 7, 7)
    assert step.observation["direction"].shape == (2, 4)
    assert step.observation["direction"].sum(1).tolist() == [1, 1]
    vector.close()
    env = made(factory(f"envpool:{name}", {}))
    assert shapes(env.observation_spec()).items() >= {"image": (6, SIDE, SIDE), "direction": (4,)}.items()
    assert env.reset().observation["direction"].sum() == 1
    env.close()
    lake = PoolVector("FrozenLake-v1", 2, 0)
    assert lake.reset().observation.tolist() == [hot(0, 16)] * 2
    lake.close()


def test_a_drawn_image_beside_the_state(caplog: pytest.LogCaptureFixture) -> None:
    notices.forget()
    inner = Grid("render", render_mode="rgb_array")
    with caplog.at_level(logging.WARNING):
        env = made(lambda: inner, render="rgb_array")
    assert "the agent sees pixels uint8 [6, 12, 12], state float32 [3]" in caplog.text
    observation = env.reset().observation
    assert list(observation) == ["pixels", "state"]
    assert observation["pixels"].std() > 0
    assert env.render(16, 16).shape == (16, 16, 3)
    with pytest.raises(UserError, match=r"^obs_type=pixels\+state: .*\nUse obs_type=state, or render=rgb_array"):
        made(lambda: inner)
    notices.forget()
    made(lambda: inner, render="rgb_array", obs_type="pixels")
    assert "its observations have no image and are left out" in caplog.text


@pytest.mark.parametrize("task", ["cartpole_balance", pytest.param("reach_duplo", marks=pytest.mark.slow)])
def test_pixels_and_state_of_dm_control_are_those_of_either(task: str) -> None:
    both, images, state = (make(task, 2, 4, 1, image_size=24, obs_type=kind) for kind in (BOTH, "pixels", "state"))
    action = np.full(both.action_spec().shape, 0.5)
    seen: dict[str, Any] = {}
    for call in (lambda env: env.reset(), lambda env: env.step(action)):
        seen = call(both).observation
        np.testing.assert_array_equal(seen.pop("pixels"), call(images).observation)
        np.testing.assert_array_equal(np.concatenate(list(seen.values())), call(state).observation)
    assert len(seen) > 1
    for env in (both, images, state):
        env.close()


@pytest.mark.parametrize(
    ("task", "camera"),
    [("cheetah_run", 0), pytest.param("reach_duplo", "front_close", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("render", ["exact", "fast"])
def test_each_of_several_cameras_shows_its_own_image(task: str, camera: Any, render: str) -> None:
    alone = [make(task, 1, 4, 1, image_size=24, camera=one, render=render) for one in (camera, -1)]
    env = make(task, 1, 4, 1, image_size=24, cameras=[camera, -1], render=render)
    assert shapes(env.observation_spec()) == {f"pixels_{camera}": (3, 24, 24), "pixels_-1": (3, 24, 24)}
    action = np.full(env.action_spec().shape, 0.5)
    for _ in range(2):
        for call in (lambda env: env.reset(), lambda env: env.step(action)):
            shown = list(call(env).observation.values())
            for image, one in zip(shown, alone, strict=True):
                np.testing.assert_array_equal(image, call(one).observation)
    np.testing.assert_array_equal(env.render(48, 48), alone[0].render(48, 48))
    for each in (env, *alone):
        each.close()


def test_cameras_with_the_state_and_restored() -> None:
    env = make("cartpole_balance", 2, 4, 1, image_size=24, cameras=[0, 1], obs_type=BOTH)
    assert list(env.observation_spec()) == ["pixels_0", "pixels_1", "position", "velocity"]
    env.reset()
    for _ in range(5):
        step = env.step([0.5])
    state = env.state()
    env.reset()
    assert same(env.restore(state).observation, step.observation)
    env.close()
    one = make("cartpole_balance", 2, 4, 1, image_size=24, cameras=[1])
    assert one.observation_spec().shape == (6, 24, 24)
    one.close()


def test_cameras_that_do_not_exist_or_see_nothing_are_refused() -> None:
    refused: list[tuple[list[int | str], str, str]] = [
        ([0, "side"], "pixels", "camera='side': must be -1"),
        ([0, 1], "state", "with obs_type=state nothing is seen"),
        ([0, 0], "pixels", "several different cameras"),
        ([1, "fixed", 0], "pixels", "fixed and 0 are the same camera of cartpole_balance; list it once"),
    ]
    for cameras, obs_type, words in refused:
        with pytest.raises(UserError, match=words):
            make("cartpole_balance", 1, 1, 1, cameras=cameras, obs_type=obs_type)
    with pytest.raises(UserError, match="give only one of them"):
        make("cartpole_balance", 1, 1, 1, cameras=[0, 1], camera=0)
    wrong: list[dict[str, Any]] = [{"cameras": "fixed"}, {"observation_parts": "pixels"}, {"observation_parts": []}]
    for options in wrong:
        with pytest.raises(UserError, match=r"=.*: must be a list of one or several different"):
            make("cartpole_balance", 1, 1, 1, **options)
    with pytest.raises(UserError, match=r"cameras=\[0,1\]: .* is not a MuJoCo simulation"):
        made(cameras=[0, 1], obs_type="pixels")
    with pytest.raises(UserError, match=r"the observation 'dials' is .*: an image must be uint8"):
        made(image_key="dials")


def test_your_own_simulation_is_seen_by_several_cameras() -> None:
    env = made(functools.partial(suite.load, "pendulum", "swingup"), cameras=[0, -1])
    assert list(env.observation_spec()) == ["pixels_0", "pixels_-1", "orientation", "velocity"]
    observation = env.reset().observation
    assert not np.array_equal(observation["pixels_0"], observation["pixels_-1"])
    env.close()


def test_an_array_that_is_called_as_the_drawn_image_is_refused() -> None:
    class Named(Maze):
        render_mode = "rgb_array"
        observation_space = spaces.Dict({"pixels": spaces.Box(0, 1, (2,), np.float32)})

    with pytest.raises(UserError, match="pixels is an array of the observation and the image that is drawn"):
        made(Named, render="rgb_array")


def test_images_alone_are_no_state() -> None:
    with pytest.raises(UserError, match=r"^obs_type=pixels\+state: .*images only; use obs_type=pixels"):
        made(functools.partial(Dice, shape=(SIDE, SIDE, 3)))


def test_tasks_need_the_same_parts() -> None:
    class Steered(Maze):
        action_space: Any = spaces.Box(-1, 1, (1,), np.float32)

    class Less(Steered):
        observation_space = spaces.Dict({key: Maze.observation_space[key] for key in ("map", "frame")})

        def _observe(self) -> Any:
            return {key: value for key, value in super()._observe().items() if key in self.observation_space.spaces}

    envs = [LocalEnv(functools.partial(made, each)) for each in (Steered, Less)]
    with pytest.raises(UserError, match=r"b shows map: .*observation_parts=\[map,frame\]"):
        as_tasks(envs, ["a", "b"])
    tasks = as_tasks([LocalEnv(functools.partial(made, Less)) for _ in range(2)], ["a", "b"])
    assert list(tasks[1].call("reset").observation) == ["map", "frame"]
    assert tasks[1].call("step", np.zeros(1, np.float32)).task == 1


def test_through_gymnasium() -> None:
    import drqv2.envs.as_gymnasium  # noqa: F401 (registers them)

    options: dict[str, Any] = {"image_size": 24, "frame_stack": 1, "action_repeat": 4}
    env = gymnasium.make("drqv2/cartpole_balance-v0", obs_type=BOTH, cameras=[0, 1], channels_last=True, **options)
    parts = {name: space.shape for name, space in env.observation_space.spaces.items()}  # type: ignore[attr-defined]
    assert parts == {"pixels_0": (24, 24, 3), "pixels_1": (24, 24, 3), "position": (3,), "velocity": (2,)}
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert env.observation_space.contains(env.step(env.action_space.sample())[0])
    env.close()
    fewer = gymnasium.make("drqv2/cartpole_balance-v0", obs_type="state", observation_parts=["velocity"], **options)
    assert fewer.observation_space.shape == (2,)
    fewer.close()


def test_the_spec_of_one_image_and_of_one_vector_is_that_of_an_array() -> None:
    image, vector = made(obs_type="pixels", image_key="map"), made(obs_type="state")
    assert isinstance(image.observation_spec(), specs.BoundedArray)
    assert {image.observation_spec().name, vector.observation_spec().name} == {"observation"}
