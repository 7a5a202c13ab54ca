"""Short measurements of this machine: rendering and stepping, an update."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from drqv2.errors import UserError
from drqv2.programs import ROOT

TIMEOUT = 60  # seconds for a process
RENDERED = ("task_name", "frame_stack", "action_repeat", "image_size", "render")  # keys of a configuration


def _print_rendering(task: str, frame_stack: int, action_repeat: int, image_size: int, render: str) -> None:
    from drqv2 import envs

    try:
        found: dict[str, Any] = {"backend": envs.require_backend(), "renderer": envs.gl_renderer()}
        env = envs.make(task, frame_stack, action_repeat, seed=0, image_size=image_size, render=render)
        env.reset()
        action, times = env.action_spec().generate_value(), []
        for _ in range(60):
            begin = time.perf_counter()
            image = env.step(action).observation
            times.append(1000 * (time.perf_counter() - begin))
        blank = bool(image.min() == image.max())
        found |= {"ms": statistics.median(times[10:]), "actions": len(action), "blank": blank}
        env.close()
    except (UserError, ImportError) as error:
        found = {"error": str(error)}
    print(json.dumps(found), flush=True)
    os._exit(0)  # skip GL clean-up, in which some drivers crash


def rendering(task: str, frame_stack: int, action_repeat: int, image_size: int, render: str) -> dict[str, Any]:
    """Step a pixel environment in a separate process, since a bad GL driver may crash it.

    Returns:
        `backend` and `renderer` (MUJOCO_GL, GL_RENDERER), `ms` (median of an agent step), `actions` (number of action
        dimensions) and `blank` (whether the image has only one colour).

    Raises:
        UserError: rendering does not work.
    """
    args = (task, frame_stack, action_repeat, image_size, render)
    code = f"from drqv2.doctor.measure import _print_rendering; _print_rendering{args!r}"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise UserError(f"the rendering process hangs (waited {TIMEOUT} s)") from None
    except (IndexError, ValueError):
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the rendering process exited with status {done.returncode}: {message}") from None
    if "error" in found:
        raise UserError(found["error"])
    return dict(found)


def update_ms(cfg: dict[str, Any], device: str, actions: int) -> float:
    """Return the median milliseconds of an agent update on a random batch, including the copy to the device.

    Args:
        cfg: a run's configuration.
        device: "cpu" or "cuda".
        actions: number of action dimensions.
    """
    import torch

    from drqv2.agents.drqv2 import DrQV2Agent
    from drqv2.system import machine, torch_settings

    shape, batch = (3 * cfg["frame_stack"], cfg["image_size"], cfg["image_size"]), cfg["batch_size"]
    set_below = {"_target_", "obs_shape", "action_shape", "device"}
    keys = {name: value for name, value in cfg["agent"].items() if name not in set_below}
    if device == "cpu":
        torch_settings.keep_freed_memory()  # as train.py does
    keys["precision"] = machine.resolve_precision(cfg["precision"], device)
    keys["compile"] = machine.resolve_compile(cfg["compile"], device)
    agent = DrQV2Agent(shape, (actions,), device, **keys)
    obs, next_obs = (torch.randint(0, 256, (batch, *shape), dtype=torch.uint8) for _ in range(2))
    sample = (obs, torch.rand(batch, actions) * 2 - 1, torch.rand(batch, 1), torch.full((batch, 1), 0.97), next_obs)
    times: list[float] = []
    while len(times) < 11 and sum(times) < 3000:  # the first one warms up
        begin = time.perf_counter()
        agent.update(iter([sample]), 0)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times[1:] or times)
