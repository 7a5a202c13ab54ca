"""docs/configuration.md, read as its readers do, against the configuration that Hydra composes for each regime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from drqv2.config.checks import leaves
from drqv2.config.schema import AGENTS, CFGS, keys
from drqv2.config.tables.shared import FIRST_REGIME, REGIMES
from tests.markdown import tables, value

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def documented() -> dict[str, dict[str, str]]:
    """Return the page's defaults as text, by regime and key."""
    found: dict[str, dict[str, str]] = {regime: {} for regime in REGIMES}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        named = re.match(r".+ \((.+)\)\n", section)
        regimes = named[1].split(", ") if named else list(REGIMES)
        ((head, rows),) = tables(section)
        if head[:2] != ["key", "default"]:
            continue
        for key, default, *_ in rows:
            name = key.strip("`")
            everywhere, *others = default.split("; ")
            assert re.fullmatch(r"`[^`]+`", everywhere), default
            defaults = dict.fromkeys(regimes, everywhere.strip("`"))
            for other in others:
                who, _, text = other.partition(": ")
                assert set(who.split(", ")) < set(regimes), f"{name}: {who}"
                defaults |= dict.fromkeys(who.split(", "), text.strip("`"))
            for regime, text in defaults.items():
                assert name not in found[regime], f"{name} stands twice for regime={regime}"
                found[regime][name] = text
    return found


def composed(*overrides: str) -> dict[str, Any]:
    """Return the composed configuration by dotted name, interpolations unresolved."""
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        cfg: Any = OmegaConf.to_container(compose("config", overrides=list(overrides)))
    return leaves(cfg)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_defaults_are_those_that_hydra_composes(regime: str) -> None:
    values = composed(f"regime={regime}")
    for agent in AGENTS[regime]:  # keys of agents that are not the default one
        values = composed(f"regime={regime}", f"agent={agent}") | values
    values |= {"regime": FIRST_REGIME}  # what regime=NAME replaces
    told = documented()[regime]
    assert set(told) == set(keys(regime))
    wrong = {name: (text, values[name]) for name, text in told.items() if value(text) != values[name]}
    assert not wrong
