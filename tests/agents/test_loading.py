"""Agent files written for the public DrQ-v2 implementation: found, imported by its names, called as it calls them."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import drqv2
import replay_buffer
import train
import video
from drqv2 import utils
from drqv2.agents import loading as agent_files
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.envs import dmc
from drqv2.launch.command_line import launch
from drqv2.logging import logger
from drqv2.snapshot import file as snapshot
from drqv2.utils import UserError
from tests.compare import assert_equal

ROOT = Path(__file__).resolve().parents[2]
THIRD_PARTY = ROOT / "tests" / "third_party"
SHORT = [
    *("preset=debug", "env._target_=tests.dot_env.make", "action_repeat=2", "image_size=32", "batch_size=8"),
    *("num_train_frames=240", "num_seed_frames=120", "eval_every_frames=60", "diagnostics_every_frames=60"),
    *("replay_buffer_num_workers=0", "snapshot_every_seconds=0", "agent.num_expl_steps=20"),
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


def write(folder: Path, **files: str) -> Path:
    """Write NAME.py for each name; `a__b` goes into a folder."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/") if name[0] != "_" else name)
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def load(folder: Path | None, target: str) -> Any:
    return agent_files.agent_factory({"_target_": target}, folder)[0]


@pytest.fixture(autouse=True)
def _nobody_notices(monkeypatch: pytest.MonkeyPatch) -> Any:
    """After each test, the modules that were there before are the very same, and how Python imports is as it was."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    yield
    assert {name: sys.modules.get(name) for name in before} == before
    assert sys.modules["drqv2"] is drqv2
    for name in set(sys.modules) - set(before):
        if name in ("utils", "dmc", "logger") or name.startswith("agent_dir_"):
            del sys.modules[name]


# --- names offered ---------------------------------------------------------------------------------------------

PUBLIC = {
    "utils.eval_mode": "*models",
    "utils.set_seed_everywhere": "seed",
    "utils.soft_update_params": "net target_net tau",
    "utils.to_torch": "xs device",
    "utils.weight_init": "m",
    "utils.Until": "until action_repeat=1",
    "utils.Every": "every action_repeat=1",
    "utils.Timer": "",
    "utils.Timer.reset": "self",
    "utils.Timer.total_time": "self",
    "utils.TruncatedNormal": "loc scale low=-1.0 high=1.0 eps=1e-06",
    "utils.TruncatedNormal.sample": "self clip=None sample_shape=torch.Size([])",
    "utils.schedule": "schdl step",
    "drqv2.RandomShiftsAug": "pad",
    "drqv2.Encoder": "obs_shape",
    "drqv2.Actor": "repr_dim action_shape feature_dim hidden_dim",
    "drqv2.Critic": "repr_dim action_shape feature_dim hidden_dim",
    "drqv2.DrQV2Agent": "obs_shape action_shape device lr feature_dim hidden_dim critic_target_tau num_expl_steps "
    "update_every_steps stddev_schedule stddev_clip use_tb",
    "drqv2.DrQV2Agent.train": "self training=True",
    "drqv2.DrQV2Agent.act": "self obs step eval_mode",
    "drqv2.DrQV2Agent.update": "self replay_iter step",
    "drqv2.DrQV2Agent.update_critic": "self obs action reward discount next_obs step",
    "drqv2.DrQV2Agent.update_actor": "self obs step",
    "dmc.make": "name frame_stack action_repeat seed",
    "dmc.ExtendedTimeStep": "step_type reward discount observation action",
    "dmc.ActionRepeatWrapper": "env num_repeats",
    "dmc.FrameStackWrapper": "env num_frames pixels_key='pixels'",
    "dmc.ActionDTypeWrapper": "env dtype",
    "dmc.ExtendedTimeStepWrapper": "env",
    "replay_buffer.ReplayBufferStorage": "data_specs replay_dir",
    "replay_buffer.ReplayBufferStorage.add": "self time_step",
    "replay_buffer.ReplayBuffer": "replay_dir",
    "replay_buffer.make_replay_loader": "replay_dir max_size batch_size num_workers save_snapshot nstep discount",
    "logger.Logger": "log_dir use_tb",
    "logger.Logger.log": "self key value frame",
    "logger.Logger.log_metrics": "self metrics frame ty",
    "logger.Logger.dump": "self frame ty=None",
    "logger.Logger.log_and_dump_ctx": "self frame ty",
    "video.VideoRecorder": "root_dir render_size=256 fps=20",
    "video.VideoRecorder.init": "self env enabled=True",
    "video.VideoRecorder.record": "self env",
    "video.VideoRecorder.save": "self file_name",
    "video.TrainVideoRecorder": "root_dir render_size=256 fps=20",
    "video.TrainVideoRecorder.init": "self obs enabled=True",
    "video.TrainVideoRecorder.record": "self obs",
    "video.TrainVideoRecorder.save": "self file_name",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_and_signatures(tmp_path: Path, name: str) -> None:
    module, _, path = name.partition(".")
    write(tmp_path, probe=f"import {module}\nagent = lambda: {name}\n")
    found: Any = load(tmp_path, "probe.agent")()
    ours: Any = {"utils": utils, "dmc": dmc, "logger": logger}.get(module) or importlib.import_module(module)
    for part in path.split("."):
        ours = getattr(ours, part)
    assert found is ours
    expected = PUBLIC[name].split()
    signature: Any = inspect.signature(found)
    parameters = list(signature.parameters.values())
    bare = [p.replace(annotation=p.empty) for p in parameters]
    assert [str(p).replace(" ", "") for p in bare[: len(expected)]] == expected
    if not PUBLIC[name].startswith("*") and name != "replay_buffer.ReplayBuffer":
        assert all(p.default is not p.empty for p in parameters[len(expected) :]), "what is ours alone is optional"


def test_all_ways_to_import(tmp_path: Path) -> None:
    write(
        tmp_path,
        forms=(
            "import utils as u, drqv2 as d\n"
            "from utils import *\n"
            "from drqv2 import DrQV2Agent, Encoder as E\n"
            "import drqv2.nn.networks\n"
            "import os.path, xml.dom\n"
            "from xml import sax\n"
            "def agent():\n"
            "    import dmc, logger, video\n"
            "    from replay_buffer import make_replay_loader\n"
            "    return u, d, schedule, E, drqv2, dmc, logger, video, make_replay_loader\n"
        ),
    )
    found = load(tmp_path, "forms.agent")()
    assert found == (
        *(utils, drqv2, utils.schedule, drqv2.Encoder, drqv2, dmc, logger, video),
        replay_buffer.make_replay_loader,
    )


# --- whose names win -------------------------------------------------------------------------------------------


def test_a_directory_with_the_same_names_gets_its_own(tmp_path: Path) -> None:
    own = "WHERE = __file__\n"
    write(tmp_path, **dict.fromkeys(("utils", "dmc", "logger", "replay_buffer", "video", "train", "random"), own))
    modules = "utils, dmc, logger, replay_buffer, video, train, random"
    write(tmp_path, drqv2=f"import {modules}\nclass Agent: modules = {modules}\n")
    agent = load(tmp_path, "drqv2.Agent")
    assert [m.WHERE for m in agent.modules] == [str(tmp_path / f"{n}.py") for n in modules.split(", ")]
    assert agent_files.source_file(agent) == str(tmp_path / "drqv2.py")
    assert "utils" not in sys.modules


def test_own_drqv2_beside_what_is_offered_here(tmp_path: Path) -> None:
    """The commonest fork of all: drqv2.py changed, the rest taken as it is, which itself imports this project's."""
    write(
        tmp_path,
        drqv2=(
            "import dmc, logger, replay_buffer, utils\n"
            "from utils import TruncatedNormal, schedule\n"
            "from video import VideoRecorder\n"
            "class DrQV2Agent:\n"
            "    stddev = schedule('linear(1.0,0.0,10)', 5)\n"
            "    storage = replay_buffer.ReplayBufferStorage\n"
        ),
    )
    agent = load(tmp_path, "drqv2.DrQV2Agent")
    assert agent.stddev == 0.5
    assert agent.storage is replay_buffer.ReplayBufferStorage
    assert agent is not DrQV2Agent


