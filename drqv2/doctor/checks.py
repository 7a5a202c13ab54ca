"""`python -m drqv2.doctor`: what this machine has, what is wrong with it, and what to do about each problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from drqv2.config.cfgs import CFGS
from drqv2.config.formatting import counted
from drqv2.doctor import measure
from drqv2.errors import UserError
from drqv2.programs import INSTALLED, ROOT
from drqv2.system import machine

_SHOWN = ("torch", "mujoco", "dm-control", "hydra-core", "numpy")
_DOCTOR = "python -m drqv2.doctor"
_PIP = f"{sys.executable} -m pip install"
_INSTALL = f"{_PIP} --force-reinstall WHEEL" if INSTALLED else "make setup    (or: pip install -e .)"
_MAX_HOURS = 24.0  # warn about longer runs
_EPISODE_FRAMES = 1000  # of dm_control's tasks
_OTHER_FILES = 2e9  # bytes of a run's snapshots, videos and logs
_MIN_MEMORY = 4e9  # bytes for the learner, the workers and both environments
_MIN_SHARED = 0.25e9  # bytes for some rollouts of images


class Finding(NamedTuple):
    """One finding: `status` is "ok", "warn" or "fail"; `advice` says what to do about it."""

    status: str
    name: str
    text: str
    advice: str = ""


def compose(task: str, preset: str) -> dict[str, Any]:
    """Return the configuration of a run."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from drqv2.config.schema import offer

    offer()
    with initialize_config_dir(str(CFGS), version_base="1.3"):
        cfg = compose("config", overrides=[f"task={task}", f"preset={preset}"])
    return {**OmegaConf.to_container(cfg, resolve=True), "preset": preset}  # type: ignore[dict-item]


def replay_bytes(cfg: dict[str, Any]) -> int:
    """Return the bytes on disk of a full replay, or of the replay at the run's end: each RGB frame is stored once."""
    transitions = min(cfg["replay_buffer_size"], cfg["num_train_frames"] // cfg["action_repeat"])
    return transitions * 3 * cfg["image_size"] ** 2


def versions() -> Iterator[Finding]:
    """Check Python and the packages against the bounds in pyproject.toml, or in the metadata of a wheel."""
    yield Finding("ok", "python", platform.python_version())
    from packaging.requirements import Requirement

    if INSTALLED:
        lines = importlib.metadata.requires("drqv2-workspace") or []
    else:
        lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in map(Requirement, lines):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = requirement.name
        version = _version(name) or _version(f"{name}-headless")  # OpenCV comes as either
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            text = f"{version}, but {requirement.specifier} is required" if version else "not installed"
            yield Finding("fail", name, text, f'{_PIP} "{requirement}"')
        elif name in _SHOWN:
            yield Finding("ok", name, version)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def encoder() -> Iterator[Finding]:
    """Encode a frame with the settings of the videos."""
    import imageio_ffmpeg

    options = "-nostdin -f lavfi -i color=s=64x64 -frames:v 1 -pix_fmt yuv420p -c:v libx264 -threads 1 -f null -"
    try:
        command = [imageio_ffmpeg.get_ffmpeg_exe(), *options.split()]
        subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=measure.TIMEOUT, check=True)
        yield Finding("ok", "ffmpeg", f"{imageio_ffmpeg.get_ffmpeg_version()}, encodes H.264")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        text = f"cannot encode H.264, so runs will have no videos: {(said.strip().splitlines() or ['no output'])[-1]}"
        own = os.environ.get("IMAGEIO_FFMPEG_EXE")
        advice = "unset IMAGEIO_FFMPEG_EXE" if own else f"{_PIP} --force-reinstall imageio-ffmpeg"
        yield Finding("warn", "ffmpeg", text, advice)


_BF16 = {"fast": "native", "slow": "native, but slower than fp32", "emulated": "emulated (slow)"}


