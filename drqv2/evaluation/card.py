"""The model card beside an exported policy: what it was trained on, how well it does, how to run it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from dm_env import specs
from omegaconf import DictConfig

from drqv2.play.world import World
from drqv2.run.environments import task_names

_ROWS = 12  # of the curve
_ONNX = """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("{file}")
inputs = {{{inputs}}}
{outputs} = session.run(None, inputs)
print(action.shape, action.dtype)
action = action[0]  # of the first observation
{mapping}
"""
_PT2 = """\
import numpy as np
import torch

policy = torch.export.load("{file}").module()
inputs = {{{inputs}}}
{outputs} = policy(*inputs.values())
print(action.shape, action.dtype)
action = action[0].detach().numpy()  # of the first observation
{mapping}
"""
_PLAY = """\
`python -m drqv2.play {file}` films an episode. In your own program, with this project installed:

```python
from drqv2.play.policy import Policy

policy = Policy("{file}")
env = policy.world.make()  # the environment above, from the file alone; raises if it is no longer the same
*_, end = policy.play(env, seed=1)
print(end.total, end.steps)
```

An environment that you have made yourself is compared with this world by `policy.world.require(env)`."""


def model_card(
    path: Path,
    cfg: DictConfig,
    run_dir: Path | None,
    world: World,
    inputs: dict[str, np.ndarray],
    table: Sequence[str],
    difference: float,
    actions: Mapping[str, specs.BoundedArray],
) -> str:
    """Return the card as Markdown.

    Args:
        path: of the policy's file.
        cfg: the run's configuration.
        run_dir: its directory, for the curve; None if the weights come from elsewhere.
        world: the world that the file describes.
        inputs: an example of the policy's inputs, for one observation.
        table: lines of eval.py's table.
        difference: greatest difference between its actions and the agent's.
        actions: spec of each environment's own actions, by task.
    """
    versions = world.versions | {"torch": world.training["torch"]}
    facts = {
        "task": cfg.task_name,
        "algorithm": f"regime={cfg.regime}, {cfg.agent._target_}",
        "trained for": f"{world.training['frames']:,} environment frames, seed {cfg.seed}",
        "action repeat": f"{cfg.action_repeat}: frames for which each action is held",
        "observation": _observed(cfg, world),
        "action": _acted(next(iter(actions.values()))) if len(actions) == 1 else "by task, see below",
        "environment": f"`{_made(world)}`" if world.environment else "cannot be rebuilt by an id",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "commit": world.training["commit"],
        "checked": f"actions {_compared(difference)} on the observations tried",
    }
    lines = [f"# {path.name}", "", "A policy without exploration, exported by `eval.py`.", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
    lines += ["", "## Returns", "", "```", *table, "```"]
    if curve := _curve(run_dir):
        lines += ["", "## Training", "", "Mean return of the evaluations during training.", "", *curve]
    lines += ["", "## How to run it", "", "```python", *_example(path, inputs, actions).splitlines(), "```", ""]
    axes = {name: f" ({', '.join(part['axes'])})" for name, part in world.parts.items()}
    lines += [f"- `{name}`: {array.dtype} {_shape(array)}{axes.get(name, '')}" for name, array in inputs.items()]
    lines += ["", "The first axis is a batch of any size. `h` and `c` are zeros where an episode starts."] * (
        "h" in inputs
    )
    if world.environment and path.suffix == ".onnx":
        lines += ["", "## In its world", "", *_PLAY.format(file=path.name).splitlines()]
    if len(actions) > 1:
        lines += ["", "Each task takes the first numbers of an action. The example's mapping is that of the first one."]
        index = {name: i for i, name in enumerate(task_names(cfg))}
        lines += ["", *(f"- task {index[name]}, `{name}`: {_acted(spec)}" for name, spec in actions.items())]
    return "\n".join(lines) + "\n"


def _made(world: World) -> str:
    """Return the call that makes a world's environment."""
    arguments = (f"{name}={value!r}" for name, value in world.arguments.items())
    return f"gymnasium.make({', '.join([repr(world.environment), *arguments])})".replace("'", '"')


