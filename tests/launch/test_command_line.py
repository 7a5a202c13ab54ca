"""From the command line to run(cfg, work_dir): what is composed, resumed, refused, and how the process ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from drqv2.config.schema import CFGS
from drqv2.errors import UserError
from drqv2.launch.command_line import launch

ROOT = Path(__file__).resolve().parents[2]
RUNS: list[tuple[DictConfig, Path]] = []


def run(cfg: DictConfig, work_dir: Path) -> None:
    """A run that ends at once and leaves behind what a real one does."""
    RUNS.append((cfg, work_dir))
    if not (work_dir / "config.yaml").exists():
        OmegaConf.save(cfg, work_dir / "config.yaml")
    (work_dir / "snapshot.pt").write_bytes(b"")
    match cfg.experiment:
        case "mistake":
            raise UserError("a mistake: this is how to mend it")
        case "interrupt":
            raise KeyboardInterrupt
        case "fault":
            raise RuntimeError("a fault")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Each test in a directory of its own; Hydra's log handlers do not outlive the test's streams."""
    RUNS.clear()
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def start(*argv: str) -> tuple[DictConfig, Path]:
    launch(run, CFGS, argv=argv)
    return RUNS[-1]


def refused(capsys, *argv: str, code: int = 2) -> str:
    before = len(RUNS)
    with pytest.raises(SystemExit) as end:
        launch(run, CFGS, argv=argv)
    assert end.value.code == code
    assert len(RUNS) == before
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert len(message.splitlines()) <= 2
    return message


def test_one_run(tmp_path):
    cfg, work_dir = start("task=walker_walk", "seed=3", "num_train_frames=1e6")
    assert (cfg.task_name, cfg.seed, cfg.num_train_frames, cfg.batch_size) == ("walker_walk", 3, 1_000_000, 512)
    assert work_dir.name.endswith("_walker_walk_3")
    assert work_dir.parent.parent == tmp_path / "exp_local"
    assert Path.cwd() == tmp_path
    assert (work_dir / ".hydra" / "overrides.yaml").is_file()


def test_sweep(tmp_path, capsys):
    start("-m", "seed=1,2,3", "preset=debug")
    assert [cfg.seed for cfg, _ in RUNS] == [1, 2, 3]
    names = [work_dir.name for _, work_dir in RUNS]
    assert names == [f"{i}_cartpole_balance_sparse_{i + 1}" for i in range(3)]
    (sweep,) = {work_dir.parent for _, work_dir in RUNS}
    assert sweep.name.endswith("_sweep")
    assert sweep.parent.parent == tmp_path / "exp_local"


def test_options_may_stand_among_overrides():
    start("seed=1", "-m", "seed=4,5")
    assert [cfg.seed for cfg, _ in RUNS] == [4, 5]


def test_schedules_need_no_quotes():
    assert start("stddev_schedule=linear(1.0,0.1,5000)")[0].agent.stddev_schedule == "linear(1.0,0.1,5000)"
    assert start("stddev_schedule='linear(1.0, 0.1, 7)'")[0].stddev_schedule == "linear(1.0, 0.1, 7)"
    RUNS.clear()
    start("-m", "stddev_schedule=linear(1.0,0.1,5),0.2,step_linear(1,0.5,1,0.1,2)")
    assert [cfg.stddev_schedule for cfg, _ in RUNS] == ["linear(1.0,0.1,5)", 0.2, "step_linear(1,0.5,1,0.1,2)"]


