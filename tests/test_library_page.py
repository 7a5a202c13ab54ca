"""The programs of docs/library.md run, and print what stands beside them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eval as evaluation
import train
from drqv2.launch.command_line import launch

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.DOTALL)
# What makes the page's runs short: an evaluation is an episode of 1,000 frames.
SHORTER = {
    'preset="cpu"': 'preset="debug", image_size=48, save_video=False, save_train_video=False',
    "num_train_frames=2000, eval_every_frames=1000": "num_train_frames=1008, eval_every_frames=504",
    "num_train_frames=6000, eval_every_frames=3000": "num_train_frames=2000, eval_every_frames=1000",
}
SHORT = (
    "task=cartpole_balance preset=debug num_train_frames=1000 num_seed_frames=1000 eval_every_frames=1000 device=cpu "
    "image_size=84 frame_stack=3 save_video=false save_train_video=false console=off num_eval_episodes=1"
).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the policy of a run."""
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("library")
    launch(train.main, "cfgs", argv=[*SHORT, f"hydra.run.dir={path / 'run'}"])
    evaluation.main([str(path / "run"), "episodes=1", "film=none", f"export={path}/policy.onnx"])
    return path


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_program_runs_and_prints_what_it_says(folder: Path, block: str) -> None:
    assert len(BLOCKS) >= 2
    for words, shorter in SHORTER.items():
        block = block.replace(words, shorter)
    (folder / "program.py").write_text(block)  # as a file: processes of a run must not start it again
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout.splitlines()
    promised = re.findall(r"^ *print\(.*\)(?:  # (.*))?$", block, re.MULTILINE)
    assert len(printed) >= len(promised)
    assert {words for words in promised if words} <= set(printed)
    if "zip(" in block:
        assert printed.count("True") == 2, "two runs take turns"
    if "make_workspace" not in block:  # a run prints more
        assert len(printed) == len(promised)
