"""Optimizers without torch._dynamo compute what torch's compute."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drqv2.nn import optimizers

ROOT = Path(__file__).resolve().parents[2]
KINDS: list[Any] = [
    ("Adam", {"fused": True}),
    ("AdamW", {"fused": True, "weight_decay": 0.1}),
    ("Muon", {}),
    ("RMSprop", {"momentum": 0.5}),
]


def learnt(kind: Any, options: dict[str, Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Weights after six steps, the last three by an optimizer that was restored, and its state."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False)), torch.randn(8, 5)
    optimizer: Any = kind(net.parameters(), lr=0.01, **options)
    for step in range(6):
        if step == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = kind(net.parameters(), lr=1.0, **options)
            optimizer.load_state_dict(state)
        optimizers.minimise(optimizer, net(x).square().sum())
    return [*net.parameters()], optimizer.state_dict()


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_they_learn_the_same_bits(name: str, options: dict[str, Any]) -> None:
    ours, theirs = getattr(optimizers, name), getattr(torch.optim, name)
    (a, state), (b, expected) = learnt(ours, options), learnt(theirs, options)
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
    assert state["param_groups"] == expected["param_groups"]
    torch.testing.assert_close(state["state"], expected["state"], rtol=0, atol=0)
    assert ours.__name__ == name  # snapshots tell optimizers apart by it


def test_hooks_of_a_step_are_called() -> None:
    parameter, called = nn.Parameter(torch.zeros(1)), []
    optimizer = optimizers.Adam([parameter], lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizers.minimise(optimizer, parameter.sum())
    assert called == ["before", "after"]


@pytest.mark.slow
def test_runs_do_not_import_torch_dynamo(tmp_path: Path) -> None:
    program = f"""
import sys
import train
from drqv2.launch.command_line import launch
from tests.faults.harness import SPQ
from tests.short_run import IMPALA, IN_TURN, PPO, SHORT

SAC = [word for word in SHORT if not word.startswith("stddev")]
runs = SHORT, [*SHORT, *SPQ], [*SAC, "agent=drq_sac"], [*IMPALA, *IN_TURN], [*PPO, "agent.optimizer=muon"]
for i, argv in enumerate(runs):
    launch(train.main, "cfgs", argv=[*argv, f"hydra.run.dir={tmp_path}/{{i}}", "console=off"])
print("torch._dynamo" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == "False"
