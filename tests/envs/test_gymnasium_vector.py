"""gymnasium.vector.VectorEnv in both modes: each number against single environments that are stepped by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from drqv2 import envs
from drqv2.envs.gymnasium_vector import GymnasiumVector, make_vector_env
from drqv2.envs.observed import Choice
from drqv2.envs.vector import VectorStep
from drqv2.errors import EnvError, EnvNotFiniteError, UserError
from tests.walk_env import Walk, vector

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def reused(num_envs: int) -> Any:
    return SyncVectorEnv([Walk] * num_envs, copy=False)


def played(env: GymnasiumVector, steps: int) -> list[tuple[VectorStep, np.ndarray]]:
    """Return steps, each with the actions chosen for it."""
    generator, spec, found = np.random.default_rng(0), env.action_spec(), []
    step = env.reset()
    for _ in range(steps):
        shape = (len(step.env_index), *spec.shape)
        actions = (
            generator.integers(0, spec.maximum + 1, shape)
            if np.issubdtype(spec.dtype, np.integer)
            else generator.uniform(-1.2, 1.2, shape).astype(np.float32)
        )
        found.append((step, actions))
        step = env.step(actions)
    return found


def rows_of(found: list[tuple[VectorStep, np.ndarray]], i: int) -> list[dict[str, Any]]:
    """Return what environment i has shown, and the action chosen for it, in order."""
    rows = []
    for step, actions in found:
        for row in np.flatnonzero(step.env_index == i):
            fields = {name: getattr(step, name)[row] for name in step._fields[:5]}
            info = {key: x[row] for key, x in (step.info or {}).items() if not np.isnan(x[row])}
            rows.append({**fields, "info": info, "action": actions[row]})
    return rows


def observed(observation: Any) -> Any:
    """Return an observation of Walk as the agent sees it."""
    if isinstance(observation, dict):
        return np.append(float(observation["a"]), observation["b"]).astype(np.float32)
    return observation.transpose(2, 0, 1) if observation.ndim == 3 else observation.astype(np.float32)


def scaled(action: Any, kind: str) -> Any:
    """Return an agent's action as that of Walk, by the wrappers of single environments."""
    taken: list[Any] = []

    class Recorder(Walk):
        def step(self, action: Any) -> Any:
            taken.append(action)
            return super().step(action)

    one = envs.make("walk", 1, 1, 0, factory=partial(Recorder, action=kind), obs_type="state")
    one.reset()
    one.step(action)
    return taken[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("observation", "action"),
    [("vector", "box"), ("dict", "discrete"), ("image", "box"), ("vector", "several")],
)
def test_every_number_is_that_of_single_environments(mode: AutoresetMode, observation: str, action: str) -> None:
    obs_type = "pixels" if observation == "image" else "state"
    env = GymnasiumVector(vector(3, mode.name, observation, action), 5, Choice(obs_type), 6)
    found = played(env, 60)
    ends = 0
    for i in range(3):
        rows, one = rows_of(found, i), Walk(observation, action)
        expected: dict[str, Any] = {}
        seen, _ = one.reset(seed=5 + i)
        for t, row in enumerate(rows):
            if t == 0 or rows[t - 1]["terminated"] or rows[t - 1]["truncated"]:
                if t:
                    seen, _ = one.reset()
                    ends += 1
                expected = {"reward": 0.0, "terminated": False, "truncated": False, "first": True, "info": {}}
            else:
                seen, reward, terminated, truncated, info = one.step(scaled(rows[t - 1]["action"], action))
                kept = {key: float(info[key]) for key in ("distance", "flag", "t", "at_end") if key in info}
                truncated = truncated and not terminated
                expected = {"reward": np.float32(reward), "terminated": terminated, "truncated": truncated}
                expected |= {"first": False, "info": kept}
            assert {key: row[key] for key in expected} == expected, (i, t)
            np.testing.assert_array_equal(row["observation"], observed(seen))
            assert row["observation"].dtype == env.observation_spec().dtype
            assert row["observation"].shape == env.observation_spec().shape
    assert ends > 20
    assert {len(step.env_index) for step, _ in found} - {3} if mode == AutoresetMode.SAME_STEP else True
    env.close()


def test_observations_survive_a_vector_that_reuses_its_arrays() -> None:
    one, other = (played(GymnasiumVector(made, 0, Choice("state"), 6), 30) for made in (vector(2), reused(2)))
    for (a, _), (b, _) in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.observation, b.observation)


def test_a_seed_gives_the_same_steps_again_and_another_gives_others() -> None:
    first, again, other = (played(GymnasiumVector(vector(2), seed, Choice("state"), 6), 9) for seed in (1, 1, 4))
    for (a, _), (b, _) in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.observation, b.observation)
    assert not np.array_equal(first[0][0].observation, other[0][0].observation)


