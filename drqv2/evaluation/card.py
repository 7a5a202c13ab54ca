"""The model card beside an exported policy: what it was trained on, how well it does, how to run it."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

_ROWS = 12  # of the curve
_ONNX = """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
inputs = {{{inputs}}}
{outputs} = session.run(None, inputs)
print(action.shape, action.dtype)
"""
_PT2 = """\
import torch

policy = torch.export.load("{file}").module()
inputs = {{{inputs}}}
{outputs} = policy(*inputs.values())
print(action.shape, action.dtype)
"""


def model_card(
    path: Path,
    cfg: DictConfig,
    run_dir: Path | None,
    frame: int,
    inputs: dict[str, np.ndarray],
    table: Sequence[str],
    difference: float,
) -> str:
    """Return the card as Markdown.

    Args:
        path: of the policy's file.
        cfg: the run's configuration.
        run_dir: its directory, for the commit and the curve; None if the weights come from elsewhere.
        frame: environment frames of training.
        inputs: an example of the policy's inputs, for one observation.
        table: lines of eval.py's table.
        difference: greatest difference between its actions and the agent's.
    """
    facts = {
        "task": cfg.task_name,
        "algorithm": f"regime={cfg.regime}, {cfg.agent._target_}",
        "trained for": f"{frame:,} environment frames, seed {cfg.seed}",
        "action repeat": f"{cfg.action_repeat}: hold each action for so many frames",
        "observation": _observed(cfg),
        "commit": _commits(run_dir),
        "checked": f"actions differ from the agent's by at most {difference:.1g} on the observations tried",
    }
    lines = [f"# {path.name}", "", "A policy without exploration, exported by `eval.py`.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
    lines += ["", "## Returns", "", "```", *table, "```"]
    if curve := _curve(run_dir):
        lines += ["", "## Training", "", "Mean return of the evaluations during training.", "", *curve]
    lines += ["", "## How to run it", "", "```python", *_example(path, inputs).splitlines(), "```", ""]
    lines += [f"- `{name}`: {array.dtype} {_shape(array)}" for name, array in inputs.items()]
    lines += ["", "The first axis is a batch of any size. `h` and `c` are zeros where an episode starts."] * (
        "h" in inputs
    )
    return "\n".join(lines) + "\n"


def _observed(cfg: DictConfig) -> str:
    if cfg.obs_type == "state":
        return "state vector, as in training"
    camera = "" if cfg.get("render", "exact") == "exact" else f", render={cfg.render}"
    return f"the last {cfg.frame_stack} images of {cfg.image_size}x{cfg.image_size}, RGB, newest last{camera}"


def _commits(run_dir: Path | None) -> str:
    file = run_dir / "starts.jsonl" if run_dir else None
    if file is None or not file.is_file():
        return "unknown"
    starts: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    known = [
        f"{start['commit'][:12]}{' with changes' if start['dirty'] else ''}" for start in starts if start["commit"]
    ]
    return ", ".join(dict.fromkeys(known)) or "unknown"


def _curve(run_dir: Path | None) -> list[str]:
    """Return a table of at most _ROWS evaluations, evenly spaced, the last among them."""
    file = run_dir / "eval.csv" if run_dir else None
    if file is None or not file.is_file():
        return []
    with file.open(newline="") as text:
        rows = list(csv.DictReader(text))
    chosen = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(int))]
    names = [name for name in ("frame", "episode_reward", "success") if any(row.get(name) for row in chosen)]
    cells = [[f"{float(row[name] or 'nan'):.{0 if name == 'frame' else 2}f}" for name in names] for row in chosen]
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|", *(f"| {' | '.join(row)} |" for row in cells)]


def _example(path: Path, inputs: dict[str, np.ndarray]) -> str:
    onnx = path.suffix == ".onnx"
    zeros = "np.zeros({}, np.{})" if onnx else "torch.zeros({}, dtype=torch.{})"
    made = ", ".join(f'"{name}": {zeros.format(array.shape, array.dtype)}' for name, array in inputs.items())
    outputs = "action, h, c" if "h" in inputs else "(action,)" if onnx else "action"
    return (_ONNX if onnx else _PT2).format(file=path.name, inputs=made, outputs=outputs)


def _shape(array: np.ndarray) -> str:
    return "[" + ", ".join(["batch", *map(str, array.shape[1:])]) + "]"
