"""Each kind's good values, in the type that they come out with, and bad ones, with what is said about them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from drqv2.config.formatting import counted, show
from drqv2.config.keys import Key
from drqv2.config.kinds import (
    Bool,
    Choice,
    Device,
    EvenInt,
    File,
    Float,
    Folder,
    Int,
    Kind,
    Name,
    Schedule,
    Several,
    Shape,
    Text,
    Weights,
)
from drqv2.errors import UserError
from drqv2.launch.arguments import value_of

# kind, good values (a pair where the result differs), bad values, what is said about them
TABLE: list[tuple[Kind, list[Any], list[Any], str]] = [
    (Int(1, 9), [1, 9, (4.0, 4)], [0, 10, 2.5, "4", True, None, [1], {"x": 1}, math.inf], "at least 1 and at most 9"),
    (Float(0, 1, above=True), [0.5, (1, 1.0)], [0, 1.01, math.nan, "1e-4", True], "a number above 0 and at most 1"),
    (Float(), [(-3, -3.0)], ["x"], "must be a number"),
    (EvenInt(16), [16, (18.0, 18)], [14, 17, "16"], "an even whole number of at least 16"),
    (Bool(), [True, False], [1, "yes", None], "true or false"),
    (Several(Text(), "a list"), [["a", "b"], ("a", ["a"]), ([1], ["1"])], [[], [""], ["a", "a"], {"x": 1}], ""),
    (Text(), ["a", (7, "7"), (0.5, "0.5")], ["", True, None, ["a"]], "must be text"),
    (Name(), ["module.Class", "a.b.c"], ["Class", "not a name", "a.1", None, 3], "module.name"),
    (File(), [__file__], ["/no/such/file"], "no such file"),
    (File(), [], ["", 3], "a file that exists"),
    (Weights(), [__file__], ["/no/such/run"], "no such file, nor a run's directory"),
    (Weights(), [], ["/tmp"], "exists, but is no file, nor a run's directory with a snapshot"),
    (File(), [], ["/tmp"], "exists, but is no file"),
    (Folder(), ["/tmp"], ["/no/such/place"], "no such directory"),
    (Folder(), [], [__file__], "exists, but is no directory"),
    (Device(), ["auto", "cpu"], ["gpu", "cuda:", 0, None], "auto, cpu, cuda or cuda:N"),
    (Device(), [], ["cuda:77"], "GPU"),
    (Schedule(), [0.2, "0.2", "linear(1.0,0.1,5)", "step_linear(1.0, 0.5, 1e3, 0.1, 2e3)"], [], ""),
    (Schedule(), [], ["linear(1.0,0.1)", "lineer(1.0,0.1,9)", True, None], "linear(init,final,duration)"),
    (Schedule(), [], ["linear(1.0,0.1,0)"], "duration"),
    (Schedule(), [], ["linear(1.0,-0.1,10)", -1], "0 or above"),
    (Shape(), ["???", [9, 84, 84], (6,)], ["big", [0], [1.5]], "unset"),
    (Choice("auto", True, False), ["auto", True, False], ["maybe", 1, 0, None], "auto, true or false"),
    (Choice("one"), ["one"], ["two"], "must be one"),
]


@pytest.mark.parametrize(("kind", "good", "bad", "said"), TABLE, ids=lambda part: type(part).__name__)
def test_kind(kind, good, bad, said):
    key = Key("node.name", kind, "Of a test.", "units")
    for value in good:
        given, result = value if isinstance(value, tuple) and not isinstance(kind, Shape) else (value, value)
        checked = key.check(given)
        assert (checked, type(checked)) == (result, type(result))
    for value in bad:
        with pytest.raises(UserError) as error:
            key.check(value)
        assert str(error.value).startswith(f"node.name={show(value)}: ")
        assert said in str(error.value)
        assert len(str(error.value).splitlines()) == 1


def test_null_and_unset():
    assert Key("x", Float(), "Of a test.", null="none").check(None) is None
    assert Key("x", Float(), "Of a test.", null="none").allowed == "a number or null"
    with pytest.raises(UserError, match="x is not set: give x=VALUE"):
        Key("x", Text(), "Of a test.").check("???")
    with pytest.raises(UserError, match="give task=NAME"):
        Key("task_name", Text(), "Of a test.").check("???")


def test_unit_is_named():
    with pytest.raises(UserError, match=r"x=0: must be a whole number of at least 1 \(frames\)"):
        Key("x", Int(1), "Of a test.", "frames").check(0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_without_a_gpu():
    with pytest.raises(UserError, match=r"device=cuda: .* sees no GPU here; use device=cpu"):
        Key("device", Device(), "Of a test.").check("cuda")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Int(), "1e6", 1_000_000),
        (Float(), "0.5", 0.5),
        (Int(), "x", "x"),
        (Bool(), "true", True),
        (Text(), "007", "007"),
        (Text(), "true", "true"),
        (Text(), "null", None),
    ],
)
def test_values_on_the_command_line_of_a_tool(kind, text, value):
    assert value_of(text, kind) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1, "1"), ("a", "a"), ("1", "'1'"), ("null", "'null'"), ("", "''"), ([1], "[1]")],
)
def test_values_are_shown_as_typed(value, text):
    assert show(value) == text


def test_things_are_counted() -> None:
    counts = (0, 1, 2, 1.5, 1200, 1_100_000)
    assert [counted(n, "core") for n in counts[:4]] == ["0 cores", "1 core", "2 cores", "1.5 cores"]
    assert [counted(n, "process") for n in counts[1:3]] == ["1 process", "2 processes"]
    assert [counted(n, "frame") for n in counts[4:]] == ["1,200 frames", "1,100,000 frames"]