def test_agent_keys_can_be_added_and_removed():
    cfg, _ = start("+agent.x=1", "~agent.stddev_clip", "agent._target_=mine.Agent")
    assert cfg.agent.x == 1
    assert "stddev_clip" not in cfg.agent


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["batch_size=0"], ["batch_size=0", "at least 1"]),
        (["eval_every_frames=1"], ["eval_every_frames=1", "action_repeat=2"]),
        (["stddev_schedule=linear(1,2)"], ["stddev_schedule=linear(1,2)", "linear(init,final,duration)"]),
        (["stddev_schedule=lineer(1,2,3)"], ["stddev_schedule=lineer(1,2,3)", "linear(init,final,duration)"]),
        (["task_name=cheeta_run"], ["task_name=cheeta_run", "nearest: cheetah_run", "env._target_"]),
        (["task=cheeta_run"], ["task=cheeta_run", "nearest: cheetah_run"]),
        (["task=easy"], ["task_name is not set: give task=NAME"]),
        (["task="], ["task=", "cheetah_run"]),
        (["task=null"], ["task=cheetah_run"]),
        (["taks=cheetah_run"], ["taks=cheetah_run", "nearest: task"]),
        (["preset=gpu"], ["preset=gpu", "cpu"]),
        (["batchsize=3"], ["batchsize=3", "nearest: batch_size"]),
        (["hidden_dim=3"], ["hidden_dim=3", "nearest: agent.hidden_dim"]),
        (["tau=0.1"], ["tau=0.1", "agent.critic_target_tau"]),
        (["agent.hiden_dim=3"], ["agent.hiden_dim=3", "agent.hidden_dim", "+agent.hiden_dim=3"]),
        (["+batchsize=3"], ["batchsize=3", "nearest: batch_size"]),
        (["+batch_size=3"], ["batch_size", "without the plus"]),
        (["+task=cheetah_run"], ["task=NAME", "without the plus"]),
        (["~batchsize"], ["~batchsize", "batch_size"]),
        (["~seed"], ["seed is missing"]),
        (["~task"], ["give task=NAME"]),
        (["batch_size"], ["batch_size", "key=value"]),
        (["batch_size=[1"], ["batch_size=[1", "whole number"]),
        (["experiment=a=b"], ["experiment=a=b", "experiment='...'"]),
        (["seed=1,2"], ["seed=1,2", "-m"]),
        (["seed=choice(1,2)"], ["seed=choice(1,2)", "-m"]),
        (["lr=${lrr}"], ["lrr", "nearest: lr"]),
        (["hydra.run.dir=${nowhere}"], ["hydra.run.dir", "nowhere"]),
        (["hydra.nothing=1"], ["hydra.nothing=1"]),
        (["hydra/launcher=nothing"], ["hydra/launcher=nothing", "basic"]),
        (["--bogus"], ["--bogus", "--help"]),
        (["--experimental-rerun", "x"], ["resume=RUN_DIR"]),
        (["-m", "--cfg", "job"], ["--cfg"]),
        (["-m", "seed=1,x"], ["seed=x", "whole number"]),
        (["-m", "seed=1", "task=walker_run,cheeta_run"], ["task=cheeta_run", "nearest: cheetah_run"]),
        (["-m", "batchsize=1,2"], ["batchsize=1", "nearest: batch_size"]),
        (["-m", "seed=interval(1,2)"], ["interval(...)", "seed=1,2,3"]),
        (["resume=nowhere"], ["resume=nowhere", "no such directory"]),
        (["resume="], ["resume=", "give a run directory"]),
        (["resume=latest"], ["resume=latest", "exp_local"]),
        (["resume=latest", "-m"], ["leave out -m"]),
        (["resume=x", "task=walker_run"], ["task=walker_run", "on resume"]),
        (["preset=cpu", "resume=x"], ["preset=cpu", "on resume"]),
        (["resume=x", "hydra.run.dir=y"], ["hydra.run.dir=y", "own directory"]),
        (["resume=x", "init_from=y"], ["init_from=y", "weights"]),
    ],
)
def test_mistakes(capsys, tmp_path, argv, said):
    message = refused(capsys, *argv)
    for part in said:
        assert part in message
    assert not (tmp_path / "exp_local").exists(), "a mistake leaves no run directory"


def test_last_job_of_a_sweep_is_checked_before_the_first_runs(capsys):
    assert "batch_size=0" in refused(capsys, "-m", "batch_size=256,0")


def test_resume_takes_the_run_s_own_configuration():
    _, first = start("task=walker_walk", "preset=debug", "seed=9", "lr=0.5")
    stored, before = (first / "config.yaml").read_bytes(), (first / ".hydra" / "overrides.yaml").read_bytes()
    cfg, again = start(f"resume={first}", "lr=0.25")
    assert again == first
    assert (cfg.task_name, cfg.seed, cfg.resume, cfg.lr, cfg.agent.lr) == ("walker_walk", 9, None, 0.25, 0.25)
    assert (first / "config.yaml").read_bytes() == stored
    assert (first / ".hydra" / "overrides.yaml").read_bytes() == before
    assert not list(first.glob("*.log"))


@pytest.mark.parametrize("name", ["a b", "a=b", "a,b", "it's", "{x}", 'say "so"', "ü", "a\\'b", "(1,2)", "100%"])
def test_resume_whatever_the_directory_s_name(name):
    _, first = start(f"hydra.run.dir={name}/run")
    assert first == Path(name).resolve() / "run"
    for given in (f"{name}/run", f"{name}/run/", f"{name}/run/snapshot.pt", first):
        assert start(f"resume={given}")[1] == first