def device() -> Iterator[Finding]:
    """Check the device that device=auto selects."""
    import torch

    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
        bf16 = _BF16["fast" if torch.cuda.get_device_capability(index) >= (8, 0) else "emulated"]
        text = f"cuda:{index} {torch.cuda.get_device_name(index)}, {free:.1f} of {total:.1f} GiB free, bf16 {bf16}"
        yield Finding("ok", "device", text)
    name, bf16 = machine.processor()
    text = f"CPU {name}, {counted(machine.cores(), 'core')}, bf16 {_BF16[bf16]}"
    if torch.cuda.is_available() or not machine.has_nvidia():
        yield Finding("ok", "device", text)
    elif torch.version.cuda is None:
        version = torch.__version__.partition("+")[0]
        build = f"{_PIP} --force-reinstall torch=={version} --index-url https://download.pytorch.org/whl/cu130"
        yield Finding("warn", "device", f"{text}; there is a GPU, but torch is built without CUDA", build)
    else:
        text += f"; there is a GPU, but torch (CUDA {torch.version.cuda}) cannot use it"
        advice = "unset CUDA_VISIBLE_DEVICES; compare the driver's CUDA version: nvidia-smi"
        yield Finding("warn", "device", text, advice)


def libraries() -> Iterator[Finding]:
    """Report optional libraries."""
    for name, extra, use in (
        ("gymnasium", "gym", "env_id=gymnasium:NAME"),
        ("envpool", "envpool", "env_id=envpool:NAME"),
        ("ray", "cluster", "cluster=ray and hydra/launcher=ray"),
    ):
        missing = f'not installed (optional, for {use}): pip install -e ".[{extra}]"'
        yield Finding("ok", name, _version(name) or missing)


def settings(task: str, cfgs: list[dict[str, Any]]) -> Iterator[Finding]:
    """Append the paper preset to `cfgs`, and, without a GPU, the cpu preset."""
    import torch

    from drqv2.config.dm_control import every_task
    from drqv2.config.formatting import did_you_mean

    if task in every_task():
        cfgs += [compose(task, preset) for preset in ("paper", "cpu")[: 1 if torch.cuda.is_available() else 2]]
    else:
        text = f"there is no task {task}{did_you_mean(task, every_task())}"
        yield Finding("fail", "task", text, "python train.py --help lists the tasks")


def rendering(cfg: dict[str, Any], found: dict[str, Any]) -> Iterator[Finding]:
    """Check the renderer and measure its speed; add the measurements to `found`."""
    another = f"try another: MUJOCO_GL={'osmesa' if os.environ.get('MUJOCO_GL') == 'egl' else 'egl'} {_DOCTOR}"
    try:
        found |= measure.rendering(*(cfg[key] for key in measure.RENDERED))
    except UserError as error:
        yield Finding("fail", "renderer", " ".join(str(error).split()), f"{another}, or {_INSTALL}")
        return
    text = f"MUJOCO_GL={found['backend']}, GL_RENDERER {found['renderer']}"
    if not machine.is_software(found["renderer"]):
        yield Finding("ok", "renderer", text)
    elif not machine.has_nvidia():
        yield Finding("ok", "renderer", f"{text}: software rendering, as expected without a GPU")
    elif machine.has_nvidia_egl():
        yield Finding("warn", "renderer", f"{text}: software rendering", f"MUJOCO_GL=egl {_DOCTOR}")
    else:
        text += ": software rendering, because NVIDIA's EGL is missing"
        advice = "apt-get install libnvidia-gl-VERSION (the driver's); in docker: -e NVIDIA_DRIVER_CAPABILITIES=all"
        yield Finding("warn", "renderer", text, advice)
    frames = counted(cfg["action_repeat"], "frame")
    text = f"{found['ms']:.1f} ms ({cfg['task_name']}, {cfg['image_size']} pixels, {frames})"
    if found["blank"]:
        yield Finding("fail", "render + step", f"{text}: the image has only one colour", another)
    else:
        yield Finding("ok", "render + step", text)


