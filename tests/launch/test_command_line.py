"""From the command line to run(cfg, work_dir): what is composed, resumed, refused, and how the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from drqv2.config import schema
from drqv2.config.cfgs import CFGS
from drqv2.config.formatting import SYNONYMS
from drqv2.config.schema import every_key
from drqv2.errors import UserError
from drqv2.launch.command_line import launch
from drqv2.launch.overrides import quote, readable, without_dashes
from tests.launch.harness import RUNS, refused, run, start, stored

ROOT = Path(__file__).resolve().parents[2]


def test_one_run(tmp_path):
    cfg, work_dir = start("task=walker_walk", "seed=3", "+agent.x=1", "~agent.stddev_clip")
    assert (cfg.regime, cfg.task_name, cfg.seed, cfg.batch_size) == ("drqv2", "walker_walk", 3, 512)
    assert (cfg.agent.x, "stddev_clip" in cfg.agent) == (1, False)
    assert work_dir.name.endswith("_walker_walk_3")
    assert work_dir.parent.parent == tmp_path / "exp_local"
    assert Path.cwd() == tmp_path
    assert (work_dir / ".hydra" / "overrides.yaml").is_file()


def test_sweep(tmp_path):
    (tmp_path / "old.pt").write_bytes(b"")
    start("seed=1", "-m", "seed=4,5", "init_from=old.pt")  # options may stand among overrides
    assert [cfg.seed for cfg, _ in RUNS] == [4, 5]
    assert [work_dir.name for _, work_dir in RUNS] == [f"{i}_cartpole_balance_sparse_{i + 4}" for i in range(2)]
    (sweep,) = {work_dir.parent for _, work_dir in RUNS}
    assert sweep.name.endswith("_sweep")
    assert RUNS[0][0].init_from == str(tmp_path / "old.pt"), "a launcher's processes may start elsewhere"


@pytest.mark.slow
def test_tasks_without_a_file_have_medium_settings(tmp_path):
    cfg, work_dir = start("task=fish_swim", "camera=tracking_x")
    assert (cfg.task_name, cfg.num_train_frames, cfg.camera) == ("fish_swim", 3_100_000, "tracking_x")
    assert work_dir.name.endswith("_fish_swim_1")
    start("-m", "task=dog_run,cup_catch,manipulator_bring_ball")
    assert [(cfg.task_name, cfg.num_train_frames) for cfg, _ in RUNS[1:]] == [
        ("dog_run", 3_100_000),
        ("cup_catch", 1_100_000),
        ("manipulator_bring_ball", 3_100_000),
    ]
    assert start(f"resume={work_dir}")[0].task_name == "fish_swim"
    assert start("task_name=swimmer_swimmer6")[0].task_name == "swimmer_swimmer6"


@pytest.mark.slow
def test_dm_controls_own_names_say_what_a_manipulation_task_shows():
    shown = [("reach_site", "pixels"), ("reach_site_vision", "pixels"), ("reach_site_features", "state")]
    for name, obs_type in shown:
        cfg, _ = start(f"task={name}")
        assert (cfg.task_name, cfg.obs_type) == ("reach_site", obs_type)
    assert start("task=reach_duplo_features", "replay_buffer_size=125")[0].task_name == "reach_duplo"
    assert start("task=ball_in_cup_catch")[0].task_name == "cup_catch"


def as_hydra_reads(override: str) -> object:
    return OverridesParser.create().parse_override(readable(override, multirun=False)).value()


@pytest.mark.slow
def test_schedules_need_no_quotes():
    assert as_hydra_reads("stddev_schedule=linear(1.0,0.1,5000)") == "linear(1.0,0.1,5000)"
    assert as_hydra_reads("+agent.stddev_schedule='linear(1.0, 0.1, 7)'") == "linear(1.0, 0.1, 7)"
    start("-m", "stddev_schedule=linear(1.0,0.1,5),0.2,step_linear(1,0.5,1,0.1,2)")
    assert [cfg.stddev_schedule for cfg, _ in RUNS] == ["linear(1.0,0.1,5)", 0.2, "step_linear(1,0.5,1,0.1,2)"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("batch_size=0", "batch_size=0: must be a whole number of at least 1 (transitions)"),
        ("stddev_schedule=lineer(1,2,3)", "linear(init,final,duration)"),
        ("task=cheeta_run", "task=cheeta_run: there is no such task; nearest: cheetah_run"),
        ("task=fish_swin", "task=fish_swin: there is no such task; nearest: fish_swim"),
        ("-m task=fish_swim,dog_rum", "task=dog_rum: there is no such task; nearest: dog_run"),
        ("task_name=stack_2_brick", "task_name=stack_2_brick: there is no such task; nearest: stack_2_bricks"),
        ("regime=multitask tasks=[fish_swim,dog_rum]", "tasks: dog_rum: unknown task; nearest: dog_run"),
        ("task=reach_site replay_buffer_size=99", "at least 125 (transitions: 250 frames"),
        ("task=fish_swim camera=-2", "camera=-2: must be a camera's name or number"),
        ("task=fish_swim camera=true", "camera=true: must be a camera's name or number"),
        ("env_id=gymnasium:CartPole-v1 camera=1", "camera=1: applies only to dm_control's tasks"),
        ("env_id=gymnasium:CartPole-v1 cameras=[1]", "cameras=[1]: applies only to dm_control's tasks"),
        ("cameras=[0,side] camera=1", "camera=1 and cameras=[0,side]: give only one of them"),
        ("cameras=[0,1] obs_type=state", "cameras=[0,1] with obs_type=state: the agent sees no images"),
        ("cameras=[0,1] image_key=a", "cameras=[0,1] and image_key=a: give only one of them"),
        ("cameras=[1,1]", "cameras=[1,1]: 1 is listed more than once"),
        ("observation_parts=[]", "observation_parts=[]: must be a list of different names"),
        ("obs_type=both", "obs_type=both: must be auto, pixels, state or pixels+state"),
        (
            "preset=gpu",
            "allowed: cartpole, cpu, debug, dmc_state, impala_cartpole, impala_catch, impala_pong, lunarlander, mt10, "
            "paper, pong",
        ),
        ("regime=drqv3", "regime=drqv3: there is no such regime; nearest: drqv2; allowed: drqv2"),
        ("regime=drqv3 --help", "regime=drqv3: there is no such regime; nearest: drqv2; allowed: drqv2"),
        ("task=easy", "task_name is not set: give task=NAME"),
        ("task=null", "task=cheetah_run"),
        ("taks=cheetah_run", "taks=cheetah_run: there is no such key; nearest: task"),
        ("hidden_dim=3", "nearest: agent.hidden_dim"),
        ("agent.hiden_dim=3", "Add an argument that your own agent takes with +agent.hiden_dim=3"),
        ("+batchsize=3", "batchsize=3: there is no such key; nearest: batch_size"),
        ("+batch_size=3", "write batch_size=VALUE, without the plus"),
        ("+task=cheetah_run", "write task=NAME, without the plus"),
        ("~batchsize", "~batchsize: there is no such key; nearest: batch_size"),
        ("~seed", "seed is missing"),
        ("batch_size", "a value is missing; write batch_size=VALUE"),
        ("batch_size=[1", "batch_size=[1: cannot be read; must be a whole number"),
        ("experiment=a=b", "Put quotes around special characters: \"experiment='...'\""),
        ("seed=1,2", "seed=1,2: one value is expected; use -m"),
        ("seed=choice(1,2)", "seed=choice(1,2): several runs need -m"),
        ("lr=${lrr}", "nearest: lr"),
        ("hydra.run.dir=${nowhere}", "nowhere"),
        ("hydra/launcher=nothing", "hydra/launcher=nothing: there is no such hydra/launcher"),
        ("hydra/launcher=joblib", "launchers and sweepers apply only to several runs; add -m"),
        ("--bogus", "see --help"),
        ("-m --cfg job", "--cfg shows one configuration"),
        ("-m seed=1,x", "seed=x: must be a whole number"),  # the last job is checked before the first one runs
        ("-m seed=interval(1,2)", "hydra/sweeper=search"),
        ("resume=nowhere", "resume=nowhere: there is no such directory"),
        ("resume=", "give a run directory"),
        ("resume=latest", "no run with a snapshot below"),
        ("resume=latest -m", "leave out -m"),
        ("resume=x task=walker_run", "task=walker_run: a task cannot be chosen on resume"),
        ("resume=x regime=drqv2", "regime=drqv2: a regime cannot be chosen on resume"),
        ("resume=x hydra.run.dir=y", "leave out hydra.run.dir or resume"),
        ("resume=x init_from=y", "leave out init_from or resume"),
    ],
)
def test_mistakes(capsys, tmp_path, argv, said):
    assert said in refused(capsys, *argv.split())
    assert not (tmp_path / "exp_local").exists(), "a mistake leaves no run directory"


TOY = """
from typing import Annotated
from drqv2.config.keys import fixed, key, table
from drqv2.config.kinds import Int
from drqv2.config.regime import Agent, Regime
class ToyAgent:
    def __init__(self, width: Annotated[int, key(Int(1), "Width.", "units")] = 4): ...
