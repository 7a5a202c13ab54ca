"""The agent in docs/porting.md that learns from segments trains, resumes, and gets what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import train
from drqv2.launch.command_line import launch
from tests.agents.test_third_party import LEAN, ROOT, run
from tests.short_run import rows

(BLOCK,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/porting.md").read_text(), re.DOTALL)
WATCHED = """
    def checked(self, batch):
        obs, action, reward, discount, mask = batch
        frames, size = self.channels + 5 * 3, obs.shape[-1]
        assert obs.shape == (8, frames, size, size) and obs.dtype == torch.uint8, obs.shape
        assert action.shape[:2] == reward.shape == discount.shape == mask.shape == (8, 5)
        assert set(mask.flatten().tolist()) <= {0.0, 1.0} and mask[:, 0].all()
        return batch
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["replay_device=disk", "num_envs=2"])
def test_the_agent_that_learns_from_segments(tmp_path: Path, place: str) -> None:
    assert len(BLOCK.splitlines()) <= 42
    taken = BLOCK.replace("utils.to_torch(next(replay_iter), self.device)", "self.checked(next(replay_iter))")
    assert taken != BLOCK
    (tmp_path / "segments.py").write_text(taken + WATCHED)
    names = [f"agent_dir={tmp_path}", "agent._target_=segments.RewardWeighted", "~agent.num_expl_steps", *LEAN]
    options = [*names, place, "replay_fading=0.99", "replay_by_reward=0.5"]
    whole, part = tmp_path / "whole", tmp_path / "part"
    run(whole, *options)
    run(part, *options, "num_train_frames=180")
    launch(train.main, "cfgs", argv=[f"resume={part}", "num_train_frames=240"])
    for table in ("train", "eval"):
        assert rows(part, table) == rows(whole, table)
