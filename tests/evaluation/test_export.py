"""Exported policies: their actions are the agent's, for every kind of agent; the model card; what is refused."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from dm_env import StepType, specs
from omegaconf import DictConfig, OmegaConf

import eval as evaluation  # the script; the built-in stays what it is
from drqv2 import envs
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.impala import ImpalaAgent
from drqv2.agents.multitask import MultiTaskAgent
from drqv2.agents.ppo import PPOAgent
from drqv2.agents.spq import SPQAgent
from drqv2.config.schema import defaults
from drqv2.envs import ExtendedTimeStep
from drqv2.envs.handles import EnvHandle, LocalEnv
from drqv2.envs.pool import PoolEnvironment
from drqv2.errors import UserError
from drqv2.evaluation import export as exporting
from drqv2.evaluation.card import model_card
from drqv2.evaluation.export import export
from drqv2.evaluation.world import world_of
from drqv2.run.stats import EpisodeResult
from tests.envs.toys import Counter
from train import compose

ROOT = Path(__file__).resolve().parents[2]
VECTOR, BUTTONS = specs.BoundedArray((4,), np.float32, -1, 1), specs.DiscreteArray(5)
PARTS = specs.BoundedArray((2,), np.int64, 0, [2, 3])
DRQV2: dict[str, Any] = {
    "lr": 1e-4,
    "feature_dim": 8,
    "hidden_dim": 16,
    "critic_target_tau": 0.01,
    "num_expl_steps": 0,
    "update_every_steps": 1,
    "stddev_schedule": "0.1",
    "stddev_clip": 0.3,
    "use_tb": False,
}


LEARNING: dict[str, Any] = {"discount": 0.99, "update_epochs": 1.0, "minibatch_size": 64}  # PPO's


def configured(regime: str, **changed: Any) -> dict[str, Any]:
    """The arguments of a regime's agent as in cfgs, with some changed."""
    agent = defaults(regime)["agent"]
    return {name: value for name, value in agent.items() if name != "_target_"} | changed


def agent_of(kind: str, obs_shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """An agent, every weight of which is random, and the shape of its actions."""
    torch.manual_seed(0)
    if kind == "DrQ-v2" or kind == "strided":
        made: Any = DrQV2Agent(obs_shape, (4,), "cpu", **DRQV2, encoder="strided" if kind == "strided" else "drqv2")
        return made, (4,)
    if kind == "SPQ":
        spq = SPQAgent(
            obs_shape, (4,), "cpu", hidden_dim=16, feature_dim=8, embed_dim=4, num_expl_steps=0, precision="bf16"
        )
        spq.encoder.mean.normal_()
        return spq, (4,)
    if kind == "several tasks":
        return MultiTaskAgent(obs_shape, (4,), "cpu", **DRQV2, num_tasks=3, action_sizes=[4, 2, 1], task_dim=4), (4,)
    name, _, actions = kind.partition(", ")
    spec = {"vector": VECTOR, "buttons": BUTTONS, "parts": PARTS}[actions]
    common: dict[str, Any] = {"obs_shape": obs_shape, "action_spec": spec, "device": "cpu", "hidden_dim": 16}
    if name.startswith("PPO"):
        made = PPOAgent(**configured("ppo", **common, lstm="LSTM" in name, total_steps=1000, **LEARNING))
    else:
        made = ImpalaAgent(
            **configured("impala", **common, lstm="LSTM" in name, total_steps=1000, discount=0.99, precision="bf16")
        )
    for parameter in made.policy.parameters():  # otherwise all actions are nearly the same
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return made, spec.shape


def observations(shape: tuple[int, ...], number: int = 100, tasks: int = 1) -> list[Any]:
    generator = np.random.default_rng(0)
    made = []
    for t in range(number):
        obs = generator.integers(0, 256, shape, np.uint8) if len(shape) == 3 else generator.normal(size=shape)
        obs = obs if len(shape) == 3 else obs.astype(np.float32)
        first = StepType.FIRST if t % 40 == 0 else StepType.MID
        made.append(ExtendedTimeStep(first, 0.0, 1.0, obs, None, task=t % tasks))
    return made


CASES = [
    ("DrQ-v2", (9, 48, 48)),
    ("strided", (9, 48, 48)),
    ("DrQ-v2", (7,)),
    ("SPQ", (9, 48, 48)),
    ("SPQ", (7,)),
    ("several tasks", (7,)),
    ("PPO, vector", (7,)),
    ("PPO, buttons", (4, 84, 84)),
    ("PPO LSTM, parts", (7,)),
    ("IMPALA, buttons", (4, 84, 84)),
    ("IMPALA LSTM, buttons", (7,)),
]


@pytest.mark.parametrize("end", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "shape"), CASES, ids=[f"{kind} {len(shape)}d" for kind, shape in CASES])
def test_actions_of_the_file_are_those_of_the_agent(
    tmp_path: Path, kind: str, shape: tuple[int, ...], end: str
) -> None:
    if end == "onnx":
        pytest.importorskip("onnxruntime")
    agent, action_shape = agent_of(kind, shape)
    seen = observations(shape, tasks=3 if kind == "several tasks" else 1)
    before = [parameter.clone() for parameter in agent.deterministic_policy().parameters()]
    worst, inputs = export(agent, tmp_path / f"policy.{end}", seen, action_shape, {})
    assert worst <= 1e-4
    after = agent.deterministic_policy().parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "the agent stays what it is"
    # Batches of any size.
    run = exporting._loaded(tmp_path / f"policy.{end}")
    for size in (1, 5):
        batch = {name: np.repeat(array, size, axis=0) for name, array in inputs.items()}
        assert run(batch)[0].shape == (size, *action_shape)


