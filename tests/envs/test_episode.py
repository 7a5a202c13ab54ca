"""Episodes are functions of their names alone, and an environment returns to where it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dm_control import manipulation, suite

from drqv2.envs import make
from drqv2.envs.scene import Scene
from drqv2.errors import UserError
from drqv2.utils import EVAL_ENV, TRAIN_ENV, spawn_seed
from tests.envs.toys import Counter, Dice

SIZE = 32
# Tasks that change the model at a reset (finger, reacher), that the composer builds anew (reach_duplo), that
# settle for a while first (cheetah), that upload a terrain (escape).
FAST = ["cartpole_balance", "finger_turn_hard", "reacher_hard"]
SLOW = [
    "reach_duplo",
    "cheetah_run",
    "cup_catch",
    "fish_swim",
    "humanoid_walk",
    "quadruped_escape",
    "swimmer_swimmer6",
    "walker_walk",
]
TASKS = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def play(env: Any, steps: int, seed: int = 0) -> list[Any]:
    draws = np.random.default_rng(seed)
    return [env.step(draws.uniform(-1, 1, env.action_spec().shape)) for _ in range(steps)]


def same(a: Any, b: Any) -> bool:
    return (
        a.step_type == b.step_type
        and a.reward == b.reward
        and a.discount == b.discount
        and np.array_equal(a.observation, b.observation)
        and np.array_equal(a.action, b.action)
    )


def dice(length: int = 10, last_discount: float = 0.0, **kwargs: Any) -> Any:
    def factory() -> Dice:
        return Dice(length=length, last_discount=last_discount, shape=(8, 8, 3))

    return make("own", 3, 2, 1, factory=factory, image_size=8, **kwargs)


@pytest.mark.parametrize("name", TASKS)
def test_an_episode_is_a_function_of_its_name(name):
    env, other = (make(name, 3, 2, seed=1, image_size=SIZE) for _ in range(2))
    env.reset()
    play(env, 12, seed=1)
    env.reset()
    play(env, 5, seed=2)
    reached = [env.reset(), *play(env, 6)]
    assert (env.index, env.episode) == (0, 2)
    entered = [other.begin(0, 2), *play(other, 6)]
    assert all(map(same, reached, entered))

    env.begin(2, 5)
    before = play(env, 7)[-1]
    state = env.state()
    assert (type(state["index"]), type(state["episode"])) == (int, int)
    assert state["actions"].dtype == torch.float32
    assert state["actions"].shape == (7, *env.action_spec().shape)
    after = play(env, 4, seed=9)

    other.reset()
    play(other, 3)
    assert same(other.restore(state), before)
    assert (other.index, other.episode) == (2, 5)
    assert all(map(same, play(other, 4, seed=9), after))
    env.close()
    other.close()


@pytest.mark.slow
def test_restore_after_a_whole_episode():
    env = make("cheetah_run", 3, 20, seed=3, image_size=16)
    env.reset()
    last = play(env, 50)[-1]
    assert last.last()
    assert last.discount == 1.0  # a time-out
    state = env.state()
    first = env.reset()
    other = make("cheetah_run", 3, 20, seed=3, image_size=16)
    assert same(other.restore(state), last)
    assert same(other.step(np.zeros(6)), first)
    env.close()
    other.close()


def test_restore_renders_only_what_is_seen(monkeypatch):
    env, renders, draw = make("pendulum_swingup", 3, 2, seed=1, image_size=16), [], Scene.draw

    def count(*args: Any) -> Any:
        renders.append(1)
        return draw(*args)

    monkeypatch.setattr(Scene, "draw", count)
    for steps in (0, 1, 2, 3, 8):
        expected = [env.begin(0, 0), *play(env, steps)][-1]
        state = env.state()
        env.reset()
        renders.clear()
        assert same(env.restore(state), expected)
        assert len(renders) == min(steps + 1, 3)
    env.close()


def test_names_of_episodes():
    env = dice()
    assert env.episode == -1
    episodes = [env.reset().observation for _ in range(3)]
    assert (env.index, env.episode) == (0, 2)
    assert np.array_equal(env.begin(0, 1).observation, episodes[1])
    assert np.array_equal(env.reset().observation, episodes[2])
    others = [
        env.begin(1, 0).observation,
        dice(index=2).reset().observation,
        dice(stream=EVAL_ENV).reset().observation,
    ]
    assert np.array_equal(others[0], dice(index=1).reset().observation)
    every = [o.tobytes() for o in (*episodes, *others)]
    assert len(set(every)) == len(every)


def test_a_step_past_the_end_begins_the_next_episode():
    env = dice(length=3)
    assert env.step(np.ones(2)).first()  # so does a step before the first reset
    assert env.episode == 0
    assert play(env, 2)[-1].last()
    assert env.state()["actions"].shape == (2, 2)
    first = env.step(np.ones(2))
    assert first.first()
    assert (first.reward, first.discount) == (0.0, 1.0)
    assert env.episode == 1
    assert env.state()["actions"].shape == (0, 2)


def test_actions_are_kept_as_they_were_taken():
    env = dice()
    env.reset()
    action = np.array([0.1, 0.2])
    time_step = env.step(action)
    action[:] = 5  # the caller's buffer
    assert time_step.action.dtype == np.float32
    assert np.array_equal(env.state()["actions"], np.array([[0.1, 0.2]], np.float32))
    with pytest.raises(ValueError, match=r"shape \(2,\) but found \(1,\)"):
        env.step([0.0])


def test_state_of_another_episode_is_refused():
    env = dice(length=9)
    env.reset()
    play(env, 5)
    with pytest.raises(UserError, match="ends after 2 of the 5 steps"):
        dice(length=4).restore(env.state())


def test_stock_dm_control_plays_the_same_episode():
    """Pixels, rewards and ends are those of dm_control's own environment, seeded with the same number."""
    env = make("finger_turn_easy", 1, 1, seed=4, image_size=48)
    stock = suite.load("finger", "turn_easy", task_kwargs={"random": spawn_seed(4, TRAIN_ENV, 0, 0)})
    from dm_control.suite.wrappers import pixels

    stock = pixels.Wrapper(stock, render_kwargs={"height": 48, "width": 48, "camera_id": 0})
    first, theirs = env.reset(), stock.reset()
    assert np.array_equal(first.observation, theirs.observation["pixels"].transpose(2, 0, 1))
    draws = np.random.default_rng(0)
    for _ in range(5):
        action = draws.uniform(-1, 1, 2).astype(np.float32)
        ours, theirs = env.step(action), stock.step(action)
        assert np.array_equal(ours.observation, theirs.observation["pixels"].transpose(2, 0, 1))
        assert ours.reward == theirs.reward
    env.close()
    stock.physics.free()


