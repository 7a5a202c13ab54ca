"""Resuming under a configuration that differs from the run's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from drqv2.config.schema import REGIMES
from drqv2.errors import UserError
from drqv2.snapshot.agent_state import capture
from drqv2.snapshot.agent_weights import apply, restore_agent
from drqv2.snapshot.resume import changed_keys
from tests.toy_agent import ToyAgent

OLD = {"seed": 1, "lr": 0.5, "num_train_frames": 10, "image_size": 84, "agent": {"lr": 0.5, "x": 1}, "resume": None}
RUN = Path("run")


def test_rules_of_the_keys():
    rules = {name: key.resume for name, key in REGIMES["drqv2"].every_key.items()}
    fixed = {name for name, rule in rules.items() if rule == "fixed"}
    of_agent = "encoder critic_layer_norm convolutions horizon init_temperature pad hold".split()
    assert fixed == {
        *"regime task_name env_id obs_type num_envs action_repeat frame_stack image_size camera cameras".split(),
        "observation_parts",
        *"image_key channels".split(),
        *(f"agent.{name}" for name in of_agent),
    }
    learning = ["seed", "lr", "batch_size", "nstep", "discount", "num_seed_frames", "agent.lr", "env._target_"]
    assert {rules[name] for name in learning} == {"force"}
    assert {rules[name] for name in ("num_train_frames", "device", "use_tb", "agent.device")} == {"free"}


def test_nothing_changed(capsys):
    assert changed_keys(OLD, {**OLD, "resume": "run", "resume_force": True, "init_from": "x"}, RUN) == {}
    assert changed_keys(OLD, {**OLD, "regime": "drqv2", "obs_type": "pixels", "num_envs": 1}, RUN) == {}
    missing, null = ({"agent": {"obs_shape": shape, "action_shape": shape}} for shape in ("???", None))
    assert changed_keys(OLD | missing, OLD | null, RUN) == {}
    assert capsys.readouterr().out == ""


def test_free_keys_may_change(capsys):
    assert changed_keys(OLD, {**OLD, "num_train_frames": 20}, RUN) == {"num_train_frames": 20}
    assert capsys.readouterr().out == "changed since this run was started: num_train_frames 10 -> 20\n"


def test_keys_that_affect_learning_need_force(capsys):
    new = {**OLD, "lr": 0.1, "num_train_frames": 20, "agent": {"lr": 0.1, "y": 2}}
    with pytest.raises(UserError) as error:
        changed_keys(OLD, new, RUN)
    assert "other values: agent.x 1 -> absent, agent.y absent -> 2, lr 0.5 -> 0.1\n" in str(error.value)
    assert "resume_force=true" in str(error.value)
    assert changed_keys(OLD, {**new, "resume_force": True}, RUN).keys() == {
        "agent.lr",
        "agent.x",
        "agent.y",
        "lr",
        "num_train_frames",
    }
    assert "lr 0.5 -> 0.1, num_train_frames 10 -> 20" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"other values: agent\.lr 0\.5 -> 0\.1\n"):
        changed_keys(OLD, {**OLD, "agent": {"lr": 0.1, "x": 1}}, RUN)


@pytest.mark.parametrize(
    ("name", "value", "said"), [("image_size", 64, "84 -> 64"), ("obs_type", "state", "pixels -> state")]
)
def test_fixed_keys_cannot_be_forced(name, value, said):
    with pytest.raises(UserError, match=f"other settings: {name} {said}"):
        changed_keys(OLD, {**OLD, name: value, "resume_force": True}, RUN)


class Agent(ToyAgent):
    def __init__(self) -> None:
        self.opt = torch.optim.Adam(nn.Linear(1, 1).parameters(), lr=0.5)
        self.device, self.x, self.y = "cuda", 1, 1


def test_apply():
    agent = Agent()
    apply(agent, {"device": "cpu", "x": 2, "y": 2}, {"agent.x": 2, "agent.lr": 0.1, "batch_size": 3})
    assert (agent.device, agent.x, agent.y) == ("cpu", 2, 1)
    assert agent.opt.param_groups[0]["lr"] == 0.1


def test_a_changed_key_within_a_node_of_the_agent_takes_effect():
    old, new = (ToyAgent(losses=OmegaConf.create({"fwd": fwd, "inv": 0.1})) for fwd in (1.0, 2.0))
    saved = capture(old)
    restore_agent(new, saved, {"agent.losses.fwd": 2.0}, RUN)
    assert new.losses == {"fwd": 2.0, "inv": 0.1}
    restore_agent(new, saved, {}, RUN)
    assert new.losses == {"fwd": 1.0, "inv": 0.1}


def test_a_changed_learning_rate_reaches_all_optimizers():
    def adam() -> torch.optim.Adam:
        return torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)

    agent = ToyAgent(opts={"a": adam(), "b": [adam()]}, opt=adam())
    apply(agent, {}, {"agent.lr": 0.5})
    assert {o.param_groups[0]["lr"] for o in (agent.opt, agent.opts["a"], agent.opts["b"][0])} == {0.5}


def test_what_follows_the_machine_are_words_not_numbers():
    agent = ToyAgent(precision=7.5, device="cuda:3")
    apply(agent, {"precision": 1.0, "device": "cpu"}, {})
    assert vars(agent) == {"precision": 7.5, "device": "cpu"}


def test_a_snapshot_that_does_not_fit_is_refused_in_a_line():
    saved = capture(SimpleNamespace(net=nn.Linear(2, 2), target=nn.Linear(2, 2), x=nn.Linear(2, 3)))
    net = nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"^the snapshot in run does not fit the agent: agent.target and another .*$"):
        restore_agent(ToyAgent(net=net, target=net), saved, {}, RUN)
    with pytest.raises(UserError, match=r"agent: weight has shape \[3, 2\] in the file and \[4, 2\] in the agent$"):
        restore_agent(ToyAgent(x=nn.Linear(2, 4)), {**saved, "children": {"x": saved["children"]["x"]}}, {}, RUN)
