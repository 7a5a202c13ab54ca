"""The composed configuration against the paper's table, and what is said about values that have no place in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from drqv2.config.checks import check_agent, validate, validate_in_place
from drqv2.config.help import help_text, markdown
from drqv2.config.schema import CFGS, SMALLEST_IMAGE, encoder_side, keys, presets, show, tasks

KEYS = keys()
from drqv2.errors import UserError
from drqv2.nn.networks import Encoder

ROOT = Path(__file__).resolve().parents[2]

EASY = (1_100_000, "linear(1.0,0.1,100000)")
MEDIUM = (3_100_000, "linear(1.0,0.1,500000)")
HARD = (30_100_000, "linear(1.0,0.1,2000000)")

# task, (frames, exploration), nstep, batch, replay, lr, feature_dim
TABLE = [
    ("cartpole_balance", EASY, 3, 256, 1_000_000, 1e-4, 50),
    ("cartpole_balance_sparse", EASY, 3, 256, 1_000_000, 1e-4, 50),
    ("cartpole_swingup", EASY, 3, 256, 1_000_000, 1e-4, 50),
    ("cup_catch", EASY, 3, 256, 1_000_000, 1e-4, 50),
    ("finger_spin", EASY, 3, 256, 1_000_000, 1e-4, 50),
    ("hopper_stand", EASY, 3, 256, 1_000_000, 1e-4, 50),
    ("pendulum_swingup", EASY, 3, 256, 1_000_000, 1e-4, 50),
    ("walker_stand", EASY, 1, 512, 1_000_000, 1e-4, 50),
    ("walker_walk", EASY, 1, 512, 1_000_000, 1e-4, 50),
    ("acrobot_swingup", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("cartpole_swingup_sparse", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("cheetah_run", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("finger_turn_easy", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("finger_turn_hard", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("hopper_hop", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("quadruped_run", MEDIUM, 3, 256, 100_000, 1e-4, 50),
    ("quadruped_walk", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("reach_duplo", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("reacher_easy", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("reacher_hard", MEDIUM, 3, 256, 1_000_000, 1e-4, 50),
    ("walker_run", MEDIUM, 1, 512, 1_000_000, 1e-4, 50),
    ("humanoid_run", HARD, 3, 256, 1_000_000, 8e-5, 100),
    ("humanoid_stand", HARD, 3, 256, 1_000_000, 8e-5, 100),
    ("humanoid_walk", HARD, 3, 256, 1_000_000, 8e-5, 100),
]


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def changed(name: str, value: Any) -> dict[str, Any]:
    cfg: Any = OmegaConf.to_container(composed(), resolve=True)
    node, _, leaf = name.rpartition(".")
    (cfg[node] if node else cfg)[leaf] = value
    return cfg


@pytest.mark.parametrize(("task", "tier", "nstep", "batch", "replay", "lr", "feature_dim"), TABLE)
def test_task_row(task, tier, nstep, batch, replay, lr, feature_dim):
    cfg = validate(composed(f"task={task}"))
    assert cfg["task_name"] == task
    assert (cfg["num_train_frames"], cfg["stddev_schedule"]) == tier
    assert (cfg["nstep"], cfg["batch_size"], cfg["replay_buffer_size"]) == (nstep, batch, replay)
    assert (cfg["lr"], cfg["feature_dim"]) == (lr, feature_dim)
    common = {
        "frame_stack": 3,
        "action_repeat": 2,
        "discount": 0.99,
        "image_size": 84,
        "num_seed_frames": 4000,
        "eval_every_frames": 10_000,
        "num_eval_episodes": 10,
        "replay_buffer_num_workers": 4,
        "seed": 1,
    }
    assert {name: cfg[name] for name in common} == common
    assert cfg["agent"] == {
        "_target_": "drqv2.agents.drqv2.DrQV2Agent",
        "obs_shape": "???",
        "action_shape": "???",
        "device": "auto",
        "lr": lr,
        "critic_target_tau": 0.01,
        "update_every_steps": 2,
        "use_tb": True,
        "num_expl_steps": 2000,
        "hidden_dim": 1024,
        "feature_dim": feature_dim,
        "stddev_schedule": tier[1],
        "stddev_clip": 0.3,
    }


def test_table_is_complete():
    assert sorted(row[0] for row in TABLE) == tasks()
    assert len(TABLE) == 24
    assert validate(composed())["task_name"] == "cartpole_balance_sparse"


def test_every_preset_composes_with_every_task():
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        for task in tasks():
            for preset in presets():
                cfg = compose("config", overrides=[f"task={task}", f"preset={preset}"])
                assert validate(cfg)["task_name"] == task


def test_order_is_task_then_preset_then_command_line():
    assert composed("task=walker_walk").batch_size == 512
    debug = composed("task=walker_walk", "preset=debug")
    assert debug.batch_size == composed("preset=debug").batch_size < 256
    assert debug.nstep == 1
    assert composed("batch_size=7", "preset=debug", "task=walker_walk").batch_size == 7
    assert composed("preset=paper", "task=humanoid_run") == composed("task=humanoid_run")


def test_schema_and_config_have_the_same_keys():
    cfg = composed()
    names = {name for name in cfg if name not in ("agent", "env")}
    names |= {f"{node}.{name}" for node in ("agent", "env") for name in cfg[node]}
    assert names == set(KEYS)
    assert all(key.meaning.endswith(".") for key in KEYS.values())


def test_text_is_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown() + "\n", (
        "run: python -m drqv2.config > docs/configuration.md"
    )
    assert all(name in help_text() for name in [*KEYS, *tasks(), *presets()])


def test_numbers_are_put_in_their_type():
    cfg = composed("num_train_frames=1e6", "lr=1", "experiment=7")
    plain = validate(cfg)
    assert (plain["num_train_frames"], type(plain["num_train_frames"])) == (1_000_000, int)
    assert type(plain["lr"]) is float
    assert plain["experiment"] == "7"
    validate_in_place(cfg)
    assert type(cfg.num_train_frames) is int
    assert type(cfg.agent.lr) is float
    assert OmegaConf.is_interpolation(cfg.agent, "lr"), "a later change of lr must still reach the agent"
    assert OmegaConf.is_missing(cfg.agent, "obs_shape")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stddev_schedule", 0.2),
        ("stddev_schedule", "0.2"),
        ("stddev_schedule", "step_linear(1.0, 0.5, 1e3, 0.1, 2e3)"),
        ("agent.stddev_clip", None),
        ("agent.obs_shape", [9, 84, 84]),
        ("replay_buffer_num_workers", 0),
        ("replay_buffer_size", 500),
        ("eval_every_frames", 2),
        ("num_seed_frames", 5_000_000),
        ("discount", 1),
        ("device", "cpu"),
        ("image_size", SMALLEST_IMAGE),
        ("agent.my_own", {"x": [1, 2]}),
        ("env.my_own", 3),
    ],
)
def test_good_values(name, value):
    validate(changed(name, value))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("batch_size", 0, "a whole number of at least 1 (transitions)"),
        ("batch_size", -3, "at least 1"),
        ("batch_size", 2.5, "whole number"),
        ("batch_size", "256", "batch_size='256'"),
        ("batch_size", "many", "whole number"),
        ("batch_size", True, "batch_size=true"),
        ("batch_size", None, "batch_size=null"),
        ("batch_size", [1, 2], "batch_size=[1,2]"),
        ("batch_size", {"x": 1}, "batch_size={x:1}"),
        ("batch_size", float("inf"), "whole number"),
        ("action_repeat", 0, "at least 1 (frames)"),
        ("nstep", 0, "at least 1 (agent steps)"),
        ("frame_stack", 0, "at least 1"),
        ("image_size", SMALLEST_IMAGE - 1, f"at least {SMALLEST_IMAGE}"),
        ("image_size", 3000, "at most 2048"),
        ("render_size", 4096, "at most 2048"),
        ("render_size", 255, "even"),
        ("discount", 0, "above 0 and at most 1"),
        ("discount", 1.01, "above 0 and at most 1"),
        ("discount", float("nan"), "a number"),
        ("lr", 0, "above 0"),
        ("lr", "1e-4", "a number"),
        ("seed", -1, "at least 0"),
        ("seed", 2**32, "at most 4294967295"),
        ("replay_buffer_num_workers", 9, "at most 8"),
        ("replay_buffer_num_workers", -1, "at least 0"),
        ("replay_buffer_size", 499, "at least 500 (transitions: 1000 frames at action_repeat=2)"),
        ("eval_every_frames", 1, "action_repeat=2"),
        ("train_video_every_frames", 1, "action_repeat=2"),
        ("diagnostics_every_frames", 1, "action_repeat=2"),
        ("eval_every_frames", 0, "at least 1"),
        ("snapshot_every_seconds", -1, "at least 0"),
        ("updates_per_step", 0, "at least 1"),
        ("use_tb", 1, "true or false"),
        ("save_video", "yes", "true or false"),
        ("experiment", "", "text"),
        ("stddev_schedule", "linear(1.0,0.1)", "linear(init,final,duration)"),
        ("stddev_schedule", "lineer(1.0,0.1,100)", "linear(init,final,duration)"),
        ("stddev_schedule", "linear(1.0,0.1,0)", "duration"),
        ("stddev_schedule", "linear(1.0,-0.1,10)", "0 or above"),
        ("stddev_schedule", True, "linear(init,final,duration)"),
        ("stddev_schedule", None, "linear(init,final,duration)"),
        ("agent.stddev_clip", 0, "above 0 or null"),
        ("agent.stddev_clip", "x", "a number"),
        ("agent.critic_target_tau", 1.5, "at most 1"),
        ("agent.hidden_dim", 0, "at least 1"),
        ("agent.update_every_steps", 0, "at least 1"),
        ("agent.num_expl_steps", -1, "at least 0"),
        ("agent.obs_shape", "big", "taken from the environment"),
        ("agent._target_", "DrQV2Agent", "module.name"),
        ("agent._target_", None, "module.name"),
        ("env._target_", "not a name", "module.name"),
        ("device", "gpu", "auto, cpu, cuda or cuda:N"),
        ("device", "cuda:", "auto, cpu, cuda or cuda:N"),
        ("device", 0, "auto, cpu, cuda or cuda:N"),
        ("device", "cuda:7", "GPU"),
        ("agent_dir", "/no/such/place", "no such directory"),
        ("init_from", "/no/such/snapshot.pt", "no such file"),
        ("task_name", "cheeta_run", "nearest: cheetah_run"),
        ("task_name", 3, "unknown task"),
        ("task_name", "???", "give task=NAME"),
        ("batchsize", 3, "nearest: batch_size"),
        ("agent", 3, "_target_"),
        ("env", None, "_target_"),
    ],
)
def test_bad_values(name, value, said):
    with pytest.raises(UserError) as error:
        validate(changed(name, value))
    message = str(error.value)
    assert message.startswith(name)
    assert said in message
    assert len(message.splitlines()) <= 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_without_a_gpu(device):
    with pytest.raises(UserError, match=rf"device={device}: .* sees no GPU here; use device=cpu"):
        validate(changed("device", device))


def test_interval_is_held_against_the_run_s_own_action_repeat():
    validate(composed("action_repeat=4", "eval_every_frames=4"))
    with pytest.raises(UserError, match="must be at least 4"):
        validate(composed("action_repeat=4", "eval_every_frames=3"))


def test_episode_length_is_the_task_s():
    validate(composed("task=reach_duplo", "replay_buffer_size=125"))
    with pytest.raises(UserError, match="replay_buffer_size=124: smaller than one episode of reach_duplo"):
        validate(composed("task=reach_duplo", "replay_buffer_size=124"))


def test_own_environment_may_have_any_name_and_size():
    cfg = changed("env._target_", "mine.make")
    validate(cfg | {"task_name": "my_robot", "replay_buffer_size": 10, "image_size": 500})


def test_missing_keys_and_broken_interpolations():
    cfg = changed("seed", 1)
    del cfg["nstep"]
    with pytest.raises(UserError, match="nstep is missing: add \\+nstep=VALUE"):
        validate(cfg)
    validate(composed("~agent.stddev_clip"))
    with pytest.raises(UserError, match=r"lr: .*'lrr' not found; nearest: lr"):
        validate(changed("lr", "${lrr}"))


def test_smallest_image_is_the_smallest_that_the_encoder_takes():
    for size in (SMALLEST_IMAGE, 64, 84, 85):
        assert Encoder((9, size, size)).repr_dim == 32 * encoder_side(size) ** 2
    assert encoder_side(84) == 35
    assert encoder_side(SMALLEST_IMAGE - 1) < 1


class AnAgent:
    def __init__(self, obs_shape, action_shape, lr, *, stddev_clip, hidden_dim=3):
        pass


class AnyAgent:
    def __init__(self, obs_shape, **kwargs):
        pass


def test_agent_is_bound_to_its_signature():
    good: dict[str, Any] = {"_target_": "x.AnAgent", "_convert_": "all", "obs_shape": (9,), "action_shape": (1,)}
    good |= {"lr": 1e-4, "stddev_clip": 0.3}
    check_agent(AnAgent, good)
    with pytest.raises(UserError, match=r"agent.hiden_dim=3: AnAgent takes no argument hiden_dim; nearest: hidden_dim"):
        check_agent(AnAgent, good | {"hiden_dim": 3})
    with pytest.raises(UserError, match=r"agent.stddev_clip is missing: AnAgent needs it; add \+agent.stddev_clip="):
        check_agent(AnAgent, {name: value for name, value in good.items() if name != "stddev_clip"})
    check_agent(AnyAgent, good)
    with pytest.raises(UserError, match=r"agent.obs_shape is missing"):
        check_agent(AnyAgent, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1, "1"), ("a", "a"), ("1", "'1'"), ("null", "'null'"), ("", "''")],
)
def test_values_are_shown_as_typed(value, text):
    assert show(value) == text


def test_config_and_launch_import_neither_torch_nor_mujoco():
    heavy = "[m for m in ('torch', 'mujoco', 'dm_control', 'cv2', 'tensorboard') if m in sys.modules]"
    code = f"import sys, drqv2.config, drqv2.launch; print({heavy})"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
