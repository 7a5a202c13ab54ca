"""Agents written for the public DrQ-v2 implementation are called as it calls them, and resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs
from omegaconf import OmegaConf
from torch import nn

import drqv2
import eval as evaluation  # the script; the built-in stays what it is
import train
from drqv2 import utils
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.loading import make_agent
from drqv2.config.checks import validate
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.nn.networks import ENCODERS
from drqv2.run import factory
from drqv2.snapshot import file as snapshot
from tests.agents.test_loading import _modules_stay_as_they_were, write  # noqa: F401 (a fixture of each test)
from tests.compare import assert_equal
from tests.config.test_checks import composed
from tests.short_run import rows

ROOT = Path(__file__).resolve().parents[2]


THIRD_PARTY = ROOT / "tests" / "third_party"


SHORT = [
    *("preset=debug", "env._target_=tests.dot_env.make", "action_repeat=2", "image_size=32", "batch_size=8"),
    *("num_train_frames=240", "num_seed_frames=120", "eval_every_frames=60", "diagnostics_every_frames=60"),
    *("replay_buffer_num_workers=0", "snapshot_every_seconds=1000", "agent.num_expl_steps=20"),
    *("use_tb=false", "agent.use_tb=true", "save_video=false", "save_train_video=false"),
]


LEAN = [
    *("~agent.critic_target_tau", "~agent.update_every_steps", "~agent.use_tb", "~agent.hidden_dim"),
    *("~agent.feature_dim", "~agent.stddev_schedule", "~agent.stddev_clip"),
]


AGENTS = {
    "huber": [f"agent_dir={THIRD_PARTY}", "agent._target_=huber.HuberAgent", "+agent.huber_delta=0.5"],
    "regression": [f"agent_dir={THIRD_PARTY}", "agent._target_=regression.RegressionAgent", *LEAN],
    "own_names": [
        f"agent_dir={THIRD_PARTY / 'own_names'}",
        "agent._target_=drqv2.DrQV2Agent",
        *LEAN,
        "~agent.num_expl_steps",
    ],
}


FORKS = {  # more of them, which take longer
    "own_augmentation": [
        f"agent_dir={THIRD_PARTY / 'own_augmentation'}",
        "agent._target_=drqv2.DrQV2Agent",
        "+agent.augmentation={_target_:drqv2.RandomShiftsAug,pad:3,contrast:0.1}",
        *("+agent.widths=[8,16]", "~agent.use_tb", "~agent.feature_dim", "~agent.update_every_steps"),
        "~agent.stddev_clip",
    ],
    "curiosity": [
        f"agent_dir={THIRD_PARTY}",
        "agent._target_=curiosity.CuriosityAgent",
        "+agent.cfg={aug:{crop:{size:28}},forward_lr:1e-3,bonus:{init:0.5,decay:0.99}}",
        "+agent.losses={fwd_loss:1.0,inv_loss:0.1}",
        "+agent.forward_model={_target_:curiosity.ForwardModel,obs_shape:${agent.obs_shape},"
        "action_shape:${agent.action_shape},hidden_dim:${agent.hidden_dim}}",
        "+agent.inverse_model={_target_:curiosity.InverseModel,_partial_:true,hidden_dim:16,"
        "action_shape:${agent.action_shape}}",
    ],
    "novelty": [f"agent_dir={THIRD_PARTY}", "agent._target_=novelty.NoveltyAgent"],
    "other_trunk": [
        *(f"agent_dir={THIRD_PARTY}", "agent._target_=other_trunk.OtherTrunkAgent"),
        *("+agent.trunk_dim=16", "+agent.repeat_below=0.5"),
    ],
    "ema_encoder": [
        *(f"agent_dir={THIRD_PARTY}", "agent._target_=ema_encoder.EMAEncoderAgent", "+agent.warmup=30"),
        *("~agent.update_every_steps", "~agent.use_tb", "~agent.stddev_schedule"),
    ],
}


def run(run_dir: Path, *overrides: str) -> Path:
    launch(train.main, "cfgs", argv=[*SHORT, f"hydra.run.dir={run_dir}", *overrides])
    return run_dir


PROBE = """
import numpy as np
import torch

CALLS = []


