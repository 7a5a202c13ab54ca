"""python -m drqv2.play: a policy of the repository in its world, and files that are none or are another world's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest

from drqv2.errors import UserError
from drqv2.play import __main__ as program
from drqv2.play.policy import Policy
from drqv2.play.world import World

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

CARTPOLE = Path(__file__).resolve().parents[2] / "policies/cartpole.onnx"
Changed = Callable[..., Path]


@pytest.fixture
def changed(tmp_path: Path) -> Changed:
    """Return what writes CartPole's policy with other metadata: a value each, or None to leave it out."""

    def write(**values: Any) -> Path:
        model = onnx.load(CARTPOLE)
        metadata = {prop.key: prop.value for prop in model.metadata_props} | values
        onnx.helper.set_model_props(model, {key: value for key, value in metadata.items() if value is not None})
        onnx.save(model, tmp_path / "policy.onnx")
        return tmp_path / "policy.onnx"

    return write


def complaint(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """Return what the program says when it refuses a command line."""
    with pytest.raises(SystemExit) as leaving:
        program.main([*map(str, words), "out=none"])
    assert leaving.value.code == 2
    return capsys.readouterr().err


def test_a_film_and_the_returns(tmp_path: Path, changed: Changed, capsys: pytest.CaptureFixture[str]) -> None:
    film, arguments = tmp_path / "film.mp4", Policy(CARTPOLE).world.arguments | {"episode_steps": 20}
    path = str(changed(arguments=json.dumps(arguments)))
    program.main([path, "--episodes", "2", "--seed", "3", "--out", str(film), "--render_size", "64"])
    assert capsys.readouterr().out.splitlines() == [
        f"video: {film}",
        "episode 0: return 20.0, 20 steps",
        "episode 1: return 20.0, 20 steps",
        "gymnasium:CartPole-v1: mean 20.0 of 2 episodes; when exported, 500.0 of 10",
    ]
    assert iio.imread(film).shape == (21, 64, 64, 3)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "drqv2", "play", "nowhere.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: nowhere.onnx: no such file\n")


def test_a_file_that_is_no_policy(tmp_path: Path, changed: Changed, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.onnx").write_text("text")
    assert "text.onnx: not a runnable ONNX file" in complaint(capsys, tmp_path / "text.onnx")
    assert "its metadata lack environment" in complaint(capsys, changed(environment=None))
    assert "its metadata are damaged" in complaint(capsys, changed(arguments="{"))
    assert "give one policy" in complaint(capsys)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["gymnasium"], 'gymnasium must be installed: pip install -e ".[gym]"'),
        (["onnxruntime", "gymnasium"], 'onnxruntime and gymnasium must be installed: pip install -e ".[export,gym]"'),
    ],
)
def test_all_missing_packages_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: list[str], said: str
) -> None:
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    assert complaint(capsys, CARTPOLE) == f"error: {said}\n"


def test_the_name_of_the_film(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main([str(CARTPOLE), "out=film.gif"])
    assert "out=film.gif: must end in .mp4, or be none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"arguments": {"task": "gymnasium:MountainCar-v0"}}, "observation's shape is [2]; the policy's is [4]"),
        ({"arguments": {"task": "gymnasium:CartPole-v9"}}, "gymnasium has no such environment"),
        ({"arguments": {"task": "gymnasium:CartPole-v1", "gravity": 1}}, "its environment cannot be made here"),
        ({"observation": {"shape": [9, 84, 84], "dtype": "uint8"}}, "its metadata are those of another policy"),
        ({"action": {"shape": [], "dtype": "int64", "minimum": 0, "maximum": 2}}, "action's maximum is 1; the"),
        ({"returns": {}}, "its metadata are damaged (returns: {})"),
        ({"observation": []}, "its metadata are damaged (observation: [])"),
        ({"environment": ""}, "no id rebuilds gymnasium:CartPole-v1: make its environment yourself"),
        ({"environment": "os:CartPole-v1"}, "its metadata name code to run, os:CartPole-v1"),
        ({"arguments": {"task": "gymnasium:os:CartPole-v1"}}, "its metadata name code to run"),
    ],
)
def test_another_world(changed: Changed, capsys: pytest.CaptureFixture[str], values: dict[str, Any], said: str) -> None:
    for name, value in values.items():
        if name == "arguments":
            value |= {"obs_type": "state"}
        values[name] = value if isinstance(value, str) else json.dumps(value)
    path = changed(**values)
    complained = complaint(capsys, path)
    assert complained.startswith(f"error: {path}: ")
    assert said in complained
    assert len(complained.splitlines()) <= 2