def test_environments_in_processes_of_gymnasium() -> None:
    made = AsyncVectorEnv([Walk] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymnasiumVector(made, 3, Choice("state"), 6)
    here = GymnasiumVector(vector(2, "SAME_STEP"), 3, Choice("state"), 6)
    for (a, _), (b, _) in zip(played(env, 30), played(here, 30), strict=True):
        np.testing.assert_array_equal(a.observation, b.observation)
        np.testing.assert_array_equal(a.reward, b.reward)
    env.close()


@pytest.mark.parametrize("mode", [*MODES, AutoresetMode.DISABLED])
def test_a_vector_of_one_is_a_single_environment(mode: AutoresetMode) -> None:
    """As which it evaluates, and trains in other regimes."""
    one = envs.make("walk", 1, 1, 0, factory=partial(vector, mode=mode.name), obs_type="state")
    other = envs.make("walk", 1, 1, 0, factory=Walk, obs_type="state")
    generator = np.random.default_rng(0)
    a, b = one.reset(), other.reset()
    for _ in range(40):
        assert (a[:3], a.success, a.info) == (b[:3], b.success, b.info)
        np.testing.assert_array_equal(a.observation, b.observation)
        action = generator.uniform(-1, 1, 2)
        a, b = one.step(action), other.step(action)
    assert one.episode > 5


class Nan(Walk):
    def _observe(self) -> Any:
        return np.full(2, np.nan if self.t == 2 else 0.0)


class WithoutLast(SyncVectorEnv):
    """Says SAME_STEP, and does not hand over the last observations."""

    def step(self, actions: Any) -> Any:
        *found, infos = super().step(actions)
        return *found, {key: x for key, x in infos.items() if "final_obs" not in key}


def test_what_cannot_be_used_is_refused() -> None:
    with pytest.raises(UserError, match=r"(?s)autoreset_mode.*is AutoresetMode.DISABLED\nIt must be .*NEXT_STEP"):
        GymnasiumVector(vector(2, "DISABLED"), 0, Choice("state"), 6)
    silent = vector(2)
    del silent.metadata["autoreset_mode"]
    with pytest.raises(UserError, match="is missing"):
        GymnasiumVector(silent, 0, Choice("state"), 6)
    with pytest.raises(UserError, match=r"have no image, .*\nUse obs_type=state"):
        GymnasiumVector(vector(2), 0, Choice("pixels"), 6)
    with pytest.raises(UserError, match="obs_type=state"):
        GymnasiumVector(vector(2, observation="image"), 0, Choice("state"), 6)
    with pytest.raises(UserError, match="no final_obs\n"):
        played(GymnasiumVector(WithoutLast([Walk], autoreset_mode=AutoresetMode.SAME_STEP), 0, Choice("state"), 6), 9)
    with pytest.raises(EnvNotFiniteError, match="environment 0: the observation is nan at"):
        played(GymnasiumVector(SyncVectorEnv([Nan]), 0, Choice("state"), 6), 30)
    with pytest.raises(UserError, match="num_envs=8: vector returned 4\n"):
        make_vector_env(partial(vector, num_envs=4), 8)
    with pytest.raises(UserError, match=r"vector returned 4 environments at once: only regime=ppo.*\nElsewhere"):
        envs.make("walk", 1, 1, 0, factory=partial(vector, num_envs=4), obs_type="state")


class Wrong(SyncVectorEnv):
    """Returns something else than it declares, as `fault` says."""

    fault = ""

    def step(self, actions: Any) -> Any:
        observation, reward, *ends, infos = super().step(actions)
        if self.fault == "floats":
            observation = observation / np.float32(255)
        elif self.fault == "shape":
            observation = observation[:, :3]
        elif self.fault == "rewards":
            reward = reward[:, None]
        elif self.fault == "error":
            raise ZeroDivisionError("in the user's own step")
        return observation, reward, *ends, infos


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("floats", r"Wrong: the observation is float32 \[2, 6, 6, 3\]: declared uint8 \[2, 6, 6, 3\]"),
        ("shape", r"Wrong: the observation is uint8 \[2, 3, 6, 3\]: declared uint8 \[2, 6, 6, 3\]"),
        ("rewards", r"returned observations, float64 \[2, 1\], bool \[2\], .*three arrays \(2,\)"),
        ("error", r"(?s)Wrong: step\(\) raised ZeroDivisionError: in the user's own step\n.*test_gymnasium_vector"),
    ],
)
def test_what_a_vector_returns_is_held_against_what_it_declared(
    fault: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, "fault", fault)
    with pytest.raises(EnvError, match=words):
        played(GymnasiumVector(Wrong([partial(Walk, "image")] * 2), 0, Choice("pixels"), 6), 9)