REGIME = Regime(
    name="toy",
    purpose="a regime of the tests",
    workspace="nowhere:Workspace",
    agents={"toy": Agent("toy.ToyAgent")},
    keys={"Toy": table(horizon=key(Int(1), "Steps of one segment.", "agent steps"))},
    defaults={"horizon": 64},
)
"""


@pytest.fixture
def toy(tmp_path) -> Iterator[str]:
    """The override that finds a regime in a directory, whose keys are not DrQ-v2's."""
    folder = tmp_path / "regimes"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    yield f"regime_dir={folder}"
    schema.REGIMES.pop("toy", None)
    schema.every_key.cache_clear()


@pytest.mark.slow
def test_a_regime_from_elsewhere(capsys, toy):
    cfg, work_dir = start("regime=toy", toy, "task=walker_walk", "horizon=32", "agent.width=8")
    assert (cfg.regime, cfg.horizon, cfg.task_name, cfg.eval_every_frames) == ("toy", 32, "walker_walk", 10000)
    assert cfg.agent == {"_target_": "toy.ToyAgent", "width": 8}
    assert not {"nstep", "batch_size"} & set(cfg), "what tasks set for DrQ-v2 is left out"
    assert "preset=cpu applies only to regime=drqv2" in refused(capsys, "regime=toy", toy, "preset=cpu")
    cfg, _ = start(f"resume={work_dir}", "horizon=16")
    assert (cfg.regime, cfg.horizon) == ("toy", 16), "the regime is that of the stored configuration"
    assert "nstep=3: regime=toy has no such key" in refused(capsys, "regime=toy", toy, "task=walker_walk", "nstep=3")
    assert "horizn=3: there is no such key; nearest: horizon" in refused(capsys, "regime=toy", toy, "horizn=3")
    assert "agent.width=0: must be a whole number of at least 1" in refused(capsys, "regime=toy", toy, "agent.width=0")
    assert "regime=tox: there is no such regime; nearest: toy" in refused(capsys, "regime=tox", toy)
    launch(run, CFGS, argv=["--help", "regime=toy", toy])
    text = capsys.readouterr().out
    assert "agent.width" in text
    assert "horizon" in text
    assert "nstep" not in text
    assert ", drqv2 (DrQ-v2" in text
    assert start("regime=drqv2")[0].nstep == 3


