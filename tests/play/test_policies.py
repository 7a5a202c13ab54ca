"""The policies of the repository do in their worlds what their cards say."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drqv2.play.policy import Policy

pytest.importorskip("onnxruntime")
pytest.importorskip("gymnasium")
# Where another version is installed, the return alone decides.
pytestmark = pytest.mark.filterwarnings("ignore:the policy is from a world")

FOLDER = Path(__file__).resolve().parents[2] / "policies"
# Bounds of the return of the first steps of the episode with seed 1, and of the whole episode.
RETURNS = {
    "cartpole": (100, (100, 100), (500, 500)),
    "cartpole_balance_sparse": (50, (190, 200), (950, 1000)),
    "finger_spin": (50, (50, 90), (900, 1000)),
}
CASES: list[Any] = [(name, steps, least, most) for name, (steps, (least, most), _) in RETURNS.items()]
WHOLE: list[Any] = [
    pytest.param(name, None, *bounds, marks=pytest.mark.slow) for name, (_, _, bounds) in RETURNS.items()
]


@pytest.mark.parametrize(("name", "steps", "least", "most"), CASES + WHOLE)
def test_a_policy_does_what_it_did(name: str, steps: int | None, least: float, most: float) -> None:
    policy = Policy(FOLDER / f"{name}.onnx")
    env = policy.world.make()
    *_, end = itertools.islice(policy.play(env, seed=1), None if steps is None else steps + 1)
    env.close()
    assert least <= end.total <= most
    assert steps in (end.steps, None)


def test_an_episode_depends_on_the_seed_alone() -> None:
    policy = Policy(FOLDER / "cartpole.onnx")
    env = policy.world.make()

    def actions(seed: int) -> list[int]:
        return [int(played.action) for played in itertools.islice(policy.play(env, seed), 60)]

    assert actions(1) == actions(1) != actions(2)
    env.close()


def test_the_example_of_a_card_runs() -> None:
    _, example = re.findall(r"```python\n(.*?)```", (FOLDER / "cartpole.onnx.md").read_text(), re.DOTALL)
    ran = subprocess.run([sys.executable, "-c", example], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert ran.stdout == "500.0 500\n"


@pytest.mark.parametrize("name", RETURNS)
def test_files_are_small_and_cards_agree_with_them(name: str) -> None:
    file, card = FOLDER / f"{name}.onnx", FOLDER / f"{name}.onnx.md"
    assert file.stat().st_size + card.stat().st_size < 3e6
    world, text = Policy(file).world, card.read_text()
    assert f"    mean {world.returns['mean']:>10.1f}  " in text
    assert world.environment in text
    assert world.returns["episodes"] >= 10
    assert {path.name for path in FOLDER.glob("*.onnx")} == {f"{known}.onnx" for known in RETURNS}