def test_resume_of_a_quoted_path():
    _, first = start("hydra.run.dir='a, b/run'")
    assert start("resume='a, b/run'")[1] == first


def test_resume_latest_is_the_newest_snapshot(capsys):
    runs = [start(f"seed={seed}", f"hydra.run.dir=exp_local/{seed}/run")[1] for seed in (1, 2, 3)]
    for work_dir, time in zip(runs, (10, 30, 20), strict=True):
        os.utime(work_dir / "snapshot.pt", (time, time))
    assert start("resume=latest")[1] == runs[1]
    assert "resume=latest: exp_local/2/run" in capsys.readouterr().out
    (runs[1] / "snapshot.pt").unlink()
    assert start("resume=latest")[1] == runs[2]


def test_resume_of_something_else(capsys):
    _, first = start("hydra.run.dir=run")
    (first / "config.yaml").unlink()
    assert "no config.yaml in it" in refused(capsys, "resume=run")


def test_resume_of_a_run_that_ended_before_its_first_snapshot(capsys):
    _, first = start("hydra.run.dir=run", "seed=7")
    (first / "snapshot.pt").unlink()
    assert start("resume=run")[0].seed == 7
    assert "no snapshot yet: the run begins anew" in capsys.readouterr().out


def test_resume_from_the_older_snapshot(capsys):
    _, first = start("hydra.run.dir=run")
    (first / "snapshot.pt").rename(first / "snapshot_previous.pt")
    assert start("resume=run")[1] == first
    assert start("resume=run/snapshot_previous.pt")[1] == first
    assert "anew" not in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"a: [", b"\xff\xfe\x00", b"- 1", b"lr: ${", b"x: !!python/object:os.x {}"])
def test_resume_with_a_damaged_configuration(capsys, content):
    _, first = start("hydra.run.dir=run")
    (first / "config.yaml").write_bytes(content)
    assert refused(capsys, "resume=run")


@pytest.mark.parametrize("name", ["hydra", "defaults"])
def test_resume_with_a_configuration_that_could_run_code(capsys, tmp_path, name):
    _, first = start("hydra.run.dir=run")
    harm = {"callbacks": {"x": {"_target_": "os.mkdir", "path": str(tmp_path / "harm")}}}
    stored = OmegaConf.load(first / "config.yaml")
    OmegaConf.save(OmegaConf.merge(stored, {name: harm}), first / "config.yaml")
    assert "could run code" in refused(capsys, "resume=run")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("run_dir", ["file", "file/below", "/proc/nowhere/run"])
def test_a_run_directory_that_cannot_be_made(capsys, tmp_path, run_dir):
    (tmp_path / "file").touch()
    assert "Give another hydra.run.dir" in refused(capsys, f"hydra.run.dir={run_dir}")


def test_resume_checks_like_a_first_start(capsys):
    start("hydra.run.dir=run")
    assert "batch_size=0" in refused(capsys, "resume=run", "batch_size=0")
    assert "nearest: batch_size" in refused(capsys, "resume=run", "batchsize=1")


@pytest.mark.parametrize("again", [["resume=run"], ["hydra.run.dir=run", "init_from=old.pt"]])
def test_going_on_does_without_the_file_of_init_from(tmp_path, again):
    (tmp_path / "old.pt").write_bytes(b"")
    start("hydra.run.dir=run", "init_from=old.pt")
    (tmp_path / "old.pt").unlink()
    assert start(*again)[0].init_from is None


def test_beginning_anew_needs_the_file_of_init_from(tmp_path):
    (tmp_path / "old.pt").write_bytes(b"")
    _, first = start("hydra.run.dir=run", "init_from=old.pt")
    (first / "snapshot.pt").unlink()
    assert start("resume=run")[0].init_from.endswith("old.pt")


def test_a_sweep_goes_on_with_nothing(tmp_path):
    (tmp_path / "old.pt").write_bytes(b"")
    start("hydra.run.dir=run")
    start("-m", "hydra.run.dir=run", "seed=1,2", "init_from=old.pt")
    assert all(cfg.init_from == str(tmp_path / "old.pt") for cfg, _ in RUNS[-2:])


def test_same_run_dir_twice_goes_on_there():
    _, first = start("hydra.run.dir=run", "seed=1")
    before = (first / ".hydra" / "overrides.yaml").read_bytes()
    cfg, again = start("hydra.run.dir=run", "seed=2")
    assert (again, cfg.seed) == (first, 2)
    assert (first / ".hydra" / "overrides.yaml").read_bytes() == before