class Probe:
    def __init__(self, obs_shape, action_shape, device, x=0):
        assert type(obs_shape) is tuple and type(action_shape) is tuple, (obs_shape, action_shape)
        torch.zeros(obs_shape), torch.zeros(action_shape)
        self.args = obs_shape, action_shape, device, x
        CALLS.append(("made", self.args))
        self.train()

    def train(self, training=True):
        self.training = training

    def act(self, obs, step, eval_mode):
        CALLS.append(("act", type(obs), obs.dtype, obs.shape, step, eval_mode, torch.is_grad_enabled(), self.training))
        return np.zeros(self.args[1], np.float32)

    def update(self, replay_iter, step, /):
        CALLS.append(("update", step, self.training, torch.is_grad_enabled()))
        CALLS.append(("batch", [(type(x), x.dtype, tuple(x.shape)) for x in next(replay_iter)]))
        return {}
"""


def test_how_an_agent_is_made_and_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "agents", probe=PROBE)
    taken_away = [*LEAN, "~agent.lr", "~agent.num_expl_steps"]
    run(
        tmp_path / "run",
        f"agent_dir={folder}",
        "agent._target_=probe.Probe",
        "+agent.x=${agent.obs_shape[0]}",
        *taken_away,
    )
    assert str(folder / "probe.py") in capsys.readouterr().out

    (module,) = [m for name, m in sys.modules.items() if name.startswith("agent_dir_") and name.endswith(".probe")]
    made, *calls = module.CALLS
    assert made == ("made", ((9, 32, 32), (1,), "cpu" if not torch.cuda.is_available() else "cuda", 9))
    acts = [call for call in calls if call[0] == "act"]
    assert {call[1:4] for call in acts} == {(np.ndarray, np.dtype(np.uint8), (9, 32, 32))}
    assert {call[6:] for call in acts} == {(False, False)}
    assert [call[4] for call in acts if call[5] is False] == list(range(120))
    assert all(type(call[4]) is int and type(call[5]) is bool for call in acts)
    assert [call for call in calls if call[0] == "update"] == [("update", step, True, True) for step in range(60, 120)]
    u8, f32 = (torch.Tensor, torch.uint8, (8, 9, 32, 32)), torch.float32
    numbers = [(torch.Tensor, f32, (8, 1))] * 3
    assert {str(call[1]) for call in calls if call[0] == "batch"} == {str([u8, *numbers, u8])}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["+agent.x=1"], "agent.x"),
        (["agent._target_=drqv2.DrQV2Agnt"], "nearest: DrQV2Agent"),
        ([*AGENTS["huber"][:2], "+agent.huber_dleta=1"], "nearest: huber_delta"),
        (AGENTS["regression"][:2], "critic_target_tau"),
    ],
)
def test_wrong_keys_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run", *overrides)
    assert leaving.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("error: agent.")
    assert said in message


def public_agent(**attributes: Any) -> DrQV2Agent:
    agent = DrQV2Agent((3, 20, 20), (2,), "cpu", 1e-3, 5, 8, 0.1, 3, 2, "linear(1.0,0.1,10)", 0.3, True)
    vars(agent).update(attributes)
    return agent


def some_batches() -> Any:
    while True:
        obs, next_obs = torch.randint(0, 256, (2, 4, 3, 20, 20), dtype=torch.uint8)
        yield obs, torch.rand(4, 2) * 2 - 1, torch.rand(4, 1), torch.full((4, 1), 0.97), next_obs


def test_public_attributes() -> None:
    agent = public_agent()
    plain = {"device": "cpu", "use_tb": True, "critic_target_tau": 0.1, "update_every_steps": 2, "num_expl_steps": 3}
    plain |= {"stddev_schedule": "linear(1.0,0.1,10)", "stddev_clip": 0.3, "training": True}
    assert {name: getattr(agent, name) for name in plain} == plain
    for name in ("encoder", "actor", "critic", "critic_target", "aug"):
        assert isinstance(getattr(agent, name), torch.nn.Module)
    for name in ("encoder", "actor", "critic"):
        parameters = list(getattr(agent, name).parameters())
        (group,) = getattr(agent, f"{name}_opt").param_groups
        assert all(a is b for a, b in zip(group["params"], parameters, strict=True))
        assert group["lr"] == 1e-3
    with utils.eval_mode(agent):
        assert not agent.training
        assert not agent.encoder.training
    assert agent.training
    assert agent.encoder.training


@pytest.mark.parametrize("base", [torch.nn.Module, drqv2.RandomShiftsAug])
def test_a_replaced_augmentation_gets_floats(base: Any) -> None:
    class Noise(base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    agent = public_agent(aug=Noise(*([4] if base is drqv2.RandomShiftsAug else [])))
    assert agent.update(some_batches(), 0).keys() > {"critic_loss", "actor_loss"}


def test_public_attributes_are_looked_at_when_they_are_needed() -> None:
    agent = public_agent(stddev_schedule=0.0, use_tb=False, update_every_steps=3)
    obs = np.zeros((3, 20, 20), np.uint8)
    assert np.abs(agent.act(obs, 100, False) - agent.act(obs, 100, True)).max() < 1e-5
    two = iter([next(some_batches()), next(some_batches())])
    assert [agent.update(two, step) for step in range(6)] == [{}] * 6
    assert next(two, None) is None
    agent.critic_target_tau = 0.0
    before = [p.clone() for p in agent.critic_target.parameters()]
    agent.update(some_batches(), 6)
    assert all(torch.equal(a, b) for a, b in zip(before, agent.critic_target.parameters(), strict=True))


def agent_state(run_dir: Path) -> dict[str, Any]:
    return dict(snapshot.load(run_dir / "snapshot.pt")["agent"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*AGENTS, *(pytest.param(name, marks=pytest.mark.slow) for name in FORKS)])
def test_an_interrupted_agent_ends_as_one_that_ran_through(tmp_path: Path, name: str) -> None:
    overrides = (AGENTS | FORKS)[name]
    straight = run(tmp_path / "straight", *overrides)
    parts = run(tmp_path / "parts", *overrides, "num_train_frames=180")  # evaluates there, as the other does
    before = agent_state(parts)
    launch(train.main, "cfgs", argv=[f"resume={parts}", "num_train_frames=240"])
    assert_equal(agent_state(parts), agent_state(straight), name)
    for table in ("train", "eval"):
        assert rows(parts, table) == rows(straight, table)
    with pytest.raises(AssertionError):
        assert_equal(agent_state(parts), before, name)


@pytest.mark.slow
def test_an_agent_trains_and_resumes_in_real_processes(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    outputs, counts = [], []
    for overrides in (
        [*SHORT, f"hydra.run.dir={run_dir}", "num_train_frames=180", *AGENTS["own_names"]],
        [f"resume={run_dir}", "num_train_frames=240"],
    ):
        command = [sys.executable, "train.py", *overrides]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
        counts.append(agent_state(run_dir)["children"]["num_updates"])
    assert counts[0] > 0
    assert counts[1] > counts[0]
    assert all(str(THIRD_PARTY) in output for output in outputs)
    assert f"resumed {run_dir} at frame 180" in outputs[1]


BROKEN = """
from drqv2 import DrQV2Agent