def test_resume_uses_the_stored_configuration():
    _, first = start("task=walker_walk", "preset=debug", "seed=9", "lr=0.5")
    stored, before = (first / "config.yaml").read_bytes(), (first / ".hydra" / "overrides.yaml").read_bytes()
    cfg, again = start(f"resume={first}", "lr=0.25")
    assert again == first
    assert (cfg.task_name, cfg.seed, cfg.resume, cfg.lr, cfg.agent.lr) == ("walker_walk", 9, None, 0.25, 0.25)
    assert (first / "config.yaml").read_bytes() == stored
    assert (first / ".hydra" / "overrides.yaml").read_bytes() == before
    assert not list(first.glob("*.log"))


def test_resume_of_a_run_from_before_there_were_regimes():
    path = stored("run") / "config.yaml"
    old = OmegaConf.load(path)
    assert isinstance(old, DictConfig)
    for name in ("regime", "obs_type"):
        del old[name]
    OmegaConf.save(old, path)
    cfg, _ = start("resume=run")
    assert (cfg.regime, cfg.obs_type) == ("drqv2", "pixels")


@pytest.mark.parametrize(
    "typed",
    [
        "{walker_walk:{discount:0.5},metaworld:reach-v3:{action_repeat:2,camera:1}}",
        "{walker_walk: {discount: 0.5}, 'metaworld:reach-v3': {action_repeat: 2, camera: 1}}",
        "{metaworld\\:reach-v3:{action_repeat:2,camera:1},walker_walk:{discount:0.5}}",
    ],
)
@pytest.mark.parametrize("plus", ["", "+"])
def test_settings_of_tasks_need_no_escapes(typed, plus):
    cfg, _ = start("regime=multitask", "tasks=[walker_walk,metaworld:reach-v3]", f"{plus}per_task={typed}")
    assert cfg.per_task == {"walker_walk": {"discount": 0.5}, "metaworld:reach-v3": {"action_repeat": 2, "camera": 1}}


