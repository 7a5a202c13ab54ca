"""Build the components of a run from its configuration: machine settings, agent, replay, recorders, logs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dm_env import specs
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from drqv2 import envs, utils
from drqv2.agents.loading import make_agent as agent_from
from drqv2.agents.protocol import Agent
from drqv2.config.cfgs import leaves
from drqv2.config.messages import explain
from drqv2.config.schema import find_agent, free_in_a_setting, regime_of
from drqv2.envs.handles import EnvHandle
from drqv2.envs.vector import VectorEnv
from drqv2.errors import UserError
from drqv2.logging.console import Console
from drqv2.logging.logger import Logger
from drqv2.logging.sinks import Sink
from drqv2.logging.sinks.weights_and_biases import WeightsAndBiases
from drqv2.replay.device import choose_replay_device, needed_bytes
from drqv2.replay.storage import ReplayBufferStorage
from drqv2.run.environments import task_names
from drqv2.system import machine, torch_settings


def prepare_machine(cfg: DictConfig) -> None:
    """Resolve `auto` values for this machine, and configure torch accordingly.

    Raises:
        UserError: compile=true, and there is no compiler, or the agent has nothing to compile.
    """
    if cfg.device == "auto":
        cfg.device = "cuda" if torch.cuda.is_available() else "cpu"
        _assign_gpu()
    envs.choose_backend()  # before anything imports dm_control
    cfg.precision = machine.resolve_precision(cfg.precision, cfg.device)
    bf16 = machine.processor()[1] if cfg.precision == "bf16" and cfg.device == "cpu" else "fast"
    if bf16 != "fast":
        why = (
            "emulates bf16, which is many times slower"
            if bf16 == "emulated"
            else "multiplies bf16 more slowly than fp32"
        )
        print(f"warning: this CPU {why}; precision=auto would choose fp32 here")
    target = str(OmegaConf.select(cfg, "agent._target_"))
    agent = find_agent(target)
    if agent is not None and cfg.device.partition(":")[0] not in agent.compiles:
        if cfg.compile is True:
            name = target.rpartition(".")[2]
            raise UserError(f"compile=true: {name} has nothing to compile on {cfg.device}; use compile=auto")
        cfg.compile = False
    if not regime_of(cfg).compiles:
        cfg.compile = False  # nothing to compile: the regime's `check` refuses compile=true
    cfg.compile = machine.resolve_compile(cfg.compile, cfg.device)
    if cfg.device == "cpu":
        torch_settings.keep_freed_memory()
    torch_settings.set_numerics()


_EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"
_assigned: dict[str, str] = {}  # what an earlier job in this process has set


def _assign_gpu() -> None:
    """Give the jobs of a sweep the GPUs that they all see, learner and renderer alike, in turn.

    The run's configuration still says `cuda`: it may resume on a machine with other GPUs.
    """
    hydra_cfg: Any = HydraConfig.get() if HydraConfig.initialized() else {}
    job, gpus = hydra_cfg.get("job", {}).get("num"), torch.cuda.device_count()
    if job is not None and gpus > 1:
        torch.cuda.set_device(job % gpus)
        yours = os.environ.get(_EGL_DEVICE, _assigned.get(_EGL_DEVICE)) != _assigned.get(_EGL_DEVICE)
        if "CUDA_VISIBLE_DEVICES" not in os.environ and not yours:  # with it, EGL numbers the devices differently
            os.environ[_EGL_DEVICE] = _assigned[_EGL_DEVICE] = str(job % gpus)


def make_agent(cfg: DictConfig, env: EnvHandle | VectorEnv, device: torch.device) -> Agent:
    """Return a new agent for an environment's observations and actions, whose shapes become part of `cfg`.

    Raises:
        UserError: its file or its arguments are wrong, or it learns several tasks and the regime does not.
    """
    shapes = {"obs_shape": _shape(env.observation_spec()), "action_shape": _shape(env.action_spec())}
    cfg.agent.update({name: shape for name, shape in shapes.items() if name in cfg.agent})
    try:
        node: Any = OmegaConf.to_container(cfg.agent, resolve=True)  # other keys may refer to the shapes
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from None
    known = find_agent(str(node["_target_"]))
    if known is not None and known.continuous and np.issubdtype(env.action_spec().dtype, np.integer):
        raise UserError(
            f"{node['_target_']} needs continuous actions; those of {cfg.task_name} are discrete: use regime=ppo "
            "and its own agent, or an agent of your own"
        )
    offered = {key: cfg[key] for key in ("seed", "precision", "compile")} | {"action_spec": env.action_spec()} | shapes
    offered |= {
        "frame_stack": cfg.frame_stack,
        "num_tasks": len(task_names(cfg)),
        "num_envs": len(task_names(cfg)) * cfg.num_envs,
        "action_sizes": getattr(env, "action_sizes", None),
    }
    regime, found = regime_of(cfg), shapes | {"device": str(device)}
    folder = cfg.agent_dir or regime.folder
    passed = {argument: found.get(argument, cfg[key]) for argument, key in regime.passes.items()}
    agent = agent_from(node, Path(folder) if folder else None, found, offered, passed)
    if agent.takes_task and "tasks" not in cfg:
        raise UserError(f"{type(agent).__name__} learns several tasks: it needs regime=multitask")
    return agent


def _shape(spec: Any) -> Any:
    """Return the shape of an array; of a dict, the shapes of its parts by name."""
    return {name: tuple(part.shape) for name, part in spec.items()} if isinstance(spec, Mapping) else tuple(spec.shape)


def make_policy(cfg: DictConfig, env: VectorEnv) -> Any:
    """Return the policy of a new agent on the CPU, in a precision that this CPU multiplies fast, for an actor."""
    cpu = cfg.copy()
    cpu.precision = machine.resolve_precision("auto", "cpu") if cfg.precision == "bf16" else cfg.precision
    with contextlib.redirect_stdout(None):  # the learner has already printed where the agent's file is
        agent: Any = make_agent(cpu, env, torch.device("cpu"))  # the learner has checked that it has one
    return agent.policy


def film_settings(cfg: DictConfig, env: Any) -> dict[str, Any]:
    """Return a film's size, its frames per second, and the number of steps between two of its pictures."""
    fps = _fps(env)
    every = max(1, round(fps / cfg.video_fps)) if cfg.video_fps else 1
    return {"render_size": cfg.render_size, "fps": fps / every, "every": every}