def test_other_versions_are_a_warning(changed: Changed, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed(versions=json.dumps({"gymnasium": "0.1", "envpool9": "2"}))
    here = re.escape(f"gymnasium 0.1 (here {gymnasium.__version__}), envpool9 2 (here none)")
    with pytest.warns(UserWarning, match=f"the policy is from a world of {here}"):
        program.main([str(path), "out=none"])
    assert "return 500.0" in capsys.readouterr().out


def test_an_environment_of_ones_own_is_compared() -> None:
    world = Policy(CARTPOLE).world
    world.require(gymnasium.make("CartPole-v1"))  # nothing that the policy could tell apart
    with pytest.raises(UserError, match=r"action_repeat is 2; the policy's is 1"):
        world.require(
            gymnasium.make("drqv2.envs.as_gymnasium:drqv2/env-v0", task="gymnasium:CartPole-v1", obs_type="state")
        )
    with pytest.raises(UserError, match=r"cartpole.onnx: observation from a different environment: float64 \[4\]"):
        Policy(CARTPOLE).act(np.zeros(4))


@pytest.mark.parametrize(
    ("task", "more", "said"),
    [
        ("finger_turn_easy", {}, "task is finger_turn_easy; the policy's is finger_spin"),
        ("finger_spin", {"camera": 1}, "camera is 1; the policy's is None"),
        ("finger_spin", {"options": {"time_limit": 5}}, "options is {'time_limit': 5}; the policy's is None"),
    ],
)
def test_environments_that_look_alike_are_told_apart(task: str, more: dict[str, Any], said: str) -> None:
    world = Policy(CARTPOLE.with_name("finger_spin.onnx")).world
    env = gymnasium.make(f"drqv2.envs.as_gymnasium:drqv2/{task}-v0", **world.arguments, **more)
    with pytest.raises(UserError, match=re.escape(said)):
        world.require(env)
    env.close()


def test_the_world_that_is_written_is_read() -> None:
    world = Policy(CARTPOLE).world
    assert World.read(world.metadata()) == world
    assert world.training["task"] == world.arguments["task"] == "gymnasium:CartPole-v1"
    assert world.observation == {"shape": [4], "dtype": "float32", "axes": ["batch", "number"]}
    assert (world.action["minimum"], world.action["maximum"]) == (0, 1)


def small_policy(path: Path, inputs: dict[str, Any], nodes: list[Any], outputs: list[str]) -> Path:
    """Write a network of a few nodes as the policy of CartPole's world."""
    floats = onnx.TensorProto.FLOAT
    made = [onnx.helper.make_tensor_value_info(name, floats, shape) for name, shape in inputs.items()]
    ends = [onnx.helper.make_tensor_value_info(name, floats, None) for name in outputs]
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "small", made, ends), opset_imports=opset, ir_version=9
    )
    onnx.helper.set_model_props(model, Policy(CARTPOLE).world.metadata())
    onnx.save(model, path)
    return path


def test_the_state_of_an_lstm_lasts_for_an_episode(tmp_path: Path) -> None:
    inputs = {"obs": ["batch", 4], "h": ["batch", 4], "c": ["batch", 4]}
    names = [(["obs", "h"], "action"), (["obs", "h"], "next_h"), (["c", "c"], "next_c")]
    nodes = [onnx.helper.make_node("Add", two, [out]) for two, out in names]
    policy = Policy(small_policy(tmp_path / "lstm.onnx", inputs, nodes, ["action", "next_h", "next_c"]))
    one = np.ones(4, np.float32)
    assert [policy.act(one)[0] for _ in range(3)] == [1, 2, 3]
    policy.reset()
    assert policy.act(one)[0] == 1


def test_a_policy_of_several_tasks_is_refused(tmp_path: Path) -> None:
    inputs = {"obs": ["batch", 4], "task": ["batch"]}
    nodes = [onnx.helper.make_node("Mul", ["obs", "task"], ["action"])]
    with pytest.raises(UserError, match=r"has several tasks; play them by eval.py RUN_DIR"):
        Policy(small_policy(tmp_path / "tasks.onnx", inputs, nodes, ["action"]))