@pytest.mark.parametrize("name", ["a b", "a=b", "a,b", "it's", '{"x"}', "ü(1,2)", "a\\'b%", "'a, b'"])
def test_paths_need_no_quotes(name):
    assert as_hydra_reads(f"hydra.run.dir={name}") == name.strip("'")
    assert as_hydra_reads(f"hydra.run.dir={quote(name)}") == name


def test_resume_from_oddly_named_directories():
    name = "a b=c,d/it's {\"x\"}/ü(1,2)/a\\'b%"
    _, first = start(f"hydra.run.dir={name}")
    assert first == Path(name).resolve()
    assert start(f"resume={name}/snapshot.pt")[1] == first


def test_resume_of_a_quoted_path():
    first = stored("a, b/run")
    assert start("resume='a, b/run/'")[1] == first


def test_resume_latest_is_the_newest_snapshot(capsys):
    runs = [stored(f"exp_local/{i}/run") for i in range(3)]
    for work_dir, time in zip(runs, (10, 30, 20), strict=True):
        os.utime(work_dir / "snapshot.pt", (time, time))
    assert start("resume=latest")[1] == runs[1]
    assert "resume=latest: exp_local/1/run" in capsys.readouterr().out
    (runs[1] / "snapshot.pt").unlink()
    assert start("resume=latest")[1] == runs[2]


def test_resume_without_the_newest_snapshot(capsys):
    first = stored("run")
    (first / "snapshot.pt").rename(first / "snapshot_previous.pt")
    assert start("resume=run/snapshot_previous.pt")[1] == first
    assert "no snapshot" not in capsys.readouterr().out
    for path in first.glob("*.pt"):
        path.unlink()
    assert start("resume=run")[1] == first
    assert "no snapshot yet: the run starts from the beginning" in capsys.readouterr().out


HARM = b"{hydra: {callbacks: {x: {_target_: os.mkdir, path: harm}}}}"


@pytest.mark.parametrize("content", [b"", b"a: [", b"\xff\xfe\x00", b"- 1", b"x: !!python/object:os.x {}", HARM, None])
def test_resume_with_a_damaged_configuration(capsys, tmp_path, content):
    first = stored("run")
    if content is None:
        (first / "config.yaml").unlink()
    else:
        (first / "config.yaml").write_bytes(content)
    said = refused(capsys, "resume=run")
    assert ("could run code" in said) == (content == HARM)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("run_dir", ["file", "/proc/nowhere/run"])
def test_a_run_directory_that_cannot_be_made(capsys, tmp_path, run_dir):
    (tmp_path / "file").touch()
    assert "choose another hydra.run.dir" in refused(capsys, f"hydra.run.dir={run_dir}")


@pytest.mark.slow
def test_a_resumed_run_needs_no_init_from(tmp_path):
    (tmp_path / "old.pt").write_bytes(b"")
    _, first = start("hydra.run.dir=run", "init_from=old.pt")
    (tmp_path / "old.pt").rename(tmp_path / "away.pt")
    cfg, work_dir = start("resume=run")
    assert (cfg.init_from, work_dir) == (None, first)
    (first / "snapshot.pt").unlink()
    (tmp_path / "away.pt").rename(tmp_path / "old.pt")
    assert start("resume=run")[0].init_from.endswith("old.pt")


@pytest.mark.parametrize(
    ("experiment", "code", "said"),
    [
        ("mistake", 2, "error: a mistake: this is how to fix it\n"),
        ("interrupt", 130, "'resume=my run'"),
        ("full", 74, "The disk is full or failing"),
    ],
)
def test_how_a_run_ends(capsys, experiment, code, said):
    with pytest.raises(SystemExit) as end:
        start(f"experiment={experiment}", "hydra.run.dir=my run")
    assert end.value.code == code
    assert said in capsys.readouterr().err


def test_a_bug_ends_with_its_own_traceback(capsys):
    with pytest.raises(RuntimeError, match="a bug") as error:
        start("experiment=bug")
    assert not [entry for entry in error.traceback if "site-packages/hydra" in str(entry.path)]
    assert capsys.readouterr().err == "Error executing job with overrides: ['experiment=bug']\n"


@pytest.mark.slow
def test_how_a_sweep_ends(capsys):
    with pytest.raises(SystemExit) as end:
        start("-m", "seed=1,2", "experiment=bug")
    assert end.value.code == "2 of the jobs failed; see above"
    assert capsys.readouterr().err.count("RuntimeError: a bug") == 2


