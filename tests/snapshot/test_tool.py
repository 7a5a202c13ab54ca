"""`python -m drqv2.snapshot`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import load_file

import train
from drqv2.launch.command_line import launch
from drqv2.nn.networks import Actor, Critic, Encoder
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.__main__ import main
from drqv2.snapshot.inspection import fingerprint
from tests.short_run import SHORT, run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("tool") / "run", "num_train_frames=240")


def said(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    if code == 0:
        main([str(a) for a in argv])
        return capsys.readouterr().out
    with pytest.raises(SystemExit) as leaving:
        main([str(a) for a in argv])
    assert leaving.value.code == code
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    return err


@pytest.mark.slow
def test_a_whole_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    text = said(capsys, finished)
    assert "snapshot.pt: intact, frame 240, parameters sha256 " in text
    assert "snapshot_previous.pt: intact, frame 240" in text
    assert re.findall(r"weights_(\d+)\.pt: intact, frame \1,", text) == ["0", "60", "120", "180", "240"]
    assert "4 episodes" in text
    assert "train.csv: 4 rows in the snapshot" in text
    assert "DAMAGED" not in text
    assert "MISSING" not in text
    assert before == {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    assert said(capsys, "inspect", finished) == text


def test_an_agent_with_a_state_of_its_own(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = snapshot.load(finished / "snapshot.pt")
    snapshot.save(tmp_path / "snapshot.pt", state | {"agent": {"kind": "stateful", "value": state["agent"]}})
    shutil.copytree(finished / "buffer", tmp_path / "buffer")
    text = said(capsys, tmp_path)
    assert "snapshot.pt: intact, frame 240, parameters sha256 " in text
    assert "4 episodes" in text
    assert "its own state_dict" in said(capsys, "export", tmp_path, tmp_path / "out.safetensors", code=2)


def test_runs_without_a_replay(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = snapshot.load(finished / "snapshot.pt")
    snapshot.save(tmp_path / "snapshot.pt", state)
    text = said(capsys, tmp_path)  # keep_replay=false has deleted it
    assert re.search(r"replay: .*\n  deleted\n", text)
    assert "MISSING" not in text
    del state["replay_storage"]  # as of regime=ppo
    snapshot.save(tmp_path / "snapshot.pt", state)
    text = said(capsys, tmp_path)
    assert "replay" not in text
    assert "train.csv: 4 rows in the snapshot" in text


def test_damage_is_reported(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(finished, tmp_path / "run")
    run_dir = tmp_path / "run"
    (run_dir / "snapshot_previous.pt").write_bytes(b"nonsense")
    first, second, *_ = sorted((run_dir / "buffer").iterdir())
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    second.unlink()
    (run_dir / "train.csv").write_text("frame\n1\n")
    text = said(capsys, run_dir)
    assert "snapshot_previous.pt: DAMAGED" in text
    assert f"DAMAGED {first.name}" in text
    assert f"MISSING {second.name}" in text
    assert "train.csv: 4 rows in the snapshot" in text
    assert text.count("; the file is DAMAGED") == 1


def test_export(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    said(capsys, "export", finished, out)
    tensors = load_file(out)
    agent = snapshot.load(finished / "snapshot.pt")["agent"]["children"]
    assert torch.equal(tensors["encoder.convnet.0.weight"], agent["encoder"]["value"]["convnet.0.weight"])
    assert {name.partition(".")[0] for name in tensors} == {"encoder", "actor", "critic", "critic_target"}
    with safe_open(out, framework="pt") as f:
        assert f.metadata()["frame"] == "240"
    said(capsys, "export", finished / "weights_60.pt", tmp_path / "milestone.safetensors")


@pytest.mark.parametrize("flat", [True, False])
def test_public_weights_begin_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flat: bool
) -> None:
    torch.manual_seed(5)
    encoder = Encoder((9, 32, 32))
    heads = (encoder.repr_dim, (1,), 8, 32)
    parts = {"encoder": encoder, "actor": Actor(*heads), "critic": Critic(*heads)}
    plain = {name: part.state_dict() for name, part in parts.items()}
    if flat:
        torch.save({f"{name}.{key}": v for name, sd in plain.items() for key, v in sd.items()}, tmp_path / "public.pt")
    else:
        torch.save(plain, tmp_path / "public.pt")
    assert "init_from=" in said(capsys, "import", tmp_path / "public.pt", tmp_path / "ours.pt")
    monkeypatch.chdir(tmp_path)
    launch(train.main, "cfgs", argv=[*SHORT, "hydra.run.dir=run", "init_from=ours.pt", "num_train_frames=60"])
    assert OmegaConf.load("run/config.yaml").init_from == str(tmp_path / "ours.pt")  # found from anywhere
    agent = snapshot.load(tmp_path / "run" / "snapshot.pt")["agent"]["children"]
    for name in ("encoder", "actor", "critic"):
        assert fingerprint(agent[name]["value"]) == fingerprint(dict(plain[name]))  # no update in 60 frames
    assert fingerprint(agent["critic_target"]["value"]) == fingerprint(dict(plain["critic"]))


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("-h", "--help"):
        told = said(capsys, option)
        for words in ("snapshot RUN_DIR ", " export RUN_DIR ", " import weights.pt ", "torch.save({name: ", "  out "):
            assert words in told


@pytest.mark.parametrize("words", [["FILE"], ["--out", "FILE"], ["--out=FILE"], ["out=FILE"]])
def test_ways_to_name_the_file_to_write(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    target = tmp_path / "out.safetensors"
    said(capsys, "export", finished, *(word.replace("FILE", str(target)) for word in words))
    assert target.is_file()


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "contains no snapshot" in said(capsys, tmp_path, code=2)
    assert "cannot be read" in said(capsys, "export", tmp_path / "no.pt", tmp_path / "out", code=2)
    for words in ([], ["inspect"], ["export", "no.pt"], ["export", "a", "b", "c"], ["expor", "RUN_DIR", "b"]):
        assert f"; got {' '.join(words) or 'nothing'} (see --help)\n" in said(capsys, *words, code=2)
    assert "--x=3: there is no such key (see --help)" in said(capsys, "RUN_DIR", "--x=3", code=2)
    assert "cannot be read" in said(capsys, "import", tmp_path / "no.pt", tmp_path / "out", code=2)
    torch.save({"encoder": {"x": torch.zeros(1)}}, tmp_path / "part.pt")
    assert "must hold encoder, actor and critic" in said(capsys, "import", tmp_path / "part.pt", tmp_path / "o", code=2)
    torch.save({"agent": Encoder((9, 32, 32))}, tmp_path / "pickled.pt")
    assert "could run any code" in said(capsys, "import", tmp_path / "pickled.pt", tmp_path / "o", code=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part.pt", "pickled.pt"]
