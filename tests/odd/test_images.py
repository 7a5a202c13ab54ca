"""Which part of an observation is the image, and how its axes are read: one rule, said once, never a guess."""

from __future__ import annotations

import logging
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from drqv2.envs import make, notices
from drqv2.envs.images import Image
from drqv2.envs.libraries import factory, natural_obs_type
from drqv2.envs.observed import Choice
from drqv2.envs.pool import PoolVector
from drqv2.errors import EnvError, UserError
from tests.odd.interfaces import Machine, Plain, observes

SIDE = 16


def box(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def numbered(*shape: int) -> np.ndarray:
    """Return an image of random numbers, always the same."""
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def shows(space: Any, value: Any) -> type[Plain]:
    """Return a kind of environment that always observes `value`, and that draws white pictures."""

    class Shows(observes(lambda t: value, space)):  # type: ignore[misc]
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's own form)
        render_mode = "rgb_array"

        def render(self) -> Any:
            return np.full((SIDE, SIDE, 3), 255, np.uint8)

    return Shows


def seen(factory: Any, **kwargs: Any) -> np.ndarray:
    env = make("own", 1, 1, 1, factory=factory, image_size=SIDE, **kwargs)
    observation: np.ndarray = env.reset().observation
    assert observation.shape == env.observation_spec().shape
    return observation


AXES = [  # shape, axes of [C, H, W] in it, channels
    ((SIDE, SIDE, 3), (2, 0, 1), "auto"),
    ((SIDE, SIDE, 4), (2, 0, 1), "auto"),
    ((SIDE, SIDE, 12), (2, 0, 1), "auto"),
    ((SIDE, SIDE, 1), (2, 0, 1), "auto"),
    ((3, SIDE, SIDE), (0, 1, 2), "auto"),
    ((5, SIDE, SIDE), (0, 1, 2), "auto"),
    ((6, SIDE, SIDE), (0, 1, 2), "auto"),
    ((9, SIDE, SIDE), (0, 1, 2), "auto"),
    ((12, SIDE, SIDE), (0, 1, 2), "auto"),
    ((SIDE, SIDE, SIDE), (0, 1, 2), "first"),
    ((SIDE, SIDE, SIDE), (2, 0, 1), "last"),
]


@pytest.mark.parametrize(("shape", "axes", "channels"), AXES)
def test_the_axis_of_the_channels(shape, axes, channels) -> None:
    image = numbered(*shape)
    np.testing.assert_array_equal(seen(shows(box(*shape), image), channels=channels), image.transpose(axes))


@pytest.mark.parametrize(
    ("shape", "height_width_channels"),
    [
        ((210, 160, 3), (210, 160, 3)),
        ((3, 210, 160), (210, 160, 3)),
        ((7, 9, 4), (7, 9, 4)),
        ((16, 64, 48), (64, 48, 16)),
    ],
)
def test_images_that_are_not_square(shape, height_width_channels) -> None:
    assert Image(specs.Array(shape, np.uint8), None).shape == height_width_channels


@pytest.mark.parametrize("shape", [(8, 8, 8), (3, 84, 3), (17, 30, 40), (20, 10, 14)])
def test_axes_that_cannot_be_told_apart_are_refused(shape) -> None:
    with pytest.raises(UserError, match="not clear which axis") as refused:
        Image(specs.Array(shape, np.uint8), None)
    assert "channels=first or channels=last" in str(refused.value)
    assert Image(specs.Array(shape, np.uint8), None, "last").shape == shape


@pytest.mark.parametrize(("shape", "axes"), [((3, SIDE, SIDE, 3), (0, 3, 1, 2)), ((4, 3, SIDE, SIDE), (0, 1, 2, 3))])
def test_stacks_of_images_become_channels_oldest_first(shape, axes, caplog) -> None:
    notices.forget()
    stack = numbered(*shape)
    expected = stack.transpose(axes).reshape(-1, SIDE, SIDE)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(seen(shows(box(*shape), stack)), expected)
    assert f"stacks of {shape[0]} images, which frame_stack stacks again unless it is 1" in caplog.text


def test_a_stack_of_grey_images_is_an_image_with_as_many_channels() -> None:
    stack = numbered(4, SIDE, SIDE)
    np.testing.assert_array_equal(seen(shows(box(4, SIDE, SIDE), stack)), stack)


def test_floats_between_0_and_1_are_converted_and_it_is_said(caplog) -> None:
    notices.forget()
    image = numbered(SIDE, SIDE, 3)
    unit = spaces.Box(0.0, 1.0, (SIDE, SIDE, 3), np.float32)
    with caplog.at_level(logging.WARNING):
        observation = seen(shows(unit, (image / np.float32(255)).astype(np.float32)))
    np.testing.assert_array_equal(observation, image.transpose(2, 0, 1))
    assert "floats in [0, 1], converted to uint8" in caplog.text
    observation = seen(shows(unit, np.full((SIDE, SIDE, 3), 1.000001, np.float32)))
    assert (observation == 255).all()
    with pytest.raises(EnvError, match=r"the observation has values from 0\.0 to 255\.0: declared 0 to 1"):
        seen(shows(unit, image.astype(np.float32)))


@pytest.mark.parametrize(("low", "high"), [(0, 255), (-1, 1), (-np.inf, np.inf)])
def test_other_floats_are_no_images(low, high) -> None:
    with pytest.raises(UserError, match=r"obs_type=pixels: the observations of .* have no image") as refused:
        seen(shows(spaces.Box(low, high, (SIDE, SIDE, 3), np.float32), np.zeros((SIDE, SIDE, 3), np.float32)))
    assert len(str(refused.value).splitlines()) == 2
    assert "bounds of 0 and 1" in str(refused.value)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        *[((96, 96, channels), (2, 0, 1)) for channels in (1, 3, 4, 5, 6, 9, 12)],
        ((9, 96, 96), (0, 1, 2)),
        ((3, 96, 96, 3), (0, 3, 1, 2)),
        ((16, 96, 96), (0, 1, 2)),
    ],
)
@pytest.mark.parametrize("size", [84, 128])
def test_images_of_any_number_of_channels_are_resized_channel_by_channel(shape, axes, size) -> None:
    image = numbered(*shape)
    env = make("own", 1, 1, 1, factory=shows(box(*shape), image), image_size=size)
    channels = image.transpose(axes).reshape(-1, 96, 96)
    expected = [cv2.resize(channel, (size, size), interpolation=cv2.INTER_AREA) for channel in channels]
    np.testing.assert_array_equal(env.reset().observation, expected)


