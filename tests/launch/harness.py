"""Command lines that are run within the test's process, with a run that ends at once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from drqv2.config.cfgs import CFGS
from drqv2.config.schema import offer
from drqv2.errors import UserError
from drqv2.launch.command_line import launch

RUNS: list[tuple[DictConfig, Path]] = []


def run(cfg: DictConfig, work_dir: Path) -> float:
    """Write what a real run leaves behind, and end at once; a search is to find lr=3e-4."""
    RUNS.append((cfg, work_dir))
    if not (work_dir / "config.yaml").exists():
        OmegaConf.save(cfg, work_dir / "config.yaml")
    (work_dir / "snapshot.pt").write_bytes(b"")
    match cfg.experiment:
        case "mistake":
            raise UserError("a mistake: this is how to fix it")
        case "interrupt":
            raise KeyboardInterrupt
        case "bug":
            raise RuntimeError("a bug")
        case "full":
            raise OSError(28, "No space left on device", "file")
        case "search" if len(RUNS) == 1:
            raise UserError("the first trial fails")
    return float(cfg.get("lr", 0.0))


def start(*argv: str, config_dir: Path = CFGS) -> tuple[DictConfig, Path]:
    launch(run, config_dir, argv=argv)
    return RUNS[-1]


@cache
def _defaults() -> str:
    offer()
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        return OmegaConf.to_yaml(compose("config"))


def stored(run_dir: str) -> Path:
    """Write what a run with the default settings leaves behind; return its directory."""
    path = Path(run_dir).absolute()
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(_defaults())
    (path / "snapshot.pt").touch()
    return path


def refused(capsys, *argv: str, config_dir: Path = CFGS) -> str:
    before = len(RUNS)
    with pytest.raises(SystemExit) as end:
        launch(run, config_dir, argv=argv)
    assert end.value.code == 2
    assert len(RUNS) == before
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert len(message.splitlines()) <= 2
    return message