def test_a_file_whose_actions_differ_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, shape = agent_of("DrQ-v2", (7,))
    loaded = exporting._loaded
    monkeypatch.setattr(exporting, "_loaded", lambda path: lambda x: [array + 2e-4 for array in loaded(path)(x)])
    with pytest.raises(UserError, match=r"its actions differ from the agent's by 0\.0002"):
        export(agent, tmp_path / "policy.pt2", observations((7,), 5), shape, {})
    assert not list(tmp_path.iterdir())


def test_actions_of_the_file_are_those_that_the_environment_takes(tmp_path: Path) -> None:
    agent, shape = agent_of("PPO, vector", (7,))
    agent.policy.actor.bias.data.fill_(5.0)
    export(agent, tmp_path / "policy.pt2", (steps := observations((7,), 5)), shape, {})
    action = torch.export.load(tmp_path / "policy.pt2").module()(
        torch.from_numpy(np.stack([s.observation for s in steps]))
    )
    assert action.max() == 1.0


def test_an_agent_that_says_nothing_of_its_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Own cannot be exported: it has no method deterministic_policy\(\)"):
        export(type("Own", (), {})(), tmp_path / "policy.pt2", observations((7,), 5), (4,), {})


def test_a_policy_that_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return obs * float(obs.sum().item() > 0)

    agent = type("Own", (), {"deterministic_policy": lambda self: Odd()})()
    with pytest.raises(UserError, match="Own cannot be exported"):
        export(agent, tmp_path / "policy.pt2", observations((7,), 5), (7,), {})


# From the command line