def _observed(cfg: DictConfig, world: World) -> str:
    """Return a description of the observations, of dicts one of each part."""
    if "parts" not in world.observation:
        return _seen(cfg, world.observation["shape"])
    return "; ".join(f"`{name}`: {_seen(cfg, part['shape'])}" for name, part in world.parts.items())


def _seen(cfg: DictConfig, shape: Sequence[int]) -> str:
    if len(shape) == 1:
        kind = "a state vector" if cfg.obs_type == "state" else "a vector"
        return f"{kind} of {shape[0]} numbers, as in training"
    number, (channels, height, width) = cfg.frame_stack, shape
    camera = "" if cfg.get("render", "exact") == "exact" else f"; render={cfg.render}"
    own = cfg.env._target_ is not None or cfg.env_id is not None or any(":" in name for name in task_names(cfg))
    meaning = "the environment's own, in its order" if own else "RGB"
    images = f"the last {number} images" if number > 1 else "one image"
    order = ", newest last" if number > 1 else ""
    each = channels // number
    return (
        f"{images} of {height}x{width}{order}, with {each} channel{'s' * (each > 1)}{' each' * (number > 1)}: "
        f"{meaning}{camera}"
    )


def _compared(difference: float) -> str:
    return f"differ from the agent's by at most {difference:.1g}" if difference else "are the agent's"


def _acted(spec: specs.BoundedArray) -> str:
    """Return a description of the policy's actions and of those that the environment takes."""
    low, high = (np.broadcast_to(bound, spec.shape).ravel() for bound in (spec.minimum, spec.maximum))
    bounds = ", ".join(dict.fromkeys(f"{a:g} to {b:g}" for a, b in zip(low, high, strict=True)))
    if np.issubdtype(spec.dtype, np.integer):
        shown = "discrete, numbered from 0" if not low.any() else "discrete; the policy's are numbered from 0"
        return f"{shown}; the environment's own: {spec.dtype} {list(spec.shape)}, {bounds}"
    number = f"{spec.shape[0]} number{'s' * (spec.shape[0] > 1)}"
    return f"{number} in [-1, 1]; the environment's own: {spec.dtype} {list(spec.shape)}, {bounds}"


def _mapping(spec: specs.BoundedArray) -> str:
    """Return code that maps an action of the policy to the environment's own."""
    low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
    if np.issubdtype(spec.dtype, np.integer):
        shifted = f"(action + np.array({low.tolist()}))" if low.any() else "action"
        return f"own_action = {shifted}.astype(np.{spec.dtype})\nprint(own_action)"
    low, high = low.astype(np.float64), high.astype(np.float64)
    return (
        f"low, high = np.array({low.tolist()}), np.array({high.tolist()})\n"
        f"share = (action[:{spec.shape[0]}] + 1) / 2  # of the way from low to high\n"
        f"own_action = np.clip(low + share * (high - low), low, high).astype(np.{spec.dtype})\n"
        "print(own_action)"
    )


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


def _example(path: Path, inputs: dict[str, np.ndarray], actions: Mapping[str, specs.BoundedArray]) -> str:
    onnx = path.suffix == ".onnx"
    zeros = "np.zeros({}, np.{})" if onnx else "torch.zeros({}, dtype=torch.{})"
    made = ", ".join(f'"{name}": {zeros.format(array.shape, array.dtype)}' for name, array in inputs.items())
    outputs = "action, h, c" if "h" in inputs else "(action,)" if onnx else "action"
    mapping = _mapping(next(iter(actions.values())))
    return (_ONNX if onnx else _PT2).format(file=path.name, inputs=made, outputs=outputs, mapping=mapping)


def _shape(array: np.ndarray) -> str:
    return "[" + ", ".join(["batch", *map(str, array.shape[1:])]) + "]"
