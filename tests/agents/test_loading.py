"""Agent files written for the public DrQ-v2 implementation are found and import the modules that they name."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import drqv2
import replay_buffer
import video
from drqv2 import envs as dmc
from drqv2 import utils
from drqv2.agents import loading as agent_files
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.errors import UserError
from drqv2.logging import logger
from drqv2.snapshot.agent_state import capture, restore

ROOT = Path(__file__).resolve().parents[2]


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
def _modules_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> Any:
    """After each test, the modules that were there before are the very same, and how Python imports is as it was."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    yield
    assert {name: sys.modules.get(name) for name in before} == before
    assert sys.modules["drqv2"] is drqv2
    for name in set(sys.modules) - set(before):
        if name in ("utils", "dmc", "logger") or name.startswith("agent_dir_"):
            del sys.modules[name]


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
    "drqv2.DrQV2Agent": "obs_shape action_shape device lr=0.0001 feature_dim=50 hidden_dim=1024 "
    "critic_target_tau=0.01 num_expl_steps=2000 update_every_steps=2 stddev_schedule='linear(1.0,0.1,100000)' "
    "stddev_clip=0.3 use_tb=True",
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


def test_a_directory_with_the_same_names_gets_its_own(tmp_path: Path) -> None:
    own = "WHERE = __file__\n"
    write(tmp_path, **dict.fromkeys(("utils", "dmc", "logger", "replay_buffer", "video", "train", "random"), own))
    modules = "utils, dmc, logger, replay_buffer, video, train, random"
    write(tmp_path, drqv2=f"import {modules}\nclass Agent: modules = {modules}\n")
    agent = load(tmp_path, "drqv2.Agent")
    assert [m.WHERE for m in agent.modules] == [str(tmp_path / f"{n}.py") for n in modules.split(", ")]
    assert inspect.getsourcefile(agent) == str(tmp_path / "drqv2.py")
    assert "utils" not in sys.modules


def test_own_drqv2_module_besides_the_aliases(tmp_path: Path) -> None:
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


def test_a_plain_folder_hides_no_package(tmp_path: Path) -> None:
    """Forks have output folders called wandb and folders of settings called hydra."""
    for name in ("hydra", "torch", "email", "drqv2", "utils"):
        (tmp_path / name).mkdir()
    write(tmp_path, my="import email.message, hydra, torch, utils, drqv2, mine\nA = drqv2.DrQV2Agent\nmine.x\n")
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="'mine' has no attribute 'x'"):  # it is what the folder is: an empty package
        load(tmp_path, "my.A")
    write(tmp_path, your="import email.message, hydra, torch, utils, drqv2, mine\nA = drqv2.DrQV2Agent\n")
    assert load(tmp_path, "your.A") is DrQV2Agent


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


def test_names_resolved_by_hydra(tmp_path: Path) -> None:
    """Old agents build their parts with hydra.utils.instantiate(cfg), long after they were imported."""
    text = "import hydra\ndef agent(name): return hydra.utils.get_object(name)\n"
    agent = load(write(tmp_path, my=text, parts="import utils\nclass Part: utils = utils\n"), "my.agent")
    assert agent("parts.Part").utils is utils
    assert agent("utils.schedule") is utils.schedule
    assert agent("drqv2.Encoder") is drqv2.Encoder
    del sys.modules["parts"]


def test_arguments_are_plain_if_asked_for(tmp_path: Path) -> None:
    node = {"_target_": "my.agent", "_convert_": "all", "net": {"widths": [1, 2]}, "x": None}
    factory, kwargs = agent_files.agent_factory(node, write(tmp_path, my="def agent(**kwargs): return kwargs"))
    assert factory(**kwargs) == {"net": {"widths": [1, 2]}, "x": None}
    assert type(kwargs["net"]) is dict
    assert type(kwargs["net"]["widths"]) is list


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
def test_errors_name_the_cause(tmp_path: Path, target: str, said: str) -> None:
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


def test_a_file_can_be_fixed_and_reloaded(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        load(write(tmp_path, my="import nothing_of_this_name\n"), "my.Agent")
    importlib.invalidate_caches()
    assert load(write(tmp_path, my="class Agent: pass\n"), "my.Agent")


AUGMENTED = """
from drqv2 import NoShiftAug

class Agent:
    def __init__(self, obs_shape, augmentation, losses, parts):
        augmentation.crop.size = 84
        self.obs_shape, self.augmentation, self.losses, self.parts = obs_shape, augmentation, losses, parts

    def train(self, training=True): ...
    def act(self, obs, step, eval_mode): ...
    def update(self, replay_iter, step): ...
"""


def test_nested_targets_and_nodes_are_as_in_the_public_loop(tmp_path: Path) -> None:
    own = """
class NoShiftAug:
    def __init__(self, shape, crop):
        self.shape, self.crop = shape, crop
"""
    write(tmp_path, mine=AUGMENTED, drqv2=own)
    aug = {"_target_": "drqv2.NoShiftAug", "shape": [9, 84, 84], "crop": {"size": 3}}
    node = {"_target_": "mine.Agent", "augmentation": aug, "losses": {"fwd_loss": 0.5}, "parts": [aug]}
    agent: Any = agent_files.make_agent(node | {"obs_shape": None}, tmp_path, {"obs_shape": (9, 84, 84)}, {})
    assert type(agent.augmentation) is type(agent.parts[0])
    assert inspect.getsourcefile(type(agent.augmentation)) == str(tmp_path / "drqv2.py")
    assert agent.augmentation.crop.size == 84
    assert agent.losses.fwd_loss == 0.5
    assert agent.obs_shape == (9, 84, 84)
    agent.losses.fwd_loss, agent.augmentation.crop.size = 0.25, 42  # as some do in training
    new: Any = agent_files.make_agent(node | {"obs_shape": None}, tmp_path, {"obs_shape": (9, 84, 84)}, {})
    restore(new, capture(agent))
    assert (new.losses.fwd_loss, new.augmentation.crop.size) == (0.25, 42)
    for wrong, said in (
        ({"_target_": "mine.Nope"}, r"_target_=mine\.Nope in agent: no Nope in .*mine\.py"),
        (aug | {"bad": 1}, r"_target_=drqv2\.NoShiftAug in agent: TypeError: .*'bad'$"),
    ):
        with pytest.raises(UserError, match=said):
            agent_files.make_agent(node | {"parts": [wrong]}, tmp_path, {}, {})


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"train": None}, r"Mine.train\(training\) is missing"),
        ({"act": lambda obs, step: obs}, r"Mine.act\(obs, step\): must take \(obs, step, eval_mode\)"),
        ({"update": lambda batch: {}}, r"Mine.update\(batch\): must take \(replay_iter, step\)"),
        ({"train": lambda: None}, r"Mine.train\(\): must take \(training\)"),
    ],
)
def test_wrong_methods_are_found_when_the_agent_is_made(
    tmp_path: Path, methods: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
class Mine:
    def train(self, training=True): ...
    def act(self, obs, step, eval_mode): ...
    def update(self, replay_iter, step): ...
"""
    factory, _ = agent_files.agent_factory({"_target_": "mine.Mine"}, write(tmp_path, mine=text))
    assert agent_files.make_agent({"_target_": "mine.Mine"}, tmp_path, {}, {})
    for name, method in methods.items():
        monkeypatch.setattr(factory, name, method and staticmethod(method))
    with pytest.raises(UserError, match=message):
        agent_files.make_agent({"_target_": "mine.Mine"}, tmp_path, {}, {})
