"""Exported policies: their actions are the agent's, for every kind of agent; the model card; what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import StepType, specs
from omegaconf import OmegaConf

import eval as evaluation  # the script; the built-in stays what it is
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.impala import ImpalaAgent
from drqv2.agents.multitask import MultiTaskAgent
from drqv2.agents.ppo import PPOAgent
from drqv2.envs import ExtendedTimeStep
from drqv2.errors import UserError
from drqv2.evaluation import export as exporting
from drqv2.evaluation.export import export

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


def configured(regime: str, **changed: Any) -> dict[str, Any]:
    """The arguments of a regime's agent as in cfgs, with some changed."""
    cfg = OmegaConf.load(ROOT / f"cfgs/regime/{regime}.yaml")
    node: Any = OmegaConf.merge(cfg, {"task_name": "x", "seed": 1, "use_tb": False, "device": "cpu", "discount": 0.99})
    agent: Any = OmegaConf.to_container(node.agent, resolve=True)
    return {name: value for name, value in agent.items() if name != "_target_"} | changed


def agent_of(kind: str, obs_shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """An agent, every weight of which is random, and the shape of its actions."""
    torch.manual_seed(0)
    if kind == "DrQ-v2" or kind == "strided":
        made: Any = DrQV2Agent(obs_shape, (4,), "cpu", **DRQV2, encoder="strided" if kind == "strided" else "drqv2")
        return made, (4,)
    if kind == "several tasks":
        return MultiTaskAgent(obs_shape, (4,), "cpu", **DRQV2, num_tasks=3, action_sizes=[4, 2, 1], task_dim=4), (4,)
    name, _, actions = kind.partition(", ")
    spec = {"vector": VECTOR, "buttons": BUTTONS, "parts": PARTS}[actions]
    common: dict[str, Any] = {"obs_shape": obs_shape, "action_spec": spec, "device": "cpu", "hidden_dim": 16}
    if name.startswith("PPO"):
        made = PPOAgent(**configured("ppo", **common, lstm="LSTM" in name, total_steps=1000, minibatch_size=64))
    else:
        made = ImpalaAgent(**configured("impala", **common, lstm="LSTM" in name, total_steps=1000, precision="bf16"))
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
    worst, inputs = export(agent, tmp_path / f"policy.{end}", seen, action_shape)
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
        export(agent, tmp_path / "policy.pt2", observations((7,), 5), shape)
    assert not list(tmp_path.iterdir())


def test_actions_of_the_file_are_those_that_the_environment_takes(tmp_path: Path) -> None:
    agent, shape = agent_of("PPO, vector", (7,))
    agent.policy.actor.bias.data.fill_(5.0)
    export(agent, tmp_path / "policy.pt2", (steps := observations((7,), 5)), shape)
    action = torch.export.load(tmp_path / "policy.pt2").module()(
        torch.from_numpy(np.stack([s.observation for s in steps]))
    )
    assert action.max() == 1.0


def test_an_agent_that_says_nothing_of_its_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Own cannot be exported: it has no method deterministic_policy\(\)"):
        export(type("Own", (), {})(), tmp_path / "policy.pt2", observations((7,), 5), (4,))


def test_a_policy_that_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, obs: torch.Tensor) -> torch.Tensor:
            return obs * float(obs.sum().item() > 0)

    agent = type("Own", (), {"deterministic_policy": lambda self: Odd()})()
    with pytest.raises(UserError, match="Own cannot be exported"):
        export(agent, tmp_path / "policy.pt2", observations((7,), 5), (7,))


# From the command line


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
    ):
        assert words in card, words
    example = card.partition("```python\n")[2].partition("```")[0]
    ran = subprocess.run([sys.executable, "-c", example], cwd=file.parent, capture_output=True, text=True, check=True)
    assert ran.stdout == "torch.Size([1, 1]) torch.float32\n"


@pytest.mark.slow
def test_the_example_of_an_onnx_file_runs(reference: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    evaluation.main([str(reference), "episodes=1", "film=none", f"export={tmp_path}/policy.onnx", f"out={tmp_path}"])
    example = (tmp_path / "policy.onnx.md").read_text().partition("```python\n")[2].partition("```")[0]
    ran = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "(1, 1) float32\n"


def test_another_format_is_refused_before_anything_is_played(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        evaluation.main([str(reference), f"export={tmp_path}/policy.pt"])
    assert leaving.value.code == 2
    assert "must end in .onnx (ONNX) or .pt2 (torch.export)" in capsys.readouterr().err