VIEW = {"image": box(7, 7, 3), "direction": spaces.Discrete(4), "mission": spaces.Text(20)}


def test_the_agent_sees_the_observation_and_not_what_render_shows(caplog) -> None:
    notices.forget()
    view = {"image": numbered(7, 7, 3), "direction": 2, "mission": "go"}
    maze = shows(spaces.Dict(VIEW), view)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            env = make("own", 1, 1, 1, factory=maze, image_size=SIDE)
            assert env.reset().observation.max() < 255
            assert (env.render(SIDE, SIDE) == 255).all()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "the agent sees the observation 'image' as images of 7x7 with 3 channels",
        "left out of the observation: direction, mission (Text); obs_type=pixels+state adds direction",
    ]
    assert natural_obs_type(maze, "own", 1) == "pixels+state"


TWO: dict[str, spaces.Space[Any]] = {"left": box(SIDE, SIDE, 3), "right": box(SIDE, SIDE, 1)}


def test_of_several_images_all_are_seen_unless_one_is_chosen() -> None:
    images = {"left": numbered(SIDE, SIDE, 3), "right": np.full((SIDE, SIDE, 1), 9, np.uint8)}
    eyes = shows(spaces.Dict(TWO), images)
    both = make("own", 1, 1, 1, factory=eyes, image_size=SIDE).reset().observation
    assert list(both) == ["left", "right"]
    assert (both["right"] == 9).all()
    assert (seen(eyes, image_key="right") == 9).all()
    with pytest.raises(UserError, match="image_key=rihgt: the observation has no such part; it has right"):
        seen(eyes, image_key="rihgt")


def test_the_image_called_pixels_comes_first() -> None:
    images = {"depth": np.zeros((SIDE, SIDE, 1), np.uint8), "pixels": np.full((SIDE, SIDE, 3), 7, np.uint8)}
    assert (seen(shows(spaces.Dict({"depth": TWO["right"], "pixels": TWO["left"]}), images)) == 7).all()


def test_only_an_image_called_pixels_comes_first() -> None:
    space = spaces.Dict({"pixels": Plain.observation_space, "cam": TWO["left"]})
    value = {"pixels": np.zeros(3, np.float32), "cam": np.full((SIDE, SIDE, 3), 7, np.uint8)}
    assert (seen(shows(space, value)) == 7).all()


def test_the_state_needs_no_choice_of_an_image() -> None:
    images = {"left": numbered(SIDE, SIDE, 3), "right": np.full((SIDE, SIDE, 1), 9, np.uint8)}
    space = spaces.Dict({**TWO, "state": Plain.observation_space})
    value = {**images, "state": np.arange(3, dtype=np.float32)}
    assert seen(shows(space, value), obs_type="state").tolist() == [0, 1, 2]


def test_a_picture_that_is_asked_for_decides_what_auto_chooses() -> None:
    blind = shows(Plain.observation_space, np.zeros(3, np.float32))
    assert natural_obs_type(blind, "own", 1) == "state"
    assert natural_obs_type(blind, "own", 1, render="rgb_array") == "pixels"


def test_four_axes_are_a_stack_and_not_an_image() -> None:
    with pytest.raises(UserError, match="of four axes the first counts stacked images, at most 16"):
        Image(specs.Array((84, 84, 4, 1), np.uint8), None)


