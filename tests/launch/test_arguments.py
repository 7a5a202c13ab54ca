"""Command lines of the tools other than train.py."""

from __future__ import annotations

from typing import Any

import pytest

from drqv2.config.keys import Key
from drqv2.config.kinds import Bool, Int, Text
from drqv2.launch.arguments import run_tool

KEYS = {Key("out", Text(), "File.", null="none"): None, Key("watch", Bool(), "On."): False, Key("n", Int(1), "N."): 1}


def parsed(*argv: str) -> tuple[list[str], dict[str, Any]]:
    got: list[Any] = []
    run_tool(lambda positional, values: got.append((positional, values)), "", KEYS, argv)
    positional, values = got[0]
    return positional, values


@pytest.mark.parametrize("words", [["out=a b"], ["--out=a b"], ["--out", "a b"]])
def test_three_ways_to_give_a_value(words):
    assert parsed("x/y=z", *words, "runs") == (["x/y=z", "runs"], {"out": "a b", "watch": False, "n": 1})


def test_a_switch_needs_no_value():
    assert parsed("--watch", "runs", "--n", "3") == (["runs"], {"out": None, "watch": True, "n": 3})
    assert parsed("--watch=false", "--out=null")[1] == {"out": None, "watch": False, "n": 1}
    assert parsed("--watch", "false", "runs") == (["runs"], {"out": None, "watch": False, "n": 1})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ot", "x"], "--ot: there is no such key; nearest: out (see --help)"),
        (["--out"], "--out: a value is missing, which must be"),
        (["--out", "--watch"], "--out: a value is missing, which must be"),
        (["--n", "0"], "n=0: must be"),
        (["--watch=x"], "watch=x: must be true or false"),
    ],
)
def test_mistakes(words, message, capsys):
    with pytest.raises(SystemExit) as leaving:
        parsed(*words)
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err