class Broken(DrQV2Agent):
    def update(self, replay_iter, step):
        return self.learn(None)

    def learn(self, batch):
        return batch.mean()  # a bug
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            BROKEN,
            ["AttributeError in your agent: 'NoneType'", "line 9, in learn", "batch.mean()  # a bug", "Fix it, then"],
        ),
        (BROKEN.replace("batch.mean()", "{'loss': 'low'}"), ["agent.update returned loss='low'", "must be one number"]),
        (
            BROKEN.replace("update(self, replay_iter, step)", "act(self, obs, step, eval_mode)").replace(
                "self.learn(None)", "super().act(obs, step, eval_mode), None"
            ),
            ["Broken.act returned a tuple"],
        ),
        (
            BROKEN.replace("update(self, replay_iter, step)", "act(self, obs, step, eval_mode)").replace(
                "self.learn(None)", "super().act(obs, step, eval_mode)[None]"
            ),
            ["Broken.act returned an action of shape (1, 1): must be (1,)"],
        ),
    ],
)
def test_mistakes_in_an_agent_are_shown_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: list[str]
) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run", f"agent_dir={tmp_path}", "agent._target_=broken.Broken")
    error = capsys.readouterr().err
    assert leaving.value.code == (1 if "Fix it" in said[-1] else 2)
    assert [words for words in said if words not in error] == []
    assert "Traceback" not in error
    assert "workspace.py" not in error


@pytest.mark.parametrize(("wrong", "code"), [("[None]", 2), ("* float('nan')", 76), (".missing", 1)])
def test_a_run_whose_first_action_is_wrong_leaves_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str, code: int
) -> None:
    act = BROKEN.replace("update(self, replay_iter, step)", "act(self, obs, step, eval_mode)")
    (tmp_path / "broken.py").write_text(act.replace("self.learn(None)", f"super().act(obs, step, eval_mode){wrong}"))
    with pytest.raises(SystemExit) as leaving:
        run(tmp_path / "run", f"agent_dir={tmp_path}", "agent._target_=broken.Broken")
    assert leaving.value.code == code
    assert "resume" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