def test_imports_inside_functions(tmp_path: Path) -> None:
    write(
        tmp_path,
        drqv2="import helper\nclass Agent:\n    def late(self):\n        return helper.late()\n",
        helper="def late():\n    import drqv2, later, utils\n    return drqv2, later, utils\n",
        later="from drqv2 import Agent\n",
        utils="mine = True\n",
    )
    agent = load(tmp_path, "drqv2.Agent")
    for _ in range(2):
        own, later, own_utils = agent().late()
        assert own.Agent is later.Agent is agent
        assert own_utils.mine
        assert importlib.import_module("drqv2") is drqv2


def test_two_directories_do_not_mix(tmp_path: Path) -> None:
    files = {"agent": "import part\nclass A:\n    def name(self):\n        import part\n        return part.NAME\n"}
    a = load(write(tmp_path / "a", **files, part="NAME = 'a'"), "agent.A")
    b = load(write(tmp_path / "b", **files, part="NAME = 'b'", utils="x = 1"), "agent.A")
    assert (a().name(), b().name()) == ("a", "b")
    c = load(write(tmp_path / "c", agent="from utils import schedule as A"), "agent.A")
    assert c is utils.schedule


def test_packages(tmp_path: Path) -> None:
    write(
        tmp_path,
        agents__sac="from nets.mlp import WIDTH\nfrom .parts import N\nimport agents.parts\nclass SAC: x = WIDTH, N\n",
        agents__parts="import utils\nN = utils.N\n",
        nets__mlp="import utils as u\nWIDTH = 10 * u.N\n",
        utils="N = 7\n",
    )
    write(tmp_path / "nets", __init__="")
    assert load(tmp_path, "agents.sac.SAC").x == (70, 7)


