"""The wrappers, on an environment whose every number is known."""

from __future__ import annotations

import itertools

import dm_env
import numpy as np
import pytest

from drqv2.envs.wrappers import (
    ActionDTypeWrapper,
    ActionRepeatWrapper,
    ActionScaleWrapper,
    ExtendedTimeStep,
    ExtendedTimeStepWrapper,
    FrameStackWrapper,
)
from tests.envs.toys import Counter, Dice

ACTION = np.zeros(2)


def test_repeat_sums_discounted_rewards():
    env = ActionRepeatWrapper(Counter(length=10), 3)
    env.reset()
    time_step = env.step(ACTION)
    assert time_step.reward == 1 + 0.5 * 2 + 0.25 * 3
    assert time_step.discount == 0.125
    assert time_step.mid()


@pytest.mark.parametrize("last_discount", [0.0, 1.0])
def test_repeat_stops_at_the_end(last_discount):
    env = ActionRepeatWrapper(Counter(length=4, last_discount=last_discount), 3)
    env.reset()
    env.step(ACTION)
    time_step = env.step(ACTION)
    assert time_step.last()
    assert time_step.reward == 4
    assert time_step.discount == last_discount
    assert env.step(ACTION).first()
    assert env.step(ACTION).reward == 1 + 0.5 * 2 + 0.25 * 3


def test_repeat_takes_a_missing_discount_for_one():
    class NoDiscount(Counter):
        def step(self, action):
            return super().step(action)._replace(discount=None)

    env = ActionRepeatWrapper(NoDiscount(length=10), 2)
    env.reset()
    assert env.step(ACTION).reward == 3


def test_actions_are_cast_and_stay_inside_the_bounds():
    inner = Counter()
    env = ActionScaleWrapper(ActionDTypeWrapper(inner, np.float32))
    spec = env.action_spec()
    assert spec.dtype == np.float32
    assert (spec.minimum == -1).all()
    assert (spec.maximum == 1).all()
    env.reset()
    for action in ([-1, -1], [1, 1], [0, 0], [0.5, -0.5]):
        env.step(np.array(action, np.float32))
    assert all(taken.dtype == np.float64 for taken in inner.taken)
    assert np.array_equal(inner.taken[0], [-0.1, 0])
    assert np.array_equal(inner.taken[1], [0.1, 3])  # float32(0.1) would lie outside
    np.testing.assert_allclose(inner.taken[2:], [[0, 1.5], [0.05, 0.75]], atol=1e-8)


def test_frames_are_stacked_newest_last():
    env = FrameStackWrapper(Dice(length=9), 3)
    assert env.observation_spec().shape == (9, 6, 4)
    frames = [env.reset().observation]
    frames += [env.step(ACTION).observation for _ in range(4)]
    assert np.array_equal(frames[0][:3], frames[0][3:6])
    assert np.array_equal(frames[0][:3], frames[0][6:])
    for before, after in itertools.pairwise(frames):
        assert np.array_equal(before[3:], after[:6])
        assert not np.array_equal(after[3:6], after[6:])


def test_frames_are_copies():
    """An environment may hand over the same buffer at every step."""

    class Reuses(Dice):
        buffer = np.zeros((6, 4, 1), np.uint8)

        def _image(self):
            self.buffer[:] = self.t
            return {"pixels": self.buffer}

    env = FrameStackWrapper(Reuses(shape=(6, 4, 1)), 2)
    env.reset()
    env.step(ACTION)
    assert env.step(ACTION).observation[:, 0, 0].tolist() == [1, 2]


def test_a_step_past_the_end_clears_the_stack():
    env = FrameStackWrapper(Dice(length=1), 3)
    env.reset()
    assert env.step(ACTION).last()

    class Restarts(Dice):
        def step(self, action):
            return self.reset()

    env = FrameStackWrapper(Restarts(), 3)
    env.reset()
    observation = env.step(ACTION).observation
    assert np.array_equal(observation[:3], observation[6:])


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_extended_time_step_keeps_the_discount(discount):
    env = ExtendedTimeStepWrapper(Counter(length=2, last_discount=discount))
    first = env.reset()
    assert isinstance(first, ExtendedTimeStep)
    assert first.first()
    assert (first.reward, first.discount) == (0.0, 1.0)
    assert np.array_equal(first.action, [0, 0])
    action = np.array([0.1, 2.0])
    mid = env.step(action)
    assert mid.mid()
    assert mid.discount == 0.5
    last = env.step(action)
    assert last.last()
    assert last.discount == discount
    assert last["action"] is last.action is action
    assert last["reward"] == last[1] == 2.0
    assert not isinstance(last, dm_env.TimeStep)


def test_wrappers_pass_attributes_on():
    env = ExtendedTimeStepWrapper(ActionRepeatWrapper(Counter(), 2))
    assert env.length == 10
    with pytest.raises(AttributeError):
        _ = env.no_such_thing
