"""Policies of observations that are dicts: an input for each part, a card that names them, their world, their play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest
import torch
from dm_env import StepType, specs
from torch import Tensor, nn

from drqv2.envs import ExtendedTimeStep
from drqv2.errors import UserError
from drqv2.evaluation import export as exporting
from drqv2.evaluation.card import model_card
from drqv2.evaluation.export import export
from drqv2.evaluation.world import world_of
from drqv2.play import __main__ as program
from drqv2.play.policy import Policy
from drqv2.play.world import World
from drqv2.run.environments import make_envs
from drqv2.run.stats import EpisodeResult
from drqv2.utils import EVAL_ENV
from tests.evaluation import test_export as agents
from train import compose

SHAPES: dict[str, tuple[int, ...]] = {"pixels": (9, 16, 16), "wrist.rgb": (3, 16, 16), "arm": (4,), "goal": (2,)}
ACTION = specs.BoundedArray((2,), np.float32, -1, 1)
Obs = dict[str, np.ndarray]


class Named(nn.Module):
    """A policy whose arguments are the parts, by name, and the task."""

    inputs = ("pixels", "arm", "task")

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.tasks = nn.Linear(5, 2), nn.Embedding(3, 2)

    def forward(self, pixels: Tensor, arm: Tensor, task: Tensor) -> Tensor:
        mean = (pixels / 255.0 - 0.5).mean((1, 2, 3))
        return torch.tanh(self.weights(torch.cat([mean[:, None], arm], 1)) + self.tasks(task))


class Listed(nn.Module):
    """A policy that takes any parts."""

    def __init__(self, parts: list[str], recurrent: bool) -> None:
        super().__init__()
        self.inputs = (*parts, "h", "c") if recurrent else tuple(parts)
        self.lstm = nn.LSTM(len(parts), 4, batch_first=True) if recurrent else None
        self.head = nn.Linear(4 if recurrent else len(parts), 2)

    def forward(self, *given: Tensor) -> Any:
        parts = given[: len(self.inputs) - (2 if self.lstm else 0)]
        features = torch.stack([part.float().flatten(1).mean(1) / 255 * 9 for part in parts], 1)
        if self.lstm is None:
            return torch.tanh(self.head(features))
        features, (h, c) = self.lstm(features[:, None], (given[-2][None], given[-1][None]))
        return torch.tanh(self.head(features[:, 0])), h[0], c[0]


class Agent:
    """Acts by a policy, one observation at a time."""

    training = True
    acts_singly = False

    def __init__(self, policy: Any) -> None:
        self.policy, self.takes_task = policy, "task" in tuple(policy.inputs)

    def train(self, training: bool = True) -> None:
        self.training = training

    def deterministic_policy(self) -> nn.Module:
        return self.policy

    def act(self, obs: Obs, step: int, eval_mode: bool, task: int = 0) -> np.ndarray:
        given = [torch.from_numpy(part)[None] for part in obs.values()]
        more = [torch.tensor([task])] if self.takes_task else []
        return self.policy(*given, *more)[0].detach().numpy()


class Recurrent(Agent):
    """Acts from states."""

    def act_from(self, states: Any, obs: Any, step: int, eval_mode: bool) -> Any:
        before = [torch.zeros(2, 4) if state is None else state for state in states]
        given = [torch.from_numpy(part) for part in obs.values()]
        action, h, c = self.policy(*given, *torch.stack(before, 1))
        return list(action.detach().numpy()), list(torch.stack([h, c], 1).detach())


def observations(names: list[str], number: int = 20, tasks: int = 1, shapes: Any = SHAPES) -> list[Any]:
    rng = np.random.default_rng(0)

    def part(shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(0, 256, shape, np.uint8) if len(shape) == 3 else rng.normal(size=shape).astype(np.float32)

    first = [StepType.FIRST if t % 8 == 0 else StepType.MID for t in range(number)]
    seen = [{name: part(shapes[name]) for name in names} for _ in range(number)]
    return [ExtendedTimeStep(first[t], 0.0, 1.0, seen[t], None, task=t % tasks) for t in range(number)]


def agent_of(kind: str) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    if kind == "several tasks":
        return Agent(Named()), observations(["pixels", "arm"], tasks=3)
    names = list(SHAPES)
    return (Recurrent if kind == "LSTM" else Agent)(Listed(names, kind == "LSTM")), observations(names)


KINDS = {"several tasks": ["pixels", "arm", "task"], "any parts": list(SHAPES), "LSTM": [*SHAPES, "h", "c"]}
ENDS = ["pt2", pytest.param("onnx", marks=pytest.mark.slow)]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_part_is_an_input(kind: str, end: str, tmp_path: Path) -> None:
    if end == "onnx":
        pytest.importorskip("onnxruntime")
    agent, seen = agent_of(kind)
    worst, inputs = export(agent, tmp_path / f"policy.{end}", seen, (2,), {})
    assert worst <= 1e-4
    assert list(inputs) == KINDS[kind]
    run = exporting._loaded(tmp_path / f"policy.{end}")
    for size in (1, 5):
        assert run({name: np.repeat(array, size, axis=0) for name, array in inputs.items()})[0].shape == (size, 2)
    if end == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
        assert [one.name for one in session.get_inputs()] == KINDS[kind]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["DrQ-v2", "SPQ", "several tasks", "PPO, vector", "PPO LSTM, parts", "IMPALA, buttons"]
)
def test_every_agents_policy_takes_parts(kind: str, tmp_path: Path) -> None:
    shapes: Any = {"wrist": (3, 84, 84), "pixels": (9, 84, 84), "zone": (2,), "arm": (4,)}
    agent, action_shape = agents.agent_of(kind, shapes)
    seen = observations(list(shapes), 10, 3 if kind == "several tasks" else 1, shapes)
    worst, inputs = export(agent, tmp_path / "policy.pt2", seen, action_shape, {})
    assert worst <= 1e-4
    assert list(inputs)[:4] == list(shapes)


def test_what_cannot_be_an_input_is_named(tmp_path: Path) -> None:
    agent, seen = agent_of("any parts")
    agent.policy.inputs = ("obs",)
    with pytest.raises(
        UserError, match=r"dicts of pixels, wrist\.rgb, arm, goal: the policy must take these.* are obs"
    ):
        export(agent, tmp_path / "policy.pt2", seen, (2,), {})
    odd = [step._replace(observation={"h": np.zeros(2, np.float32)}) for step in seen]
    with pytest.raises(UserError, match="a part of the observations is called h, as another input"):
        export(agent, tmp_path / "policy.pt2", odd, (2,), {})


class Room(gymnasium.Env[Any, Any]):
    """Shows a dict, and pays the sum of the actions."""

    def __init__(self, **changed: Any) -> None:
        boxes: dict[str, Any] = {"pixels": ((9, 16, 16), np.uint8), "arm": ((4,), np.float32)} | changed
        self.observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(0, 1, *box) for name, box in boxes.items() if box is not None}
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._seen(), float(action.sum()), self.steps == 3, False, {}

    def _seen(self) -> Any:
        return {
            name: np.full(box.shape, self.steps, box.dtype)
            for name, box in self.observation_space.spaces.items()  # type: ignore[attr-defined]
        }


def world(seen: Any) -> World:
    cfg = compose("env._target_=tests.envs.toys.Counter", task_name="room", device="cpu")
    return world_of(cfg, None, 0, seen, ACTION, {"room": ACTION}, [EpisodeResult(1.0, 3)])


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    seen = observations(["pixels", "arm"])
    path = tmp_path_factory.mktemp("policy") / "policy.onnx"
    agent: Any = Agent(Listed(["pixels", "arm"], False))
    export(agent, path, seen, (2,), world(seen[0].observation).metadata())
    return path


@pytest.mark.slow
def test_the_world_describes_each_part_and_the_policy_plays_in_it(policy: Path) -> None:
    loaded = Policy(policy)
    image = {"shape": [9, 16, 16], "dtype": "uint8", "axes": ["batch", "channel", "height", "width"]}
    vector = {"shape": [4], "dtype": "float32", "axes": ["batch", "number"]}
    assert loaded.world.observation == {"parts": {"pixels": image, "arm": vector}}
    env = Room()
    loaded.world.require(env)
    *_, end = loaded.play(env, seed=1)
    assert end.steps == 3
    obs, _ = env.reset()
    torch.manual_seed(0)
    own = Listed(["pixels", "arm"], False)
    wanted = own(*(torch.from_numpy(obs[name])[None] for name in ("pixels", "arm")))[0]
    np.testing.assert_allclose(loaded.act(obs), wanted.detach(), atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"arm": ((5,), np.float32)}, "observation arm's shape is [5]; the policy's is [4]"),
        ({"pixels": ((9, 16, 16), np.float32)}, "observation pixels's dtype is float32; the policy's is uint8"),
        ({"goal": ((5,), np.float32)}, "observation's parts are arm, goal, pixels; the policy's are pixels, arm"),
        ({"arm": None}, "observation's parts are pixels; the policy's are pixels, arm"),
    ],
)
def test_the_part_that_differs_is_named(changed: dict[str, Any], said: str, policy: Path) -> None:
    loaded, env = Policy(policy), Room(**changed)
    with pytest.raises(UserError) as raised:
        loaded.world.require(env)
    assert str(raised.value) == f"another world than the policy's: {said}"
    with pytest.raises(UserError, match=r"observation from a different environment: (arm|pixels|its parts)"):
        loaded.act(env.reset()[0])


def test_an_array_in_place_of_a_dict(policy: Path) -> None:
    loaded = Policy(policy)
    with pytest.raises(UserError, match="its parts are one array; the policy's are pixels, arm"):
        loaded.act(np.zeros(4, np.float32))
    env = gymnasium.wrappers.FilterObservation(Room(), ["arm"])
    with pytest.raises(UserError, match="observation's parts are arm; the policy's are pixels, arm"):
        loaded.world.require(env)


def test_damaged_parts(policy: Path) -> None:
    told = Policy(policy).world.metadata()
    every: list[Any] = [{"parts": []}, {"parts": {}}, {"parts": {"arm": {"shape": [4]}}}, {"shape": [4]}, {}]
    for damaged in every:
        with pytest.raises(UserError, match=r"its metadata are damaged \(observation: "):
            World.read(told | {"observation": json.dumps(damaged)})


@pytest.mark.slow
def test_a_file_plays_in_its_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two cameras and some of the numbers of a task, from the file alone."""
    pytest.importorskip("onnxruntime")
    more: dict[str, Any] = {"cameras": [0, "cam1"], "observation_parts": ["pixels_0", "pixels_cam1", "velocity"]}
    cfg = compose(task="cup_catch", obs_type="pixels+state", image_size=32, device="cpu", overlap=False, **more)
    cfg.max_episode_steps = 4
    (env,) = make_envs(cfg, EVAL_ENV)
    steps = [env.call("begin", 0, 0), *(env.call("step", np.ones(2, np.float32)) for _ in range(3))]
    actions = {"it": env.call("own_action_spec")}
    made = world_of(cfg, None, 0, steps[0].observation, env.action_spec(), actions, [EpisodeResult(1.0, 4)])
    env.close()
    torch.manual_seed(0)
    agent: Any = Agent(Listed(more["observation_parts"], False))
    export(agent, tmp_path / "policy.onnx", steps, (2,), made.metadata())
    program.main([str(tmp_path / "policy.onnx"), f"out={tmp_path}/film.mp4", "render_size=64"])
    assert "episode 0: return 0.0, 4 steps" in capsys.readouterr().out
    assert iio.imread(tmp_path / "film.mp4").shape == (5, 64, 64, 3)
    world = Policy(tmp_path / "policy.onnx").world
    less = gymnasium.make(world.environment, **world.arguments | {"observation_parts": more["observation_parts"][1:]})
    with pytest.raises(UserError, match="another world than the policy's: observation_parts is "):
        world.require(less)
    less.close()