def hours_of_a_run(cfg: dict[str, Any], step_ms: float, update_ms: float) -> float:
    """Return the hours that training and evaluations take, if nothing overlaps."""
    steps = cfg["num_train_frames"] / cfg["action_repeat"]
    updates = max(0, cfg["num_train_frames"] - cfg["num_seed_frames"]) / cfg["action_repeat"]
    evaluations = cfg["num_train_frames"] // cfg["eval_every_frames"] + 1
    eval_steps = evaluations * cfg["num_eval_episodes"] * _EPISODE_FRAMES / cfg["action_repeat"]
    total_ms = (steps + eval_steps) * step_ms + updates / cfg["agent"]["update_every_steps"] * update_ms
    return float(total_ms / 3.6e6)


def update(cfg: dict[str, Any], found: dict[str, Any]) -> Iterator[Finding]:
    """Measure the time of an update and estimate the duration of a run."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ms = measure.update_ms(cfg, device, found["actions"])
    text = f"{ms:.1f} ms on {device} (preset={cfg['preset']}: batch {cfg['batch_size']}, {cfg['image_size']} pixels)"
    hours = hours_of_a_run(cfg, found["ms"], ms)
    duration = f"{hours:.1f} hours" if hours >= 1 else counted(round(60 * hours), "minute")
    made = not INSTALLED and cfg["preset"] == ("paper" if machine.has_nvidia() else "cpu")
    command = "make train" if made else "a run"
    text += f": {command} ({cfg['num_train_frames']:,} frames) takes about {duration}"
    if hours <= _MAX_HOURS:
        yield Finding("ok", "update", text)
    else:
        yield Finding("warn", "update", text, "use a (faster) GPU, or: python train.py preset=cpu")


def space(cfg: dict[str, Any], folder: Path) -> Iterator[Finding]:
    """Check that disk and memory suffice for the replay."""
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    elsewhere = "python train.py hydra.run.dir=/path/on/a/larger/disk"
    need, free = replay_bytes(cfg), shutil.disk_usage(place).free
    text = f"{_gb(free)} free at {place}, a run grows to {_gb(need + _OTHER_FILES)} (preset={cfg['preset']})"
    if not os.access(place, os.W_OK):
        yield Finding("fail", "disk", f"{place} cannot be written to", elsewhere)
    elif free < need + _OTHER_FILES:
        yield Finding("fail", "disk", text, f"{elsewhere}, or a smaller replay_buffer_size")
    else:
        yield Finding("ok", "disk", text)

    total, available = machine.memory()
    text = f"{_gb(available)} of {_gb(total)} available"
    if available < _MIN_MEMORY:
        yield Finding("warn", "memory", f"{text}, {_gb(_MIN_MEMORY)} recommended", "python train.py preset=cpu")
    elif available < need:
        text += ", less than the replay, which will be read from disk repeatedly"
        yield Finding("warn", "memory", text, "on a local SSD: python train.py hydra.run.dir=/path/on/it")
    else:
        yield Finding("ok", "memory", text)

    shared = shutil.disk_usage(machine.SHARED_MEMORY).free if machine.SHARED_MEMORY.exists() else available
    text = f"{_gb(shared)} free in {machine.SHARED_MEMORY}, where rollouts of regime=impala are"
    if shared < _MIN_SHARED:
        yield Finding("warn", "shared memory", text, "a smaller num_buffers; in docker: --shm-size=1g")
    else:
        yield Finding("ok", "shared memory", text)


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _guarded(check: Callable[..., Iterator[Finding]], *args: Any) -> Iterator[Finding]:
    try:
        yield from check(*args)
    except Exception as error:  # a broken installation raises anything, and should be reported
        message, *_ = str(error).splitlines() or [""]
        yield Finding("fail", check.__name__, f"{type(error).__name__}: {message}", _INSTALL)


def run_checks(task: str, folder: Path, cfgs: list[dict[str, Any]]) -> Iterator[Finding]:
    """Run all checks; append to `cfgs` the configurations that suit this machine, the one to recommend last."""
    for check in (versions, encoder, device, libraries):
        yield from _guarded(check)
    yield from _guarded(settings, task, cfgs)
    if cfgs:
        found: dict[str, Any] = {}
        yield from _guarded(rendering, cfgs[-1], found)
        for cfg in cfgs if found else ():
            yield from _guarded(update, cfg, found)
        yield from _guarded(space, cfgs[-1], folder)
