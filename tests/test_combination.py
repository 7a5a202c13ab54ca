"""Every regime learns what only an image and a vector together tell; from one of the two it stays at chance."""

from __future__ import annotations

from pathlib import Path

import pytest

import train
from drqv2.launch.command_line import launch
from tests.both_env import STEPS
from tests.short_run import rows

BEST, CHANCE = 0.8 * STEPS, 0.35 * STEPS
SEEN = {
    "pixels+state": "obs_type=pixels+state",
    "pixels": "obs_type=pixels",
    "state": "obs_type=state",
    "image": "obs_type=pixels+state observation_parts=[image]",
}
OFF_POLICY = (
    "env._target_=tests.both_env.make image_size=16 frame_stack=1 action_repeat=1 num_seed_frames=500 batch_size=64 "
    "nstep=1 discount=0.1 lr=1e-3 stddev_schedule=0.3 num_train_frames=1200 eval_every_frames=1200 "
    "replay_buffer_num_workers=0 overlap=false save_video=false save_train_video=false use_tb=false console=off "
    "eval_at_start=false num_eval_episodes=20 save_snapshot=false agent.hidden_dim=64 agent.num_expl_steps=500"
)
ON_POLICY = (
    "env._target_=tests.both_env.make +env.discrete=true image_size=16 frame_stack=1 action_repeat=1 num_envs=8 "
    "discount=0.1 eval_at_start=false num_eval_episodes=20 save_video=false use_tb=false console=off "
    "save_snapshot=false agent.encoder=impala agent.hidden_dim=64"
)
TASKS = "tasks=[gymnasium:tests.both_env:Both-v0,gymnasium:tests.both_env:Mirrored-v0]"
REGIMES = {
    "drqv2": f"{OFF_POLICY} agent.update_every_steps=1",
    "drq_sac": f"agent=drq_sac {OFF_POLICY}".replace(" stddev_schedule=0.3", ""),
    "spq": f"agent=spq {OFF_POLICY} image_size=32 agent.model_warmup=50 agent.convolutions=patch".replace(
        " stddev_schedule=0.3", ""
    ),
    "multitask": f"regime=multitask {OFF_POLICY} {TASKS} num_train_frames=3000 eval_every_frames=3000".replace(
        "env._target_=tests.both_env.make ", ""
    ),
    "ppo": f"regime=ppo {ON_POLICY} total_timesteps=4000 eval_every_frames=4000",
    "impala": f"regime=impala {ON_POLICY} total_timesteps=16000 eval_every_frames=16000",
}


def last_return(run_dir: Path, words: str) -> float:
    launch(train.main, "cfgs", argv=[*words.split(), f"hydra.run.dir={run_dir}"])
    return float(rows(run_dir, "eval")[-1]["episode_reward"])


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
def test_both_together(tmp_path: Path, regime: str) -> None:
    assert last_return(tmp_path / "run", f"{REGIMES[regime]} {SEEN['pixels+state']}") > BEST


@pytest.mark.slow
@pytest.mark.parametrize(("regime", "seen"), [("drqv2", "image"), ("drqv2", "state"), ("ppo", "state")])
def test_one_of_them_is_not_enough(tmp_path: Path, regime: str, seen: str) -> None:
    words = f"{REGIMES[regime]} {SEEN[seen]}"
    if seen == "state" and regime == "ppo":
        words = words.replace("agent.encoder=impala ", "")
    assert abs(last_return(tmp_path / "run", words)) < CHANCE


@pytest.mark.slow
def test_from_stored_data(tmp_path: Path) -> None:
    """Of a run that acts at random."""
    random = "agent.num_expl_steps=5000 num_seed_frames=1190 save_snapshot=true"
    last_return(tmp_path / "random", f"{REGIMES['drqv2']} {SEEN['pixels+state']} {random}")
    online = ("num_seed_frames", "num_train_frames", "eval_", "save_", "agent.num_expl_steps")
    words = [word for word in OFF_POLICY.split() if not word.startswith(online)]
    words += "regime=offline agent=drqv2 num_train_frames=800 eval_every_frames=800 eval_at_start=false".split()
    words += ["agent.update_every_steps=1", "save_video=false", SEEN["pixels+state"], f"data={tmp_path / 'random'}"]
    assert last_return(tmp_path / "offline", " ".join(words)) > BEST
