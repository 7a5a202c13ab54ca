"""Environments from a run's configuration: how long a reset or a step may take, and what to do if it takes longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np
import pytest

from drqv2 import utils
from drqv2.errors import ProcessError
from drqv2.run.environments import make_envs, make_vector
from tests.dot_env import Dot
from train import compose


class Slow(Dot):
    """Its resets take a while."""

    def __init__(self, image_size: int, seconds: float) -> None:
        super().__init__(image_size)
        self._seconds = seconds

    def reset(self) -> dm_env.TimeStep:
        time.sleep(self._seconds)
        return super().reset()


def trained(cfg: Any) -> Any:
    return make_envs(cfg, utils.TRAIN_ENV)[0]


def evaluated(cfg: Any) -> Any:
    return make_envs(cfg, utils.EVAL_ENV)[0]


def first_steps(cfg: Any, make: Callable[[Any], Any]) -> np.ndarray:
    """Return the first observation of what `make` makes."""
    env = make(cfg)
    try:
        step = env.reset() if hasattr(env, "reset") else env.call("reset")
        image: np.ndarray = step.observation
        return image
    finally:
        env.close()


def composed(**values: Any) -> Any:
    own = {"env._target_": f"{__name__}.Slow", "obs_type": "pixels", "+env.seconds": 3.0, "image_size": 32}
    return compose(**own | values)


TWO = {"regime": "multitask", "tasks": ["one", "other"]}
CASES = [
    pytest.param(trained, {}, "overlap=false", id="drqv2"),
    pytest.param(evaluated, TWO, "overlap=false", id="multitask's evaluation"),
    pytest.param(lambda cfg: make_vector(cfg, 0), {"regime": "ppo", "num_envs": 1}, "vector=serial", id="ppo"),
    pytest.param(evaluated, {"regime": "impala", "num_eval_envs": 2}, "num_eval_envs=1", id="impala's evaluation"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "values", "serial"), CASES)
def test_a_reset_that_takes_too_long(make: Any, values: dict[str, Any], serial: str) -> None:
    with pytest.raises(ProcessError) as refusal:
        first_steps(composed(**values, env_timeout_seconds=1), make)
    said, advice = str(refusal.value).splitlines()
    assert said == "3 processes of an environment failed at reset(): the last has not replied for 1 s"
    assert advice.startswith(f"increase env_timeout_seconds; or set {serial}: ")


@pytest.mark.slow
def test_a_reset_may_take_a_while(caplog: pytest.LogCaptureFixture) -> None:
    assert first_steps(composed(env_timeout_seconds=10), trained).any()
    assert "restarting" not in caplog.text


@pytest.mark.parametrize("regime", ["drqv2", "multitask", "offline", "ppo", "impala"])
def test_a_reset_of_a_few_minutes_is_no_hang(regime: str) -> None:
    more = {"tasks": ["one", "other"]} if regime == "multitask" else {"data": "runs"} if regime == "offline" else {}
    cfg = composed(regime=regime, **more)
    assert cfg.env_timeout_seconds == 300
    assert cfg.get("actor_hang_seconds", 300) == 300
