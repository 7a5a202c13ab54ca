"""A trained policy as a file for other programs: ONNX, or a program of torch.export. Its actions are checked."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import itertools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drqv2.agents.acting import evaluation_policy
from drqv2.agents.protocol import Agent, Exportable, NamesInputs
from drqv2.errors import UserError, not_installed

FORMATS = {".onnx": "ONNX", ".pt2": "torch.export"}
TOLERANCE = 1e-4  # between an action of the file and the agent's
Arrays = dict[str, np.ndarray]
_OTHERS = {"obs", "task", "h", "c", "action", "next_h", "next_c"}  # inputs and outputs that are no parts


def require_format(path: Path) -> None:
    """Check a file's suffix, and that the packages that write such files are installed.

    Raises:
        UserError: the format is unknown, or packages are missing.
    """
    if path.suffix not in FORMATS:
        raise UserError(f"export={path}: must end in {' or '.join(f'{end} ({name})' for end, name in FORMATS.items())}")
    if path.suffix == ".onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(package) is None:
                raise UserError(not_installed(package, "export"))


def observed(env: Any, evaluation: int, act: Callable[[Any, int], np.ndarray], number: int) -> list[Any]:
    """Return `number` time steps of episodes played without exploration, one after another.

    Args:
        env: a handle on the environment.
        evaluation: seeds the episodes.
        act: maps a time step and the number of its episode to an action.
        number: of time steps.
    """
    time_steps: list[Any] = []
    for episode in itertools.count():
        time_steps.append(env.call("begin", evaluation, episode))
        while not time_steps[-1].last() and len(time_steps) < number:
            time_steps.append(env.call("step", act(time_steps[-1], episode)))
        if len(time_steps) >= number:
            break
    return time_steps


def export(
    agent: Agent, path: Path, time_steps: Sequence[Any], action_shape: Sequence[int], metadata: Mapping[str, str]
) -> tuple[float, Arrays]:
    """Write an agent's policy without exploration, and compare its actions with the agent's.

    Inputs are `obs` (uint8 [B, C, H, W] or float32 [B, N]) or, of observations that are dicts, each part by its name;
    with several tasks `task` (int64 [B]), with an LSTM its state `h` and `c` (float32 [B, hidden]; zeros where an
    episode starts). Outputs are `action` and the next `h` and `c`. The number B is free.

    Args:
        agent: a trained agent; its own method `deterministic_policy` returns the module.
        path: ends in .onnx or .pt2.
        time_steps: consecutive ones of episodes, from their first on.
        action_shape: of an action.
        metadata: stored in an ONNX file; a program of torch.export has none.

    Returns:
        The greatest difference between the actions, and inputs for one observation at the start of an episode.

    Raises:
        UserError: the agent has no such method, its module cannot be exported, or the actions differ.
    """
    if not isinstance(agent, Exportable):
        raise UserError(
            f"{type(agent).__name__} cannot be exported: it has no method deterministic_policy(), a torch.nn.Module "
            "from observations to actions"
        )
    agent = copy.deepcopy(agent)
    modules: Iterator[Any] = agent.deterministic_policy().modules()
    for module in modules:
        if getattr(module, "bf16", False):
            module.bf16 = False  # the file multiplies in fp32
    policy = copy.deepcopy(agent.deterministic_policy()).cpu().eval()
    inputs = inputs_of(policy, time_steps[:2])
    unchecked = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        _write(policy, inputs, unchecked, metadata)
        worst = _difference(agent, policy, _loaded(unchecked), time_steps, action_shape)
        if not worst <= TOLERANCE:
            raise UserError(f"{path}: its actions differ from the agent's by {worst:.2g}, more than {TOLERANCE:g}")
        os.replace(unchecked, path)
    except UserError:
        raise
    except Exception as error:  # what the exporters raise for what they cannot express
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(f"{path}: {type(agent).__name__} cannot be exported ({reason})") from error
    finally:
        unchecked.unlink(missing_ok=True)
    return worst, inputs_of(policy, time_steps[:1])


def inputs_of(policy: torch.nn.Module, time_steps: Sequence[Any]) -> Arrays:
    """Return the inputs of a policy by name, for a batch of time steps that start their episodes.

    Raises:
        UserError: the policy does not take what is observed.
    """
    names = policy.inputs if isinstance(policy, NamesInputs) else ("obs",)
    made = _observed([step.observation for step in time_steps], names)
    if "task" in names:
        made["task"] = np.array([time_step.task for time_step in time_steps], np.int64)
    if "h" in names:
        hidden = next(module.hidden_size for module in policy.modules() if isinstance(module, torch.nn.RNNBase))
        made |= {name: np.zeros((len(time_steps), hidden), np.float32) for name in ("h", "c")}
    return made


def _observed(observations: Sequence[Any], names: Sequence[str]) -> Arrays:
    """Return a batch of observations by the names of their parts, which must be among those of a policy's inputs."""
    if not isinstance(observations[0], Mapping):
        return {"obs": np.stack(observations)}
    parts = list(observations[0])
    if taken := sorted(_OTHERS & set(parts)):
        raise UserError(
            f"export: a part of the observations is called {taken[0]}, as another input; give it another name"
        )
    wanted = [name for name in names if name not in _OTHERS]
    if sorted(wanted) != sorted(parts):
        raise UserError(
            f"export: the observations are dicts of {', '.join(parts)}: the policy must take these as arguments, and "
            f"name them in `inputs`; they are {', '.join(names)}"
        )
    return {name: np.stack([seen[name] for seen in observations]) for name in wanted}


