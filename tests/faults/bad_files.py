"""Damage to the files of a run that has ended, and what becomes of it when it is resumed."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import train
from drqv2.launch.command_line import launch
from tests.faults.harness import SHORT, differences

LONGER = "num_train_frames=600"
KINDS = (
    "snapshot.pt snapshot_previous.pt weights_*.pt buffer/*.safetensors train.csv eval.csv metrics.jsonl starts.jsonl "
    "config.yaml lock tb/* eval_video/*.mp4"
).split()


def resume(run_dir: Path, *overrides: str, by_directory: bool = False) -> tuple[int, str]:
    """Resume a run in this process; return its exit code and all that it says.

    Args:
        run_dir: where the run is.
        overrides: keys given beside its length.
        by_directory: by the run's own config.yaml, or else by the overrides that it was started with.
    """
    start = [f"resume={run_dir}"] if by_directory else [*SHORT, f"hydra.run.dir={run_dir}"]
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("always")
            launch(train.main, "cfgs", argv=[*start, LONGER, *overrides])
    except SystemExit as leaving:
        return int(leaving.code or 0), said.getvalue()
    finally:
        logging.getLogger().removeHandler(handler)
    return 0, said.getvalue()


def damage(path: Path, rng: random.Random) -> str:
    """Cut a file short, or turn over one of its bits; return what was done."""
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data)) if data else 0
    if rng.random() < 0.5:
        path.write_bytes(data[:place])
        return f"{path.name} cut at {place} of {len(data)}"
    if data:
        data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"{path.name} flipped at {place} of {len(data)}"


def trial(whole: Path, longer: Path, folder: Path, rng: random.Random, kinds: Sequence[str] = KINDS) -> tuple[str, str]:
    """Damage one file of a copy of the run `whole` and resume it; return what was done and what became of it.

    Args:
        whole: a run that has ended.
        longer: the same run resumed, nothing damaged.
        folder: where the copy goes.
        rng: chooses file, place and damage.
        kinds: patterns of the files to choose from.

    Returns:
        What was done, and: "harmless" (all is as in `longer`), "told" (the damage was said, nothing else is lost),
        or what is wrong.
    """
    shutil.copytree(whole, folder)
    pattern = rng.choice(kinds)
    path = rng.choice(sorted(folder.glob(pattern)))
    done = damage(path, rng)
    code, said = resume(folder, by_directory=path.name == "config.yaml" or rng.random() < 0.5)
    if "Traceback" in said:
        return done, f"traceback: {said[-500:]}"
    if code not in (0, 2):
        return done, f"code {code}: {said[-300:]}"
    told = path.name in said
    if path.name == "config.yaml":  # the keys that it says otherwise are named, be they refused or allowed
        told |= code == 2 or "changed since this run was started" in said
    if code == 2:
        return done, "told" if told else f"code 2: {said[-300:]}"
    if path.name.startswith("weights_"):
        path.unlink()  # the run never reads it, and what does, checks it
    found = [d for d in differences(longer, folder) if "quarantine" not in d]
    if not found:
        return done, "told" if told else "harmless"
    if path.suffix in (".safetensors", ".yaml") and told:
        return done, "told"  # its transitions are gone, or another setting was taken, and that was said
    if path.name == "metrics.jsonl" and told and found == ["metrics.jsonl"]:
        return done, "told"  # the CSV files hold the same figures
    if path.parent.name == "tb" and found == ["TensorBoard"]:
        return done, "harmless"  # the run never reads its event files, and the CSV files hold the same figures
    return done, f"differs: {found}"