def test_how_it_ends(capsys):
    with pytest.raises(SystemExit) as end:
        start("experiment=mistake")
    assert end.value.code == 2
    assert capsys.readouterr().err == "error: a mistake: this is how to mend it\n"

    with pytest.raises(SystemExit) as end:
        start("experiment=interrupt", "hydra.run.dir=my run")
    assert end.value.code == 130
    assert "'resume=my run'" in capsys.readouterr().err

    with pytest.raises(RuntimeError, match="a fault"):
        start("experiment=fault")

    with pytest.raises(SystemExit) as end:
        start("-m", "seed=1,2", "experiment=fault")
    assert end.value.code == "2 of the jobs failed; see above"
    assert capsys.readouterr().err.count("RuntimeError: a fault") == 2


def test_environment_is_left_as_it_was(capsys, monkeypatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    argv = sys.argv[:]
    refused(capsys, "batchsize=3")
    refused(capsys, "hydra.run.dir=${nowhere}")
    start("seed=2")
    assert "HYDRA_FULL_ERROR" not in os.environ
    assert sys.argv == argv


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(capsys, flag):
    launch(run, CFGS, argv=[flag, "batch_size=0"])
    text = capsys.readouterr().out
    assert "batch_size" in text
    assert "cheetah_run" in text
    assert not RUNS


def test_hydra_s_own_options_still_work(capsys):
    launch(run, CFGS, argv=["--cfg", "job", "batch_size=0"])
    assert "batch_size: 0" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        launch(run, CFGS, argv=["--hydra-help"])
    assert end.value.code == 0
    assert not RUNS


def test_tab_completes_keys_and_tasks():
    line = "python train.py task=cartpole_b"
    env = {**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))}
    command = [sys.executable, str(ROOT / "train.py"), "-sc", "query=bash"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["task=cartpole_balance", "task=cartpole_balance_sparse"]


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("launcher=joblib", "sweep"),
        ("launcher=slurm", "cluster"),
        ("launcher=ray", "cluster"),
        ("sweeper=search", "sweep"),
    ],
)
def test_plugins_that_are_not_installed(capsys, monkeypatch, name, extra):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    for loaded in [loaded for loaded in sys.modules if loaded.startswith("hydra_plugins")]:
        monkeypatch.delitem(sys.modules, loaded)
    assert f"pip install -e '.[{extra}]'" in refused(capsys, "-m", f"hydra/{name}", "seed=1,2")


def test_settings_of_a_launcher_are_shown(capsys):
    launch(run, CFGS, argv=["hydra/launcher=slurm", "--cfg", "hydra", "-p", "hydra.launcher"])
    assert "timeout_min: 1440" in capsys.readouterr().out


def test_a_sweep_s_paths_are_found_from_elsewhere(tmp_path):
    start("-m", "seed=1,2", "hydra.sweep.dir=here")
    assert [work_dir.parent for _, work_dir in RUNS] == [tmp_path / "here"] * 2


@pytest.mark.parametrize("name", ["launcher=joblib", "launcher=slurm", "launcher=ray", "sweeper=search"])
def test_plugins_are_for_several_runs(capsys, name):
    assert "several runs, which need -m" in refused(capsys, f"hydra/{name}")


SCRIPT = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from drqv2.launch.command_line import launch

def main(cfg, work_dir):
    (work_dir / "snapshot.pt").touch()
    if cfg.experiment == "fault":
        raise RuntimeError("a fault")
    print("running", flush=True)
    if cfg.experiment == "sleep":
        time.sleep(60)

if __name__ == "__main__":
    launch(main, {str(CFGS)!r})
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


def test_process_that_runs(script):
    done = subprocess.run([*script, "seed=5"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "running\n", "")


@pytest.mark.parametrize("argv", [["task=cheeta_run"], ["batchsize=1"], ["batch_size=0"], ["-m", "seed=1,x"]])
def test_process_after_a_mistake(script, argv):
    done = subprocess.run([*script, *argv], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) <= 2


def test_process_after_a_fault(script):
    done = subprocess.run([*script, "experiment=fault"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: a fault")
    assert "site-packages/hydra" not in done.stderr


def test_process_that_is_interrupted(script):
    process = subprocess.Popen(
        [*script, "experiment=sleep"],
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
    assert "resume with: python " in err
    assert "resume=exp_local/" in err
    assert "Traceback" not in err


def test_relative_config_dir_is_taken_from_the_script(tmp_path):
    (tmp_path / "cfgs").symlink_to(CFGS)
    (tmp_path / "there").mkdir()
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace(repr(str(CFGS)), "'cfgs'"))
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path / "there", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "running\n")
