"""The composed configuration against the paper's table, the table of keys, and checks of the whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

import train
from drqv2.config.cfgs import CFGS, leaves, presets, tasks
from drqv2.config.checks import check_agent, validate
from drqv2.config.formatting import show
from drqv2.config.help import help_text, markdown
from drqv2.config.keys import NO_LEGACY
from drqv2.config.regimes.shared import SMALLEST_IMAGE
from drqv2.config.schema import REGIMES, defaults, offer
from drqv2.config.signatures import agent_node
from drqv2.errors import UserError
from drqv2.nn.networks import Encoder
from drqv2.run import factory
from drqv2.run.environments import resolve_obs_type

ROOT = Path(__file__).resolve().parents[2]
FRAMES = {"easy": 1_100_000, "medium": 3_100_000, "hard": 30_100_000}
NOISE = {tier: f"linear(1.0,0.1,{steps})" for tier, steps in (("easy", 100000), ("medium", 500000), ("hard", 2000000))}
# The paper's tasks; values of their own: nstep, batch_size, replay_buffer_size, lr, feature_dim.
TIERS = {
    "easy": "cartpole_balance cartpole_balance_sparse cartpole_swingup cup_catch finger_spin hopper_stand "
    "pendulum_swingup walker_stand walker_walk",
    "medium": "acrobot_swingup cartpole_swingup_sparse cheetah_run finger_turn_easy finger_turn_hard hopper_hop "
    "quadruped_run quadruped_walk reach_duplo reacher_easy reacher_hard walker_run",
    "hard": "humanoid_run humanoid_stand humanoid_walk",
}
USUAL = (3, 256, 1_000_000, 1e-4, 50)
WALKER, HUMANOID = (1, 512, 1_000_000, 1e-4, 50), (3, 256, 1_000_000, 8e-5, 100)
OTHERS = {
    **{f"walker_{name}": WALKER for name in ("stand", "walk", "run")},
    **{f"humanoid_{name}": HUMANOID for name in ("run", "stand", "walk")},
    "quadruped_run": (3, 256, 100_000, 1e-4, 50),
}
COMMON = {
    "regime": "drqv2",
    "obs_type": "pixels",
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
AGENT = {
    "_target_": "drqv2.agents.drqv2.DrQV2Agent",
    "obs_shape": None,
    "action_shape": None,
    "device": "auto",
    "critic_target_tau": 0.01,
    "update_every_steps": 2,
    "use_tb": True,
    "num_expl_steps": 2000,
    "encoder": "drqv2",
    "critic_layer_norm": False,
    "hidden_dim": 1024,
    "stddev_clip": 0.3,
}


def composed(*overrides: str) -> DictConfig:
    offer()
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def checked(cfg: DictConfig | dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as `validate` leaves it, resolved."""
    cfg = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(cfg)
    validate(cfg)
    found: Any = OmegaConf.to_container(cfg, resolve=True)
    return found


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The default configuration, resolved."""
    cfg: Any = OmegaConf.to_container(composed(), resolve=True)
    return cfg


def changed(plain: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    node, _, leaf = name.rpartition(".")
    return plain | ({node: plain[node] | {leaf: value}} if node else {leaf: value})


@pytest.mark.slow
def test_every_task_has_the_values_of_the_paper():
    assert tasks() == sorted(" ".join(TIERS.values()).split())
    offer()
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        for tier, names in TIERS.items():
            for task in names.split():
                cfg = checked(compose("config", overrides=[f"task={task}"]))
                assert (cfg["task_name"], cfg["num_train_frames"], cfg["stddev_schedule"]) == (
                    task,
                    FRAMES[tier],
                    NOISE[tier],
                )
                own = tuple(cfg[name] for name in ("nstep", "batch_size", "replay_buffer_size", "lr", "feature_dim"))
                assert own == OTHERS.get(task, USUAL)
                assert cfg | COMMON == cfg
                linked = {"lr": own[3], "feature_dim": own[4], "stddev_schedule": NOISE[tier]}
                assert cfg["agent"] == AGENT | linked


PPO_PRESETS: dict[str, dict[str, Any]] = json.loads((ROOT / "tests/golden/ppo_presets.json").read_text())


@pytest.mark.parametrize("preset", PPO_PRESETS)
def test_presets_of_ppo_depend_on_no_default(preset: str) -> None:
    """Their curves in results/ppo stay reproducible when a default of regime=ppo changes."""
    found = leaves(checked(composed("regime=ppo", f"preset={preset}")))
    assert {name: found[name] for name in PPO_PRESETS[preset]} == PPO_PRESETS[preset]
    later = {"agent.adam_beta2": 0.999, "agent.adam_lr": None, "agent.anneal_lr": True, "agent.target_kl": None}
    assert found | later == found  # keys that came later have no effect


def test_the_page_of_ppo_shows_its_defaults_and_those_of_pufferlib() -> None:
    text = (ROOT / "docs" / "ppo.md").read_text().partition("## Defaults")[2].partition("## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (\S+) \| (\S+) \|$", text, re.M)
    plain, puffer = (leaves(checked(composed("regime=ppo", *more))) for more in ((), ("preset=puffer",)))
    assert rows == [(name, show(plain[name]), show(puffer[name])) for name, *_ in rows]
    changed = {name for name in plain if plain[name] != puffer[name]}
    shown = {name for name, *_ in rows}
    assert changed <= shown, "every value that the preset changes is in the table"


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("regime=ppo task=walker_walk", "state"),
        ("regime=impala task=walker_walk", "state"),
        ("regime=multitask tasks=[walker_walk,walker_run]", "pixels"),
        ("obs_type=auto task=walker_walk", "pixels"),
        ("regime=ppo task=walker_walk obs_type=pixels", "pixels"),
        ("regime=ppo task=cheetah_run cameras=[0,side]", "pixels"),
        ("regime=ppo task=walker_walk obs_type=pixels+state", "pixels+state"),
        ("regime=ppo env_id=gymnasium:FrozenLake-v1", "state"),
        ("regime=ppo env._target_=tests.envs.test_observed.Maze task_name=maze", "pixels+state"),
        ("regime=ppo env._target_=tests.envs.test_observed.Maze task_name=maze observation_parts=[frame]", "state"),
    ],
)
def test_what_a_task_shows_where_nothing_is_chosen(words: str, chosen: str) -> None:
    cfg = composed(*words.split())
    validate(cfg)
    resolve_obs_type(cfg)
    assert cfg.obs_type == chosen


@pytest.mark.slow
def test_order_is_regime_then_task_then_preset_then_command_line():
    cfg = composed("batch_size=7", "preset=debug", "task=walker_walk", "regime=drqv2")
    assert (cfg.batch_size, cfg.nstep, cfg.num_train_frames) == (7, 1, 5000)
    for preset in ("paper", "cpu", "debug"):
        assert checked(composed(f"preset={preset}", "task=walker_walk"))["task_name"] == "walker_walk"
    for preset in set(presets()) - {"paper", "cpu", "debug"}:
        file: Any = OmegaConf.load(CFGS / "preset" / f"{preset}.yaml")
        regime = file.get("regime") or file.for_regimes[0]
        checked(composed(f"regime={regime}", f"preset={preset}"))
    assert composed("preset=paper", "task=humanoid_run") == composed("task=humanoid_run")


@pytest.mark.parametrize("regime", REGIMES)
def test_each_key_has_a_description_and_a_default(regime):
    described, named = REGIMES[regime].every_key, set(leaves(defaults(regime)))
    usual = REGIMES[regime].keys_of(defaults(regime)["agent"]["_target_"])
    assert named == set(usual) <= set(described)
    assert all(key.meaning.endswith(".") for key in described.values())
    titles = REGIMES[regime].groups.values()
    assert sum(map(len, titles)) == len({name for group in titles for name in group}), "no key twice"
    assert list(REGIMES) == sorted(path.stem for path in (CFGS / "regime").glob("*.yaml"))


def test_pages_are_up_to_date():
    assert (ROOT / "docs" / "configuration.md").read_text() == markdown() + "\n", (
        "run: python -m drqv2.config > docs/configuration.md"
    )
    text = help_text()
    assert all(name in text for name in [*REGIMES["drqv2"].every_key, *tasks(), *presets(), *REGIMES])


def test_numbers_are_put_in_their_type():
    cfg = composed("num_train_frames=1e6", "lr=1", "experiment=7")
    validate(cfg)
    assert (cfg.num_train_frames, type(cfg.num_train_frames), cfg.experiment) == (1_000_000, int, "7")
    assert type(cfg.agent.lr) is float
    assert OmegaConf.is_interpolation(cfg.agent, "lr"), "a later change of lr must still reach the agent"
    assert cfg.agent.obs_shape is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("agent.my_own", {"x": [1, 2]}),
        ("env.my_own", 3),
        ("eval_every_frames", 2),
        ("num_seed_frames", 5_000_000),
        ("replay_buffer_size", 500),
        ("agent.stddev_clip", None),
    ],
)
def test_good_values(plain, name, value):
    checked(changed(plain, name, value))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("replay_buffer_size", 499, "at least 500 (transitions: 1000 frames at action_repeat=2)"),
        ("eval_every_frames", 1, "action_repeat=2"),
        ("train_video_every_frames", 1, "action_repeat=2"),
        ("diagnostics_every_frames", 1, "action_repeat=2"),
        ("num_train_frames", 1, "action_repeat=2"),
        ("image_size", SMALLEST_IMAGE - 1, f"at least {SMALLEST_IMAGE}"),
        ("image_size", 3000, "at most 2048"),
        ("render_size", 4096, "at most 2048"),
        ("agent.hidden_dim", 0, "at least 1"),
        ("lr", "${lrr}", "'lrr' not found; nearest: lr"),
        ("task_name", "cheeta_run", "nearest: cheetah_run"),
        ("task_name", 3, "no such task"),
        ("task_name", "???", "give task=NAME"),
        ("regime", "drqv3", "there is no such regime; nearest: drqv2; allowed: drqv2"),
        ("regime", ["drqv2"], "there is no such regime"),
        ("batchsize", 3, "nearest: batch_size"),
        ("agent", 3, "_target_"),
        ("env", None, "_target_"),
    ],
)
def test_bad_values(plain, name, value, said):
    with pytest.raises(UserError) as error:
        checked(changed(plain, name, value))
    message = str(error.value)
    assert message.startswith(name)
    assert said in message
    assert len(message.splitlines()) <= 2


def test_checks_know_the_task_and_its_environment(plain):
    checked(plain | {"task_name": "reach_duplo", "replay_buffer_size": 125})
    with pytest.raises(UserError, match="replay_buffer_size=124: smaller than one episode of reach_duplo"):
        checked(plain | {"task_name": "reach_duplo", "replay_buffer_size": 124})
    own = changed(plain, "env._target_", "mine.make")
    checked(own | {"task_name": "my_robot", "replay_buffer_size": 10})


def test_a_missing_key_of_an_agent_has_the_default_of_its_class() -> None:
    """Also in a new configuration, from which it was removed."""
    for regime in REGIMES.values():
        for agent in regime.agents.values():
            for name, key in regime.keys_of(agent.target).items():
                if name.startswith("agent.") and key.legacy is not NO_LEGACY:
                    assert agent_node(agent.target)[name.removeprefix("agent.")] == key.legacy, name


def test_missing_keys(plain):
    with pytest.raises(UserError, match="nstep is missing: add \\+nstep=VALUE"):
        checked({name: value for name, value in plain.items() if name != "nstep"})
    validate(composed("~agent.stddev_clip"))
    before = checked({name: value for name, value in plain.items() if name not in ("regime", "obs_type")})
    assert before == checked(plain), "a configuration from before these keys means DrQ-v2 from pixels"


@pytest.mark.parametrize("regime", REGIMES)
def test_a_run_that_began_on_a_gpu_can_be_resumed(regime):
    data = ["data=there"] if regime == "offline" else []
    cfg = composed(f"regime={regime}", *data, "device=cuda", "precision=bf16", "compile=auto")
    factory.prepare_machine(cfg)
    assert cfg.compile is (regime in ("drqv2", "offline"))
    cfg.device = "cpu"  # a check of cuda needs a GPU
    validate(cfg)


@pytest.mark.parametrize("words", [("regime=multitask", "device=cuda"), ("agent=spq", "device=cpu")])
def test_compile_is_refused_where_nothing_compiles(words):
    cfg = composed(*words, "precision=fp32", "compile=true")
    with pytest.raises(UserError, match="has nothing to compile on"):
        factory.prepare_machine(cfg)
    cfg.compile = "auto"
    factory.prepare_machine(cfg)
    assert cfg.compile is False


def test_smallest_image_is_the_smallest_that_the_encoder_takes():
    assert Encoder((9, SMALLEST_IMAGE, SMALLEST_IMAGE)).repr_dim == 32
    with pytest.raises(RuntimeError):
        Encoder((9, SMALLEST_IMAGE - 1, SMALLEST_IMAGE - 1))


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


def test_config_and_launch_import_neither_torch_nor_mujoco():
    heavy = "[m for m in ('torch', 'mujoco', 'dm_control', 'cv2', 'tensorboard') if m in sys.modules]"
    code = f"import sys, drqv2.config.help, drqv2.launch.command_line; print({heavy})"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["agent=bc"], "agent=bc: regime=drqv2 has drqv2, spq, drq_sac; agent=bc applies only to regime=offline"),
        (
            ["regime=multitask", "agent=spq"],
            "regime=multitask has multitask, drqv2; agent=spq applies only to regime=drqv2 or",
        ),
        (["regime=ppo", "agent=drqv2"], "agent=drqv2: regime=ppo has ppo; agent=drqv2 applies only to"),
        (["preset=spq", "regime=ppo"], "preset=spq applies only to regime=drqv2 or regime=offline"),
        (["preset=spq", "regime=multitask"], "applies only to regime=drqv2 or regime=offline"),
        (["preset=spq", "agent=drqv2"], "preset=spq with agent=drqv2: applies only to agent=spq"),
        (["agent=spq", "preset=cpu"], "preset=cpu with agent=spq: applies only to agent=drqv2 or"),
        (["~agent"], "~agent: a run needs an agent"),
        (["preset=spq_cpu", "agent.convolutions=deep"], "agent.convolutions=deep: must be patch or strided"),
    ],
)
def test_an_agent_is_chosen_by_name_where_there_is_a_choice(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as refused:
        train.compose(*overrides)
    assert words in str(refused.value)


@pytest.mark.parametrize("regime", ["drqv2", "offline", "multitask"])
def test_every_agent_of_a_regime_composes(regime: str) -> None:
    data = ["data=here"] if regime == "offline" else []
    targets = [
        train.compose(f"regime={regime}", f"agent={name}", *data).agent._target_ for name in REGIMES[regime].agents
    ]
    assert len(set(targets)) == len(REGIMES[regime].agents)
    assert train.compose(f"regime={regime}", *data).agent._target_ in targets


@pytest.mark.parametrize("task", ["cartpole_balance", "walker_walk", "quadruped_run", "humanoid_walk"])
def test_presets_of_spq_hold_for_tasks_with_values_of_their_own(task: str) -> None:
    sizes = {"spq": (256, 3, 512), "spq_cpu": (32, 3, 256)}
    for preset, expected in sizes.items():
        cfg = train.compose(f"preset={preset}", f"task={task}")
        assert (cfg.batch_size, cfg.agent.horizon, cfg.agent.feature_dim) == expected
        assert (cfg.replay_fading, cfg.replay_by_reward) == (0.9999, 0.5)
        assert not {"encoder", "critic_layer_norm", "stddev_clip"} & set(cfg.agent)