def train_film_settings(cfg: DictConfig, env: Any) -> dict[str, Any]:
    """Return the settings of training films, which show what the agent sees or, without images, the environment."""
    spec = env.observation_spec()
    parts = spec if isinstance(spec, Mapping) else {"": spec}
    images = {name: part.shape[0] // cfg.frame_stack for name, part in parts.items() if len(part.shape) == 3}
    own = {"frame_channels": images.get("", images)} if images else {"env": env}
    return {"render_size": cfg.render_size, "fps": _fps(env), **own}


def _fps(env: Any) -> float:
    return 1 / env.step_seconds if env.step_seconds else 20.0


def make_logger(cfg: DictConfig, work_dir: Path, console: Console) -> Logger:
    """Return the logger with the configured sinks."""
    hparams: Any = OmegaConf.to_container(cfg, resolve=True)
    sinks: list[Sink] = []
    if cfg.use_wandb:
        name = f"{cfg.task_name}_{cfg.seed}_{work_dir.name}"
        sinks.append(WeightsAndBiases(work_dir, hparams, name, group_of_seeds(hparams)))
    return Logger(work_dir, cfg.use_tb, leaves(hparams), sinks, console)


def group_of_seeds(config: Mapping[str, Any]) -> str:
    """Return a name that the seeds of a setting share: the task, and a digest of the keys that make a setting."""
    free = free_in_a_setting()
    setting = {name: value for name, value in leaves(config).items() if name not in free}
    digest = hashlib.sha256(json.dumps(setting, sort_keys=True, default=str).encode()).hexdigest()
    return f"{config['task_name']}_{digest[:8]}"


def data_specs(env: Any) -> tuple[Any, ...]:
    """Return the specs of what a replay stores of each time step."""
    numbers = [specs.Array((1,), np.float32, name) for name in ("reward", "discount")]
    return env.observation_spec(), env.action_spec(), *numbers


def loader_options(
    cfg: DictConfig, env: Any, agent: Agent, storage: ReplayBufferStorage, device: torch.device
) -> dict[str, Any]:
    """Return the keyword arguments of `make_replay_loader` for a run; print where its replay is.

    Args:
        cfg: the run's configuration, in which `replay_device` is resolved.
        env: one of the run's environments, for its specs.
        agent: its `segment` says what batches are of.
        storage: of the episodes.
        device: the learner's.
    """
    observation, tasks = env.observation_spec(), task_names(cfg)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what an earlier run in this process has freed counts as free only then
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    needed = needed_bytes(cfg.replay_buffer_size, observation, cfg.frame_stack)
    cfg.replay_device, why = choose_replay_device(cfg.replay_device, str(device), free, needed)
    transitions = min(cfg.replay_buffer_size, len(tasks) * cfg.num_train_frames // cfg.action_repeat)
    most = needed_bytes(transitions, observation, cfg.frame_stack)
    left = shutil.disk_usage(storage.replay_dir.parent).free
    room = f"up to {most / 1e9:.1f} GB in {storage.replay_dir}, {left / 1e9:.0f} GB free"
    print(f"replay: {cfg.replay_device} ({why}); {room}")
    return {
        "storage": storage,
        "seed": utils.spawn_seed(cfg.seed, utils.REPLAY),
        "frame_stack": cfg.frame_stack,
        "pin_memory": device.type == "cuda",
        "replay_device": cfg.replay_device,
        "device": device,
        "segment": agent.segment,
        "fading": cfg.get("replay_fading"),
        "by_reward": cfg.get("replay_by_reward", 0.0),
    }