def test_a_plain_folder_hides_nobody(tmp_path: Path) -> None:
    """Forks have output folders called wandb and folders of settings called hydra."""
    for name in ("hydra", "torch", "email", "drqv2", "utils"):
        (tmp_path / name).mkdir()
    write(tmp_path, my="import email.message, hydra, torch, utils, drqv2, mine\nA = drqv2.DrQV2Agent\nmine.x\n")
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="'mine' has no attribute 'x'"):  # it is what the folder is: an empty package
        load(tmp_path, "my.A")
    write(tmp_path, your="import email.message, hydra, torch, utils, drqv2, mine\nA = drqv2.DrQV2Agent\n")
    assert load(tmp_path, "your.A") is DrQV2Agent


def test_a_file_that_imports_this_projects_modules_by_their_own_names(tmp_path: Path) -> None:
    write(tmp_path, my="from drqv2.utils import schedule\nfrom drqv2.agents.drqv2 import DrQV2Agent\n")
    assert load(tmp_path, "my.DrQV2Agent") is DrQV2Agent
    assert load(tmp_path, "my.schedule") is utils.schedule


def test_this_projects_own_directory_as_the_directory() -> None:
    assert load(ROOT, "drqv2.agents.drqv2.DrQV2Agent") is DrQV2Agent
    assert load(ROOT, "drqv2.DrQV2Agent") is DrQV2Agent


def test_target_falls_back_to_the_python_path(tmp_path: Path) -> None:
    assert load(tmp_path, "drqv2.agents.drqv2.DrQV2Agent") is DrQV2Agent
    assert load(tmp_path, "drqv2.DrQV2Agent") is DrQV2Agent
    assert load(None, "drqv2.DrQV2Agent") is DrQV2Agent


def test_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, my_agent_on_the_path="import utils\ndef agent():\n    import dmc\n    return utils, dmc\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load(None, "my_agent_on_the_path.agent")() == (utils, dmc)


def test_names_asked_for_by_text(tmp_path: Path) -> None:
    """Old agents build their parts with hydra.utils.instantiate(cfg), long after they were imported."""
    text = "import hydra\ndef agent(name): return hydra.utils.get_object(name)\n"
    agent = load(write(tmp_path, my=text, parts="import utils\nclass Part: utils = utils\n"), "my.agent")
    assert agent("parts.Part").utils is utils
    assert agent("utils.schedule") is utils.schedule
    assert agent("drqv2.Encoder") is drqv2.Encoder
    del sys.modules["parts"]


def test_classes_pickle(tmp_path: Path) -> None:
    agent = load(write(tmp_path, drqv2="class Agent: pass"), "drqv2.Agent")
    assert type(pickle.loads(pickle.dumps(agent()))) is agent


