"""Small data sets as people have them, each odd in one way, and what becomes of each: its episodes, or a refusal.

A maker writes a data set and returns the arrays that its episodes must have (those it names), or nothing where it must
be refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

T, SIDE = 6, 16
Expected = list[dict[str, Any]]


@dataclass(frozen=True)
class Odd:
    """An odd data set.

    Attributes:
        make: writes it to a directory; those of Minari's are named after it.
        refused: part of the refusal's message; empty if the data are usable.
        said: parts of what is said once of how they are read.
        keys: options of how it is to be read.
        minari: whether it is one of Minari's.
    """

    make: Callable[[Path], Expected | None]
    refused: str = ""
    said: Sequence[str] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def minari(self) -> bool:
        return self.make.__name__.startswith("minari")

    def place(self, folder: Path) -> str:
        return f"minari:odd/{folder.name}-v0" if self.minari else str(folder)


ODD: dict[str, Odd] = {}


def odd(refused: str = "", said: Sequence[str] = (), **keys: Any) -> Callable[[Any], Any]:
    def add(make: Callable[[Path], Expected | None]) -> Callable[[Path], Expected | None]:
        ODD[make.__name__] = Odd(make, refused, said, keys)
        return make

    return add


def images(channels: int = 3, seed: int = 0, rows: int = T + 1) -> np.ndarray:
    """Images that differ in every pixel of every channel and row, uint8 [rows, C, H, W]."""
    return np.random.default_rng(seed).integers(0, 256, (rows, channels, SIDE, SIDE), np.uint8)


def stacks(frames: np.ndarray, number: int) -> np.ndarray:
    """Each image with those before it, oldest first, [rows, number, C, H, W]; the first one several times at first."""
    return frames[np.maximum(np.arange(len(frames))[:, None] + np.arange(1 - number, 1), 0)]


def numbers(seed: int = 0, rows: int = T + 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed + 100)
    action, reward = rng.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32), rng.uniform(0, 1, rows).astype(np.float32)
    action[0], reward[0] = 0, 0
    return {"action": action, "reward": reward, "discount": np.ones(rows, np.float32)}


def changed(array: np.ndarray, place: Any, value: Any) -> np.ndarray:
    array = array.copy()
    array[place] = value
    return array


def npz(folder: Path, **columns: np.ndarray | None) -> None:
    """Write an episode; None leaves a column out."""
    arrays: dict[str, Any] = {name: array for name, array in (numbers() | columns).items() if array is not None}
    np.savez(folder / f"{len(list(folder.iterdir()))}.npz", **arrays)


# Images


@odd()
def rgba(folder: Path) -> Expected:
    npz(folder, image=images(4).transpose(0, 2, 3, 1))
    return [{"frame": images(4)}]


@odd()
def rgb_and_depth_channels_first(folder: Path) -> Expected:
    npz(folder, observation=images(4))
    return [{"frame": images(4)}]


@odd()
def rgba_stacks(folder: Path) -> Expected:
    npz(folder, observation=stacks(images(4), 3).reshape(T + 1, 12, SIDE, SIDE))
    return [{"frame": images(4)}]


@odd()
def two_cameras(folder: Path) -> Expected:
    npz(folder, image=images(6).transpose(0, 2, 3, 1))
    return [{"frame": images(6)}]


@odd()
def grey(folder: Path) -> Expected:
    npz(folder, image=images(1)[:, 0])
    return [{"frame": images(1)}]


@odd()
def grey_channels_last(folder: Path) -> Expected:
    npz(folder, observation=images(1).transpose(0, 2, 3, 1))
    return [{"frame": images(1)}]


@odd()
def grey_stacks(folder: Path) -> Expected:
    npz(folder, observation=stacks(images(1), 4)[:, :, 0])
    return [{"frame": images(1)}]


@odd()
def grey_stacks_of_three(folder: Path) -> Expected:
    npz(folder, observation=stacks(images(1), 3)[:, :, 0])
    return [{"frame": images(1)}]


@odd()
def stacks_of_four_axes(folder: Path) -> Expected:
    npz(folder, observation=stacks(images(3).transpose(0, 2, 3, 1), 3))
    return [{"frame": images(3)}]


@odd()
def stacks_in_which_nothing_moves(folder: Path) -> Expected:
    still = np.repeat(images(3, rows=1), T + 1, 0)
    npz(folder, observation=stacks(still, 3).reshape(T + 1, 9, SIDE, SIDE))
    return [{"frame": still}]


@odd()
def images_that_are_not_square(folder: Path) -> Expected:
    wide = np.concatenate([images(4), images(4, 1)], axis=3)
    npz(folder, image=wide.transpose(0, 2, 3, 1))
    return [{"frame": wide}]


@odd()
def as_many_channels_as_rows(folder: Path) -> Expected:
    npz(folder, observation=images(16))
    return [{"frame": images(16)}]


@odd(said=["stacks of 3 images are images of 12 channels; frame_stack=1 fits them"])
def several_views(folder: Path) -> Expected:
    npz(folder, image=images(12).reshape(T + 1, 3, 4, SIDE, SIDE))
    return [{"frame": images(12)}]


@odd(said=["images of float32 in [0, 1] are converted to uint8 (times 255, rounded)"])
def floats_from_0_to_1(folder: Path) -> Expected:
    for seed in range(2):
        npz(folder, image=(images(3, seed) / 255).astype(np.float32).transpose(0, 2, 3, 1))
    return [{"frame": images(3, seed)} for seed in range(2)]


@odd(said=["images of float16 in [0, 1] are converted to uint8"])
def grey_floats_of_half_precision(folder: Path) -> Expected:
    npz(folder, image=(images(1)[:, 0] / 255).astype(np.float16))
    return [{"frame": images(1)}]


@odd("1.npz: images are float32 [16, 16, 3] from 0.0 to 255.0: must be uint8, or floats in [0, 1]")
def floats_to_255(folder: Path) -> None:
    npz(folder, image=images(3).transpose(0, 2, 3, 1))
    frames = changed(changed(images(3), (0, 0, 0, 0), 0), (0, 0, 0, 1), 255)
    npz(folder, image=frames.astype(np.float32).transpose(0, 2, 3, 1))


@odd("0.npz: images are float64 [3, 16, 16] from -0.5 to 0.5: must be uint8")
def floats_about_0(folder: Path) -> None:
    npz(folder, observation=changed(images(3) / 255 / 2, (0, 0, 0), -0.5).clip(-0.5, 0.5))


@odd("0.npz: images are float32 [16, 16] from 0.0 to 1.0000001: must be uint8")
def floats_just_above_1(folder: Path) -> None:
    npz(
        folder, image=changed((images(1)[:, 0] / 256).astype(np.float32) * 0, (2, 0, 0), np.nextafter(np.float32(1), 2))
    )


@odd("0.npz: row 3: image is nan")
def a_float_image_with_nan(folder: Path) -> None:
    npz(folder, image=changed((images(3) / 255).astype(np.float32), (3, 0, 1, 1), np.nan))


@odd(said=["images of int64 are converted to uint8"])
def integers(folder: Path) -> Expected:
    npz(folder, image=images(3).astype(np.int64).transpose(0, 2, 3, 1))
    return [{"frame": images(3)}]


@odd("0.npz: images are int64 [3, 16, 16] from 0 to 300: must be uint8")
def integers_above_255(folder: Path) -> None:
    npz(folder, observation=changed(changed(images(3).astype(np.int64), 0, 0), (1, 0, 0, 0), 300))


@odd("frame 3x8x8: images need sides of at least 15 pixels")
def tiny_images(folder: Path) -> None:
    npz(folder, observation=images(3)[:, :, :8, :8])


@odd(said=["left out: height, observation"])
def images_beside_states(folder: Path) -> Expected:
    npz(folder, image=images(3).transpose(0, 2, 3, 1), observation=np.zeros((T + 1, 5)), height=np.zeros(T + 1))
    return [{"frame": images(3)}]


# Rows, flags and numbers


@odd("rows differ in number: action 7, discount 7, image 7, is_first 8, is_last 8, is_terminal 8, reward 7")
def flags_a_row_longer(folder: Path) -> None:
    flags = {name: np.arange(T + 2) == row for name, row in (("is_first", 0), ("is_last", T + 1), ("is_terminal", -1))}
    npz(folder, image=images().transpose(0, 2, 3, 1), **flags)


@odd("rows differ in number: action 7, discount 7, image 7, is_last 6, reward 7")
def a_flag_a_row_shorter(folder: Path) -> None:
    npz(folder, image=images().transpose(0, 2, 3, 1), is_last=np.arange(T) == T - 1)


@odd("rows differ in number: action 6, discount 7, observation 7, reward 6")
def an_observation_more_than_actions(folder: Path) -> None:
    rows = numbers()
    npz(folder, observation=images(), action=rows["action"][1:], reward=rows["reward"][1:])


@odd("row 6: is_terminal, and discount 1.0 instead of 0")
def flags_that_contradict(folder: Path) -> None:
    npz(folder, image=images().transpose(0, 2, 3, 1), is_terminal=np.arange(T + 1) == T)


@odd("row 3: is_terminal within the episode")
def a_terminal_state_within(folder: Path) -> None:
    npz(folder, image=images().transpose(0, 2, 3, 1), discount=None, is_terminal=np.arange(T + 1) == 3)


@odd("discount missing; it has action, observation, reward")
def no_discount(folder: Path) -> None:
    npz(folder, observation=images(), discount=None)


@odd("reward is float32 [7, 2]: must be a number a row")
def two_rewards(folder: Path) -> None:
    npz(folder, observation=images(), reward=np.zeros((T + 1, 2), np.float32))


@odd(said=["action of an episode's first row, the reset, is not 0", "reward of an episode's first row"])
def a_reset_with_an_action(folder: Path) -> Expected:
    rows = numbers()
    npz(folder, observation=images(), action=changed(rows["action"], 0, 0.5), reward=changed(rows["reward"], 0, 3))
    return [{"action": rows["action"], "reward": rows["reward"][:, None]}]


def _actions_just_outside(folder: Path) -> np.ndarray:
    above = np.nextafter(np.float32(1), np.float32(2))
    action = changed(changed(numbers()["action"], (2, 1), above), (4, 0), -above)
    npz(folder, observation=images(), action=action)
    return action


@odd("row 2: action[1] 1.0000001 is not within [-1, 1] (one of 2 such numbers, by 1.2e-07); scale them, or clip")
def actions_just_outside(folder: Path) -> None:
    _actions_just_outside(folder)


@odd(said=["actions outside [-1, 1] are clipped"], clip_actions=True)
def actions_just_outside_to_clip(folder: Path) -> Expected:
    return [{"action": _actions_just_outside(folder).clip(-1, 1)}]


@odd("row 5: action is inf", clip_actions=True)
def an_infinite_action(folder: Path) -> None:
    npz(folder, observation=images(), action=changed(numbers()["action"], (5, 0), np.inf))


@odd("row 2: reward is inf")
def a_reward_that_overflows(folder: Path) -> None:
    npz(folder, observation=images(), reward=changed(numbers()["reward"].astype(float), 2, 1e200))


@odd("row 4: discount is nan")
def a_discount_that_is_nan(folder: Path) -> None:
    npz(folder, observation=images(), discount=changed(numbers()["discount"], 4, np.nan))


@odd("row 1: observation is -inf")
def an_infinite_state(folder: Path) -> None:
    npz(folder, observation=changed(np.zeros((T + 1, 5)), (1, 2), -np.inf))


@odd("its actions are discrete, and regime=offline needs actions in [-1, 1]")
def discrete_actions(folder: Path) -> None:
    npz(folder, observation=images(), action=np.arange(T + 1) % 2)


# .hdf5


def hdf5(folder: Path, **columns: np.ndarray | None) -> None:
    import h5py

    with h5py.File(folder / "all.hdf5", "w") as file:
        for name, column in columns.items():
            if column is not None:
                file[name] = column


@odd("all.hdf5: rows differ in number: action 7, discount 7, observation 7, reward 7, step_type 6")
def step_types_a_row_shorter(folder: Path) -> None:
    hdf5(folder, observation=images(), step_type=np.array([0, 1, 1, 1, 1, 2]), **numbers())


@odd("all.hdf5, rows 7 to 13: row 9: reward is nan")
def nan_in_the_second_episode(folder: Path) -> None:
    columns = {name: np.concatenate([column] * 2) for name, column in numbers().items()}
    columns["reward"][9] = np.nan
    hdf5(folder, observation=images(rows=14), step_type=np.array([0, 1, 1, 1, 1, 1, 2] * 2), **columns)


@odd("has neither step_type (V-D4RL) nor terminals (D4RL), but data")
def another_hdf5(folder: Path) -> None:
    hdf5(folder, data=np.zeros(3))


# D4RL: eleven rows. Row 3 is terminal, row 7 a timeout, and the file ends within an episode.
N, TERMINAL, TIMEOUT = 11, 3, 7


def d4rl(observations: np.ndarray, **columns: np.ndarray | None) -> dict[str, np.ndarray | None]:
    steps = numbers(rows=N + 1)
    found: dict[str, np.ndarray | None] = {
        "observations": observations,
        "actions": steps["action"][1:],
        "rewards": steps["reward"][1:],
        "terminals": np.arange(N) == TERMINAL,
        "timeouts": np.arange(N) == TIMEOUT,
    }
    return found | columns


def d4rl_episodes(
    rows: list[list[int]], steps: list[range], observations: np.ndarray, later: np.ndarray | None = None
) -> Expected:
    """Return what is expected: for each episode its rows of the observations, and the rows of its actions."""
    columns, expected = d4rl(observations), []
    for observed, taken in zip(rows, steps, strict=True):
        last = [] if later is None else [later[taken[-1]]]
        episode: dict[str, Any] = {"observation": np.stack([*observations[observed], *last]).astype(np.float32)}
        for name in ("action", "reward"):
            values: Any = columns[f"{name}s"]
            values = values[list(taken)].reshape(len(taken), -1)
            episode[name] = np.concatenate([np.zeros_like(values[:1]), values])
        ends = [1.0, *(1.0 - (step == TERMINAL) for step in taken)]
        episode["discount"] = np.array(ends, np.float32)[:, None]
        expected.append(episode)
    return expected


def states(rows: int = N) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(rows, 4))


@odd(said=["has no next_observations: the last action before a timeout or the end of a file is left out"])
def d4rl_states(folder: Path) -> Expected:
    hdf5(folder, **d4rl(states()))
    rows = [[0, 1, 2, 3, 3], [4, 5, 6, 7], [8, 9, 10]]
    return d4rl_episodes(rows, [range(4), range(4, 7), range(8, 10)], states())


@odd(said=["left out: infos"])
def d4rl_with_next_observations(folder: Path) -> Expected:
    later = np.concatenate([states()[1:], [[1, 2, 3, 4]]])
    later[TERMINAL], later[TIMEOUT] = 7, 8
    hdf5(folder, **d4rl(states(), next_observations=later), **{"infos/goal": np.zeros((N, 2))})
    rows = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    return d4rl_episodes(rows, [range(4), range(4, 8), range(8, 11)], states(), later)


@odd(said=["has no next_observations: the last action before a timeout or the end of a file is left out"])
def d4rl_images(folder: Path) -> Expected:
    frames = images(4, rows=N)
    hdf5(folder, **d4rl(frames.transpose(0, 2, 3, 1), terminals=np.arange(N) % 5 == 4, timeouts=np.zeros(N)))
    rows = [[0, 1, 2, 3, 4, 4], [5, 6, 7, 8, 9, 9]]  # after row 10, which ends nothing, there is no observation
    return [{"frame": frames[chosen], "discount": np.array([[1]] * 5 + [[0]], np.float32)} for chosen in rows]


@odd()
def d4rl_episodes_of_a_step(folder: Path) -> Expected:
    later = states(N + 1)[1:]
    hdf5(folder, **d4rl(states(), terminals=np.ones((N, 1)), timeouts=np.zeros((N, 1)), next_observations=later))
    return [{"observation": states(N + 1)[[row, row + 1]].astype(np.float32)} for row in range(N)]


@odd("holds no episode")
def d4rl_without_rows(folder: Path) -> None:
    hdf5(folder, **{name: column[:0] for name, column in d4rl(states()).items() if column is not None})


def cubes() -> np.ndarray:
    """Images of as many channels as they have rows and columns."""
    return images(16, rows=N)


@odd("images [16, 16, 16]: it is not clear which axis holds the channels; say so: channels=first or channels=last")
def d4rl_channels_that_are_not_clear(folder: Path) -> None:
    hdf5(folder, **d4rl(cubes()))


@odd(said=["has no next_observations"], channels="last")
def d4rl_channels_last(folder: Path) -> Expected:
    hdf5(folder, **d4rl(cubes()))
    return [{"frame": cubes()[rows].transpose(0, 3, 1, 2)} for rows in ([0, 1, 2, 3, 3], [4, 5, 6, 7], [8, 9, 10])]


@odd(said=["stacks of 3 images are images of 12 channels; frame_stack=1 fits them"])
def d4rl_stacks_of_four_axes(folder: Path) -> Expected:
    found = stacks(images(4, rows=N).transpose(0, 2, 3, 1), 3)
    hdf5(folder, **d4rl(found, terminals=np.arange(N) == N - 1, timeouts=np.zeros(N)))
    return [{"frame": stacks(images(4, rows=N), 3)[[*range(N), N - 1]].reshape(N + 1, 12, SIDE, SIDE)}]


@odd("it is not clear which axis holds the channels")
def d4rl_of_several_observations(folder: Path) -> None:
    found = {"observations/image": cubes(), "observations/state": states()}
    hdf5(folder, **d4rl(states()) | {"observations": None} | found)


@odd("all.hdf5: actions is a group (arm): must be one array")
def d4rl_of_several_actions(folder: Path) -> None:
    hdf5(folder, **d4rl(states()) | {"actions": None, "actions/arm": states()})


@odd("all.hdf5: rows differ in number: actions 11, observations/goal 10, observations/state 11")
def d4rl_of_a_part_a_row_shorter(folder: Path) -> None:
    found = {"observations/goal": states()[:-1], "observations/state": states()}
    hdf5(folder, **d4rl(states()) | {"observations": None} | found)


@odd("all.hdf5: observations have the parts none, next_observations state: must be the same")
def d4rl_of_several_next_observations(folder: Path) -> None:
    hdf5(folder, **d4rl(states(), **{"next_observations/state": states()}))


@odd("timeouts missing; it has actions, observations, rewards, terminals; without timeouts (0 where there is none)")
def d4rl_without_timeouts(folder: Path) -> None:
    hdf5(folder, **d4rl(states(), timeouts=None))


@odd("rows differ in number: actions 11, observations 11, rewards 11, terminals 10, timeouts 11")
def d4rl_terminals_a_row_shorter(folder: Path) -> None:
    hdf5(folder, **d4rl(states(), terminals=np.arange(N - 1) == TERMINAL))


@odd("all.hdf5, rows 4 to 7: row 5: reward is nan")
def d4rl_with_nan(folder: Path) -> None:
    rewards: Any = d4rl(states())["rewards"]
    hdf5(folder, **d4rl(states(), rewards=changed(rewards, 5, np.nan)))


@odd("all.hdf5, rows 4 to 7: row 6: observation is nan")
def d4rl_with_nan_in_a_state(folder: Path) -> None:
    hdf5(folder, **d4rl(changed(states(), (6, 0), np.nan)))


@odd("all.hdf5, rows 0 to 3: row 1: next_observations is not the observation of the next row")
def d4rl_with_a_gap(folder: Path) -> None:
    later = np.concatenate([states()[1:], states()[:1]])
    hdf5(folder, **d4rl(states(), next_observations=changed(later, 1, 0)))


# Minari


def minari(folder: Path, observation_space: Any, observations: Any, action: Any = None) -> None:
    """Write two equal episodes of T steps of which the first is terminated."""
    import gymnasium
    from minari import create_dataset_from_buffers
    from minari.data_collector import EpisodeBuffer

    rows = numbers()
    episodes = [
        EpisodeBuffer(
            id=i,
            observations=observations,
            actions=list(2 * rows["action"][1:] if action is None else action),
            rewards=rows["reward"][1:].tolist(),
            terminations=[False] * (T - 1) + [i == 0],
            truncations=[False] * (T - 1) + [i == 1],
        )
        for i in range(2)
    ]
    box = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
    create_dataset_from_buffers(
        f"odd/{folder.name}-v0",
        episodes,
        action_space=gymnasium.spaces.Discrete(3) if action is not None and action.ndim == 1 else box,
        observation_space=observation_space,
    )


def minari_expected(**arrays: np.ndarray) -> Expected:
    ends = [np.array([[1]] * T + [[float(i)]], np.float32) for i in range(2)]
    return [arrays | {"action": numbers()["action"], "discount": discount} for discount in ends]


def spaces(**parts: tuple[int, ...]) -> Any:
    """A Dict: images of uint8 where a part has two or three axes, else vectors."""
    from gymnasium.spaces import Box, Dict

    return Dict(
        {
            name: Box(0, 255, shape, np.uint8) if len(shape) > 1 else Box(-np.inf, np.inf, shape, np.float32)
            for name, shape in parts.items()
        }
    )


RGBA = images(4).transpose(0, 2, 3, 1)
STATES = np.random.default_rng(6).normal(size=(T + 1, 3)).astype(np.float32)


@odd()
def minari_pixels(folder: Path) -> Expected:
    minari(folder, spaces(pixels=(SIDE, SIDE, 4)), {"pixels": RGBA})
    return minari_expected(frame=images(4))


@odd(said=["observations are pixels; left out: depth, goal, state"], obs_type="pixels")
def minari_pixels_beside_others(folder: Path) -> Expected:
    shapes: Any = {"state": (3,), "pixels": (SIDE, SIDE, 4), "depth": (SIDE, SIDE), "goal": (3,)}
    parts = {"pixels": RGBA, "depth": images(1)[:, 0], "state": STATES, "goal": STATES}
    minari(folder, spaces(**shapes), parts)
    return minari_expected(frame=images(4))


@odd(said=["observations are goal, state; left out: pixels"], obs_type="state")
def minari_states_beside_pixels(folder: Path) -> Expected:
    shapes: Any = {"state": (3,), "pixels": (SIDE, SIDE, 4), "goal": (2,)}
    minari(folder, spaces(**shapes), {"pixels": RGBA, "state": STATES, "goal": STATES[:, :2]})
    return minari_expected(observation=np.concatenate([STATES[:, :2], STATES], axis=1))


@odd("must have a Box, with obs_type=state one that is no image", obs_type="state")
def minari_nothing_but_pixels(folder: Path) -> None:
    minari(folder, spaces(pixels=(SIDE, SIDE, 4)), {"pixels": RGBA})


@odd("observation_parts=middle: the observations of minari:odd/", observation_parts=["middle"])
def minari_no_such_part(folder: Path) -> None:
    two_images(folder)


def two_images(folder: Path) -> None:
    minari(folder, spaces(left=(SIDE, SIDE, 3), right=(SIDE, SIDE, 4)), {"left": RGBA[..., :3], "right": RGBA})


@odd(said=["observations are right; left out: left"], image_key="right")
def minari_a_chosen_image(folder: Path) -> Expected:
    two_images(folder)
    return minari_expected(frame=images(4))


@odd(said=["images of float32 in [0, 1] are converted", "observations are rgb; left out: speed"], obs_type="pixels")
def minari_floats(folder: Path) -> Expected:
    from gymnasium.spaces import Box, Dict

    space = Dict({"rgb": Box(0, 1, (4, SIDE, SIDE), np.float32), "speed": Box(0, 9, (2,), np.float32)})
    minari(folder, space, {"rgb": (images(4) / 255).astype(np.float32), "speed": STATES[:, :2] * 0})
    return minari_expected(frame=images(4))


@odd("episode 0: images are float32 [4, 16, 16] from 0.0 to 255.0: must be uint8, or floats in [0, 1]")
def minari_floats_to_255(folder: Path) -> None:
    from gymnasium.spaces import Box, Dict

    space = Dict({"rgb": Box(-np.inf, np.inf, (4, SIDE, SIDE), np.float32), "speed": Box(0, 9, (2,), np.float32)})
    frames = changed(changed(images(4), (0, 0, 0, 0), 0), (0, 0, 0, 1), 255)
    minari(folder, space, {"rgb": frames.astype(np.float32), "speed": STATES[:, :2] * 0})


@odd()
def minari_grey_stacks(folder: Path) -> Expected:
    minari(folder, spaces(a=(4, SIDE, SIDE))["a"], stacks(images(1), 4)[:, :, 0])
    return minari_expected(frame=stacks(images(1), 4)[:, :, 0])


@odd()
def minari_a_matrix_of_a_state(folder: Path) -> Expected:
    from gymnasium.spaces import Box

    minari(folder, Box(-9, 9, (2, 3), np.float32), np.stack([STATES, STATES], axis=1))
    return minari_expected(observation=np.concatenate([STATES, STATES], axis=1))


@odd()
def minari_states_of_a_dict(folder: Path) -> Expected:
    from gymnasium.spaces import Dict

    space = Dict({"state": spaces(b=(3,), a=(2,)), "goal": spaces(z=(1,))})
    minari(folder, space, {"state": {"b": STATES, "a": STATES[:, :2]}, "goal": {"z": STATES[:, :1]}})
    return minari_expected(observation=np.concatenate([STATES[:, :1], STATES[:, :2], STATES], 1))


@odd("actions Discrete(3): must be a Box with finite bounds")
def minari_discrete_actions(folder: Path) -> None:
    minari(folder, spaces(a=(3,))["a"], STATES, np.arange(T) % 3)


@odd("episode 0: row 3: action[0] 1.5 is not within [-1, 1]")
def minari_actions_outside(folder: Path) -> None:
    minari(folder, spaces(a=(3,))["a"], STATES, changed(numbers()["action"][1:], (3, 0), 3))


@odd("episode 1: row 2: observation is nan")
def minari_with_nan(folder: Path) -> None:
    minari(folder, spaces(a=(3,))["a"], changed(STATES, (2, 0), np.nan))


# This project's


def own(folder: Path, **arrays: np.ndarray) -> None:
    rows = numbers()
    kept = {name: array.reshape(T + 1, -1) for name, array in rows.items()} | arrays
    save_file(kept, folder / f"episode_{len(list(folder.iterdir())):08d}.safetensors")


@odd("its observations are frame, observation.speed: several must be named, such as frame.pixels")
def an_image_and_a_state(folder: Path) -> None:
    own(folder, frame=images(), **{"observation.speed": np.zeros((T + 1, 1), np.float32)})


def parts() -> dict[str, np.ndarray]:
    """An image and two vectors."""
    return {"frame.pixels": images(), "observation.a": STATES, "observation.b": STATES[:, :1].copy()}


@odd(said=["observations are pixels; left out: a, b"], obs_type="pixels")
def the_image_of_a_dict(folder: Path) -> Expected:
    own(folder, **parts())
    return [{"frame": images()}]


@odd(said=["observations are a; left out: pixels, b"], obs_type="state", observation_parts=["a"])
def a_vector_of_a_dict(folder: Path) -> Expected:
    own(folder, **parts())
    return [{"observation": STATES}]


@odd("hold a, b, and not their order in one vector", obs_type="state")
def vectors_without_an_order(folder: Path) -> None:
    own(folder, **parts())


@odd("image_key=a: is not among the images of ", image_key="a")
def a_vector_as_the_image(folder: Path) -> None:
    own(folder, **parts())


@odd("observation is float32 [7, 16, 16, 3]: must be float32 [rows, numbers]")
def a_float_image_of_our_own(folder: Path) -> None:
    own(folder, observation=(images() / 255).astype(np.float32).transpose(0, 2, 3, 1))


@odd("observation is float16 [7, 4]: must be float32 [rows, numbers]")
def a_state_of_half_precision(folder: Path) -> None:
    own(folder, observation=np.zeros((T + 1, 4), np.float16))


@odd("episode_00000001.safetensors: frame 3x16x15: that of ")
def images_of_two_sizes(folder: Path) -> None:
    own(folder, frame=images())
    own(folder, frame=np.ascontiguousarray(images()[..., :15]))


@odd("comes from a multi-task run")
def several_tasks(folder: Path) -> None:
    own(folder, frame=images(), task=np.zeros((T + 1, 1), np.int64))


@odd("dataset.json: cannot be read")
def a_damaged_origin(folder: Path) -> None:
    own(folder, frame=images())
    (folder / "dataset.json").write_text(json.dumps({"task": "cup_catch"})[:-2])


@odd(said=["actions outside [-1, 1] are clipped"], clip_actions=True)
def our_own_to_clip(folder: Path) -> Expected:
    action = changed(numbers()["action"], (1, 0), 1.5)
    own(folder, frame=images(), action=action)
    own(folder, frame=images())
    return [{"action": action.clip(-1, 1)}, {"action": numbers()["action"]}]


@odd("has 1 row: at least a reset and a step are needed")
def a_reset_alone(folder: Path) -> None:
    own(folder, **{name: array[:1] for name, array in {"frame": images(), **_columns()}.items()})


def _columns() -> dict[str, np.ndarray]:
    return {name: array.reshape(T + 1, -1) for name, array in numbers().items()}


@odd("holds no episode")
def nothing_but_columns(folder: Path) -> None:
    hdf5(folder, observation=images()[:0], step_type=np.zeros(0), **{k: v[:0] for k, v in numbers().items()})
