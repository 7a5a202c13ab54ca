"""Resuming under a configuration that is not quite the run's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from drqv2.config.schema import FREE, KEYS
from drqv2.errors import UserError
from drqv2.snapshot.agent_state import capture
from drqv2.snapshot.agent_weights import apply, restore_agent
from drqv2.snapshot.resume import changed_keys

OLD = {"seed": 1, "lr": 0.5, "num_train_frames": 10, "image_size": 84, "agent": {"lr": 0.5, "x": 1}, "resume": None}
RUN = Path("run")


def test_the_free_keys_are_keys():
    assert KEYS.keys() >= FREE
    assert not FREE & {"seed", "lr", "batch_size", "nstep", "discount", "agent.lr"}


def test_nothing_changed(capsys):
    assert changed_keys(OLD, {**OLD, "resume": "run", "resume_force": True, "init_from": "x"}, RUN) == {}
    assert capsys.readouterr().out == ""


def test_what_moves_no_curve_is_taken_and_named(capsys):
    assert changed_keys(OLD, {**OLD, "num_train_frames": 20}, RUN) == {"num_train_frames": 20}
    assert capsys.readouterr().out == "changed since this run was started: num_train_frames 10 -> 20\n"


def test_what_moves_it_is_refused_with_all_of_the_list():
    new = {**OLD, "lr": 0.1, "num_train_frames": 20, "agent": {"lr": 0.1, "y": 2}}
    with pytest.raises(UserError) as e:
        changed_keys(OLD, new, RUN)
    assert "agent.lr 0.5 -> 0.1, agent.x 1 -> absent, agent.y absent -> 2, lr 0.5 -> 0.1" in str(e.value)
    assert "num_train_frames" not in str(e.value)
    assert "resume_force=true" in str(e.value)
    assert len(str(e.value).splitlines()) == 2


def test_force(capsys):
    new = {**OLD, "lr": 0.1, "resume_force": True}
    assert changed_keys(OLD, new, RUN) == {"lr": 0.1}
    assert "lr 0.5 -> 0.1" in capsys.readouterr().out


def test_what_the_state_is_made_for_cannot_be_forced():
    with pytest.raises(UserError, match="another run: image_size 84 -> 64"):
        changed_keys(OLD, {**OLD, "image_size": 64, "resume_force": True}, RUN)


class Agent:
    def __init__(self) -> None:
        self.opt = torch.optim.Adam(nn.Linear(1, 1).parameters(), lr=0.5)
        self.device, self.x, self.y = "cuda", 1, 1


def test_apply():
    agent = Agent()
    apply(agent, {"device": "cpu", "x": 2, "y": 2}, {"agent.x": 2, "agent.lr": 0.1, "batch_size": 3})
    assert (agent.device, agent.x, agent.y) == ("cpu", 2, 1)
    assert agent.opt.param_groups[0]["lr"] == 0.1


def test_a_changed_learning_rate_reaches_all_optimizers():
    def adam() -> torch.optim.Adam:
        return torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)

    agent = SimpleNamespace(opts={"a": adam(), "b": [adam()]}, opt=adam())
    apply(agent, {}, {"agent.lr": 0.5})
    assert {o.param_groups[0]["lr"] for o in (agent.opt, agent.opts["a"], agent.opts["b"][0])} == {0.5}


def test_what_follows_the_machine_are_words_not_numbers():
    agent = SimpleNamespace(precision=7.5, device="cuda:3")
    apply(agent, {"precision": 1.0, "device": "cpu"}, {})
    assert vars(agent) == {"precision": 7.5, "device": "cpu"}


def test_a_snapshot_that_does_not_fit_is_refused_in_a_line():
    saved = capture(SimpleNamespace(net=nn.Linear(2, 2), target=nn.Linear(2, 2), x=nn.Linear(2, 3)))
    net = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"^the snapshot in run does not fit the agent: target is shared .*$"):
        restore_agent(SimpleNamespace(net=net, target=net), saved, {}, RUN)
    with pytest.raises(UserError, match=r"does not fit the agent: weight is \[3, 2\] there and \[4, 2\] here$"):
        restore_agent(SimpleNamespace(x=nn.Linear(2, 4)), {**saved, "value": {"x": saved["value"]["x"]}}, {}, RUN)