@pytest.mark.slow
def test_eval_py_writes_the_policy_and_a_model_card(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "deployed" / "policy.pt2"
    argv = [str(reference), "episodes=2", "film=none", f"export={file}", f"out={tmp_path}"]
    evaluation.main(argv)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == f"policy: {file}, checked on 100 observations; model card: {file}.md"
    assert sorted(path.name for path in file.parent.iterdir()) == ["policy.pt2", "policy.pt2.md"]
    card = (file.parent / "policy.pt2.md").read_text()
    assert card.startswith("# policy.pt2\n")
    for words in (
        "regime=drqv2",
        "## Returns",
        "IQM",
        "## Training",
        "| frame | episode_reward |",
        "uint8 [batch, 9, ",
        "the last 3 images of 32x32, newest last, with 3 channels each: the environment's own, in its order |",
        "1 number in [-1, 1]; the environment's own: float64 [1], -1 to 1",
    ):
        assert words in card, words
    example = card.partition("```python\n")[2].partition("```")[0]
    ran = subprocess.run([sys.executable, "-c", example], cwd=file.parent, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"torch\.Size\(\[1, 1\]\) torch\.float32\n\[-?[\d.]+\]\n", ran.stdout)


@pytest.mark.slow
def test_the_example_of_an_onnx_file_runs(reference: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    evaluation.main([str(reference), "episodes=1", "film=none", f"export={tmp_path}/policy.onnx", f"out={tmp_path}"])
    card = (tmp_path / "policy.onnx.md").read_text()
    assert "| environment | cannot be rebuilt by an id |" in card  # the run's environment is its own code
    example = card.partition("```python\n")[2].partition("```")[0]
    ran = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\(1, 1\) float32\n\[-?[\d.]+\]\n", ran.stdout)
    assert str(ROOT).encode() not in (tmp_path / "policy.onnx").read_bytes()


class Four(Counter):
    def action_spec(self) -> Any:
        return specs.BoundedArray((4,), np.float64, [-0.1, 0.0, -5.0, -5.0], [0.1, 3.0, -4.0, -4.0], "torque")


class Buttons(gymnasium.Env[Any, Any]):
    """Its actions are numbered from 5."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (7,))
    action_space = gymnasium.spaces.Discrete(5, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(7, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.taken = action
        return np.zeros(7, np.float32), 0.0, False, False, {}


def card_of(
    kind: str, file: Path, env: EnvHandle, env_id: str | None = None, **values: Any
) -> tuple[str, dict[str, Any]]:
    """Return the card of an exported agent, and what its example defines."""
    agent, shape = agent_of(kind, env.observation_spec().shape)
    _, inputs = export(agent, file, [env.call("begin", 0, 0)] * 2, shape, {})
    cfg = OmegaConf.merge(compose(device="cpu", **values), {"env_id": env_id})
    assert isinstance(cfg, DictConfig)
    actions = {"task": env.call("own_action_spec")}
    world = world_of(cfg, None, 0, inputs["obs"][0], env.action_spec(), actions, [EpisodeResult(1.0, 1)])
    card = model_card(file, cfg, None, world, inputs, [], 0.0, actions)
    defined: dict[str, Any] = {}
    with contextlib.chdir(file.parent):
        exec(card.partition("```python\n")[2].partition("```")[0], defined)
    return card, defined


@pytest.mark.parametrize("end", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
def test_the_card_maps_actions_to_the_environments_own(tmp_path: Path, end: str) -> None:
    counter = Four(shape=(6, 4, 1))
    env = LocalEnv(partial(envs.make, "x", 2, 1, seed=1, image_size=48, factory=lambda: counter))
    own: dict[str, Any] = {"env._target_": "tests.envs.toys.Counter", "frame_stack": 2, "image_size": 48}
    card, defined = card_of("DrQ-v2", tmp_path / f"policy.{end}", env, **own)
    assert "the last 2 images of 48x48, newest last, with 1 channel each: the environment's own, in its order |" in card
    assert "4 numbers in [-1, 1]; the environment's own: float64 [4], -0.1 to 0.1, 0 to 3, -5 to -4 |" in card
    env.call("step", defined["action"])
    np.testing.assert_allclose(defined["own_action"], counter.taken[-1], atol=1e-6)
    assert defined["own_action"].dtype == np.float64


def test_the_card_maps_discrete_actions(tmp_path: Path) -> None:
    buttons = Buttons()
    env = LocalEnv(partial(envs.make, "x", 1, 1, seed=1, factory=lambda: buttons, obs_type="state"))
    own: dict[str, Any] = {"env._target_": "tests.evaluation.test_export.Buttons", "obs_type": "state"}
    card, defined = card_of("PPO, buttons", tmp_path / "policy.pt2", env, **own)
    assert "a state vector of 7 numbers" in card
    assert "discrete; the policy's are numbered from 0; the environment's own: int64 [], 5 to 9 |" in card
    env.call("step", defined["action"])
    assert buttons.taken == defined["own_action"]


def test_channels_on_the_card_are_those_of_the_environment(tmp_path: Path) -> None:
    pytest.importorskip("envpool")
    env = LocalEnv(partial(envs.make, "x", 1, 1, seed=1, factory=partial(PoolEnvironment, "Pong-v5")))
    card, _ = card_of("PPO, buttons", tmp_path / "policy.pt2", env, env_id="envpool:Pong-v5", frame_stack=1)
    env.close()
    assert "| observation | one image of 84x84, with 4 channels: the environment's own, in its order |" in card
    assert "discrete, numbered from 0; the environment's own: int64 [], 0 to 5 |" in card


def test_the_card_of_several_tasks_has_the_actions_of_each(tmp_path: Path) -> None:
    agent, shape = agent_of("several tasks", (7,))
    _, inputs = export(agent, tmp_path / "policy.pt2", observations((7,), 3, tasks=2), shape, {})
    cfg = compose(regime="multitask", tasks=["walker_walk", "cup_catch"], obs_type="state", device="cpu")
    specs_of = {
        "walker_walk": specs.BoundedArray((4,), np.float64, -1, 1),
        "cup_catch": specs.BoundedArray((2,), np.float32, -2, [0, 2]),
    }
    world = world_of(cfg, None, 0, inputs["obs"][0], VECTOR, specs_of, [EpisodeResult(1.0, 1)])
    card = model_card(tmp_path / "policy.pt2", cfg, None, world, inputs, [], 0.0, specs_of)
    assert "- task 0, `walker_walk`: 4 numbers in [-1, 1]; the environment's own: float64 [4], -1 to 1\n" in card
    assert "- task 1, `cup_catch`: 2 numbers in [-1, 1]; the environment's own: float32 [2], -2 to 0, -2 to 2\n" in card


def test_another_format_is_refused_before_anything_is_played(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        evaluation.main([str(reference), f"export={tmp_path}/policy.pt"])
    assert leaving.value.code == 2
    assert "must end in .onnx (ONNX) or .pt2 (torch.export)" in capsys.readouterr().err
