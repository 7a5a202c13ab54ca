"""Whatever an environment returns other than it declared is named, with the step; nothing is reinterpreted."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
from gymnasium import spaces

from drqv2.envs import make, notices
from drqv2.envs.env_process import ProcessEnv
from drqv2.errors import EnvError, EnvNotFiniteError, UserError
from tests.odd import interfaces as odd
from tests.odd.interfaces import BOTH, IMAGE, LENGTH, ends, informs, machine, observes, rewards, three

ROOT = Path(__file__).parents[2]
F32 = np.float32
F64 = spaces.Box(-np.inf, np.inf, (3,), np.float64)
AT = "of episode 0 of environment 0"


def opened(factory: Any, obs_type: str = "state", **kwargs: Any) -> Any:
    return make("own", 1, 1, 1, factory=factory, obs_type=obs_type, image_size=15, **kwargs)


def played(env: Any) -> list[Any]:
    """Return the time steps of an episode."""
    time_steps = [env.reset()]
    while not time_steps[-1].last() and len(time_steps) < 2 * LENGTH:
        time_steps.append(env.step(env.action_spec().generate_value()))
    return time_steps


def first_with(*values: Any) -> Any:
    return dm_env.TimeStep(*values, np.zeros(2))


REFUSED: list[tuple[str, Any, str]] = [
    # observations
    (
        "NaN",
        observes(three(np.array([0, np.nan, 1], F32))),
        f"step 3 {AT}: the observation is nan at [1]",
    ),
    (
        "infinite, at reset",
        observes(lambda t: np.full(3, -np.inf, F32)),
        f"reset {AT}: the observation is -inf at [0]",
    ),
    ("NaN in a part", observes(lambda t: {"a": np.zeros(3, F32), "b": three(np.full(3, np.nan, F32))(t)}, BOTH), "'b'"),
    ("floats for uint8", observes(lambda t: np.ones((8, 8, 3)), IMAGE), "float64 [8, 8, 3]: declared uint8 [8, 8, 3]"),
    ("integers that would wrap", observes(lambda t: np.full((8, 8, 3), 254 + t), IMAGE), "values from 256 to 256"),
    ("negative integers", observes(lambda t: np.full((8, 8, 3), -1), IMAGE), "values from -1 to -1"),
    ("other axes", observes(lambda t: odd.image(t, 3, 8, 8), IMAGE), "uint8 [3, 8, 8]: declared uint8 [8, 8, 3]"),
    ("another length", observes(three(np.zeros(4, F32))), "float32 [4]: declared float32 [3]"),
    ("a number for a vector", observes(three(0.5)), "float 0.5: declared float32 [3]"),
    (
        "lists of different lengths",
        observes(three([[1, 2], [3]])),
        "a list of 2 values, which numpy cannot read: declared float32 [3]",
    ),
    ("objects", observes(three(np.array([{}, {}, {}]))), "object [3]: declared"),
    ("text", observes(three("abc")), "str 'abc': declared"),
    ("nothing", observes(three(None)), "the observation is None: declared"),
    ("complex numbers", observes(three(np.zeros(3, complex))), "complex128 [3]: declared"),
    ("a part is missing", observes(lambda t: {"a": np.zeros(3, F32)}, BOTH), "a dict of a: declared a dict of a, b"),
    ("a part too many", observes(lambda t: dict.fromkeys("abc", np.zeros(3, F32)), BOTH), "a dict of a, b, c"),
    ("no dict", observes(lambda t: np.zeros(3, F32), BOTH), "float32 [3]: declared a dict of a, b"),
    # rewards, flags, info
    (
        "two rewards",
        rewards(np.ones(2)),
        f"step 1 {AT}: the reward is float64 [2]: must be a number",
    ),
    ("a list as reward", rewards([1.0, 2.0]), "the reward is a list of 2 values: must be a number"),
    ("more than float32 holds", observes(three(np.full(3, 1e39)), F64), "is 1e+39 at [0], more than float32 holds"),
    ("a reward that float32 does not hold", rewards(1e39), "the reward is 1e+39, more than float32 holds"),
    ("a reward that no float holds", rewards(10**400), "the reward is inf"),
    ("no reward", rewards(None), "the reward is None: must be a number"),
    ("text as reward", rewards("1"), "the reward is str '1': must be a number"),
    ("NaN as reward", rewards(float("nan")), "the reward is nan"),
    ("infinite reward", rewards(np.float32(np.inf)), "the reward is inf"),
    ("two flags", ends(np.array([True, False])), "terminated is bool [2]"),
    ("text as flag", ends("no"), "terminated is str 'no': must be True or False"),
    ("no info", informs(None), "step() returned None as info: must be a dict"),
    # methods
    ("reset without a seed", odd.NoSeed, "reset() got an unexpected keyword argument 'seed'"),
    ("reset without info", odd.OnlyObservation, "must return (observation, info)"),
    ("four values", odd.FourValues, "step() returned a tuple of 4 values: must return (observation, reward,"),
    # dm_env
    ("no time step", machine(2, (np.zeros(2), 1.0)), "returned a tuple of 2 values: must be a dm_env.TimeStep"),
    ("an episode within", machine(2, dm_env.restart(np.zeros(2))), "begins with reset() alone"),
    (
        "no first step",
        machine(0, dm_env.transition(1.0, np.zeros(2))),
        f"reset {AT}: returned a time step of type",
    ),
    ("text as step type", machine(2, first_with("mid", 1.0, 1.0)), "of type 'mid': must be a dm_env.StepType"),
    ("a first reward", machine(0, first_with(dm_env.StepType.FIRST, 5.0, None)), "the first time step has reward 5.0"),
    ("discount above 1", machine(2, first_with(dm_env.StepType.MID, 1.0, 1.5)), "the discount is 1.5: must be between"),
    ("NaN as discount", machine(2, first_with(dm_env.StepType.MID, 1.0, np.nan)), "the discount is nan"),
    ("no reward in dm_env", machine(2, first_with(dm_env.StepType.MID, None, 1.0)), "the reward is None"),
]


@pytest.mark.parametrize(("factory", "words"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_it_is_refused_in_two_lines(factory: Any, words: str) -> None:
    with pytest.raises(EnvError) as refused:
        played(opened(factory, "pixels" if getattr(factory, "observation_space", None) == IMAGE else "state"))
    message = str(refused.value)
    assert words in message
    assert "tests.odd" in message
    assert len(message.splitlines()) <= 2
    not_finite = any(word in words for word in (" is nan", " is inf", " is -inf", "'b'", "float32 holds"))
    assert (refused.type, refused.value.code) == ((EnvNotFiniteError, 76) if not_finite else (EnvError, 2))


TAKEN: list[tuple[str, Any, list[float], float]] = [
    ("a vector", odd.Plain, [2, 2, 2], 1.0),
    ("lists", observes(lambda t: [t, 1, 2.5]), [2, 1, 2.5], 1.0),
    ("floats of another size", observes(lambda t: np.full(3, t / 4)), [0.5, 0.5, 0.5], 1.0),
    ("integers for floats", observes(lambda t: np.full(3, t)), [2, 2, 2], 1.0),
    ("flags for numbers", observes(lambda t: np.ones(3, bool)), [1, 1, 1], 1.0),
    ("large finite floats", observes(lambda t: np.full(3, 3e38, F32)), [3e38, 3e38, 3e38], 1.0),
    ("an array of one reward", rewards(np.array([0.5])), [2, 2, 2], 0.5),
    ("a list of one reward", rewards([0.5]), [2, 2, 2], 0.5),
    ("an array without axes as reward", rewards(np.array(2)), [2, 2, 2], 2.0),
    ("a flag as reward", rewards(np.True_), [2, 2, 2], 1.0),
    ("dm_env without a discount", machine(2, first_with(dm_env.StepType.MID, 3, None)), [0, 0], 3.0),
]


@pytest.mark.parametrize(("factory", "observation", "reward"), [pytest.param(*row[1:], id=row[0]) for row in TAKEN])
def test_it_is_taken_as_what_it_means(factory: Any, observation: list[float], reward: float) -> None:
    time_step = played(opened(factory))[2]
    assert time_step.observation.tolist() == np.array(observation, F32).tolist()
    assert (time_step.observation.dtype, time_step.reward, time_step.discount) == (F32, reward, 1.0)
    assert type(time_step.reward) is float


@pytest.mark.parametrize("flag", [np.True_, 1, np.array([True]), np.array(1.0)])
def test_flags_of_other_types_end_an_episode(flag: Any) -> None:
    time_steps = played(opened(ends(flag)))
    assert [time_step.discount for time_step in time_steps] == [1.0, 0.0]


def test_integers_that_fit_are_taken_as_pixels() -> None:
    time_steps = played(opened(observes(lambda t: np.full((8, 8, 3), 40 * t), IMAGE), "pixels"))
    assert [int(time_step.observation.max()) for time_step in time_steps[:3]] == [0, 40, 80]


@pytest.mark.parametrize(
    ("factory", "words", "line"),
    [
        (
            odd.Divides,
            f"step 3 {AT} raised ZeroDivisionError: division by zero",
            "1 / (3 - self.t)",
        ),
        (
            odd.FailsInside,
            f"step 2 {AT} raised ValueError: need at least one array",
            "np.concatenate",
        ),
        (odd.FailsAtReset, f"reset {AT} raised KeyError: 'level", 'raise KeyError("level'),
        (odd.FailsToSeed, f"reset {AT} raised", "super().reset(seed=seed)"),
        (odd.Exits, f"step 2 {AT} raised SystemExit: 0", "sys.exit(0)"),
        (odd.FailsAtOnce, "FailsAtOnce() raised FileNotFoundError", "raise FileNotFoundError(2"),
    ],
)
def test_an_error_of_the_environment_shows_the_last_line_of_its_own_code(factory: Any, words: str, line: str) -> None:
    with pytest.raises(EnvError) as raised:
        played(opened(factory))
    first, second = str(raised.value).splitlines()
    assert words in first
    assert second.startswith(f"{odd.__file__}, line ")
    assert line in second


def test_an_error_at_the_close_is_told_and_costs_nothing(caplog) -> None:
    notices.forget()
    for env in (opened(odd.FailsToClose), ProcessEnv(_closing)):
        env.close()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "FailsToClose: close() raised ConnectionError: the simulator is gone" in said


def _closing() -> Any:
    return opened(odd.FailsToClose)


@pytest.mark.parametrize("shape", [(84, 84, 3), (20, 3)])
def test_large_spaces_are_described_in_a_line(shape) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    with pytest.raises(UserError) as refused:
        opened(observes(lambda t: np.zeros(shape, np.uint8), space))
    assert len(str(refused.value)) < 200

    class ManyActions(odd.Plain):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-1.0, 1.0, shape, np.float32)

    with pytest.raises(UserError) as refused:
        opened(ManyActions)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("info", "success", "said"),
    [
        ({"success": True}, 1.0, ""),
        ({"is_success": np.array([0.0])}, 0.0, ""),
        ({"success": None}, None, ""),
        ({"success": "yes"}, None, "of type str"),
        ({"success": np.zeros(2)}, None, "of type ndarray"),
        ({"success": float("nan")}, None, "of type float"),
    ],
)
def test_success_is_a_number_or_a_flag_or_else_ignored_with_one_warning(info, success, said, caplog) -> None:
    notices.forget()
    with caplog.at_level(logging.WARNING):
        time_steps = played(opened(informs(info))) + played(opened(informs(info)))
    assert time_steps[1].success == success
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)


def test_what_a_process_finds_reaches_the_run_as_it_is(caplog) -> None:
    notices.forget()
    with caplog.at_level(logging.WARNING):
        envs = [ProcessEnv(_unsure) for _ in range(2)]
        for env in envs:
            env.call("reset")
            env.call("step", np.zeros(2))
        for env in envs:
            env.close()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith("Informs: success is of type str, not a finite number or a flag: it is ignored")
    env = ProcessEnv(_broken)
    env.call("reset")
    with pytest.raises(EnvNotFiniteError, match=rf"step 1 {AT}: the observation is nan at \[0\]$") as raised:
        env.call("step", np.zeros(2))
    assert raised.value.code == 76
    env.close()


def _unsure() -> Any:
    return opened(informs({"success": "yes"}))


def _broken() -> Any:
    return opened(observes(three(np.full(3, np.nan, F32), 1)))


# --- whole runs ---------------------------------------------------------------------------------------------------

REPLAYED = [
    "num_seed_frames=8",
    "num_train_frames=60",
    "agent.num_expl_steps=8",
    "agent.hidden_dim=8",
    "save_train_video=false",
    "batch_size=4",
    "replay_buffer_num_workers=1",
]
SHORT = {
    "drqv2": REPLAYED,
    "multitask": [*REPLAYED, "tasks=[left,right]"],
    "ppo": ["total_timesteps=256", "num_envs=2", "horizon=8", "agent.hidden_dim=8"],
    "impala": [
        "total_timesteps=256",
        "num_envs=2",
        "num_actors=2",
        "unroll_length=8",
        "batch_size=2",
        "agent.hidden_dim=8",
    ],
}


def train(folder: Path, regime: str, target: str, *more: str) -> tuple[int, str]:
    """Return exit code and output of a short run from states."""
    command = [sys.executable, "train.py", f"regime={regime}", f"env._target_=tests.odd.interfaces.{target}"]
    command += [
        "obs_type=state",
        "action_repeat=1",
        "save_video=false",
        "use_tb=false",
        "seed=1",
        "num_eval_episodes=1",
    ]
    command += ["eval_every_frames=null", f"hydra.run.dir={folder}", *SHORT[regime], *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("regime", SHORT)
@pytest.mark.parametrize(("target", "code", "words"), [("Divides", 2, "ZeroDivisionError"), ("NaNLater", 76, "is nan")])
def test_a_run_ends_with_its_code_and_without_a_traceback(tmp_path, regime, target, code, words) -> None:
    status, output = train(tmp_path / "run", regime, target)
    assert status == code, output
    assert words in output
    assert "Traceback" not in output
    error = output[output.index("error: ") :].strip()
    *lines, advice = error.splitlines()
    assert len(lines) <= 2, error
    if code == 2:
        assert lines[1].endswith(": return self.observe(), 1 / (3 - self.t), False, False, {}"), error
        assert advice.startswith("Fix the environment, "), error


@pytest.mark.slow
def test_a_run_from_pixels_ends_at_an_image_of_another_type(tmp_path) -> None:
    options = ["obs_type=pixels", "image_size=84", "num_train_frames=60"]
    status, output = train(tmp_path / "run", "drqv2", "TurnsGrey", *options)
    assert status == 2, output
    assert f"step 3 {AT}: the observation is float32 [84, 84, 3]: declared uint8 [84, 84, 3]" in output
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_a_run_goes_on_with_a_repaired_environment(tmp_path, overlap) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    every = ["snapshot_every_seconds=0", f"overlap={overlap}"]
    status, output = train(stopped, "drqv2", "NaNLater", *every)
    assert status == 76
    assert "then resume with: python train.py" in output
    status, output = _resume(stopped, "+env.repaired=true", "resume_force=true")
    assert status == 0, output
    status, _ = train(whole, "drqv2", "NaNLater", *every, "+env.repaired=true")
    assert status == 0
    rows = [_rows(folder / "train.csv") for folder in (stopped, whole)]
    assert rows[0] == rows[1]


def _resume(folder: Path, *more: str) -> tuple[int, str]:
    command = [sys.executable, "train.py", f"resume={folder}", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def _rows(path: Path) -> list[dict[str, str]]:
    head, *rows = (line.split(",") for line in path.read_text().splitlines())
    named = [dict(zip(head, row, strict=True)) for row in rows]
    return [{name: x for name, x in row.items() if "fps" not in name and "time" not in name} for row in named]
