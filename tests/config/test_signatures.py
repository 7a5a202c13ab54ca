"""Keys read from the text of an agent's file, against those of the class that Python makes of it."""

from __future__ import annotations

import importlib
import inspect
import typing
from pathlib import Path

import pytest

from drqv2.config import schema
from drqv2.config.keys import Key
from drqv2.config.schema import REGIMES, stored
from drqv2.config.signatures import agent_keys, agent_node, parameters
from drqv2.errors import UserError
from drqv2.snapshot.resume import changed_keys

TARGETS = sorted({agent.target for regime in REGIMES.values() for agent in regime.agents.values()})


@pytest.mark.parametrize("target", TARGETS)
def test_the_file_says_what_the_class_says(target: str) -> None:
    module, _, name = target.rpartition(".")
    made = getattr(importlib.import_module(module), name)
    signature = inspect.signature(made).parameters
    read = parameters(target)
    assert [*read] == [*signature]
    for each, parameter in signature.items():
        assert read[each].default == (None if parameter.default is parameter.empty else parameter.default)
    hints: dict[str, object] = {}
    for base in reversed(made.__mro__[:-1]):
        hints |= typing.get_type_hints(base.__init__, include_extras=True)
    described = {name: found for name in signature for found in _keys(hints.get(name))}
    assert described.keys() == agent_keys(target).keys()
    for each, key in described.items():
        own = agent_keys(target)[each]
        assert (own.name, own.allowed, own.meaning) == (f"agent.{each}", key.allowed, key.meaning)
        default = signature[each].default
        if not key.follows and default is not inspect.Parameter.empty:
            assert own.check(default) == default


def _keys(hint: object) -> list[Key]:
    return [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Key)]


def test_what_an_agent_follows_are_keys_of_its_regimes() -> None:
    for regime in REGIMES.values():
        for agent in regime.agents.values():
            followed = {key.follows for key in agent_keys(agent.target).values()} - {""}
            assert followed <= {name for group in regime.groups.values() for name in group}
        assert set(regime.passes.values()) <= set(regime.every_key)


OWN = """
import drqv2
from typing import Annotated
from drqv2.config.keys import key
from drqv2.config.kinds import Float
class Own(drqv2.DrQV2Agent):
    def __init__(self, *args, weight: Annotated[float, key(Float(0, 1), "A weight.")] = 0.5, plain=3, **kwargs): ...
def make(obs_shape, weight: Annotated[float, key(Float(0, low=1), "A weight.")]): ...
class Broken(Own:
"""


def test_agents_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("class Broken(Own:", ""))
    assert agent_node("own.Own", str(tmp_path)) == {"_target_": "own.Own", "weight": 0.5}
    assert [*parameters("own.Own", str(tmp_path))] == ["weight", "plain"]
    with pytest.raises(UserError, match=r"own.py, line 8: the key weight cannot be read"):
        agent_keys("own.make", str(tmp_path))
    assert parameters("own.Nothing", str(tmp_path)) == parameters("nowhere.Own", str(tmp_path)) == {}
    (tmp_path / "own.py").write_text(OWN)  # no Python: its import says so
    assert parameters("own.Own", str(tmp_path)) == {}
    known = REGIMES["drqv2"].keys_of("nowhere.Own", str(tmp_path))
    assert not known["agent.critic_target_tau"].allows(0), "it has the keys of the usual agent"
    assert known["agent.encoder"].allows({"width": 3}), "it may mean something else there"


def test_a_default_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    head = "from typing import Annotated\nfrom drqv2.config import kinds\n"
    own = 'def make(x: Annotated[float, kinds.key(kinds.Float(0), "A weight.")] = {}, y=1 / 3): ...'
    (tmp_path / "good.py").write_text(head + own.format("0.5"))
    assert agent_node("good.make", str(tmp_path))["x"] == 0.5
    (tmp_path / "bad.py").write_text(head + own.format("1 / 3"))
    with pytest.raises(UserError, match=r"bad.py, line 3: the default of x must be a number"):
        agent_node("bad.make", str(tmp_path))


def test_names_of_the_public_implementation_are_known_agents() -> None:
    assert schema.find_agent("drqv2.DrQV2Agent") is schema.find_agent("drqv2.agents.drqv2.DrQV2Agent")


def test_a_run_that_lacks_a_key_of_its_agent_keeps_what_held_before_the_key() -> None:
    for other in ("drqv2.agents.drq_sac.DrQSACAgent", "drqv2.DrQV2Agent", "elsewhere.Agent"):
        found = stored({"regime": "drqv2", "agent": {"_target_": other}})
        assert ("agent.critic_layer_norm" in found) == (other != "drqv2.agents.drq_sac.DrQSACAgent")


def test_keys_that_have_moved_are_read_from_old_configurations(tmp_path: Path) -> None:
    agent = {"_target_": TARGETS[0], "lr": 0.1, "total_steps": 99, "discount": 0.9, "update_epochs": 4.0}
    agent |= {"minibatch_size": None, "device": "cpu"}
    old = {"regime": "ppo", "total_timesteps": 50, "discount": 0.9, "minibatch_size": None, "agent": agent}
    found = stored(old)
    assert (found["repeat_per_collect"], found["total_timesteps"], found["agent.lr"]) == (4.0, 50, 0.1)
    assert not {"agent.discount", "agent.total_steps", "agent.update_epochs", "agent.device"} & found.keys()
    new = old | {"agent": {"_target_": TARGETS[0], "lr": 0.1}, "repeat_per_collect": 4.0}
    assert changed_keys(old, new, tmp_path) == {}
    longer = changed_keys(old, new | {"total_timesteps": 60}, tmp_path)
    assert longer == {"total_timesteps": 60, "agent.total_steps": 60}, "the agent anneals over the new length"
    assert stored({"regime": "gone", "agent": {"x": 1}}) == {"regime": "gone", "agent.x": 1}
    assert schema.moved({"agent": None}, REGIMES["ppo"]) == ([], {})