LATER = """
from pathlib import Path

from drqv2 import DrQV2Agent

class Broken(DrQV2Agent):
    def act(self, obs, step, eval_mode):
        return super().act(obs, self.shape if Path(__file__).with_name("late").exists() else step, eval_mode)
"""


def test_eval_shows_a_mistake_in_an_agent_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "agents", later=LATER)
    run_dir = run(tmp_path / "run", "num_train_frames=60", f"agent_dir={folder}", "agent._target_=later.Broken")
    (folder / "late").touch()
    with pytest.raises(SystemExit) as leaving:
        evaluation.main([str(run_dir), "episodes=1", "film=none"])
    error = capsys.readouterr().err
    assert leaving.value.code == 1
    assert "AttributeError in your agent: 'Broken' object has no attribute 'shape'" in error
    assert "later.py" in error
    assert "Traceback" not in error


OWN_ENCODERS = """
from drqv2 import DrQV2Agent

made = []


class Own:  # `encoder` is a node of its own
    def __init__(self, encoder="mine"):
        made.append(encoder)

    def train(self, training=True): ...
    def act(self, obs, step, eval_mode): ...
    def update(self, replay_iter, step): ...


class Named(DrQV2Agent):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        made.append(len(self.encoder.convnet))


class Norm(Own):
    def __init__(self, critic_layer_norm):
        made.append(critic_layer_norm)
"""


NODE: dict[str, Any] = {
    "obs_shape": (9, 84, 84),
    "action_shape": (1,),
    "device": "cpu",
    "lr": 1e-4,
    "critic_target_tau": 0.01,
}
NODE |= {"num_expl_steps": 0, "update_every_steps": 1, "stddev_schedule": 0.1, "stddev_clip": 0.3, "use_tb": False}
NODE |= {"feature_dim": 5, "hidden_dim": 8}


def test_an_encoder_is_chosen_by_name_for_drqv2_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, own=OWN_ENCODERS)
    for encoder in ("drqv2", "strided"):
        make_agent({"_target_": "own.Own", "encoder": encoder}, folder, {}, {})
        make_agent({"_target_": "own.Named", "encoder": encoder, **NODE}, folder, {}, {})
    make_agent({"_target_": "own.Own", "encoder": {"width": 3}}, folder, {}, {})
    (module,) = [m for name, m in sys.modules.items() if name.startswith("agent_dir_") and name.endswith(".own")]
    sizes = [2 * len(ENCODERS[encoder]) for encoder in ("drqv2", "strided")]
    assert module.made == ["mine", sizes[0], "mine", sizes[1], {"width": 3}]
    assert capsys.readouterr().out.count("agent.encoder=strided is left out: it is meant for DrQV2Agent") == 1


def test_keys_may_name_the_shapes_of_the_environment(tmp_path: Path) -> None:
    write(tmp_path, own=OWN_ENCODERS.replace('encoder="mine"', "model, **kwargs").replace("(encoder)", "(model)"))
    shapes = "{obs:${agent.obs_shape},action:${agent.action_shape},channels:${agent.obs_shape[0]}}"
    cfg = composed(f"agent_dir={tmp_path}", f"+agent.model={shapes}")
    cfg.agent._target_ = "own.Own"
    validate(cfg)
    image, action = specs.Array((9, 84, 84), np.uint8), specs.Array((6,), np.float32)
    env: Any = SimpleNamespace(observation_spec=lambda: image, action_spec=lambda: action)
    factory.make_agent(cfg, env, torch.device("cpu"))
    (module,) = [m for name, m in sys.modules.items() if name.startswith("agent_dir_") and name.endswith(".own")]
    assert module.made == [{"obs": [9, 84, 84], "action": [6], "channels": 9}]
    stored: Any = OmegaConf.to_container(cfg, resolve=True)  # as in a snapshot
    assert stored["agent"]["model"] == module.made[0]


def test_an_agent_named_like_this_projects_has_an_encoder_of_its_own() -> None:
    names = [f"agent_dir={THIRD_PARTY / 'own_names'}", "agent._target_=drqv2.DrQV2Agent"]
    cfg = composed(*names, "agent.encoder={_target_:drqv2.Encoder,width:8}")
    validate(cfg)
    assert cfg.agent.encoder.width == 8