@pytest.mark.parametrize("options", [{"image_key": "pixels"}, {"channels": "last"}])
def test_tasks_of_dm_control_have_no_image_to_choose(options) -> None:
    with pytest.raises(UserError, match="is a task of dm_control, whose images need no choice"):
        make("cartpole_balance", 1, 1, 1, **options)


@pytest.mark.parametrize("key", ["state", "image"])
def test_what_is_chosen_has_to_be_an_image(key) -> None:
    space = spaces.Dict({"state": Plain.observation_space, "image": spaces.Box(0, 255, (SIDE, SIDE, 3), np.int64)})
    value = {"state": np.zeros(3, np.float32), "image": np.zeros((SIDE, SIDE, 3), np.int64)}
    with pytest.raises(UserError, match=f"the observation '{key}' is .*: an image must be uint8"):
        seen(shows(space, value), image_key=key)


def test_an_image_key_needs_a_dict() -> None:
    with pytest.raises(UserError, match="image_key=pixels: the observation is one array"):
        seen(shows(box(SIDE, SIDE, 3), numbered(SIDE, SIDE, 3)), image_key="pixels")


def test_render_is_learnt_from_only_where_it_is_asked_for(caplog) -> None:
    notices.forget()
    blind = shows(Plain.observation_space, np.zeros(3, np.float32))
    with pytest.raises(UserError, match=r"have no image.*\nUse obs_type=state, or render=rgb_array"):
        seen(blind)
    with caplog.at_level(logging.WARNING):
        assert (seen(blind, render="rgb_array") == 255).all()
    assert "the agent sees what render() returns" in caplog.text
    notices.forget()
    caplog.clear()
    with pytest.raises(
        UserError, match=r"^render=rgb_array: tests\S+Plain draws nothing, since its render_mode is None"
    ):
        seen(Plain, render="rgb_array")
    assert not caplog.records
    with pytest.raises(UserError, match=r"obs_type=pixels: .* have no image.*\nUse obs_type=state"):
        seen(Machine)
    with pytest.raises(UserError, match="render=rgb_array: cartpole_balance is drawn by this project"):
        make("cartpole_balance", 1, 1, 1, render="rgb_array")


@pytest.mark.parametrize("picture", [None, np.zeros((SIDE, SIDE, 3)), np.zeros((3, SIDE, SIDE), np.uint8)])
def test_what_render_returns_is_checked(picture) -> None:
    class Renders(shows(Plain.observation_space, np.zeros(3, np.float32))):  # type: ignore[misc]
        def render(self) -> Any:
            return picture

    with pytest.raises(EnvError, match=r"Renders: render\(\) returned .*: must be uint8 \[height, width, channels\]"):
        seen(Renders, render="rgb_array")


def test_the_state_leaves_images_out_and_says_so(caplog) -> None:
    notices.forget()
    space = spaces.Dict({"state": Plain.observation_space, "image": box(7, 7, 3)})
    value = {"state": np.arange(3, dtype=np.float32), "image": numbered(7, 7, 3)}
    with caplog.at_level(logging.WARNING):
        assert seen(shows(space, value), obs_type="state").tolist() == [0, 1, 2]
    assert "left out of the observation: image" in caplog.text


def test_environments_of_envpool_follow_the_same_rule(caplog) -> None:
    name = "MiniGrid-Empty-5x5-v0"
    notices.forget()
    single = factory(f"envpool:{name}", {})
    assert natural_obs_type(single, "own", 1) == "pixels+state"
    with caplog.at_level(logging.WARNING):
        images = PoolVector(name, 2, 0, choice=Choice("pixels"))
        vectors = PoolVector(name, 2, 0, choice=Choice("state"))
        env = make("own", 1, 1, 1, factory=single, image_size=SIDE)
    observed = images.reset().observation
    assert observed.shape == (2, 3, 7, 7)
    assert observed.dtype == np.uint8
    assert len(np.unique(observed)) > 2
    assert env.reset().observation.shape == (3, SIDE, SIDE)
    assert len(vectors.reset().observation.shape) == 2
    assert "left out of the observation: image; obs_type=pixels+state adds image" in caplog.text
    assert "the agent sees the observation 'image' as images of 7x7 with 3 channels" in caplog.text
    for each in (images, vectors, env):
        each.close()


def test_the_tasks_of_this_project_through_gymnasium() -> None:
    import drqv2.envs.as_gymnasium  # noqa: F401 (registers them)

    task = gymnasium.make("drqv2/cartpole_balance-v0", image_size=SIDE, action_repeat=8)
    expected, _ = task.reset(seed=0)
    image = Image(spec_of(task.observation_space), None)
    assert image.shape == (SIDE, SIDE, 9)
    np.testing.assert_array_equal(image.read(expected).transpose(2, 0, 1), expected)
    task.close()


def spec_of(space: Any) -> Any:
    return specs.BoundedArray(space.shape, space.dtype, space.low, space.high)