@pytest.mark.slow
def test_commands_that_only_print(capsys):
    launch(run, CFGS, argv=["-h", "batch_size=0"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("batch_size", "cheetah_run", "regime: drqv2"))
    launch(run, CFGS, argv=["--cfg", "job", "batch_size=0"])
    assert "batch_size: 0" in capsys.readouterr().out
    launch(run, CFGS, argv=["hydra/launcher=slurm", "--cfg", "hydra", "-p", "hydra.launcher"])
    assert "timeout_min: 1440" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        launch(run, CFGS, argv=["--hydra-help"])
    assert end.value.code == 0
    assert not RUNS


def test_tab_completes_keys_and_tasks(capsys, monkeypatch):
    line = "python train.py task=cartpole_b"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    launch(run, CFGS, argv=["-sc", "query=bash"])
    assert capsys.readouterr().out.split() == ["task=cartpole_balance", "task=cartpole_balance_sparse"]


SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from drqv2.launch.command_line import launch

def main(cfg, work_dir):
    (work_dir / "snapshot.pt").touch()
    print("running", flush=True)
    time.sleep(cfg.seed)

if __name__ == "__main__":
    launch(main, "cfgs")
"""


@pytest.mark.slow
def test_process_that_is_interrupted(tmp_path):
    """A program beside its cfgs, run from another directory."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "cfgs").symlink_to(CFGS)
    (tmp_path / "program" / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "program/script.py", "seed=60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the suite may run where it is ignored
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "resume=exp_local/" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["--seed", "3"], ["seed=3"]),
        (["--seed=3", "task=walker_walk"], ["seed=3", "task=walker_walk"]),
        (["--save-video", "--batch_size", "12"], ["save_video=true", "batch_size=12"]),
        (["--use_tb", "-m", "task=a,b"], ["use_tb=true", "-m", "task=a,b"]),
        (["--lr", "-1"], ["lr=-1"]),
        (["--save_video", "seed=3"], ["save_video=true", "seed=3"]),
        (["--stddev-schedule", "linear(1.0,0.1,100)"], ["stddev_schedule=linear(1.0,0.1,100)"]),
        (["--agent.hidden_dim=64", "-m", "--lr", "1e-3,1e-4"], ["agent.hidden_dim=64", "-m", "lr=1e-3,1e-4"]),
        (["--multirun", "--hydra.run.dir=x", "--cfg", "job"], ["--multirun", "hydra.run.dir=x", "--cfg", "job"]),
    ],
)
def test_keys_may_have_dashes(typed, meant):
    assert without_dashes(typed, ["--help", "--multirun", "--cfg"]) == meant


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--sede 3", "--sede: there is no such key or option; nearest: seed"),
        ("--seed", "--seed: a value is missing; write seed=VALUE"),
        ("--learning-rate 1", "here it is lr"),
        ("learning_rate=1", "here it is lr"),
        ("regime=ppo learning_rate=1", "here it is agent.lr"),
        ("regime=ppo num_train_frames=9", "here it is total_timesteps"),
        ("total_timesteps=9", "here it is num_train_frames"),
        ("env_name=walker_walk", "here it is task"),
        ("regime=ppo env_id=CartPole-v1", "for Gymnasium's write gymnasium:CartPole-v1"),
    ],
)
def test_names_of_other_programs(capsys, typed, message):
    assert message in refused(capsys, *typed.split())


def test_synonyms_are_keys_here():
    assert {own for names in SYNONYMS.values() for own in names} <= {*every_key(), "task", "hydra.run.dir"}


@pytest.mark.parametrize("argument", ["--help", "sede=3", "batch_size=-1", "task=walkr_walk", "--sede"])
def test_help_and_mistakes_do_not_wait_for_torch(argument):
    code = f"""
import runpy, sys
sys.argv = ["train.py", {argument!r}]
try:
    runpy.run_path({str(CFGS.parent / "train.py")!r}, run_name="__main__")
except SystemExit as end:
    print("torch" in sys.modules, end.code or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"False {0 if argument == '--help' else 2}", done.stderr


def refusing(cfg, work_dir):
    raise UserError("a mistake")


@pytest.mark.parametrize("kept", [[], ["a/other"], ["a/b/config.yaml"]])
def test_a_start_that_fails_at_once_leaves_no_directory(tmp_path, kept):
    for name in kept:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    with pytest.raises(SystemExit):
        launch(refusing, CFGS, argv=["hydra.run.dir=a/b"])
    assert (tmp_path / "a").exists() == bool(kept)
    assert (tmp_path / "a/b").exists() == ("a/b/config.yaml" in kept)
