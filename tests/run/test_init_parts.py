"""init_from with init_parts: parts of a trained agent in a new one whose actions or observations differ."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from dm_env import specs

import train
from drqv2.launch.command_line import launch
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_weights import weights
from drqv2.snapshot.checkpoints import Checkpoints
from drqv2.snapshot.transfer import export
from tests.dot_env import Dot
from tests.short_run import ROOT, resume, run


class TwoActions(Dot):
    """Of its two actions the second has no effect."""

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")


SHORTEST = (
    f"env._target_={__name__}.TwoActions num_train_frames=60 eval_every_frames=null save_train_video=false".split()
)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["snapshot.pt", "weights_480.pt", "best.pt", "policy.safetensors"])
def test_an_encoder_for_other_actions(
    file: str, straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, source = snapshot.load(straight / "snapshot.pt"), tmp_path / file
    if file == "best.pt":
        checkpoints = Checkpoints(tmp_path)
        checkpoints.save_best(480, saved["config"], saved["agent"])
        checkpoints.close()
    elif file == "policy.safetensors":
        export(straight, source)
    else:
        source.write_bytes((straight / file).read_bytes())
    run_dir = run(tmp_path / "run", *SHORTEST, f"init_from={source}", "init_parts=[encoder]")
    assert "loaded the weights of encoder" in capsys.readouterr().out
    began, trained = weights(snapshot.load(run_dir / "weights_0.pt")["agent"]), weights(saved["agent"])
    for name, value in began.items():
        if value.dim() > 1:
            assert (value.shape == trained[name].shape and torch.equal(value, trained[name])) == ("encoder" in name)
    source.unlink()
    resume(run_dir, "num_train_frames=120")  # needs neither the file nor the parts


@pytest.mark.slow
def test_what_does_not_fit_is_named(straight: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SHORTEST, f"init_from={straight}"]
    for more, said in (
        ([], r"actor\.policy\.4\.bias has shape .*\n.*init_parts=\[NAME\]"),
        (["init_parts=[encoder,actor]"], r"actor\.policy\.4\.bias has shape "),
        (["init_parts=[encodr]"], "the agent has no encodr; its parts are actor, critic, critic_target, encoder"),
        (["init_parts=[encoder]", "init_from=null"], r"init_parts=\[encoder\]: needs init_from=FILE"),
    ):
        with pytest.raises(SystemExit) as end:
            run(tmp_path / "run", *words, *more)
        assert end.value.code == 2
        message = capsys.readouterr().err
        assert re.search(said, message)
        assert len(message.splitlines()) <= 2
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("regime", ["ppo", "impala"])
def test_init_parts_of_a_policy(regime: str, tmp_path: Path) -> None:
    words = f"regime={regime} total_timesteps=64 num_envs=2 agent.hidden_dim=8 eval_every_frames=null".split()
    words += (
        ["horizon=8", "vector=serial"] if regime == "ppo" else "deterministic=true num_actors=1 batch_size=2".split()
    )
    words += ["env_id=gymnasium:CartPole-v1"]
    launch(train.main, ROOT / "cfgs", [*words, f"hydra.run.dir={tmp_path / 'old'}"])
    words[-1] = "env_id=gymnasium:MountainCar-v0"
    parts = "init_parts=[policy.critic]"  # 4 numbers are observed there and 2 here, 2 actions and 3
    words += [f"init_from={tmp_path / 'old' / 'snapshot.pt'}", f"hydra.run.dir={tmp_path / 'new'}"]
    launch(train.main, ROOT / "cfgs", [*words, parts])
    old, new = (snapshot.load(tmp_path / name)["agent"] for name in ("old/snapshot.pt", "new/weights_0.pt"))
    old, new = weights(old), weights(new)
    assert all(torch.equal(new[name], old[name]) == (".critic." in name) for name in new if new[name].dim() == 2)
