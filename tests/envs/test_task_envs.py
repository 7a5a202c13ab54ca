"""Environments as those of several tasks: whose time steps they are, and what reaches them of an action."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from drqv2 import envs, utils
from drqv2.envs import libraries
from drqv2.envs.env_process import ProcessEnv
from drqv2.envs.handles import EnvHandle, LocalEnv, TaskEnv, as_tasks
from drqv2.errors import UserError
from tests import task_envs
from tests.task_run import LONG, SHORT, SILENT


def make(name: str, index: int = 0, action_repeat: int = 1) -> envs.Environment:
    factory = libraries.factory(name, {})
    return envs.make(name, 1, action_repeat, 1, factory=factory, stream=utils.TRAIN_ENV, index=index, obs_type="state")


def three(kind: Any = LocalEnv) -> list[EnvHandle]:
    handles = [kind(partial(make, name, i)) for i, name in enumerate((LONG, SHORT, SILENT))]
    return as_tasks(handles, ["long", "short", "silent"])


def call(env: EnvHandle, name: str, *args: Any) -> Any:
    env.start(name, *args)
    return env.finish()


def test_actions_have_the_size_of_the_largest_and_stay_in_bounds() -> None:
    for env in three():
        spec = env.action_spec()
        assert isinstance(spec, specs.BoundedArray)
        assert (spec.shape, spec.dtype) == ((3,), np.float32)
        assert (spec.minimum, spec.maximum) == (-1.0, 1.0)
        assert isinstance(env, TaskEnv)
        assert env.action_sizes == [2, 1, 3]
        assert env.observation_spec().shape == (3,)
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LocalEnv, partial(ProcessEnv, threads=1)])
def test_time_steps_have_their_task_and_a_padded_action(kind: Any) -> None:
    tasks = three(kind)
    action = np.array([0.5, -0.25, 0.75], np.float32)
    for task, env in enumerate(tasks):
        first = call(env, "reset")
        assert first.first()
        assert (first.task, first.action.tolist(), first.success) == (task, [0.0, 0.0, 0.0], None)
        then = call(env, "step", action)
        size = (2, 1, 3)[task]
        assert then.task == task
        assert then.action.dtype == np.float32
        assert then.action.tolist() == [*action[:size].tolist(), *[0.0] * (3 - size)]
        # The environment's own action is twice as large, and the observation tells its mean.
        assert then.observation[2] == pytest.approx(2 * action[:size].mean())
        assert then.success == (0.0, 0.0, None)[task]
        env.close()


def test_an_environment_is_restored_with_the_actions_of_its_own_task() -> None:
    tasks, again = three(), three()
    for env, other in zip(tasks, again, strict=True):
        call(env, "reset")
        for value in (0.1, 0.2, 0.3):
            seen = call(env, "step", np.full(3, value, np.float32))
        restored = call(other, "restore", env.state())
        np.testing.assert_array_equal(restored.observation, seen.observation)
        np.testing.assert_array_equal(restored.action, seen.action)
        assert restored.task == seen.task
        assert env.state()["actions"].shape == (3, env._own_size)  # type: ignore[attr-defined]


def test_results_that_are_no_time_steps_are_passed_on() -> None:
    env = three()[0]
    call(env, "reset")
    assert call(env, "render", 16, 16).shape == (16, 16, 3)


def test_several_environments_of_a_task_come_one_after_another() -> None:
    handles = [LocalEnv(partial(make, name, i)) for i, name in enumerate((LONG, LONG, SHORT, SHORT))]
    tasks = as_tasks(handles, ["long", "short"])
    assert [call(env, "reset").task for env in tasks] == [0, 0, 1, 1]
    assert [env.action_spec().shape for env in tasks] == [(2,)] * 4
    assert [env._own_size for env in tasks] == [2, 2, 1, 1]  # type: ignore[attr-defined]


def test_closing_closes_the_environment() -> None:
    task_envs.MADE.clear()
    for env in three():
        env.close()
    assert [env.closed for env in task_envs.MADE] == [True] * 3


class Shown(EnvHandle):
    """A handle that only has specs."""

    def __init__(self, observation: Any, action: Any) -> None:
        self._observation_spec, self._action_spec, self.step_seconds = observation, action, None

    def start(self, name: str, *args: Any) -> None:
        raise NotImplementedError

    def finish(self) -> Any:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


VECTOR, SMALL = specs.Array((3,), np.float32), specs.BoundedArray((1,), np.float32, -1.0, 1.0)
IMAGE, LARGER = (specs.Array((9, side, side), np.uint8) for side in (84, 96))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((VECTOR, SMALL), (specs.Array((4,), np.float32), SMALL), r"a shows float32 \[3\] and b shows float32 \[4\]"),
        ((VECTOR, SMALL), (IMAGE, SMALL), r"a shows float32 \[3\] and b shows images of \[9, 84, 84\]"),
        ((IMAGE, SMALL), (LARGER, SMALL), r"images of \[9, 84, 84\] and b shows images of \[9, 96, 96\]"),
        ((VECTOR, SMALL), (specs.Array((3,), np.float64), SMALL), r"float32 \[3\] and b shows float64 \[3\]"),
        ((VECTOR, SMALL), (VECTOR, specs.DiscreteArray(3)), "the actions of b are discrete"),
        ((VECTOR, SMALL), (VECTOR, specs.BoundedArray((2, 2), np.float32, -1, 1)), "must be one vector of numbers"),
    ],
)
def test_tasks_that_do_not_go_together(first: Any, second: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        as_tasks([Shown(*first), Shown(*second)], ["a", "b"])