def test_an_unknown_encoder_is_refused_where_it_would_be_used(tmp_path: Path) -> None:
    folder = write(tmp_path, own=OWN_ENCODERS)
    with pytest.raises(UserError, match=r"agent\.encoder=impala must be drqv2 or strided"):
        make_agent({"_target_": "own.Named", "encoder": "impala", **NODE}, folder, {}, {})
    for target, accepted in (("drqv2.agents.drqv2.DrQV2Agent", False), ("own.Own", True)):
        cfg = composed(f"agent._target_={target}", "agent.encoder=impala")
        with nullcontext() if accepted else pytest.raises(UserError, match="must be drqv2 or strided"):
            validate(cfg)


def test_the_critics_layer_norm_is_chosen_for_agents_that_take_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, own=OWN_ENCODERS)
    for norm in (False, True):
        make_agent({"_target_": "own.Own", "critic_layer_norm": norm}, folder, {}, {})
        make_agent({"_target_": "own.Norm", "critic_layer_norm": norm}, folder, {}, {})
        agent: Any = make_agent({"_target_": "own.Named", "critic_layer_norm": norm, **NODE}, folder, {}, {})
        assert sum(isinstance(layer, nn.LayerNorm) for layer in agent.critic.Q1) == 2 * norm
    (module,) = [m for name, m in sys.modules.items() if name.startswith("agent_dir_") and name.endswith(".own")]
    assert [value for value in module.made if isinstance(value, bool)] == [False, True]
    assert capsys.readouterr().out.count("agent.critic_layer_norm=True is left out: it is meant for") == 1


def test_keys_of_the_agent_of_several_tasks_are_not_left_out_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, own=OWN_ENCODERS)
    make_agent({"_target_": "own.Own", "encoder": "drqv2", "value": "scalar", "critic_dim": 512}, folder, {}, {})
    assert "left out" not in capsys.readouterr().out
    make_agent({"_target_": "own.Own", "encoder": "drqv2", "value": "hl_gauss"}, folder, {}, {})
    assert "agent.value=hl_gauss is left out: it is meant for MultiTaskAgent\n" in capsys.readouterr().out


FIXED_SIZE = """
import torch.nn as nn
from drqv2 import Actor, DrQV2Agent


class Encoder(nn.Module):
    def __init__(self, obs_shape):
        super().__init__()
        self.repr_dim = 32 * 35 * 35
        self.convnet = nn.Sequential(nn.Conv2d(obs_shape[0], 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 7))

    def forward(self, obs):
        h = self.convnet(obs / 255.0 - 0.5)
        return h.view(h.shape[0], -1)


class FixedSize(DrQV2Agent):
    def __init__(self, obs_shape, action_shape, feature_dim, hidden_dim, **kwargs):
        super().__init__(obs_shape, action_shape, feature_dim=feature_dim, hidden_dim=hidden_dim, **kwargs)
        self.encoder = Encoder(obs_shape).to(self.device)
        self.actor = Actor(self.encoder.repr_dim, action_shape, feature_dim, hidden_dim).to(self.device)
"""


@pytest.mark.slow
def test_an_encoder_written_for_84_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fixed.py").write_text(FIXED_SIZE)
    agent = [f"agent_dir={tmp_path}", "agent._target_=fixed.FixedSize"]
    with pytest.raises(SystemExit):
        run(tmp_path / "other", *agent)
    error = capsys.readouterr().err
    assert error.splitlines()[-1].endswith("it cannot take 32x32: start with image_size=84")
    assert len(error.splitlines()) == 2
    run(tmp_path / "run", *agent, "image_size=84", "num_train_frames=180")
    assert "resume" not in capsys.readouterr().err


def test_the_debug_preset_has_images_that_public_encoders_take() -> None:
    debug, config = (OmegaConf.load(ROOT / "cfgs" / name) for name in ("preset/debug.yaml", "config.yaml"))
    assert OmegaConf.merge(config, debug).image_size == 84


NOISY = """
import warnings

from drqv2 import DrQV2Agent


class Noisy(DrQV2Agent):
    def act(self, obs, step, eval_mode):
        with warnings.catch_warnings():  # makes Python forget which warnings it has shown
            warnings.simplefilter("default")
            warnings.warn("this agent\\nwarns at every step")
        return super().act(obs, step, eval_mode)
"""


@pytest.mark.slow
def test_each_warning_is_one_line_and_comes_once(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    agent = [f"agent_dir={tmp_path}", "agent._target_=noisy.Noisy", "num_train_frames=120"]
    command = [sys.executable, "train.py", *SHORT, f"hydra.run.dir={tmp_path / 'run'}", *agent]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "warn" in line] == ["warning: this agent warns at every step"]
