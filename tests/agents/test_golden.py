"""The update against numbers that the public implementation gives (torch 2.13, CPU, fp32)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from drqv2.agents.drqv2 import DrQV2Agent

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "drqv2_update.json").read_text())
CONFIG = GOLDEN["config"]
PHASES = {"encoder": 0.0, "actor": 0.1, "critic": 0.2, "critic_target": 0.3}


def wave(n: int, phase: float, k: int) -> torch.Tensor:
    return torch.sin(0.37 * torch.arange(n, dtype=torch.float64) + phase + k)


def fill(module: torch.nn.Module, phase: float) -> None:
    for k, (name, param) in enumerate(module.named_parameters()):
        value = wave(param.numel(), phase, k)
        if param.ndim >= 2:
            value = value / np.sqrt(param.numel() / param.shape[0])
        else:
            value = 0.05 * value
            if name == "trunk.1.weight":
                value = 1 + 0.1 * value
        with torch.no_grad():
            param.copy_(value.reshape(param.shape).float())


def batch(phase: float) -> tuple[torch.Tensor, ...]:
    b, a = CONFIG["B"], CONFIG["A"]
    i = np.arange(b * 9 * 84 * 84, dtype=np.int64)
    obs = ((7919 * i + int(1000 * phase)) % 251).astype(np.uint8).reshape(b, 9, 84, 84)
    next_obs = ((104729 * i + int(2000 * phase) + 17) % 253).astype(np.uint8).reshape(b, 9, 84, 84)
    action = np.sin(0.9 * np.arange(b * a) + phase).reshape(b, a).astype(np.float32)
    reward = (0.5 + 0.5 * np.cos(1.3 * np.arange(b) + phase)).reshape(b, 1).astype(np.float32)
    discount = np.full((b, 1), CONFIG["gamma"], np.float32)
    discount[0] = 0.0
    return tuple(torch.from_numpy(x) for x in (obs, action, reward, discount, next_obs))


@pytest.fixture(scope="module")
def trained() -> tuple[DrQV2Agent, list[dict[str, torch.Tensor]]]:
    agent = DrQV2Agent(
        obs_shape=(9, 84, 84),
        action_shape=(CONFIG["A"],),
        device="cpu",
        lr=CONFIG["lr"],
        feature_dim=CONFIG["feature_dim"],
        hidden_dim=CONFIG["hidden_dim"],
        critic_target_tau=CONFIG["tau"],
        num_expl_steps=0,
        update_every_steps=1,
        stddev_schedule="0.0",
        stddev_clip=0.3,
        use_tb=True,
    )
    agent.aug = torch.nn.Identity()
    for name, offset in PHASES.items():
        fill(getattr(agent, name), CONFIG["phase"] + offset)
    batches = iter(batch(CONFIG["phase"] + s) for s in range(CONFIG["steps"]))
    return agent, [agent.update(batches, step) for step in range(CONFIG["steps"])]


def test_metrics(trained: tuple[DrQV2Agent, list[dict[str, torch.Tensor]]]) -> None:
    for step, expected in enumerate(GOLDEN["steps"]):
        got = {name: float(trained[1][step][name]) for name in expected}
        assert got == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", GOLDEN["params"])
def test_parameters(trained: tuple[DrQV2Agent, list[dict[str, torch.Tensor]]], name: str) -> None:
    module, key = name.split(".", 1)
    value = getattr(trained[0], module).state_dict()[key].double().flatten()
    weights = torch.sin(torch.arange(value.numel(), dtype=torch.float64))
    got = [value.sum(), value.abs().sum(), (value * weights).sum()]
    absolute_sum = GOLDEN["params"][name][1]
    for have, want in zip(got, GOLDEN["params"][name], strict=True):
        assert abs(float(have) - want) <= 1e-6 * absolute_sum


def test_every_parameter_is_compared(trained: tuple[DrQV2Agent, list[dict[str, torch.Tensor]]]) -> None:
    names = {f"{m}.{k}" for m in PHASES for k in getattr(trained[0], m).state_dict()}
    assert names == set(GOLDEN["params"])


def test_act_eval(trained: tuple[DrQV2Agent, list[dict[str, torch.Tensor]]]) -> None:
    obs = batch(CONFIG["phase"] + 99)[0][0].numpy()
    action = trained[0].act(obs, int(1e9), eval_mode=True)
    assert action.dtype == np.float32
    np.testing.assert_allclose(action, GOLDEN["act_eval"], rtol=1e-4)