@pytest.mark.parametrize("end", ENDS)
def test_the_card_names_the_parts_and_its_example_runs(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if end == "onnx":
        pytest.importorskip("onnxruntime")
    agent, seen = agent_of("any parts")
    cfg = compose("env._target_=tests.envs.toys.Counter", task_name="room", device="cpu")
    path = tmp_path / f"policy.{end}"
    _, inputs = export(agent, path, seen, (2,), {})
    card = model_card(path, cfg, None, world(seen[0].observation), inputs, [], 0.0, {"room": ACTION})
    for words in (
        "| observation | `pixels`: the last 3 images of 16x16, newest last, with 3 channels each: the env",
        "; `wrist.rgb`: the last 3 images of 16x16, newest last, with 1 channel each: ",
        "; `arm`: a vector of 4 numbers, as in training; `goal`: a vector of 2 numbers, as in training |",
        "- `pixels`: uint8 [batch, 9, 16, 16] (batch, channel, height, width)\n- `wrist.rgb`: uint8 [batch, 3, 16, 16]",
        "- `goal`: float32 [batch, 2] (batch, number)",
    ):
        assert words in card
    monkeypatch.chdir(tmp_path)
    defined: dict[str, Any] = {}
    exec(card.partition("```python\n")[2].partition("```")[0], defined)
    assert defined["action"].shape == (2,)
