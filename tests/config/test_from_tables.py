"""Tables of the docs that map arguments of other libraries to keys and hooks: these exist and take the values shown."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from drqv2.config.schema import REGIMES
from drqv2.run.hooks import Hooks
from tests.markdown import tables, value

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOOKS = {field.name for field in dataclasses.fields(Hooks)}


def named() -> list[tuple[str, str, list[str]]]:
    """Return page, what its second column holds, and the code in that column, for each of these tables."""
    found = []
    for page in sorted(DOCS.glob("*.md")):
        for head, rows in tables(page.read_text()):
            if len(head) == 3 and re.fullmatch(r"every regime|hook|regime=\w+", head[1]):
                codes = [re.findall("`(.+?)`", row[1]) for row in rows]
                assert all(codes), f"{page.name}: a row without a name"
                found.append((page.name, head[1], [code for row in codes for code in row]))
    return found


def test_there_are_tables_for_each_library() -> None:
    assert len(named()) >= 9
    assert {"from_other_libraries.md", "multitask.md"} == {page for page, *_ in named()}
    text = (DOCS / "from_other_libraries.md").read_text()
    assert re.findall("^## From (.+)$", text, flags=re.MULTILINE) == [
        "Tianshou",
        "PufferLib",
        "TorchBeast and RTFM",
        "Stable-Baselines3",
    ]


def test_every_key_and_hook_in_them_exists() -> None:
    for page, kind, codes in named():
        if kind == "hook":
            assert set(codes) <= HOOKS, page
            continue
        for regime in REGIMES if kind == "every regime" else [kind.partition("=")[2]]:
            for code in codes:
                name, given, text = code.partition("=")
                assert name in REGIMES[regime].every_key, f"{page}: {name} is no key of regime={regime}"
                if given:
                    REGIMES[regime].every_key[name].check(value(text))
