"""A page of many runs and settings: short labels, folded warnings, size; curves of other methods."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import report
from drqv2.config.kinds import Names
from drqv2.errors import UserError
from drqv2.launch.compose import compose
from drqv2.report import published, runs
from drqv2.report.settings import Setting, middle, settings
from tests.report.made_runs import ROOT, make_many, make_run

REFERENCES = ROOT / "results/published/reference_curves.csv"


def charts(text: str) -> list[dict[str, Any]]:
    """Return the charts of a page, from the JSON that is in it."""
    return [json.loads(found) for found in re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)]


def labels(*paths: Path) -> list[Setting]:
    """Return the settings of runs, without repetition."""
    found = settings([runs.read(path) for path in paths])
    return sorted(set(found.values()), key=lambda setting: setting.index)


def test_a_page_of_48_runs_of_20_settings(tmp_path: Path) -> None:
    make_many(tmp_path)
    report.main([str(tmp_path)])
    page = tmp_path / "report.html"
    assert page.stat().st_size < 8e6  # of these plotly has 5
    curves, *_ = charts(page.read_text("utf-8"))
    own = [entry for entry in curves["entries"] if entry["on"] and "published" not in entry["name"]]
    assert len(own) == 20
    assert len({entry["name"] for entry in own}) == 20
    assert len({(entry["colour"], entry["dash"]) for entry in own}) == 20
    assert max(len(entry["name"]) for entry in own) <= 44
    assert curves["choices"]["seeds"] == ["no seeds", "seeds"]  # 48 thin lines would hide the curves
    text = page.read_text("utf-8")
    shown = {entry["title"].partition(" (")[0]: entry["name"] for entry in own}
    assert shown["agent.critic=residual, agent.hidden_dim=1024"] == "critic=residual, hidden_dim=1024"
    for title, short in shown.items():
        assert short in (title.replace("agent.", ""), "default settings")
        assert f'title="{title} (' in text


def test_long_values_are_shortened_in_the_middle(tmp_path: Path) -> None:
    assert middle("abcdefgh", 8) == "abcdefgh"
    assert middle("abcdefghi", 8) == "abcd…ghi"
    value = "linear(1.0,0.1,123456789),step_linear(1.0,0.1,5)"
    plain = make_run(tmp_path / "a", [1])
    long = make_run(tmp_path / "b", [1], agent={"schedule": value})
    first, second = labels(plain, long)
    assert second.label == f"agent.schedule={value}"
    assert second.short.startswith("schedule=linear(1.0")
    assert "…" in second.short
    assert len(second.short) <= 44
    assert first.short == "default settings"


def test_short_labels_of_different_settings_differ(tmp_path: Path) -> None:
    values = [f"linear(1.0,{i},123456789),step_linear(1.0,0.1,5)" for i in range(10, 13)]
    made = [make_run(tmp_path / value, [1], agent={"schedule": value}) for value in values]
    made += [make_run(tmp_path / f"again{i}", [1], agent={"schedule": values[0]}, seed=2 + i) for i in range(2)]
    found = labels(*made)
    assert len({setting.short for setting in found}) == len(found) == 3


def test_names_are_whole_where_their_ends_are_the_same(tmp_path: Path) -> None:
    made = [
        make_run(tmp_path / "a", [1]),
        make_run(tmp_path / "a2", [1], seed=2),
        make_run(tmp_path / "b", [1], lr=0.5, agent={"lr": 0.25}),
    ]
    assert labels(*made)[1].short == "agent.lr=0.25, lr=0.5"


def test_an_agent_is_called_by_its_class(tmp_path: Path) -> None:
    made = [make_run(tmp_path / "a", [1]), make_run(tmp_path / "b", [1], agent={"_target_": "some.module.MyAgent"})]
    assert labels(*made)[1].short == "agent=MyAgent"


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        (["", "preset=cpu"], ["default settings", "preset=cpu"]),
        (["preset=cpu", "preset=cpu seed=2", "preset=cpu lr=3e-4"], ["default settings", "lr=0.0003"]),
        (
            ["preset=cpu", "preset=spq_cpu", "preset=spq_cpu agent.infonce=0"],
            ["preset=cpu", "preset=spq_cpu", "preset=spq_cpu, infonce=0.0"],
        ),
        (["agent=spq", "agent=spq seed=2", "lr=3e-4"], ["default settings", "agent=DrQV2Agent, lr=0.0003"]),
        (
            ["preset=spq_cpu", "preset=spq_cpu seed=2", "preset=spq_cpu replay_fading=null"],
            ["default settings", "replay_fading=null"],
        ),
        (
            [f"agent_dir=tests/third_party agent._target_=huber.HuberAgent seed={i}" for i in (1, 2)] + [""],
            ["default settings", "agent=DrQV2Agent"],
        ),
        (
            ["preset=cpu", "regime=ppo segments=64 preset=dmc_state", "regime=ppo segments=64 obs_type=state"],
            ["drqv2, preset=cpu", "ppo, preset=dmc_state", "ppo"],
        ),
    ],
)
def test_labels_name_what_the_user_has_given(tmp_path: Path, commands: list[str], expected: list[str]) -> None:
    """Presets and agents set many keys, which say less than the name."""
    made = []
    for i, command in enumerate(commands):
        words = ["task=walker_walk", *command.split()]
        config: Any = OmegaConf.to_container(compose(*words))
        made.append(make_run(tmp_path / str(i), [1], **config))
        (made[-1] / ".hydra").mkdir()
        OmegaConf.save(words, made[-1] / ".hydra/overrides.yaml")
    assert [setting.short for setting in labels(*made)] == expected


def test_more_keys_than_fit_are_counted(tmp_path: Path) -> None:
    keys = {f"quite_a_long_name_{i}": i for i in range(5)}
    made = [make_run(tmp_path / "a", [1]), make_run(tmp_path / "b", [1], agent=keys)]
    (_, found) = labels(*made)
    assert found.short == "quite_a_long_name_0=0 +4"
    assert found.label.count("quite_a_long_name") == 5


def test_warnings_are_folded_into_their_number(tmp_path: Path) -> None:
    for seed in range(12):
        (make_run(tmp_path / str(seed), [1, 2], seed=seed) / "starts.jsonl").write_text('{"dirty": true}\n')
    report.main([str(tmp_path)])
    text = (tmp_path / "report.html").read_text("utf-8")
    folded = text.partition('<details class="warnings"><summary>12 warnings</summary>')[2].partition("</details>")[0]
    assert folded.count("<li>") == 12
    assert folded.count("uncommitted changes") == text.count("uncommitted changes") == 12


def test_curves_of_other_methods_are_there_but_hidden(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [1, 2, 3], every=200_000, task_name="walker_walk")
    report.main([str(tmp_path)])
    text = (tmp_path / "report.html").read_text("utf-8")
    curves = charts(text)[0]
    hidden = {entry["name"]: entry["title"] for entry in curves["entries"] if not entry["on"]}
    assert set(hidden) == {f"{name}, published" for name in ("DreamerV3", "MR.Q", "TD-MPC2")}
    assert hidden["DreamerV3, published"].startswith(
        "DreamerV3, published: mean and range of 10 seeds. Source: danijar/"
    )
    assert curves["entries"][0]["name"] == "DrQ-v2, published"
    for i, entry in enumerate(curves["entries"]):
        drawn = [trace for trace in curves["traces"] if trace["entry"] == i]
        assert all(len(trace["x"]) > 1 for trace in drawn)
        assert drawn, entry["name"]
        if not entry["on"]:
            assert f'data-entry="{i}" title="{entry["title"]}" aria-pressed="false"' in text
            assert max(drawn[0]["x"]) == 400_000  # as far as the runs


def test_curves_of_other_methods_can_be_switched_on(tmp_path: Path) -> None:
    make_run(tmp_path / "run", [1, 2, 3], every=200_000, task_name="walker_walk")

    def shown(*words: str) -> set[str]:
        report.main([str(tmp_path), *words])
        text = (tmp_path / "report.html").read_text("utf-8")
        return {entry["name"] for entry in charts(text)[0]["entries"] if entry["on"]}

    before = shown()
    assert shown("reference=[dreamerv3,tdmpc2]") - before == {"DreamerV3, published", "TD-MPC2, published"}


def test_curves_of_other_methods_are_those_of_the_same_task(tmp_path: Path) -> None:
    faults: list[str] = []
    found = published.read_references(REFERENCES, ["xqc"], faults)
    assert faults == []
    assert "ball_in_cup_catch" not in found
    assert [one.method for one in found["cup_catch"]] == ["dreamerv3", "drqv2", "mrq"]
    for every in found.values():
        for one in every:
            assert (np.diff(one.curve["frame"]) > 0).all()
            assert one.source
            first = 100_000 if one.method in ("dr.q", "tdmpc2", "xqc") else 20_000  # nothing was measured before
            assert one.curve["frame"][0] == first, (one.method, one.source)
    assert found["cup_catch"][1].long == "DrQ-v2, published (facebookresearch/drqv2, 8 seeds)"
    numbers = {(one.method, one.number) for every in found.values() for one in every}
    assert len(numbers) == 6  # a method has one colour on all tasks
    with pytest.raises(UserError, match=r"reference=dreamer:.*there are dr\.q, dreamerv3"):
        published.read_references(REFERENCES, ["dreamer"], faults)


def test_lists_of_names() -> None:
    assert Names().check("[dreamerv3, dr.q]") == ["dreamerv3", "dr.q"]
    assert Names().check("xqc") == ["xqc"]
    for wrong in ("[a,,b]", "", 3, "[a b]"):
        with pytest.raises(ValueError, match=r"^$"):
            Names().check(wrong)