@pytest.mark.slow
def test_stock_manipulation_plays_the_same_episode():
    env = make("reach_duplo", 1, 1, seed=4)
    stock = manipulation.load("reach_duplo_vision", seed=spawn_seed(4, TRAIN_ENV, 0, 0))
    # The stock environment draws nothing before its first reset, so its generator is where ours begins.
    first, theirs = env.reset(), stock.reset()
    assert np.array_equal(first.observation, theirs.observation["front_close"][0].transpose(2, 0, 1))
    low, high = (np.float32(b).astype(np.float64) for b in (stock.action_spec().minimum, stock.action_spec().maximum))
    draws = np.random.default_rng(0)
    for _ in range(3):
        action = draws.uniform(-1, 1, low.shape).astype(np.float32)
        ours = env.step(action)
        scaled = (low + (np.float64(action) + 1) / 2 * (high - low)).astype(np.float32)
        theirs = stock.step(np.clip(scaled, stock.action_spec().minimum, stock.action_spec().maximum))
        assert np.array_equal(ours.observation, theirs.observation["front_close"][0].transpose(2, 0, 1))
        assert ours.reward == theirs.reward
    env.close()
    stock.close()


def test_time_out_and_end_are_kept_apart():
    for discount in (0.0, 1.0):
        env = dice(length=4, last_discount=discount)
        env.reset()
        last = play(env, 2)[-1]
        assert last.last()
        assert last.discount == 0.5 * discount  # the repeat before it has a discount of its own


def test_unseeded_environment_still_plays():
    env = make("own", 2, 2, 1, factory=lambda: Counter(shape=(8, 8, 3)), image_size=8)
    env.reset()
    before = play(env, 4)[-1]
    assert same(env.restore(env.state()), before)
