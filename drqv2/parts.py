"""What a run is made of, from its configuration: the machine's settings, environments, agent, logs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from drqv2 import envs, machine, utils
from drqv2.agent_files import make_agent as agent_from
from drqv2.console import Console, Dashboard, PlainConsole, Status
from drqv2.envs.worker import InProcess, Worker
from drqv2.logger import Logger
from drqv2.resuming import leaves
from drqv2.sinks import Sink
from drqv2.sinks.weights_and_biases import WeightsAndBiases
from drqv2.usage import Usage


def settle_machine(cfg: DictConfig) -> None:
    """Resolve what is `auto` for this machine, and set torch accordingly.

    Raises:
        UserError: compile=true, and there is no compiler.
    """
    if cfg.device == "auto":
        cfg.device = "cuda" if torch.cuda.is_available() else "cpu"
        _take_turns()
    cfg.precision = machine.resolve_precision(cfg.precision, cfg.device)
    cfg.compile = machine.resolve_compile(cfg.compile, cfg.device)
    if cfg.device == "cpu":
        utils.keep_freed_memory()
    # The same seed gives the same bits, and fp32 is fp32 in convolutions too.
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = False


def _take_turns() -> None:
    """Give the jobs of a sweep the GPUs that they all see, learner and renderer alike, in turn.

    The run's configuration says `cuda` all the same: it may go on where there are other GPUs.
    """
    hydra_cfg: Any = HydraConfig.get() if HydraConfig.initialized() else {}
    job, gpus = hydra_cfg.get("job", {}).get("num"), torch.cuda.device_count()
    if job is not None and gpus > 1:
        torch.cuda.set_device(job % gpus)
        if "CUDA_VISIBLE_DEVICES" not in os.environ:  # else EGL counts otherwise
            os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", str(job % gpus))


def make_env(cfg: DictConfig, stream: int, index: int) -> InProcess:
    """Return environment `index` of a stream; a process of its own where it can step while others do something.

    Args:
        cfg: the run's configuration.
        stream: `utils.TRAIN_ENV` or `utils.EVAL_ENV`.
        index: number of the environment in its stream.
    """
    factory = None
    if cfg.env._target_ is not None:
        factory = hydra.utils.instantiate(cfg.env, _partial_=True, _convert_="all")
    make = partial(
        envs.make,
        cfg.task_name,
        cfg.frame_stack,
        cfg.action_repeat,
        cfg.seed,
        image_size=cfg.image_size,
        render=cfg.render,
        factory=factory,
        stream=stream,
        index=index,
    )
    training = stream == utils.TRAIN_ENV
    number = cfg.num_envs if training else cfg.num_eval_envs
    if number == 1 and not (training and cfg.overlap):
        return InProcess(make)
    room = 3 * max(cfg.frame_stack * cfg.image_size**2, cfg.render_size**2)  # an observation, a picture
    return Worker(make, room, index, machine.render_threads(number))


def make_agent(cfg: DictConfig, env: InProcess, device: torch.device) -> Any:
    """Return a new agent for an environment's observations and actions.

    Raises:
        UserError: its file or its arguments are wrong.
    """
    found = {
        "obs_shape": tuple(env.observation_spec().shape),
        "action_shape": tuple(env.action_spec().shape),
        "device": str(device),
    }
    node: Any = OmegaConf.to_container(cfg.agent, resolve=True)
    offered = {key: cfg[key] for key in ("seed", "precision", "compile")}
    return agent_from(node, Path(cfg.agent_dir) if cfg.agent_dir else None, found, offered)


def make_console(cfg: DictConfig, device: torch.device, status: Callable[[], Status]) -> Console:
    """Return the dashboard where it is wanted: auto is for terminals that can move their cursor."""
    if cfg.console == "rich" or (cfg.console == "auto" and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"):
        return Dashboard(f"{cfg.task_name}, seed {cfg.seed}", status, Usage(device))
    return PlainConsole(off=cfg.console == "off")


def make_logger(cfg: DictConfig, work_dir: Path, console: Console) -> Logger:
    """Return the logger with the sinks that are wanted."""
    hparams: Any = OmegaConf.to_container(cfg, resolve=True)
    sinks: list[Sink] = []
    if cfg.use_wandb:
        sinks.append(WeightsAndBiases(work_dir, hparams, f"{cfg.task_name}_{cfg.seed}_{work_dir.name}"))
    return Logger(work_dir, cfg.use_tb, leaves(hparams), sinks, console)