def _by_argument(policy: torch.nn.Module, inputs: Arrays, of_each: Any) -> tuple[Any, ...]:
    """Return something of each input as torch.export takes it: those of `*args` are one tuple."""
    kinds = [argument.kind for argument in inspect.signature(policy.forward).parameters.values()]
    fixed = kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else None
    every = tuple(of_each for _ in inputs)
    return every if fixed is None else (*every[:fixed], every[fixed:])


def _write(policy: torch.nn.Module, inputs: Arrays, path: Path, metadata: Mapping[str, str]) -> None:
    tensors = tuple(torch.from_numpy(array) for array in inputs.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in ("onnxscript", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters' own parts; what they write is checked
        batch = torch.export.Dim("batch")
        shapes = _by_argument(policy, inputs, {0: batch})
        program = torch.export.export(policy, tensors, dynamic_shapes=shapes)
        if path.suffix == ".pt2":
            torch.export.save(program, path)
        else:
            _write_onnx(program, inputs, _by_argument(policy, inputs, {0: "batch"}), path, metadata)


def _write_onnx(
    program: torch.export.ExportedProgram,
    inputs: Arrays,
    batch: tuple[Any, ...],
    path: Path,
    metadata: Mapping[str, str],
) -> None:
    import onnx

    outputs = ["action", "next_h", "next_c"] if "h" in inputs else ["action"]
    exported: Any = torch.onnx.export(  # only here does the axis get its name
        program, input_names=list(inputs), output_names=outputs, dynamic_shapes=batch, verbose=False
    )
    model = exported.model_proto
    graph = model.graph
    del graph.value_info[:]
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]  # source lines, with the paths of this machine
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)


def _loaded(path: Path) -> Callable[[Arrays], list[np.ndarray]]:
    """Return a function that runs the file: inputs by name to outputs in order."""
    if path.suffix == ".pt2":
        module = torch.export.load(path).module()

        def run(inputs: Arrays) -> list[np.ndarray]:
            found = module(*(torch.from_numpy(array) for array in inputs.values()))
            return [tensor.detach().numpy() for tensor in (found if isinstance(found, tuple) else (found,))]

        return run
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def _difference(
    agent: Agent,
    policy: torch.nn.Module,
    run: Callable[[Arrays], list[np.ndarray]],
    time_steps: Sequence[Any],
    action_shape: Sequence[int],
) -> float:
    """Return the greatest difference between actions of the agent and of the file, one observation at a time."""
    act, worst = evaluation_policy(agent, action_shape, 0), 0.0
    inputs: Arrays = {}
    for time_step in time_steps:
        before, inputs = inputs, inputs_of(policy, [time_step])
        if not time_step.first():
            inputs |= {name: before[name] for name in ("h", "c") if name in before}
        with torch.no_grad():
            wanted = act(time_step, 0)
        if np.issubdtype(wanted.dtype, np.floating):
            wanted = wanted.clip(-1, 1)  # as the environment does
        action, *state = run(inputs)
        inputs |= dict(zip(("h", "c"), state, strict=False))
        worst = max(worst, float(np.abs(action[0].astype(np.float64) - wanted).max()))
    return worst
