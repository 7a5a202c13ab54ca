"""docs/configuration.md, read as its readers do, against the configuration that Hydra composes for each regime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from drqv2.config.cfgs import CFGS, leaves
from drqv2.config.schema import FIRST, REGIMES, offer
from tests.markdown import tables, value

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def documented() -> dict[tuple[str, str], dict[str, str]]:
    """Return the page's defaults as text, by regime and agent ("" for the first), and by key."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        named, with_agent = re.match(r".+ \((.+)\)\n", section), re.match(r"Agent, with agent=(\w+)", section)
        regimes = named[1].split(", ") if named else list(REGIMES)
        agent = with_agent[1] if with_agent else ""
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
                own = found.setdefault((regime, agent), {})
                assert name not in own, f"{name} stands twice for regime={regime}"
                own[name] = text
    return found


def composed(*overrides: str) -> dict[str, Any]:
    """Return the composed configuration by dotted name, interpolations unresolved."""
    offer()
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        cfg: Any = OmegaConf.to_container(compose("config", overrides=list(overrides)))
    return leaves(cfg)


@pytest.mark.parametrize(("regime", "agent"), [(name, agent) for name in REGIMES for agent in REGIMES[name].agents])
def test_the_defaults_are_those_that_hydra_composes(regime: str, agent: str) -> None:
    page = documented()
    told = page[regime, ""] | page.get((regime, agent), {})
    values = composed(f"regime={regime}", f"agent={agent}") | {"regime": FIRST}  # what regime=NAME replaces
    values["agent._target_"] = composed(f"regime={regime}")["agent._target_"]
    assert {name for name in values if name.startswith("agent.")} <= set(told)
    both = told.keys() & values.keys()
    assert {name: value(told[name]) for name in both} == {name: values[name] for name in both}
    assert set(REGIMES[regime].every_key) == {name for who, own in page.items() if who[0] == regime for name in own}
