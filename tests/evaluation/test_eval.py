"""eval.py: the table, the video, other tasks and snapshots, and what it says when something is wrong."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import eval as evaluation  # the script; the built-in stays what it is
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.errors import UserError
from drqv2.logging import overlay
from drqv2.run import environments, factory
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.transfer import export
from drqv2.system import machine

SMALL = ("render_size=32",)
DM_CONTROL = {"_target_": None}
AGENT = "drqv2.agents.drqv2.DrQV2Agent"


@pytest.fixture
def trained(reference: Path, tmp_path: Path) -> Path:
    """A copy of the shared run, without its logs and videos."""
    return Path(shutil.copytree(reference, tmp_path / "trained", ignore=shutil.ignore_patterns("tb", "*_video")))


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> list[str]:
    evaluation.main([str(word) for word in argv])
    return capsys.readouterr().out.splitlines()


def refusal(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Return the message about a mistake: one or two lines, and exit code 2."""
    with pytest.raises(SystemExit) as leaving:
        evaluation.main([str(word) for word in argv])
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2
    return err


def rewritten(
    source: Path, target: Path, change: dict[str, Any], lost: str | None = None, more: dict[str, Tensor] | None = None
) -> Path:
    """Write a file of weights anew: its configuration changed, without tensors `lost...`, with `more` of them."""
    with safe_open(source, framework="pt") as f:
        about = f.metadata()
        tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)
    config: Any = json.loads(about["config"])
    config |= {key: config[key] | value if key == "agent" else value for key, value in change.items()}
    kept = {name: value for name, value in tensors.items() if lost is None or not name.startswith(lost)}
    save_file(kept | (more or {}), target, about | {"config": json.dumps(config)})
    return target


def on_the_cpu(**arguments: Any) -> DrQV2Agent:
    """Return an agent; takes no device."""
    if "device" in arguments:
        raise TypeError("takes no device")
    return DrQV2Agent(device="cpu", **arguments)


def several_tasks(task_name: str) -> None:
    """Stand for an environment's factory that is told the task."""


def returns(lines: list[str]) -> list[str]:
    return [words[1] for line in lines if (words := line.split()) and words[0].isdigit()]


def test_table_and_video(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, trained, "episodes=3", "film=0,2", f"out={tmp_path}", *SMALL)
    assert "frame 480, 3 episodes, seed 1" in lines[0]
    about = json.loads((tmp_path / "snapshot_480_cartpole_balance_sparse.json").read_text())
    assert returns(lines) == [f"{value:.1f}" for value in about["returns"]]
    assert float(next(line for line in lines if "mean" in line).split()[1]) == pytest.approx(
        np.mean(about["returns"]), abs=0.06
    )
    assert float(next(line for line in lines if "minimum" in line).split()[1]) == pytest.approx(
        min(about["returns"]), abs=0.06
    )
    frames = np.stack(list(iio.imiter(tmp_path / "snapshot_480_cartpole_balance_sparse.mp4", plugin="FFMPEG")))
    assert frames.shape == (31, 32, 64, 3)  # 30 agent steps, two pictures side by side