def test_arguments_stay_plain(tmp_path: Path) -> None:
    node = {"_target_": "my.agent", "obs_shape": [9, 84, 84], "net": {"widths": [1, 2]}, "x": None}
    factory, kwargs = agent_files.agent_factory(node, write(tmp_path, my="def agent(**kwargs): return kwargs"))
    assert factory(**kwargs) == {"obs_shape": [9, 84, 84], "net": {"widths": [1, 2]}, "x": None}
    assert type(kwargs["obs_shape"]) is list
    assert type(kwargs["net"]) is dict


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("my.Agnet", "no Agnet in .*my.py; nearest: Agent"),
        ("nobody.Agent", "No module named 'nobody'\nsearched "),
        ("broken.Agent", "SyntaxError: .*broken.py"),
        ("needy.Agent", "No module named 'kornea'\n.*needy.py, line 2"),
        ("raising.Agent", "ZeroDivisionError: division by zero\n.*raising.py, line 3"),
        ("my.NUMBER", "my.NUMBER"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, target: str, said: str) -> None:
    write(
        tmp_path,
        my="NUMBER = 1\nclass Agent: pass\n",
        broken="class Agent\n",
        needy="import utils\nimport kornea\n",
        raising="import math\n\n1 / 0\n",
    )
    with pytest.raises(UserError, match=said) as error:
        load(tmp_path, target)
    assert len(str(error.value).splitlines()) <= 2
    assert "agent_dir_" not in str(error.value)


def test_a_file_may_be_mended_and_tried_again(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        load(write(tmp_path, my="import nothing_of_this_name\n"), "my.Agent")
    importlib.invalidate_caches()
    assert load(write(tmp_path, my="class Agent: pass\n"), "my.Agent")


# --- in the loop -----------------------------------------------------------------------------------------------


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
    run(tmp_path / "run", f"agent_dir={folder}", "agent._target_=probe.Probe", "+agent.x=1", *taken_away)
    assert str(folder / "probe.py") in capsys.readouterr().out

    (module,) = [m for name, m in sys.modules.items() if name.startswith("agent_dir_") and name.endswith(".probe")]
    made, *calls = module.CALLS
    assert made == ("made", ((9, 32, 32), (1,), "cpu" if not torch.cuda.is_available() else "cuda", 1))
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
        (["~agent.stddev_clip"], "agent.stddev_clip is missing"),
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


def test_removed_and_added_keys(tmp_path: Path) -> None:
    text = (
        "from drqv2 import DrQV2Agent\n"
        "class A(DrQV2Agent):\n"
        "    def __init__(self, x, **kwargs):\n"
        "        assert 'stddev_clip' not in kwargs and 'seed' not in kwargs\n"
        "        super().__init__(stddev_clip=0.1 * x, **kwargs)\n"
    )
    folder = write(tmp_path / "agents", my=text)
    lean = ["~agent.stddev_clip", "+agent.x=2", "num_train_frames=180"]
    run(tmp_path / "run", f"agent_dir={folder}", "agent._target_=my.A", *lean)
    assert snapshot.load(tmp_path / "run" / "snapshot.pt")["agent"]["value"]["stddev_clip"] == 0.2


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


@pytest.mark.parametrize("name", AGENTS)
def test_an_interrupted_agent_ends_as_one_that_ran_through(tmp_path: Path, name: str) -> None:
    straight = run(tmp_path / "straight", *AGENTS[name])
    parts = run(tmp_path / "parts", *AGENTS[name], "num_train_frames=180")  # evaluates there, as the other does
    before = agent_state(parts)
    launch(train.main, "cfgs", argv=[f"resume={parts}", "num_train_frames=240"])
    assert_equal(agent_state(parts), agent_state(straight), name)
    with pytest.raises(AssertionError):
        assert_equal(agent_state(parts), before, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "updates"), [("huber", [62, 125]), ("regression", [125, 250]), ("own_names", [62, 125])]
)
def test_agents_train_and_resume_in_real_processes(tmp_path: Path, name: str, updates: list[int]) -> None:
    run_dir = tmp_path / "run"
    first = ["preset=debug", f"hydra.run.dir={run_dir}", "num_train_frames=2000", *AGENTS[name]]
    outputs, counts = [], []
    for overrides in (first, [f"resume={run_dir}", "num_train_frames=3000"]):
        command = [sys.executable, "train.py", *overrides]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
        state = agent_state(run_dir)
        counts.append((state["value"] if state["kind"] == "object" else state["attributes"][""])["num_updates"])
    assert counts == updates  # of 125 agent steps past the seed frames, then of 250 in both processes together
    assert all(str(THIRD_PARTY) in output for output in outputs)
    assert f"resumed {run_dir} at frame 2000" in outputs[1]
