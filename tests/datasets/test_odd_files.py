"""Each odd data set has its right outcome, and `check` and the start of a run agree on it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import train
from drqv2.datasets import __main__ as tool
from drqv2.datasets.learnable import Findings, learnable
from drqv2.datasets.options import ReadOptions
from drqv2.errors import UserError
from tests.datasets.odd_files import ODD, Expected, Odd
from tests.short_run import OFFLINE

pytest.importorskip("h5py")
pytest.importorskip("minari")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")  # on what the metadata lacks
Written = tuple[Odd, str, Expected]


@pytest.fixture(params=ODD)
def written(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """An odd data set, its place, and the arrays that its episodes must have."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    odd, folder = ODD[request.param], tmp_path / request.param
    folder.mkdir()
    return odd, odd.place(folder), odd.make(folder) or []


@pytest.fixture(scope="module")
def short_run() -> Any:
    small = "eval_every_frames=null num_train_frames=2 log_every_frames=2 save_snapshot=false agent.hidden_dim=8"
    return train.compose(*OFFLINE, *small.split(), data="DIR")


def test_an_odd_data_set(written: Written, short_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd, place, expected = written
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said: list[str] = []
    findings = Findings()
    episodes: list[Any] = []
    refused = ""
    try:
        episodes += learnable(place, findings, options=ReadOptions(**odd.keys), announce=said.append)
    except UserError as error:
        refused = str(error)
    refused = "\n".join([refused, *findings.lines])

    if odd.refused:
        assert odd.refused in refused
    else:
        assert not refused.strip()
        assert len(episodes) == len(expected)
        for episode, arrays in zip(episodes, expected, strict=True):
            for name, array in arrays.items():
                assert episode.arrays[name].dtype == array.dtype
                np.testing.assert_allclose(episode.arrays[name], array, rtol=1e-6, err_msg=name)
    if not odd.refused:
        assert len(said) == len(odd.said), said  # each once, and nothing else
        for line, part in zip(sorted(said), sorted(odd.said), strict=True):
            assert line.startswith(f"{place}: {part}")

    verdicts = check(place, odd.keys, capsys), start(place, odd.keys, short_run, tmp_path)
    assert verdicts == (bool(odd.refused), bool(odd.refused))
    assert all(path.read_bytes() == content for path, content in before.items())


def check(place: str, keys: Mapping[str, Any], capsys: pytest.CaptureFixture[str]) -> bool:
    """Return whether `python -m drqv2.datasets check` refuses a data set."""
    values = {
        key: f"[{','.join(value)}]" if isinstance(value, list) else str(value).lower() for key, value in keys.items()
    }
    try:
        tool.main(["check", place, *(f"{key}={value}" for key, value in values.items())])
    except SystemExit as leaving:
        code = leaving.code
    else:
        return False
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err
    return True


def start(place: str, keys: Mapping[str, Any], short_run: Any, folder: Path) -> bool:
    """Return whether a run refuses a data set; one that does not learns from it."""
    cfg = copy.deepcopy(short_run)
    for key, value in {"data": place, **keys}.items():
        OmegaConf.update(cfg, key, value, force_add=True)
    try:
        with train.make_workspace(cfg, folder / "run") as workspace:
            workspace.train()
    except UserError:
        return True
    return False


def test_there_are_many() -> None:
    assert len(ODD) >= 40
    assert sum(not odd.refused for odd in ODD.values()) >= 20