@pytest.mark.slow
def test_any_number_of_environments_plays_the_same_episodes(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (said(capsys, trained, "episodes=4", "film=none", f"num_envs={n}", f"out={tmp_path}") for n in (1, 2))
    assert one == two
    assert len(set(returns(one))) > 1
    other = said(capsys, trained, "episodes=4", "film=none", "seed=5", f"out={tmp_path}")
    assert returns(other) != returns(one)


@pytest.mark.slow
def test_snapshot_export_and_milestone_play_alike(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = tmp_path / "policy.safetensors"
    export(trained, exported)
    capsys.readouterr()
    quiet = ("episodes=2", "film=none", f"out={tmp_path}")
    newest = returns(said(capsys, trained, *quiet))
    for file in (exported, trained / "snapshot.pt"):
        assert returns(said(capsys, file, "trust=true", *quiet)) == newest
    assert returns(said(capsys, trained, "snapshot=weights_480.pt", *quiet)) == newest
    assert returns(said(capsys, trained, "snapshot=weights_0.pt", *quiet)) != newest


def test_the_snapshot_before_a_damaged_one(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = trained
    (run_dir / "snapshot_previous.pt").write_bytes((run_dir / "snapshot.pt").read_bytes())
    (run_dir / "snapshot.pt").write_bytes(b"not much")
    (line, *_) = [line for line in said(capsys, run_dir, "episodes=1", "film=none") if ", frame " in line]
    assert "snapshot_previous.pt" in line
    (run_dir / "snapshot_previous.pt").unlink()
    assert "snapshot.pt" in refusal(capsys, run_dir, "episodes=1", "film=none")
    snapshot.save(run_dir / "snapshot.pt", {"frame": 1, "config": {}})
    assert "no agent" in refusal(capsys, run_dir / "snapshot.pt", "episodes=1", "film=none")


@pytest.mark.slow
def test_the_best_episode_is_filmed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    filmed: list[tuple[int, float]] = []
    label = overlay.label

    def note(picture: np.ndarray, episode: int, total: float, step: int, action: np.ndarray) -> np.ndarray:
        filmed.append((episode, total))
        return label(picture, episode, total, step, action)

    monkeypatch.setattr(overlay, "label", note)
    for which, pick in (("best", max), ("worst", min)):
        filmed.clear()
        said(capsys, trained, "episodes=3", f"film={which}", f"out={tmp_path}", *SMALL)
        values = json.loads((tmp_path / "snapshot_480_cartpole_balance_sparse.json").read_text())["returns"]
        assert filmed[-1][1] == pytest.approx(pick(values))  # filmed, it plays as it did unseen
        assert {episode for episode, _ in filmed} == {values.index(pick(values))}


def test_untrusted_file_runs_no_code(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code that a file from outside the run names, wherever in its agent or environment: only with trust=true."""
    exported = tmp_path / "policy.safetensors"
    export(trained, exported)
    ran = tmp_path / "ran"
    make = {"_target_": "pathlib.Path.touch", "self": {"_target_": "pathlib.Path", "_args_": [str(ran)]}}
    hidden = "${oc.decode:'{_target_: pathlib.Path.cwd}'}"
    own = {"env": DM_CONTROL}
    module = "drqv2.agents.drqv2.torch.os.system"  # a name of the project's that leads out of it
    changes: list[tuple[dict[str, Any], str]] = [
        ({}, "env._target_=tests.short_env.make"),
        (own | {"agent": {"_target_": module}}, f"agent._target_={module}"),
        (own | {"agent": {"zzz": make}}, "agent.zzz._target_=pathlib.Path.touch"),
        (own | {"agent": {"zzz": [{"a": make}]}}, "agent.zzz.0.a._target_=pathlib.Path.touch"),
        (own | {"agent": {"zzz": hidden}}, "agent.zzz="),
        ({"env": {"_target_": None, "zzz": make}}, "env.zzz._target_=pathlib.Path.touch"),
        (own | {"agent_dir": str(tmp_path)}, f"agent_dir={str(tmp_path)[:50]}"),
    ]
    for change, told in changes:
        foreign = rewritten(exported, tmp_path / "foreign.safetensors", change)
        for words in ([foreign], [trained, f"snapshot={foreign}"]):
            err = refusal(capsys, *words, "episodes=1", "film=none", f"out={tmp_path}")
            assert told in err
            assert "trust=true" in err
    assert not ran.exists()


@pytest.mark.slow
def test_weights_from_outside_that_name_no_code_are_played(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = tmp_path / "policy.safetensors"
    export(trained, exported)
    change = {"task_name": "cartpole_balance", "env": DM_CONTROL, "action_repeat": 50}
    own = rewritten(exported, tmp_path / "own.safetensors", change)
    words = ("episodes=1", "film=none", f"out={tmp_path}")
    assert said(capsys, own, *words)[-1] == said(capsys, trained, f"snapshot={own}", *words)[-1]


def test_incomplete_weights_are_not_played(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported = tmp_path / "policy.safetensors"
    export(trained, exported)
    words = ("episodes=1", "film=none", "trust=true", f"out={tmp_path}")
    for lost, told in (("actor.", "of actor (actor."), ("encoder.convnet.0.bias", "of encoder ("), ("", "of actor, ")):
        part = rewritten(exported, tmp_path / "part.safetensors", {}, lost=lost)
        assert told in refusal(capsys, part, *words)
    saved = snapshot.load(trained / "weights_480.pt")
    del saved["version"], saved["agent"]["encoder.convnet.0.weight"]
    snapshot.save(tmp_path / "snapshot.pt", saved)
    assert "of encoder (" in refusal(capsys, tmp_path / "snapshot.pt", *words)
    more = rewritten(exported, tmp_path / "more.safetensors", {}, more={"actor.x": torch.zeros(1)})
    with pytest.warns(UserWarning, match=r"no counterpart: actor\.x"):
        assert returns(said(capsys, more, *words)) == returns(said(capsys, exported, *words))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"x": 1}, "contains no configuration of a run"),
        ([1], "contains no configuration of a run"),
        ({"agent": {"_target_": "a.b"}, "env": None}, "contains no configuration of a run"),
        ({"agent": {"_target_": None}, "env": {}}, "env={}: must contain _target_"),
        ({"agent": {"_target_": None}, "env": DM_CONTROL}, "task_name is not set"),
        ({"agent": {"_target_": "a.b", "x": "${"}, "env": DM_CONTROL}, "cannot be read"),
        ({"agent": {"_target_": None}, "env": DM_CONTROL, "task_name": "cup_catch"}, "agent._target_=null"),
        ({"agent": {"_target_": AGENT}, "env": DM_CONTROL, "task_name": "cup_catch"}, "is missing"),
    ],
)
def test_invalid_configurations(tmp_path: Path, capsys: pytest.CaptureFixture[str], config: Any, told: str) -> None:
    odd = tmp_path / "odd.safetensors"
    save_file({"actor.x": torch.zeros(1)}, odd, {"frame": "0", "config": json.dumps(config)})
    assert told in refusal(capsys, odd, "episodes=1", "film=none")


def test_a_task_for_a_run_with_its_own_environment(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("episodes=1", "film=none", f"out={tmp_path}")
    assert "env._target_=tests.short_env.make, takes no task_name" in refusal(capsys, trained, *words, "task=mine")
    asked: list[tuple[str, Any]] = []

    def make_envs(cfg: Any, *_: Any) -> Any:
        asked.append((cfg.task_name, cfg.env._target_))
        raise UserError("seen")

    monkeypatch.setattr(evaluation, "make_envs", make_envs)
    exported, many = tmp_path / "policy.safetensors", tmp_path / "many.safetensors"
    export(trained, exported)
    rewritten(exported, many, {"env": {"_target_": "tests.evaluation.test_eval.several_tasks"}})
    refusal(capsys, many, *words, "trust=true", "task=mine")
    assert asked == [("mine", "tests.evaluation.test_eval.several_tasks")]


def test_a_long_episode_is_told_of_with_the_key_of_this_program(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "LONG_EPISODE", 5)
    said(capsys, trained, "episodes=1", "film=none", f"out={tmp_path}")
    assert "To truncate episodes, stop this program and start it with max_episode_steps=N." in caplog.text
    assert "resume" not in caplog.text


def test_an_agent_without_a_device(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = snapshot.load(trained / "snapshot.pt")
    saved["config"]["agent"] |= {"_target_": "tests.evaluation.test_eval.on_the_cpu"}
    del saved["config"]["agent"]["device"], saved["version"]
    snapshot.save(tmp_path / "snapshot.pt", saved)
    lines = said(capsys, tmp_path, "episodes=1", "film=none", "device=cpu")
    assert returns(lines) == returns(said(capsys, trained, "episodes=1", "film=none", f"out={tmp_path}"))


def test_a_snapshot_of_a_gpu_plays_on_a_cpu(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = snapshot.load(trained / "snapshot.pt")
    saved["config"] |= {"device": "cuda", "compile": True, "agent": saved["config"]["agent"] | {"device": "cuda"}}
    del saved["config"]["console"]  # a key that an older version did not have
    snapshot.save(tmp_path / "snapshot.pt", {k: v for k, v in saved.items() if k != "version"})
    lines = said(capsys, tmp_path, "episodes=1", "film=none", "device=cpu")
    assert returns(lines) == returns(said(capsys, trained, "episodes=1", "film=none", f"out={tmp_path}"))


@pytest.mark.parametrize(
    ("cpu", "precision", "played"), [("slow", "bf16", "fp32"), ("fast", "bf16", "bf16"), ("fast", "fp32", "fp32")]
)
def test_only_bf16_is_resolved_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: str, precision: str, played: str
) -> None:
    saved = snapshot.load(trained / "snapshot.pt")
    saved["config"]["precision"] = precision
    snapshot.save(tmp_path / "snapshot.pt", {k: v for k, v in saved.items() if k != "version"})
    monkeypatch.setattr(machine, "processor", lambda: ("CPU", cpu))
    made, make_agent = [], factory.make_agent

    def noted(cfg: Any, *rest: Any) -> Any:
        made.append(cfg.precision)
        return make_agent(cfg, *rest)

    monkeypatch.setattr(factory, "make_agent", noted)
    evaluation.main([str(tmp_path), "episodes=1", "film=none", "device=cpu"])
    assert made == [played]


def test_newest_milestone_without_a_snapshot(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in trained.glob("weights_*.pt"):
        shutil.copy(path, tmp_path)
    assert "weights_480.pt, frame 480" in said(capsys, tmp_path, "episodes=1", "film=none")[0]


def test_label_and_grid() -> None:
    picture = np.full((64, 64, 3), 200, np.uint8)
    labelled = overlay.label(picture, 3, 12.5, 7, np.array([1.0, -1.0]))
    assert labelled.shape == picture.shape
    assert (picture == 200).all()
    assert (labelled[20:50] == 200).all()  # the middle is left alone
    above, below = labelled[-10:-7], labelled[-4:-1]
    assert above[:, :32].mean() > below[:, :32].mean()  # the first bar goes up,
    assert above[:, 32:].mean() < below[:, 32:].mean()  # the second down
    sheet = overlay.grid([np.full((4, 6, 3), i, np.uint8) for i in (1, 2, 3)])
    assert sheet.shape == (8, 12, 3)
    assert [sheet[0, 0, 0], sheet[0, 6, 0], sheet[4, 0, 0], sheet[4, 6, 0]] == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give one run directory"),
        (["nowhere"], "no such run directory"),
        (["policy.onnx"], "an exported policy; python -m drqv2.play policy.onnx plays it"),
        (["RUN", "episode=3"], "nearest: episodes"),
        (["RUN", "episodes=0"], "episodes=0: must be"),
        (["RUN", "episodes=1e30"], "100000"),
        (["RUN", "fps=1e-9"], "0.1"),
        (["RUN", "out=RUN/snapshot.pt/below"], "cannot be written"),
        (["RUN", "film=7", "episodes=3"], "from 0 to 2"),
        (["RUN", "film=all"], "best, worst, none"),
        (["RUN", "snapshot=weights_7.pt"], "snapshot.pt, "),
        (["RUN", "render_size=33"], "render_size=33: must be"),
        (["RUN", "seed=-1"], "seed=-1: must be"),
        (["EMPTY"], "no snapshot"),
        (["EMPTY", "snapshot=snapshot.pt"], "none"),
        (["RUN/train.csv"], "Give a run's snapshot.pt or weights_FRAME.pt"),
        (["EPISODE"], "not written by python -m drqv2.snapshot export (it contains no config)"),
        (["RUN", "live=true"], "there is no display here"),
        (["RUN", "live=true", "film=none"], "nothing to show"),
        (["RUN", "out=RUN/train.csv"], "cannot be written"),
        (["RUN", "camera=9"], "camera=9"),
        (["RUN", "cameras=[0,9]"], "camera=9"),
        (["RUN", "cameras=[]"], "cameras=[]: must be a list of different cameras"),
        (["RUN", "cameras=[1,0,1]"], "cameras=['1','0','1']: 1 is listed more than once"),
        (["RUN", "cameras=[0,1]", "camera=0"], "camera and cameras: give only one of them"),
        (["RUN", "camera=²"], "camera='²'"),
        (["RUN", "camera=--1"], "camera='--1'"),
    ],
)
def test_user_errors(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    episode = str(min((trained / "buffer").glob("*.safetensors")))
    places = {"RUN": str(trained), "EMPTY": str(tmp_path), "EPISODE": episode}
    words = [re.sub("[A-Z]+", lambda word: places[word[0]], word) for word in words]
    assert told in refusal(capsys, *words)


@pytest.mark.slow
def test_several_cameras(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each episode's pictures are side by side, under one line of text."""
    common = (trained, "episodes=1", "render_size=64", f"out={tmp_path}", "film=0")
    videos = {}
    for camera in ("camera=0", "camera=1", "cameras=[0,lookatcart]"):
        said(capsys, *common, camera)
        (path,) = tmp_path.glob("*.mp4")
        videos[camera] = iio.imread(path, plugin="FFMPEG").astype(int)
    assert videos["cameras=[0,lookatcart]"].shape == (len(videos["camera=0"]), 64, 128, 3)
    for place, (same, other) in enumerate((("camera=0", "camera=1"), ("camera=1", "camera=0"))):
        shown = videos["cameras=[0,lookatcart]"][:, 24:48, 64 * place :][:, :, 8:56]  # without text and bars
        near, far = (np.abs(shown - videos[camera][:, 24:48, 8:56]).mean() for camera in (same, other))
        assert near < far / 2


@pytest.mark.slow
def test_another_task_and_camera(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cartpole policy plays another cartpole task, filmed from another side; a walker's shapes do not fit."""
    import train
    from drqv2.launch.command_line import launch

    small = "preset=debug num_train_frames=200 num_seed_frames=400 eval_every_frames=200 save_video=false".split()
    small.append("+env.time_limit=2")  # seconds: episodes of 200 frames
    launch(train.main, "cfgs", argv=[*small, f"hydra.run.dir={tmp_path / 'run'}", "action_repeat=8", "camera=1"])
    capsys.readouterr()
    common = (tmp_path / "run", "episodes=1", "render_size=64", f"out={tmp_path}")
    lines = said(capsys, *common, "task=cartpole_balance", "film=0")
    assert lines[0].startswith("cartpole_balance: ")
    videos = {}
    for camera in ("null", "0", "fixed", "lookatcart"):
        said(capsys, *common, "film=0", f"camera={camera}")
        videos[camera] = iio.imread(tmp_path / "snapshot_200_cartpole_balance_sparse.mp4", plugin="FFMPEG")
    assert np.array_equal(videos["0"], videos["fixed"])
    assert not np.array_equal(videos["0"], videos["lookatcart"])
    assert np.array_equal(videos["null"], videos["lookatcart"]), "the run's own"
    for words, told in (
        (["task=walker_walk"], "has shape [1] in the file and [6] in the agent"),
        (["task=cartpole_balanc"], "task_name=cartpole_balanc: there is no such task; nearest: cartpole_balance"),
        (["camera=9"], "camera=9"),
        (["task=x"], "x"),
    ):
        with pytest.raises(SystemExit) as leaving:
            evaluation.main([str(word) for word in (*common, "film=0", *words)])
        assert leaving.value.code == 2
        assert told in capsys.readouterr().err
