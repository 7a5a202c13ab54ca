"""Time of SPQ's update beside DrQ-v2's, in parts, and of whole runs: `python -m benchmarks.spq [--json] [--quick]`.

The agents of preset=spq_cpu, preset=cpu (with the paper's action repeat) and the paper's settings measure alternately:
first updates with random batches of 84x84 pixels and six actions, of the first two in the slower precision, too, then
runs of cheetah_run with their environment. On a GPU: updates only, and preset=spq with and without its graph. With
--quick not the paper's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from benchmarks.alternation import Side, alternate, timed_ms
from benchmarks.common import Row, main, quartiles
from benchmarks.loop import run_fps
from drqv2.agents.loading import make_agent
from drqv2.launch.compose import compose
from drqv2.system import machine, torch_settings

ABOUT = (
    "one update: ms, and per environment frame, with as many updates as the preset makes; then the parts of "
    "preset=spq_cpu's, percent of it; then frames per second of whole runs"
)
SIDES = {"spq_cpu": ["preset=spq_cpu"], "cpu": ["preset=cpu", "action_repeat=2", "nstep=3"], "paper": ["preset=paper"]}
PARTS = {  # methods of the agent, and what they hold
    "_observations": "random shifts",
    "_targets": "target latents",
    "update_model": "encoder and model",
    "update_critic": "critic",
    "update_actor": "actor",
}
ACTIONS = (6,)


def measure(quick: bool = False, within: float = math.inf) -> list[Row]:
    """Return a row for each side, and on a CPU one for each part of SPQ's update; `within` as in `alternate`."""
    gpu, seconds = torch.cuda.is_available(), 0.0 if quick else 40.0
    sides = _sides(quick)
    bf16 = machine.processor()[1]
    if gpu:
        sides |= {"spq": ["preset=spq"], "spq, single kernels": ["preset=spq", "compile=false"]}
    elif bf16 != "emulated":  # the precision that precision=auto does not choose
        other = "fp32" if bf16 == "fast" else "bf16"
        sides |= {f"{name}, {other}": [*sides[name], f"precision={other}"] for name in ("spq_cpu", "cpu")}
    measured = {name: partial(updates, overrides, quick) for name, overrides in sides.items()}
    found = alternate(measured, seconds, within=within)
    rows: list[Row] = []
    for name, times in found.items():
        cfg = compose(*sides[name], "task=cheetah_run")
        frames = cfg.agent.update_every_steps * cfg.action_repeat
        figures = quartiles(times, "ms")
        rows.append({"side": name, **figures, "ms_per_frame": figures["ms"] / frames, "percent": None, "fps": None})
    return rows if gpu else rows + parts(quick) + whole_runs(quick)


def _sides(quick: bool) -> dict[str, list[str]]:
    """Return `SIDES`; if `quick`, without the paper's, and with one update of the model before others."""
    small = {"spq_cpu": [*SIDES["spq_cpu"], "agent.model_warmup=1"], "cpu": SIDES["cpu"]}
    return small if quick else dict(SIDES)


def whole_runs(quick: bool) -> list[Row]:
    """Return a row for each side: an agent step of its loop, which is two frames, once updates have begun."""
    small = ("env._target_=benchmarks.baseline.pixels.short_cartpole", "image_size=84", "num_seed_frames=240")
    sides: dict[str, Side] = {}
    for name, overrides in _sides(quick).items():
        real = ("task=cheetah_run", "num_seed_frames=1000")
        run = [*overrides, "action_repeat=2", *((*small, "batch_size=8") if quick else real)]
        sides[name] = partial(run_fps, run, 2)
    found = alternate(sides, 0.0 if quick else 120.0)
    rows: list[Row] = []
    for name, fps in found.items():
        figures = quartiles([2000 / value for value in fps], "ms")
        shared = {"side": f"{name}, whole run", **figures, "ms_per_frame": figures["ms"] / 2, "percent": None}
        rows.append({**shared, "fps": 2000 / figures["ms"]})
    return rows


def prepared(
    overrides: list[str], quick: bool, action_shape: tuple[int, ...] = ACTIONS
) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Return an agent as a run makes it, and a batch of random pixels on its device."""
    torch_settings.set_numerics()
    torch_settings.keep_freed_memory()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cfg = compose(*overrides, "task=cheetah_run", f"device={device}", "lr=1e-4")
    batch = 8 if quick else cfg.batch_size
    node: Any = OmegaConf.to_container(cfg.agent, resolve=True)
    shapes = {"obs_shape": (9, 84, 84), "action_shape": action_shape}
    offered = {
        "precision": machine.resolve_precision(cfg.precision, device),
        "compile": machine.resolve_compile(cfg.compile, device),
        "seed": 1,
        "frame_stack": 3,
    }
    agent = make_agent(node | {"use_tb": True}, None, shapes | {"device": device}, offered)
    horizon = getattr(agent, "segment", None)
    channels = 9 if horizon is None else 9 + 3 * horizon
    obs = torch.randint(0, 256, (batch, channels, 84, 84), dtype=torch.uint8)
    lead = (batch,) if horizon is None else (batch, horizon)
    action, reward = torch.rand(*lead, *action_shape) * 2 - 1, torch.rand(*lead, *([1] if horizon is None else []))
    last = obs.flip(0) if horizon is None else torch.ones_like(reward)
    return agent, tuple(part.to(device) for part in (obs, action, reward, torch.full_like(reward, 0.97), last))


def updates(overrides: list[str], quick: bool) -> Iterator[float]:
    """Yield the times of updates in ms."""
    agent, batch = prepared(overrides, quick)

    def call() -> None:
        agent.update(repeat(batch), 0)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    while True:
        yield timed_ms(call)


def parts(quick: bool) -> list[Row]:
    """Return the time of each part of SPQ's update, and of choosing an action; a part does not count what it calls."""
    agent, batch = prepared(_sides(quick)["spq_cpu"], quick)
    agent.update(repeat(batch), 0)
    spent: dict[str, list[float]] = defaultdict(list)
    stack: list[float] = []  # time of the parts within each that is running

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            stack.append(0.0)
            begin = time.perf_counter()
            result = call(*args, **kwargs)
            took = time.perf_counter() - begin
            spent[name].append(1000 * (took - stack.pop()))
            if stack:
                stack[-1] += took
            return result

        return wrapper

    for name in PARTS:
        setattr(agent, name, timed(name, getattr(agent, name)))
    whole = statistics.median(timed_ms(partial(agent.update, repeat(batch), 0)) for _ in range(3 if quick else 60))
    obs = batch[0][0, :9].numpy()
    spent["act"] = [timed_ms(partial(agent.act, obs, 10**6, False)) for _ in range(3 if quick else 60)]
    rows = []
    for name, meaning in (PARTS | {"act": "an action (not in the update)"}).items():
        figures = quartiles(spent[name], "ms")
        share = None if name == "act" else 100 * figures["ms"] / whole
        rows.append({"side": meaning, **figures, "ms_per_frame": figures["ms"] / 2, "percent": share, "fps": None})
    return rows


if __name__ == "__main__":
    main(Path(__file__).stem, ABOUT, measure)
